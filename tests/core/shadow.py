"""The shadow KV: a runner whose "KV" of a slot is that slot's whole prefix, root included.

What a slot reads is named by a number that stands for one exact prefix. A step derives the number of each slot that it
writes from what it finds in the slot before, and compares all that it finds with what the request's own prefix says. So
a block that is shared wrongly, published too early or overwritten in use cannot hide.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from evervox.core.blocks import BlockPool
from evervox.core.keys import clip_key, root_key, text_key
from evervox.core.plan import Outcome, Span, StepPlan
from evervox.core.scheduler import NewSequence, Refused, Scheduler, SchedulerLimits

if TYPE_CHECKING:
    from collections.abc import Callable

GARBAGE = -1

Content: TypeAlias = tuple[str, int, int]  # kind, token or clip or request, patch or step


class Prefixes:
    """A number for every prefix: (number of the prefix before, content of the slot) -> number."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, object], int] = {}

    def after(self, prefix: int, content: object) -> int:
        return self._numbers.setdefault((prefix, content), len(self._numbers) + 1)


@dataclass
class Request:
    """What the shadow knows of one request: the true content of every slot, by means of its own."""

    new: NewSequence
    root: object
    contents: list[Content]
    uid: int
    truth: list[int] = field(default_factory=list)

    def content(self, slot: int) -> Content:
        if slot < len(self.contents):
            return self.contents[slot]
        return ("generated", self.uid, slot - len(self.contents))


