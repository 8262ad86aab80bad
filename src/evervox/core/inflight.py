"""Prefixes that are being computed: which resident is about to publish which block key."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Set


class InFlight:
    """Every key has at most one owner, the first to begin. Never more keys than blocks: each is of a held block."""

    __slots__ = ("_owners",)

    def __init__(self) -> None:
        self._owners: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def begin(self, keys: Iterable[bytes], seq: int) -> None:
        for key in keys:
            self._owners.setdefault(key, seq)

    def end(self, keys: Iterable[bytes], seq: int) -> None:
        """`seq` has published these or will not."""
        for key in keys:
            if self._owners.get(key) == seq:
                del self._owners[key]

    def leading_run(self, keys: Iterable[bytes]) -> tuple[int | None, int]:
        """Who computes the first of `keys`, and how many in a row are that one's."""
        owner, count = None, 0
        for key in keys:
            its_owner = self._owners.get(key)
            if its_owner is None or owner not in (None, its_owner):
                break
            owner, count = its_owner, count + 1
        return owner, count

    def owners(self) -> Set[int]:
        return set(self._owners.values())
