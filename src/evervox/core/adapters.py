"""Which adapter loads are on the device: bookkeeping only, the runner moves the weights."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from evervox.core.errors import BrokenBooks, require
from evervox.core.plan import Placement

if TYPE_CHECKING:
    from collections.abc import Iterable


class AdapterResidency:
    """`max_resident` device slots. Running sequences pin the load that they use; the unpinned go least recent first."""

    __slots__ = ("_pins", "_slots", "max_resident")

    def __init__(self, max_resident: int) -> None:
        self.max_resident = max_resident
        self._slots: dict[int, int] = {}  # load -> slot, least recently used first
        self._pins: dict[int, int] = {}  # load -> running sequences; never zero

    @property
    def resident(self) -> dict[int, int]:
        """A copy: load -> slot."""
        return dict(self._slots)

    def has_room(self, load: int) -> bool:
        """Whether `acquire(load)` would give a placement now."""
        return load in self._slots or len(self._pins) < self.max_resident

    def acquire(self, load: int) -> Placement | None:
        """Pin `load` once, bringing it in if need be; None where every slot is pinned by others."""
        if not self.has_room(load):
            return None
        is_new = load not in self._slots
        slot, evicted = self._place(load)
        self._slots[load] = slot
        self._pins[load] = self._pins.get(load, 0) + 1
        return Placement(load, slot, is_new, evicted)

    def _place(self, load: int) -> tuple[int, int | None]:
        if load in self._slots:
            return self._slots.pop(load), None
        if len(self._slots) < self.max_resident:
            return min(set(range(self.max_resident)) - set(self._slots.values())), None
        evicted = next(other for other in self._slots if other not in self._pins)
        return self._slots.pop(evicted), evicted

    def release(self, load: int) -> None:
        """Undo one `acquire`. The load stays resident until its slot is needed."""
        if load not in self._pins:
            raise BrokenBooks(f"adapter load {load} is released but nobody holds it: {self!r}")
        self._pins[load] -= 1
        if self._pins[load] == 0:
            del self._pins[load]
            self._slots[load] = self._slots.pop(load)

    def drop(self, load: int) -> bool:
        """Forget an adapter that was unloaded. False where it is in use and therefore stays."""
        if load in self._pins:
            return False
        self._slots.pop(load, None)
        return True

    def check(self, users: Iterable[int]) -> None:
        """Prove the books, given the load of each running sequence that has one; raises `BrokenBooks`."""
        slots = list(self._slots.values())
        claims = {
            "pins are the running sequences": self._pins == Counter(users),
            "what is pinned is resident": self._pins.keys() <= self._slots.keys(),
            "each load has a slot of its own": len(set(slots)) == len(slots) and set(slots) <= set(range(self.max_resident)),
        }
        require(claims, self)

    def __repr__(self) -> str:
        return f"AdapterResidency(max_resident={self.max_resident}, slots={self._slots}, pins={self._pins})"