class ShadowRunner:
    """Device memory with prefixes in it. `wrong` lists the reads that found another prefix than their own."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._prefixes = Prefixes()
        self._memory: dict[tuple[int, int], int] = {}
        self.wrong: list[tuple[Span, int]] = []
        self.reads = 0

    def _place(self, span: Span, slot: int) -> tuple[int, int]:
        return span.blocks[slot // self._block_size], slot % self._block_size

    def truth(self, request: Request, stop: int) -> list[int]:
        while len(request.truth) < stop:
            slot = len(request.truth)
            before = request.truth[-1] if slot else self._prefixes.after(0, request.root)
            request.truth.append(self._prefixes.after(before, request.content(slot)))
        return request.truth

    def compute(self, plan: StepPlan, requests: dict[int, Request]) -> None:
        """All reads of what was there before the step, then all writes."""
        for span in plan.spans:
            truth = self.truth(requests[span.seq], span.stop)
            self.reads += span.start
            self.wrong += [(span, slot) for slot in range(span.start) if self._memory.get(self._place(span, slot)) != truth[slot]]
        for span in plan.spans:
            self._write(span, requests[span.seq])

    def _write(self, span: Span, request: Request) -> None:
        first = self._prefixes.after(0, request.root)
        before = self._memory.get(self._place(span, span.start - 1), GARBAGE) if span.start else first
        for slot in range(span.start, span.stop):
            before = self._prefixes.after(before, request.content(slot))
            self._memory[self._place(span, slot)] = before

    def spoil(self, plan: StepPlan) -> None:
        """A step that dies half-way: whatever it was to write is garbage now."""
        for span in plan.spans:
            for slot in range(span.start, span.stop):
                self._memory[self._place(span, slot)] = GARBAGE


def slot_key(content: Content) -> bytes:
    kind, number, patch = content
    return text_key(number) if kind == "text" else clip_key(bytes([number]), patch)


TINY_ROOTS = [(adapter, salt) for adapter in (None, 1, 2) for salt in (b"", b"s")]


def tiny_limits(rng: random.Random) -> SchedulerLimits:
    return SchedulerLimits(
        num_blocks=rng.randint(2, 20),
        block_size=rng.randint(1, 4),
        max_running=rng.randint(1, 6),
        slots_per_step=rng.choice([1, 2, 3, 5, 8, 16, 64]),
        patch_seconds=0.16,
        first_audio_target=rng.choice([0.05, 0.5]),
        batch_horizon=rng.choice([1.0, 20.0]),
        preempt_slack=rng.choice([0.01, 0.3, 2.0]),
        tenant_weights=rng.choice([None, {}, {"a": 2.0}]),
        max_adapters=rng.choice([None, 1, 2]),
    )


class RandomRun:
    """One scheduler under random requests, cancels, failing steps and times, with the books checked all the while."""

    def __init__(self, rng: random.Random, limits: SchedulerLimits, scheduler: Scheduler) -> None:
        self.rng = rng
        self.limits = limits
        self.scheduler = scheduler
        self.runner = ShadowRunner(limits.block_size)
        self.requests: dict[int, Request] = {}
        self.now = 0.0
        self.prompts: list[list[Content]] = []
        self.num_requests = 0
        self.held: set[int] = set()
        self.num_ended = 0
        self.adapter_slots: dict[int, int] = {}
        self.is_ahead = rng.random() < 0.5
        self.computing: tuple[StepPlan, dict[int, Request]] | None = None  # with the requests as they were

    def run(self, steps: int) -> None:
        for _ in range(steps):
            while self.rng.random() < 0.45:
                self.submit()
            if self.requests and self.rng.random() < 0.08:
                self.cancel()
            if self.requests and self.rng.random() < 0.1:
                self.hold()
            self.step()
        for seq in self.held:
            self.scheduler.hold(seq, False)
        self.held.clear()
        self.drain()

    def drain(self, max_steps: int = 5000) -> None:
        for _ in range(max_steps):
            if self.scheduler.is_idle:
                return
            self.step()
        raise AssertionError(f"does not end: {self.scheduler!r}")

    def submit(self) -> None:
        rng = self.rng
        adapter, salt = rng.choice(TINY_ROOTS)
        contents = self.contents()
        max_patches = rng.randint(1, 10)
        done = rng.randrange(max_patches) if rng.random() < 0.15 else 0
        new = NewSequence(
            seq=rng.randrange(12),
            keys=[slot_key(content) for content in contents],
            root=root_key(b"weights", "float32", adapter, salt),
            max_patches=max_patches,
            priority=rng.choice(["live", "live", "batch"]),
            tenant=rng.choice("abc"),
            adapter=adapter,
            done_patches=done,
        )
        self.num_requests += 1
        try:
            self.scheduler.submit(new, self.now)
        except Refused:
            return
        assert new.seq not in self.requests
        self.requests[new.seq] = Request(new, (adapter, salt), contents, self.num_requests)

    def contents(self) -> list[Content]:
        """Slots of a prompt: often those of an earlier one, or most of them."""
        rng = self.rng
        contents: list[Content] = [("clip", rng.randrange(2), patch) for patch in range(rng.choice([0, 0, 2, 5]))]
        contents += [("text", rng.randrange(2), 0) for _ in range(rng.randint(1, 12))]
        if self.prompts and rng.random() < 0.4:
            contents = rng.choice(self.prompts) + rng.choice([[], contents[-1:]])
        self.prompts = [*self.prompts[-5:], contents]
        return contents

    def cancel(self) -> None:
        seq = self.rng.choice(sorted(self.requests))
        assert self.scheduler.cancel(seq)
        assert not self.scheduler.cancel(seq)
        self.gone(seq)
        self.scheduler.check()

    def hold(self) -> None:
        """A reader falls behind, or has caught up."""
        seq = self.rng.choice(sorted(self.requests))
        assert self.scheduler.hold(seq, seq not in self.held)
        self.held ^= {seq}
        self.scheduler.check()

    def gone(self, seq: int) -> None:
        del self.requests[seq]
        self.held.discard(seq)

    def step(self) -> None:
        """Plan and compute; then whatever is not left to be computed meanwhile meets its fate."""
        plan = self.scheduler.plan(self.now, self.computing and self.computing[0])
        self.scheduler.check()
        self.check_plan(plan)
        self.now += self.rng.choice([0.0, 0.01, 0.05, 0.4])
        self.runner.compute(plan, self.requests)
        before, now = self.computing, (plan, dict(self.requests))
        self.computing = None
        if before is not None and not self.survives(*before):
            self.runner.spoil(plan)
        elif self.is_ahead and plan and not plan.is_short and self.rng.random() < 0.9:
            self.computing = now
        else:
            self.survives(*now)

    def survives(self, plan: StepPlan, requests: dict[int, Request]) -> bool:
        """The end of a step that was computed. False where it died, and what was computed after it with it."""
        fate = self.rng.random()
        if fate < 0.05:  # cancelled while the step runs; the id may come back at once
            if self.requests:
                self.cancel()
                self.submit()
            self.commit(plan, self.outcomes(plan))
        elif fate < 0.12:  # dies as a whole, then one by one
            self.runner.spoil(plan)
            for span in plan.spans:
                self.retry(plan.only(span.seq), requests)
        elif fate < 0.16:  # dies and nobody tries again
            self.runner.spoil(plan)
        elif fate < 0.2:  # only some are reported
            self.commit(plan, [outcome for outcome in self.outcomes(plan) if self.rng.random() < 0.5])
        else:
            self.commit(plan, self.outcomes(plan))
        return not 0.05 <= fate < 0.16

    def retry(self, plan: StepPlan, requests: dict[int, Request]) -> None:
        (span,) = plan.spans
        if self.requests.get(span.seq) is not requests[span.seq] or span not in self.scheduler._sequences[span.seq].spans:
            return  # it has ended, or is void since the step before it was not computed
        if self.rng.random() < 0.4:
            self.runner.spoil(plan)
            assert self.scheduler.fail(span.seq)
            self.gone(span.seq)
            self.scheduler.check()
        else:
            self.runner.compute(plan, self.requests)
            self.commit(plan, self.outcomes(plan))

    def outcomes(self, plan: StepPlan) -> list[Outcome]:
        return [Outcome(span.seq, span.emits and self.rng.random() < 0.03) for span in plan.spans]

    def commit(self, plan: StepPlan, outcomes: list[Outcome]) -> None:
        for ended in self.scheduler.commit(plan, outcomes, self.now):
            self.gone(ended.seq)
            self.num_ended += 1
        self.scheduler.check()

    def check_plan(self, plan: StepPlan) -> None:
        limits = self.limits
        assert self.scheduler.num_running <= limits.max_running
        assert sum(span.stop - span.start for span in plan.spans) <= limits.slots_per_step
        assert len({span.seq for span in plan.spans}) == len(plan.spans)
        assert not {span.seq for span in plan.spans} & set(plan.parked)
        for span in plan.spans:
            assert 0 <= span.start < span.stop
            assert len(span.blocks) == limits.num_blocks_for(span.stop)
        for load in plan.loads:
            if load.evicted is not None:
                del self.adapter_slots[load.evicted]
            self.adapter_slots[load.load] = load.slot
        if limits.max_adapters is not None:
            assert {span.adapter for span in plan.spans} - {None} <= self.adapter_slots.keys()
            assert len(self.adapter_slots) <= limits.max_adapters
        assert not {span.seq for span in plan.spans} & self.held
        if self.requests.keys() - self.held and not plan.spans and self.computing is None:
            raise AssertionError("there is work and nothing is planned")


def random_run(seed: int, steps: int = 30, make_pool: Callable[[int], BlockPool] = BlockPool) -> RandomRun:
    """A whole run: at the end nothing is held and nothing is remembered but what the cache may keep."""
    rng = random.Random(seed)
    limits = tiny_limits(rng)
    run = RandomRun(rng, limits, Scheduler(limits, b"secret", make_pool(limits.num_blocks)))
    run.run(steps)
    assert not run.requests
    assert run.scheduler.num_free_blocks == limits.num_blocks
    assert run.scheduler.num_running == run.scheduler.num_waiting == 0
    assert not len(run.scheduler._inflight)
    assert run.scheduler.table_size <= limits.num_blocks
    return run
