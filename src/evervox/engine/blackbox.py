"""Which sequences the worker has in its hands right now, in a file that outlives it: who was there when it died.

Two lanes of ids, one written by the step loop and one by the clip encoder. A write is a memory copy, no system call.
"""

from __future__ import annotations

import mmap
from struct import calcsize, pack_into, unpack_from
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Blackbox:
    """`lanes` lists of at most `capacity` ids each. One process writes, another reads after its end."""

    def __init__(self, path: Path, capacity: int, lanes: int = 2) -> None:
        self._capacity = capacity
        self._lane_bytes = calcsize(f"<{capacity + 1}Q")
        self._lanes = lanes
        size = self._lane_bytes * lanes
        with path.open("a+b") as file:
            file.truncate(size)
            self._memory = mmap.mmap(file.fileno(), size)

    def hold(self, lane: int, ids: Sequence[int]) -> None:
        """Say that `ids` are being worked on from now on; none, that the work is done."""
        ids = ids[: self._capacity]
        pack_into(f"<{len(ids) + 1}Q", self._memory, lane * self._lane_bytes, len(ids), *ids)

    def read(self) -> set[int]:
        """All ids that were held when the writer ended."""
        found: set[int] = set()
        for lane in range(self._lanes):
            start = lane * self._lane_bytes
            (count,) = unpack_from("<Q", self._memory, start)
            found.update(unpack_from(f"<{min(count, self._capacity)}Q", self._memory, start + 8))
        return found

    def close(self) -> None:
        self._memory.close()
