"""The block pool: a state machine against a naive model, and the traces that other engines fail."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from evervox.core.blocks import BlockPool
from evervox.core.errors import BrokenBooks

KEYS = [bytes([number]) * 16 for number in range(6)]


class PoolMachine(RuleBasedStateMachine):
    """The model: tables as lists, two free orders as lists, a mapping as a dict; every answer is predicted to the block."""

    @initialize(num_blocks=st.integers(1, 8))
    def start(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.unproven = list(range(num_blocks))
        self.proven: list[int] = []
        self.hit: set[int] = set()
        self.keys: dict[int, bytes] = {}
        self.tables: list[tuple[int, ...]] = []

    def held(self) -> Counter[int]:
        return Counter(block for table in self.tables for block in table)

    @rule(wanted=st.lists(st.sampled_from(KEYS), max_size=3, unique=True), fresh=st.integers(0, 4))
    def acquire(self, wanted: list[bytes], fresh: int) -> None:
        shared = self.pool.match(wanted)
        owners = {key: block for block, key in self.keys.items()}
        expected = []
        for key in wanted:
            if key not in owners:
                break
            expected.append(owners[key])
        assert shared == expected
        rest = [block for block in self.unproven + self.proven if block not in shared]
        table = self.pool.acquire(shared, fresh)
        if len(rest) < fresh:
            assert table is None
            return
        assert table == (*shared, *rest[:fresh])
        self.hit = (self.hit | set(shared)) - set(rest[:fresh])
        self.unproven = [block for block in self.unproven if block not in table]
        self.proven = [block for block in self.proven if block not in table]
        for block in rest[:fresh]:
            self.keys.pop(block, None)
        self.tables.append(table)

    @precondition(lambda self: any(self.tables))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        self.pool.release(table)
        held = self.held()
        for block in reversed(table):
            if not held[block] and block not in self.unproven + self.proven:
                self.retire(block)

    def retire(self, block: int) -> None:
        if block not in self.keys:
            self.unproven.insert(0, block)
        elif block not in self.hit:
            self.unproven.append(block)
        else:
            self.proven.append(block)
        if len(self.proven) > self.pool.num_blocks // 2:
            oldest = self.proven.pop(0)
            self.hit.remove(oldest)
            self.unproven.append(oldest)

    @precondition(lambda self: any(self.tables))
    @rule(data=st.data(), key=st.sampled_from(KEYS))
    def publish(self, data: st.DataObject, key: bytes) -> None:
        block = data.draw(st.sampled_from(sorted(self.held())))
        if self.keys.get(block, key) != key:
            with pytest.raises(BrokenBooks):
                self.pool.publish(block, key)
            return
        is_first = block in self.keys or key not in self.keys.values()
        assert self.pool.publish(block, key) is is_first
        if is_first:
            self.keys[block] = key

    @rule(key=st.sampled_from(KEYS))
    def forget(self, key: bytes) -> None:
        self.pool.forget(key)
        block = next((block for block, its_key in self.keys.items() if its_key == key), None)
        if block is None:
            return
        del self.keys[block]
        self.hit.discard(block)
        for order in (self.unproven, self.proven):
            if block in order:
                order.remove(block)
                self.unproven.insert(0, block)
                break

    @precondition(lambda self: bool(self.unproven + self.proven))
    @rule(data=st.data())
    def double_release(self, data: st.DataObject) -> None:
        with pytest.raises(BrokenBooks):
            self.pool.release([data.draw(st.sampled_from(self.unproven + self.proven))])

    @invariant()
    def books_agree(self) -> None:
        self.pool.check()
        assert self.pool.free_order() == self.unproven + self.proven
        assert self.pool.num_free == len(self.unproven + self.proven)
        assert self.pool.table_size == len(self.keys)
        assert all(self.pool.lookup(key) == block for block, key in self.keys.items())
        held = self.held()
        assert all(self.pool.refs(block) == held[block] for block in range(self.pool.num_blocks))


PoolMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
TestPoolMachine = PoolMachine.TestCase


def held_block(pool: BlockPool, key: bytes) -> int:
    table = pool.acquire((), 1)
    assert table is not None
    assert pool.publish(table[0], key)
    return table[0]


def test_hits_are_charged_before_fresh_blocks_are_taken() -> None:
    pool = BlockPool(3)
    hits = [held_block(pool, KEYS[0]), held_block(pool, KEYS[1])]
    pool.release(hits)
    assert pool.num_free == 3
    assert pool.acquire(hits, 2) is None  # three are free, two of them are the hits
    assert pool.num_free == 3
    assert pool.match(KEYS[:2]) == hits
    assert pool.acquire(hits, 1) is not None
    pool.check()


def test_a_refused_acquire_holds_nothing_and_moves_nothing() -> None:
    pool = BlockPool(2)
    block = held_block(pool, KEYS[0])
    before = pool.free_order()
    assert pool.acquire([block], 2) is None
    assert pool.refs(block) == 1
    assert pool.free_order() == before


def test_double_release_raises() -> None:
    pool = BlockPool(2)
    table = pool.acquire((), 1)
    assert table is not None
    pool.release(table)
    with pytest.raises(BrokenBooks, match="nobody holds it"):
        pool.release(table)


def test_a_block_without_a_key_cannot_be_shared() -> None:
    pool = BlockPool(2)
    table = pool.acquire((), 1)
    assert table is not None
    with pytest.raises(BrokenBooks, match="cannot be shared"):
        pool.acquire(table, 0)


def test_publishing_what_nobody_holds_raises() -> None:
    with pytest.raises(BrokenBooks, match="nobody holds it"):
        BlockPool(1).publish(0, KEYS[0])


def test_two_live_twins_one_freed_the_mapping_of_the_other_stays() -> None:
    pool = BlockPool(4)
    first, second = pool.acquire((), 1), pool.acquire((), 1)
    assert first is not None
    assert second is not None
    assert pool.publish(first[0], KEYS[0])
    assert not pool.publish(second[0], KEYS[0])
    pool.release(second)
    assert pool.acquire((), 3) is not None  # the freed twin's memory goes to somebody else
    assert pool.lookup(KEYS[0]) == first[0]
    pool.check()


def test_free_order_is_never_hittable_then_least_recent_tail_before_head() -> None:
    pool = BlockPool(6)
    old = [held_block(pool, KEYS[number]) for number in range(2)]
    new = [held_block(pool, KEYS[number]) for number in range(2, 4)]
    blank = pool.acquire((), 2)
    assert blank is not None
    pool.release(old)
    pool.release(new)
    pool.release(blank)
    assert pool.free_order() == [blank[0], blank[1], old[1], old[0], new[1], new[0]]


def test_a_hit_makes_a_block_recent() -> None:
    pool = BlockPool(2)
    first, second = held_block(pool, KEYS[0]), held_block(pool, KEYS[1])
    pool.release([first])
    pool.release([second])
    assert pool.acquire([first], 0) == (first,)
    pool.release([first])
    assert pool.acquire((), 1) == (second,)


def test_blocks_that_were_hit_outlive_those_that_never_were() -> None:
    pool = BlockPool(4)
    used = held_block(pool, KEYS[0])
    pool.release([used])
    assert pool.acquire([used], 0) == (used,)
    pool.release([used])
    never = [held_block(pool, KEYS[number]) for number in (1, 2, 3)]
    pool.release(never)
    assert pool.free_order() == [*reversed(never), used]


def test_proven_blocks_are_at_most_half_and_the_oldest_start_again() -> None:
    pool = BlockPool(4)
    blocks = [held_block(pool, KEYS[number]) for number in range(4)]
    assert pool.acquire(blocks, 0) is not None
    for block in (*blocks, *blocks):
        pool.release([block])
    assert pool.free_order() == blocks
    pool.check()
    assert list(pool._proven) == blocks[2:]


def test_check_names_what_does_not_hold() -> None:
    pool = BlockPool(2)
    pool._refs[0] = 1
    with pytest.raises(BrokenBooks, match="free xor referenced"):
        pool.check()
    pool = BlockPool(2)
    held_block(pool, KEYS[0])
    pool._table[KEYS[1]] = 1
    with pytest.raises(BrokenBooks, match="carry the key"):
        pool.check()
