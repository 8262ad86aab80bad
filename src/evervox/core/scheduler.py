"""The scheduler: which slots of which sequences the next step computes.

One primitive: compute slots [start, stop) of a sequence. One rule: the most urgent first (see `Draft`). A live request's
deadline is its arrival plus the target for first audio, then the moment when its listener's buffer runs dry; a batch
request's is its arrival plus a long horizon. The caller gives the time; nothing here reads a clock.

    scheduler = Scheduler(SchedulerLimits(...), secret=token_bytes(32))     # the secret keys the block digests
    scheduler.submit(NewSequence(...), now)                                 # raises Refused
    plan = scheduler.plan(now)
    ...compute...                                                           # spans, after parking and loading
    ended = scheduler.commit(plan, outcomes, now)

A plan may be committed in parts (`plan.only(seq)`), or not at all: what was not computed is planned again. A new plan
makes all before it void, unless it is made to follow one that is still being computed:

    following = scheduler.plan(now, after=plan)                             # before plan's outcomes are known
    ...compute following, once plan is computed...
    scheduler.commit(plan, outcomes, now)                                   # in the order of the plans
    scheduler.commit(following, outcomes, now)

The step that follows is made as if nobody stopped; what it computes for one that did is ignored. `loads` of a plan are
empty unless `max_adapters` is set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evervox.core.adapters import AdapterResidency
from evervox.core.blocks import BlockPool
from evervox.core.books import block_claims, sequence_claims
from evervox.core.draft import Draft
from evervox.core.errors import BrokenBooks, Refused, require
from evervox.core.inflight import InFlight, waits_for_twin
from evervox.core.keys import KeyChain
from evervox.core.lanes import Lanes
from evervox.core.limits import SchedulerLimits
from evervox.core.plan import Ended, Outcome, Span, StepPlan
from evervox.core.sequence import NewSequence, Sequence
from evervox.core.steps import Steps
from evervox.core.victims import choose_victims

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Ended", "NewSequence", "Refused", "Scheduler", "SchedulerLimits"]

_LOOK_AHEAD = 32  # waiting sequences of one tenant and kind that a plan looks at


class Scheduler:
    """Owns every sequence from `submit` until it ends, is cancelled or fails; afterwards nothing of it is left here.

    Counters: `hit_slots` of `admitted_slots` were found in the cache, `preemptions` sequences were parked.
    """

    def __init__(self, limits: SchedulerLimits, secret: bytes, pool: BlockPool | None = None) -> None:
        self.limits = limits
        self.pool = pool or BlockPool(limits.num_blocks)
        self.adapters = None if limits.max_adapters is None else AdapterResidency(limits.max_adapters)
        self.hit_slots = 0
        self.admitted_slots = 0
        self.preemptions = 0
        self._secret = secret
        self._sequences: dict[int, Sequence] = {}
        self._running: dict[int, Sequence] = {}
        self._lanes = Lanes(limits.tenant_weights, limits.max_running)
        self._inflight = InFlight()
        self._num_submitted = 0
        self._steps = Steps()

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._sequences) - len(self._running)

    @property
    def num_free_blocks(self) -> int:
        return self.pool.num_free

    @property
    def table_size(self) -> int:
        return self.pool.table_size

    @property
    def is_idle(self) -> bool:
        return not self._sequences

    # Coming and going

    def submit(self, new: NewSequence, now: float) -> None:
        """Take in a request. Raises `Refused` for an id that is here already and for what could never fit."""
        if new.seq in self._sequences:
            raise Refused("seq", f"sequence {new.seq} is here already")
        new.require_fits(self.limits)
        chain = KeyChain(self._secret, new.root, self.limits.block_size)
        sequence = Sequence(new, self._num_submitted, chain, self._lanes.lane_of(new.tenant), now + self._patience(new))
        self._num_submitted += 1
        self._sequences[new.seq] = sequence
        self._lanes.add(sequence)

    def _patience(self, new: NewSequence) -> float:
        waits = {"batch": self.limits.batch_horizon, "newcomer": self.limits.first_audio_target, "listener": 0.0}
        return waits[new.kind]

    def cancel(self, seq: int) -> bool:
        """End a sequence in whatever state it is. False where there is none of that id."""
        sequence = self._sequences.get(seq)
        if sequence is None:
            return False
        self._end(sequence)
        return True

    def fail(self, seq: int) -> bool:
        """End a sequence whose step failed: nothing of that step is published. False where there is none."""
        return self.cancel(seq)

    def hold(self, seq: int, is_held: bool) -> bool:
        """Leave a sequence out of plans, because its reader is behind, or take it in again. False where there is none.

        It keeps its row and blocks while nobody needs them, and is the first to give them up.
        """
        sequence = self._sequences.get(seq)
        if sequence is None:
            return False
        if sequence.is_held == is_held:
            return True
        if not sequence.is_resident and is_held:
            self._lanes.remove(sequence)
        sequence.is_held = is_held
        if not sequence.is_resident and not is_held:
            self._lanes.add(sequence)
        return True

    def _end(self, sequence: Sequence) -> None:
        for key in sequence.chain.digests[sequence.prompt_blocks :]:
            self.pool.forget(key)
        if sequence.is_resident:
            self._vacate(sequence)
        elif not sequence.is_held:
            self._lanes.remove(sequence)
        del self._sequences[sequence.seq]

    def _vacate(self, sequence: Sequence) -> None:
        """A resident gives back all that it holds on the device."""
        self._inflight.end(sequence.chain.digests[: sequence.prompt_blocks], sequence.seq)
        if self.adapters is not None and sequence.adapter is not None:
            self.adapters.release(sequence.adapter)
        self.pool.release(sequence.blocks)
        sequence.settle((), 0)
        self._lanes.leave(sequence.lane)
        del self._running[sequence.seq]

    # Planning

    def plan(self, now: float, after: StepPlan | None = None) -> StepPlan:
        """The next step's work, most urgent first, within `slots_per_step`.

        `after`: the last plan, which is still being computed: nobody that is in it gives way. None: what was not committed
        is void.
        """
        step = self._steps.begin(now, after)
        if after is None:
            for sequence in self._running.values():
                sequence.void()
        running = [sequence for sequence in self._running.values() if not sequence.is_complete]
        candidates = [*running, *self._lanes.heads(_LOOK_AHEAD)]
        draft = Draft(now, self.limits, candidates, self._lanes.excess())
        for sequence in draft.order:
            if draft.budget == 0 or sequence.is_held:
                break
            is_decode = sequence.is_decode
            draft.later_decodes -= is_decode
            room = draft.room(is_decode)
            if room and self._is_ready(sequence, draft):
                draft.grant(sequence, room)
                draft.has_prefill |= not is_decode
        self.preemptions += len(draft.parked)
        return draft.finish(step)

    def _is_ready(self, sequence: Sequence, draft: Draft) -> bool:
        if sequence.is_resident:
            return self._grow(sequence, draft)
        return not draft.is_closed and sequence.seq not in draft.parked and self._admit(sequence, draft)

    def _grow(self, sequence: Sequence, draft: Draft) -> bool:
        """See that a resident's blocks cover its slots. It takes from less urgent ones, or else sits this step out."""
        short = self.limits.num_blocks_for(sequence.known) - len(sequence.blocks)
        if short <= 0:
            return True
        fresh = self.pool.acquire((), short)
        victims = [] if fresh is not None else draft.less_urgent_residents(sequence)
        while fresh is None and self._may_park(victims[:1], draft):
            self._park(victims.pop(0), draft)
            fresh = self.pool.acquire((), short)
        if fresh is None:
            return False
        sequence.blocks += fresh
        return True

    def _may_park(self, victims: list[Sequence], draft: Draft) -> bool:
        """Whether there are any, and none of them is being computed."""
        busy = any(victim.spans for victim in victims)
        draft.is_short |= busy
        return bool(victims) and not busy

    def _park(self, sequence: Sequence, draft: Draft) -> None:
        """Preempt a resident: it waits again, and its blocks can be found until they are reused."""
        if sequence.spans:
            raise BrokenBooks(f"{sequence!r} is preempted by a plan while it is in one")
        sequence.seal()
        for place in range(sequence.prompt_blocks, sequence.computed // self.limits.block_size):
            self.pool.publish(sequence.blocks[place], sequence.chain.digests[place])
        draft.later_decodes -= sequence.is_decode
        draft.parked.append(sequence.seq)
        draft.excess[sequence.lane] -= 1
        self._vacate(sequence)
        if not sequence.is_held:
            self._lanes.add(sequence)

    # Admission

    def _admit(self, sequence: Sequence, draft: Draft) -> bool:
        """Make a waiting sequence resident, if its turn, its twins, the rows, the blocks and its adapter allow."""
        if self._crowds(sequence, draft) or not self._has_adapter_room(sequence, draft):
            return False
        hits = self.pool.match(sequence.findable(self.limits.block_size))
        if waits_for_twin(sequence, len(hits), self._inflight, draft, self._steps.seconds):
            return False
        victims = choose_victims(sequence, hits, self.num_running, self.pool, draft)
        if victims is None:
            # The rest is less urgent: rows that this one cannot have they cannot have either. Once it is late, blocks
            # are kept for it as well.
            draft.is_closed = self.num_running >= self.limits.max_running or sequence.deadline <= draft.now
            return False
        if victims and not self._may_park(victims, draft):
            draft.is_closed = True
            return False
        for victim in victims:
            self._park(victim, draft)
        self._settle(sequence, hits, draft)
        return True

    def _settle(self, sequence: Sequence, hits: list[int], draft: Draft) -> None:
        size = self.limits.block_size
        blocks = self.pool.acquire(hits, self.limits.num_blocks_for(sequence.length) - len(hits))
        if blocks is None:
            raise BrokenBooks(f"the room that was made for {sequence!r} is not there: {self.pool!r}")
        self._lanes.remove(sequence)
        self._lanes.enter(sequence.lane)
        draft.excess[sequence.lane] += 1
        sequence.settle(blocks, len(hits) * size)
        self._running[sequence.seq] = sequence
        self.hit_slots += len(hits) * size
        self.admitted_slots += sequence.length
        self._inflight.begin(sequence.chain.digests[len(hits) : sequence.prompt_blocks], sequence.seq)
        self._bring_in_adapter(sequence, draft)

    def _has_adapter_room(self, sequence: Sequence, draft: Draft) -> bool:
        if self.adapters is None or sequence.adapter is None:
            return True
        if draft.adapters_closed:
            return False
        for other in draft.less_urgent_residents(sequence):
            if other.is_held and not self.adapters.has_room(sequence.adapter) and self._may_park([other], draft):
                self._park(other, draft)
        if self.adapters.has_room(sequence.adapter):
            return True
        draft.adapters_closed = sequence.deadline <= draft.now
        return False

    def _bring_in_adapter(self, sequence: Sequence, draft: Draft) -> None:
        if self.adapters is None or sequence.adapter is None:
            return
        placement = self.adapters.acquire(sequence.adapter)
        if placement is None:
            raise BrokenBooks(f"no adapter slot for {sequence!r}: {self.adapters!r}")
        if placement.is_new:
            draft.loads.append(placement)

    def _crowds(self, sequence: Sequence, draft: Draft) -> bool:
        """Whether its tenant has its share already while one that has not is waiting."""
        if draft.excess[sequence.lane] < 0:
            return False
        return any(draft.excess[lane] < 0 for lane in self._lanes.lanes_with_waiting())

    # After the step

    def commit(self, plan: StepPlan, outcomes: Iterable[Outcome], now: float) -> tuple[Ended, ...]:
        """Take in what the step computed; publishes its whole prompt blocks and ends what is done.

        A span without an outcome was not computed, and what follows it is void: it must not be computed again. Outcomes of
        sequences that have ended meanwhile, and of void spans, are ignored.
        """
        self._steps.require_open(plan)
        spans = {span.seq: span for span in plan.spans}
        ended = [self._advance(spans.pop(outcome.seq, None), outcome, now) for outcome in outcomes]
        for span in spans.values():
            self._revoke(span)
        self._steps.commit(plan, now)
        return tuple(end for end in ended if end is not None)

    def _revoke(self, span: Span) -> None:
        sequence = self._sequences.get(span.seq)
        if sequence is not None and _place(span, sequence) is not None:
            sequence.void()

    def _advance(self, span: Span | None, outcome: Outcome, now: float) -> Ended | None:
        if span is None:
            raise BrokenBooks(f"{outcome!r} belongs to no span of its plan")
        sequence = self._sequences.get(outcome.seq)
        if sequence is None or (place := _place(span, sequence)) is None:
            return None
        if place or span.start != sequence.computed:
            raise BrokenBooks(f"{span!r} does not continue {sequence!r}")
        sequence.keep()
        if span.start < sequence.prompt_slots:
            self._publish(sequence, span)
        if not span.emits:
            return None
        sequence.emit(now, self.limits.patch_seconds)
        return self._ended(sequence, outcome.stop)

    def _publish(self, sequence: Sequence, span: Span) -> None:
        size = self.limits.block_size
        for place in range(span.start // size, min(span.stop // size, sequence.prompt_blocks)):
            key = sequence.chain.digests[place]
            self.pool.publish(sequence.blocks[place], key)
            self._inflight.end([key], sequence.seq)

    def _ended(self, sequence: Sequence, stop: bool) -> Ended | None:
        if not stop and sequence.generated < sequence.max_patches:
            return None
        self._end(sequence)
        return Ended(sequence.seq, "stop" if stop else "length")

    # The proof

    def check(self) -> None:
        """Prove the books, the pool's included; raises `BrokenBooks`. O(blocks + sequences)."""
        self.pool.check()
        require(sequence_claims(self._sequences, self._running, self._lanes), self)
        require(block_claims(self._running, self.pool, self._inflight, self.limits), self)
        if self.adapters is not None:
            self.adapters.check(s.adapter for s in self._running.values() if s.adapter is not None)

    def __repr__(self) -> str:
        return f"Scheduler({self._steps!r}, {list(self._sequences.values())}, in flight {len(self._inflight)}, {self.pool!r})"


def _place(span: Span, sequence: Sequence) -> int | None:
    """Where `span` stands among those that the sequence has not computed yet."""
    return next((place for place, other in enumerate(sequence.spans) if other is span), None)
