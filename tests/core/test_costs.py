"""What does not depend on how busy the machine is: memory per block, and work that does not grow with the pool."""

from __future__ import annotations

import sys
import tracemalloc
from typing import TYPE_CHECKING

from tests.core.harness import Harness

from evervox.core.blocks import BlockPool

if TYPE_CHECKING:
    from types import FrameType


def full_pool(num_blocks: int) -> BlockPool:
    """Every block in the table and free."""
    pool = BlockPool(num_blocks)
    blocks = pool.acquire((), num_blocks)
    assert blocks is not None
    for block in blocks:
        pool.publish(block, block.to_bytes(16, "big"))
    pool.release(blocks)
    return pool


def test_a_block_costs_at_most_300_bytes() -> None:
    tracemalloc.start()
    pool = full_pool(20_000)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert pool.table_size == 20_000
    assert used / 20_000 <= 300


def calls_of_a_run(num_blocks: int) -> int:
    """How many of the core's functions a fixed piece of work calls; others' finalisers may run meanwhile."""
    harness = Harness(num_blocks=num_blocks)
    for seq in range(8):
        harness.submit(seq, f"abcdefgh{seq}", patches=20)
    scheduler, count = harness.scheduler, 0

    def on_event(frame: FrameType, event: str, _arg: object) -> None:
        nonlocal count
        count += event == "call" and "evervox/core" in frame.f_code.co_filename

    while not scheduler.is_idle:
        sys.setprofile(on_event)
        plan = scheduler.plan(harness.now)
        sys.setprofile(None)
        harness.commit(plan)
    return count


def test_a_plan_does_not_look_at_every_block() -> None:
    assert calls_of_a_run(100) == calls_of_a_run(1_000)
