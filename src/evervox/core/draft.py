"""The plan of one step while it is being made. It lives inside one call of `Scheduler.plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evervox.core.plan import Placement, Span, StepPlan

if TYPE_CHECKING:
    from evervox.core.limits import SchedulerLimits
    from evervox.core.sequence import Sequence


class Draft:
    """`order` is everybody who may take part, most urgent first; what is granted never gives way in the same plan.

    Rank is a time: a listener's is the moment when its buffer runs dry; a newcomer's is its deadline, or now once that is
    past, and `listener_lead` more; a batch request's comes after every newcomer's, but of those whose horizon is past the
    eldest has its own deadline.

    `later_decodes` counts the residents still to come that need one slot: prefill leaves each of them its slot.
    `excess` is each tenant's residents beyond its share. `is_closed` stops admission, `adapters_closed` that of sequences
    with an adapter. `is_short`: see `StepPlan`.
    """

    __slots__ = (
        "_eldest",
        "adapters_closed",
        "budget",
        "excess",
        "has_prefill",
        "is_closed",
        "is_short",
        "later_decodes",
        "limits",
        "loads",
        "now",
        "order",
        "parked",
        "spans",
    )

    def __init__(self, now: float, limits: SchedulerLimits, candidates: list[Sequence], excess: dict[str, int]) -> None:
        self.now = now
        self.limits = limits
        self.budget = limits.slots_per_step
        due = [sequence.serial for sequence in candidates if sequence.kind == "batch" and sequence.deadline <= now]
        self._eldest = min(due, default=None)
        self.order = sorted(candidates, key=lambda sequence: (self.rank(sequence), sequence.serial))
        self.excess = excess
        self.later_decodes = sum(1 for sequence in self.order if sequence.is_decode)
        self.spans: dict[int, Span] = {}
        self.parked: list[int] = []
        self.loads: list[Placement] = []
        self.has_prefill = False
        self.is_closed = False
        self.is_short = False
        self.adapters_closed = False

    def rank(self, sequence: Sequence) -> float:
        kind = sequence.kind
        if kind == "listener" or sequence.is_held or sequence.serial == self._eldest:
            return sequence.deadline
        if kind == "newcomer":
            return max(sequence.deadline, self.now) + self.limits.listener_lead
        return self.now + self.limits.background_seconds

    def room(self, is_decode: bool) -> int:
        """How many slots the sequence at hand may have. The most urgent prefill has at least one in every step."""
        if is_decode:
            return self.budget
        return max(self.budget - self.later_decodes, 0 if self.has_prefill else 1)

    def grant(self, sequence: Sequence, room: int) -> None:
        """Give the sequence its next span, of at most `room` slots."""
        start = sequence.planned
        stop = min(sequence.known, start + room)
        num_blocks = self.limits.num_blocks_for(stop)
        blocks = sequence.blocks if num_blocks == len(sequence.blocks) else sequence.blocks[:num_blocks]
        span = Span(sequence.seq, start, stop, blocks, stop == sequence.known, sequence.adapter)
        self.spans[sequence.seq] = span
        sequence.promise(span)
        self.budget -= stop - start

    def less_urgent_residents(self, sequence: Sequence) -> list[Sequence]:
        """Residents that come after `sequence`, the least urgent first. None of them has a span in this draft yet."""
        after = self.order[self.order.index(sequence) + 1 :]
        return [other for other in reversed(after) if other.blocks]

    def finish(self, step: int) -> StepPlan:
        return StepPlan(step, tuple(self.spans.values()), tuple(self.parked), tuple(self.loads), self.is_short)
