"""Which steps are being computed, and how long a step takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evervox.core.errors import BrokenBooks

if TYPE_CHECKING:
    from evervox.core.plan import StepPlan


class Steps:
    """Numbers the plans. `seconds` per step, smoothed; 0 until the first is committed."""

    __slots__ = ("_committed_at", "_last", "_open", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self._last = 0
        self._open: dict[int, float] = {}  # those that may be committed, and when they were planned
        self._committed_at = 0.0

    def __repr__(self) -> str:
        return f"step {self._last} of {list(self._open)}"

    def begin(self, now: float, after: StepPlan | None) -> int:
        """The number of a new plan, which makes all others void unless it follows the last one, `after`."""
        if after is None:
            self._open.clear()
        elif after.step != self._last or after.step not in self._open:
            raise BrokenBooks(f"step {after.step} is not the last that is being computed: {self!r}")
        self._last += 1
        self._open[self._last] = now
        return self._last

    def require_open(self, plan: StepPlan) -> None:
        if plan.step not in self._open:
            raise BrokenBooks(f"step {plan.step} cannot be committed: {self!r}")

    def commit(self, plan: StepPlan, now: float) -> None:
        """A step that was planned while another was computed began when that one was committed."""
        seconds = now - max(self._open[plan.step], self._committed_at)
        self._committed_at = now
        for older in [step for step in self._open if step < plan.step]:
            del self._open[older]
        self.seconds += (seconds - self.seconds) * (0.1 if self.seconds else 1.0)
