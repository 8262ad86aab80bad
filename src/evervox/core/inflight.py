"""Prefixes that are being computed: which resident is about to publish which block key."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Set

    from evervox.core.draft import Draft
    from evervox.core.sequence import Sequence


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


def waits_for_twin(sequence: Sequence, num_hits: int, inflight: InFlight, draft: Draft, step_seconds: float) -> bool:
    """Whether to wait for a prefix that this very step computes for another, rather than compute it as well.

    Not where waiting would miss a deadline that computing would meet, if steps take `step_seconds`.
    """
    size = draft.limits.block_size
    owner, num_shared = inflight.leading_run(sequence.findable(size)[num_hits:])
    twin = None if owner is None else draft.spans.get(owner)
    if twin is None:
        return False
    shared_stop = (num_hits + num_shared) * size
    steps = _ceil(max(0, shared_stop - twin.start), twin.stop - twin.start)
    steps += _ceil(sequence.length - shared_stop, draft.limits.slots_per_step)
    alone = _ceil(sequence.length - num_hits * size, draft.budget)
    waiting_is_in_time, computing_is_in_time = (draft.now + count * step_seconds <= sequence.deadline for count in (steps, alone))
    return waiting_is_in_time or not computing_is_in_time


def _ceil(amount: int, unit: int) -> int:
    return -(-amount // unit)
