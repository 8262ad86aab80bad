"""A fixed set of recorded shapes. All are known at start; nothing is recorded afterwards, and the count never moves.

A step is a few stages. Each works on the first entries of static buffers, so that a shape is a size and nothing else: `count`
live entries are padded to the next size of the list, and the recording of that size is replayed.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from evervox.ledger import Ledger

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Key:
    """One shape of the list: a stage, how many entries it computes, and whether adapters are applied."""

    stage: str
    size: int
    adapters: bool = False

    def __str__(self) -> str:
        return f"{self.stage} {self.size}{' with adapters' if self.adapters else ''}"


@dataclass(frozen=True, slots=True)
class Stage:
    """Part of a step: `run(size, adapters)` computes the first `size` entries of its buffers and returns nothing.

    `sizes` are those to record (none: always eager); `adapters`: record each size with adapters too.
    """

    name: str
    sizes: tuple[int, ...]
    run: Callable[[int, bool], None]
    adapters: bool = False

    @property
    def keys(self) -> list[Key]:
        return [Key(self.name, size, on) for size in self.sizes for on in ((True, False) if self.adapters else (False,))]


class Recording(Protocol):
    """A stage at one size, ready to be replayed on whatever its buffers hold then."""

    @property
    def num_bytes(self) -> int:
        """Device memory that recording it took, beyond what earlier ones of the set left to share."""

    def replay(self) -> None:
        """Compute."""


class Recorder(Protocol):
    """Makes recordings out of one shared pool of memory."""

    def record(self, call: Callable[[], None]) -> Recording:
        """Run `call`, then record it."""

    def clear(self) -> None:
        """Give the pool back. Whoever calls this holds no recording any more."""


class GraphSet:
    """The table of recordings. With `recorder` None nothing is recorded, and every stage runs at its exact size.

    `memory_limit` in bytes: while the recordings take more, the costliest shape leaves the list (of equals the largest) and all
    are recorded afresh. What is not in the list runs eagerly and is counted. `strict`: recording after start raises; otherwise it
    is refused and counted.
    """

    def __init__(
        self, stages: Sequence[Stage], recorder: Recorder | None, *, memory_limit: int | None = None, strict: bool = False
    ) -> None:
        self._stages = {stage.name: stage for stage in stages}
        self._recorder, self._limit, self._strict = recorder, memory_limit, strict
        self._table: dict[Key, Recording] = {}
        self._sizes: dict[tuple[str, bool], list[int]] = {}
        self._sealed = False
        self.trimmed: tuple[Key, ...] = ()
        self.eager: Counter[str] = Counter(dict.fromkeys(self._stages, 0))
        self.late = 0

    def __len__(self) -> int:
        return len(self._table)

    @property
    def num_bytes(self) -> int:
        return sum(recording.num_bytes for recording in self._table.values())

    @property
    def costs(self) -> Mapping[Key, int]:
        """Bytes of each recording, in the order in which they were made."""
        return {key: recording.num_bytes for key, recording in self._table.items()}

    def register(self, ledger: Ledger) -> None:
        """Enter the number of recordings, their bytes, and the two counts that ought to stay at 0."""
        ledger.register("graphs", self._table, limit=len(self._table), owner="runner")
        ledger.register("graph memory", lambda: self.num_bytes, limit=self._limit, owner="runner", unit="bytes")
        ledger.register("shapes run eagerly", self.eager.total, limit=None, owner="runner", unit="runs")
        ledger.register("graphs recorded after start", lambda: self.late, limit=0, owner="runner")

    def record(self, progress: Callable[[int, int, Key, int], None] | None = None) -> None:
        """Record the whole list, largest first. Once: a second call is the bug that this class exists to prevent."""
        if self._sealed:
            self._refuse()
            return
        self._sealed = True
        if self._recorder is None:
            return
        wanted = sorted(
            (key for stage in self._stages.values() for key in stage.keys), key=lambda key: (-key.size, not key.adapters)
        )
        while self._record(self._recorder, wanted, progress):
            dropped = max(self._table, key=lambda key: (self._table[key].num_bytes, key.size))
            log.warning("graph memory is over %d bytes: %s will run eagerly", self._limit, dropped)
            self.trimmed += (dropped,)
            wanted.remove(dropped)
            self._table.clear()
            self._recorder.clear()
        for key in self._table:
            self._sizes.setdefault((key.stage, key.adapters), []).append(key.size)
        for sizes in self._sizes.values():
            sizes.sort()

    def size_for(self, stage: str, count: int, adapters: bool = False) -> int:
        """The size to pad `count` entries to: the next recorded one, or `count` itself where there is none."""
        sizes = self._sizes.get((stage, adapters), ())
        at = bisect_left(sizes, count)
        return sizes[at] if at < len(sizes) else count

    def run(self, stage: str, size: int, adapters: bool = False) -> None:
        """Compute `stage` at a size that `size_for` gave."""
        recording = self._table.get(Key(stage, size, adapters))
        if recording is not None:
            recording.replay()
            return
        if self._recorder is not None and self._stages[stage].sizes:
            self.eager[stage] += 1
        self._stages[stage].run(size, adapters)

    def _record(self, recorder: Recorder, keys: list[Key], progress: Callable[[int, int, Key, int], None] | None) -> bool:
        """Whether the limit was passed, at which recording stops."""
        for done, key in enumerate(keys, 1):
            self._table[key] = recorder.record(partial(self._stages[key.stage].run, key.size, key.adapters))
            if progress is not None:
                progress(done, len(keys), key, self._table[key].num_bytes)
            if self._limit is not None and self.num_bytes > self._limit:
                return True
        return False

    def _refuse(self) -> None:
        self.late += 1
        if self._strict:
            raise RuntimeError("shapes are recorded once, at start")
        log.error("recording after start was refused; %d times by now", self.late)


def row_sizes(most: int) -> tuple[int, ...]:
    """1, 2, 4, then multiples of 8 to 64, of 16 to 128, of 32 to 256 and of 64 beyond; `most` is the last."""
    grid = [1, 2, 4, *range(8, 64, 8), *range(64, 128, 16), *range(128, 256, 32), *range(256, most, 64)]
    return (*(size for size in grid if size < most), most)


def slot_sizes(most: int) -> tuple[int, ...]:
    """16, 32, 48, 64, 96, 128, 192 and so on: from 32 on at most a third of what is computed is padding."""
    powers = [1 << bit for bit in range(5, most.bit_length())]
    grid = [16, *(size for power in powers for size in (power, power + power // 2))]
    return (*(size for size in grid if size < most), most)
