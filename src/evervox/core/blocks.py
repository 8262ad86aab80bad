"""The block pool: who holds which block of KV memory, and which freed block can still serve a prefix.

A block is free xor referenced. A freed block keeps its table entry until its memory is taken for something else. Next to
go are the free blocks that nobody can ever hit, then those that were never hit since they were published, then those that
were ("proven", at most half of the pool: the oldest beyond that start again as unproven). Within each the least recently
released goes first, of one sequence its tail before its head. The table indexes by the first `index_bytes` of a key and a
hit compares the whole key that the block stores, so a shorter index costs hits and never correctness.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from evervox.core.errors import BrokenBooks, require
from evervox.core.keys import DIGEST_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


class _FreeList:
    """A doubly linked list over block numbers: O(1) at both ends and in the middle, 16 bytes a block."""

    __slots__ = ("_after", "_before", "_end", "_size")

    def __init__(self, num_blocks: int) -> None:
        self._end = num_blocks  # the sentinel: before the first and after the last
        self._size = 0
        self._after = array("q", [num_blocks]) * (num_blocks + 1)
        self._before = array("q", [num_blocks]) * (num_blocks + 1)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[int]:
        block = self._after[self._end]
        while block != self._end:
            yield block
            block = self._after[block]

    def _link(self, left: int, block: int, right: int) -> None:
        self._after[left] = self._before[right] = block
        self._before[block] = left
        self._after[block] = right
        self._size += 1

    def push_front(self, block: int) -> None:
        self._link(self._end, block, self._after[self._end])

    def push_back(self, block: int) -> None:
        self._link(self._before[self._end], block, self._end)

    def remove(self, block: int) -> None:
        left, right = self._before[block], self._after[block]
        self._after[left] = right
        self._before[right] = left
        self._size -= 1

    def pop_front(self) -> int:
        block = self._after[self._end]
        self.remove(block)
        return block


class BlockPool:
    """`num_blocks` blocks, their references, and the table from block key to the block that holds its KV."""

    __slots__ = ("_index_bytes", "_is_proven", "_keys", "_max_proven", "_proven", "_refs", "_table", "_unproven", "num_blocks")

    def __init__(self, num_blocks: int, index_bytes: int = DIGEST_BYTES) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be at least 1, not {num_blocks}")
        self.num_blocks = num_blocks
        self._index_bytes = index_bytes
        self._refs = [0] * num_blocks
        self._keys: list[bytes | None] = [None] * num_blocks
        self._table: dict[bytes, int] = {}
        self._is_proven = bytearray(num_blocks)  # of a free block: which of the two lists it is in
        self._max_proven = num_blocks // 2
        self._unproven, self._proven = _FreeList(num_blocks), _FreeList(num_blocks)
        for block in range(num_blocks):
            self._unproven.push_back(block)

    @property
    def num_free(self) -> int:
        return len(self._unproven) + len(self._proven)

    @property
    def table_size(self) -> int:
        return len(self._table)

    def refs(self, block: int) -> int:
        return self._refs[block]

    def held(self) -> dict[int, int]:
        """Every block that is referenced, with how often."""
        return {block: refs for block, refs in enumerate(self._refs) if refs}

    def lookup(self, key: bytes) -> int | None:
        """The block that holds what `key` stands for, or None. Pins nothing and moves nothing in the free order."""
        block = self._table.get(key[: self._index_bytes])
        return block if block is not None and self._keys[block] == key else None

    def match(self, keys: Iterable[bytes]) -> list[int]:
        """The blocks of the longest leading run of `keys` that is held."""
        blocks: list[int] = []
        for key in keys:
            block = self.lookup(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def num_idle(self, blocks: Iterable[int]) -> int:
        """How many of `blocks` are free: pinning them would use up that much of `num_free`."""
        return sum(1 for block in blocks if self._refs[block] == 0)

    def acquire(self, shared: Sequence[int], fresh: int) -> tuple[int, ...] | None:
        """Hold `shared` once more and `fresh` blank blocks besides: the whole table, or None and nothing is held.

        The shared blocks are charged first, so a fresh block never takes the memory of a hit.
        """
        if fresh > self.num_free - self.num_idle(shared):
            return None
        for block in shared:
            self._pin(block)
        return (*shared, *[self._take() for _ in range(fresh)])

    def _pin(self, block: int) -> None:
        if self._keys[block] is None:
            raise BrokenBooks(f"block {block} carries no key and cannot be shared: {self!r}")
        if self._refs[block] == 0:
            self._list_of(block).remove(block)
        self._refs[block] += 1
        self._is_proven[block] = True

    def _list_of(self, block: int) -> _FreeList:
        return self._proven if self._is_proven[block] else self._unproven

    def _take(self) -> int:
        block = (self._unproven if len(self._unproven) else self._proven).pop_front()
        self._unmap(block)
        self._refs[block] = 1
        return block

    def _unmap(self, block: int) -> None:
        key = self._keys[block]
        if key is None:
            return
        index = key[: self._index_bytes]
        if self._table.get(index) != block:
            raise BrokenBooks(f"block {block} carries {key.hex()} but the table points elsewhere: {self!r}")
        del self._table[index]
        self._keys[block] = None
        self._is_proven[block] = False

    def release(self, blocks: Sequence[int]) -> None:
        """Let go of one sequence's block table, tail before head. Letting go of what nobody holds is a broken book."""
        for block in reversed(blocks):
            if self._refs[block] == 0:
                raise BrokenBooks(f"block {block} is released but nobody holds it: {self!r}")
            self._refs[block] -= 1
            if self._refs[block] == 0:
                self._retire(block)

    def _retire(self, block: int) -> None:
        if self._keys[block] is None:
            self._unproven.push_front(block)
            return
        self._list_of(block).push_back(block)
        if len(self._proven) > self._max_proven:
            oldest = self._proven.pop_front()
            self._is_proven[oldest] = False
            self._unproven.push_back(oldest)

    def publish(self, block: int, key: bytes) -> bool:
        """Say that `block` now holds what `key` stands for. False where another block has the place: it keeps it."""
        if self._refs[block] == 0:
            raise BrokenBooks(f"block {block} is published but nobody holds it: {self!r}")
        if self._keys[block] is not None:
            if self._keys[block] != key:
                raise BrokenBooks(f"block {block} is published twice under different keys: {self!r}")
            return True
        if self._table.setdefault(key[: self._index_bytes], block) != block:
            return False
        self._keys[block] = key
        return True

    def forget(self, key: bytes) -> None:
        """Nobody will ask for `key` again: its mapping goes, and its block is next to be reused once it is free."""
        block = self.lookup(key)
        if block is None:
            return
        if self._refs[block] == 0:
            self._list_of(block).remove(block)
            self._unproven.push_front(block)
        self._unmap(block)

    def free_order(self) -> list[int]:
        """The free blocks, next to go first. O(free)."""
        return [*self._unproven, *self._proven]

    def check(self) -> None:
        """Prove the books in O(num_blocks); raises `BrokenBooks`."""
        free = self.free_order()
        keyed = {block for block, key in enumerate(self._keys) if key is not None}
        is_keyed = [block in keyed for block in free]
        claims = {
            "each block is free xor referenced": sorted(free) == [b for b, refs in enumerate(self._refs) if refs == 0],
            "free + held = total": len(free) == self.num_free and min(self._refs) >= 0,
            "entries point at blocks that carry the key": all(
                (self._keys[block] or b"")[: self._index_bytes] == index for index, block in self._table.items()
            ),
            "each key has its entry": keyed == set(self._table.values()) and len(keyed) == len(self._table),
            "the table is no larger than the pool": len(self._table) <= self.num_blocks,
            "never-hittable blocks go first": is_keyed == sorted(is_keyed),
            "proven are those that were hit": [bool(self._is_proven[block]) for block in free]
            == [False] * len(self._unproven) + [True] * len(self._proven),
            "proven blocks are at most half": len(self._proven) <= self._max_proven,
        }
        require(claims, self)

    def __repr__(self) -> str:
        return f"BlockPool({self.num_blocks} blocks, free {self.num_free}, table {self.table_size}, held {self.held()})"
