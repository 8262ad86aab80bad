"""Who waits, in order of urgency, a lane per tenant with a queue per kind; and which tenants hold more than their share."""

from __future__ import annotations

from bisect import bisect_left, insort
from operator import attrgetter
from typing import TYPE_CHECKING

from evervox.core.errors import BrokenBooks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from evervox.core.sequence import Kind, Sequence

_URGENCY = attrgetter("urgency")


class Lanes:
    """Waiting sequences and the count of residents per lane. A lane exists while it has either.

    Without weights there is one lane, whose share is everything.
    """

    def __init__(self, weights: Mapping[str, float] | None, max_running: int) -> None:
        self._weights = None if weights is None else dict(weights)
        self._max_running = max_running
        self._waiting: dict[tuple[str, Kind], list[Sequence]] = {}
        self._residents: dict[str, int] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def __contains__(self, sequence: Sequence) -> bool:
        queue = self._waiting.get((sequence.lane, sequence.kind), [])
        place = bisect_left(queue, sequence.urgency, key=_URGENCY)
        return place < len(queue) and queue[place] is sequence

    def lane_of(self, tenant: str) -> str:
        return "" if self._weights is None else tenant

    def add(self, sequence: Sequence) -> None:
        insort(self._waiting.setdefault((sequence.lane, sequence.kind), []), sequence, key=_URGENCY)

    def remove(self, sequence: Sequence) -> None:
        if sequence not in self:
            raise BrokenBooks(f"{sequence!r} does not wait")
        queue = self._waiting[sequence.lane, sequence.kind]
        del queue[bisect_left(queue, sequence.urgency, key=_URGENCY)]
        if not queue:
            del self._waiting[sequence.lane, sequence.kind]

    def heads(self, count: int) -> list[Sequence]:
        """The `count` most urgent of each queue, queue by queue."""
        return [sequence for queue in self._waiting.values() for sequence in queue[:count]]

    def lanes_with_waiting(self) -> set[str]:
        return {lane for lane, _ in self._waiting}

    def enter(self, lane: str) -> None:
        self._residents[lane] = self._residents.get(lane, 0) + 1

    def leave(self, lane: str) -> None:
        self._residents[lane] -= 1
        if self._residents[lane] == 0:
            del self._residents[lane]

    def excess(self) -> dict[str, int]:
        """Residents minus share, for every lane that has anybody. Shares follow the weights of the lanes present."""
        lanes = self.lanes_with_waiting() | self._residents.keys()
        weights = {lane: (self._weights or {}).get(lane, 1.0) for lane in lanes}
        total = sum(weights.values())
        shares = {lane: max(1, int(self._max_running * weight / total)) for lane, weight in weights.items()}
        return {lane: self._residents.get(lane, 0) - share for lane, share in shares.items()}

    def residents(self) -> dict[str, int]:
        return dict(self._residents)
