"""Everything that outlives a request, by name: how much of it there is, how much there may be, and who owns it."""

from __future__ import annotations

from collections.abc import Callable, Sized
from dataclasses import dataclass
from typing import Union


@dataclass(frozen=True, slots=True)
class Line:
    """One entry as it stands: `size` and `limit` in `unit`; `limit` None where another entry bounds it."""

    name: str
    size: int
    limit: int | None
    owner: str
    unit: str


Holding = Union[Sized, Callable[[], int]]
"""A container, or a function that gives its size."""


@dataclass(frozen=True, slots=True)
class _Entry:
    holding: Holding
    limit: int | None
    owner: str
    unit: str


class Ledger:
    """The entries of one process. Written when its owners are made, read by anybody."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def register(self, name: str, holding: Holding, *, limit: int | None, owner: str, unit: str = "items") -> None:
        """Add an entry; registering a name again replaces it. A container must not be replaced by its owner afterwards."""
        self._entries[name] = _Entry(holding, limit, owner, unit)

    def drop(self, name: str) -> None:
        """Its owner is gone."""
        self._entries.pop(name, None)

    def holds(self, container: object) -> bool:
        """Whether this very container has an entry."""
        return any(entry.holding is container for entry in self._entries.values())

    def read(self) -> list[Line]:
        """Every entry now, by name."""
        return [
            Line(name, entry.holding() if callable(entry.holding) else len(entry.holding), entry.limit, entry.owner, entry.unit)
            for name, entry in sorted(self._entries.items())
        ]
