"""Random runs against the shadow KV, and proof that the shadow sees what it is there to see."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import TYPE_CHECKING

import pytest
from tests.core.shadow import random_run

from evervox.core import keys
from evervox.core.blocks import BlockPool
from evervox.core.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Iterable

NUM_RUNS = 2000
CHUNKS = 8


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_run_reads_another_prefix(chunk: int) -> None:
    totals = dict.fromkeys(("reads", "ended", "hits", "preemptions"), 0)
    for seed in range(chunk, NUM_RUNS, CHUNKS):
        run = random_run(seed)
        assert run.runner.wrong == [], seed
        totals["reads"] += run.runner.reads
        totals["ended"] += run.num_ended
        totals["hits"] += run.scheduler.hit_slots
        totals["preemptions"] += run.scheduler.preemptions
    assert min(totals.values()) > 50, totals  # the runs do what they are meant to put at risk


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_no_long_run_reads_another_prefix() -> None:
    for seed in range(10_000, 30_000):
        assert random_run(seed, steps=60).runner.wrong == [], seed


def test_an_eight_bit_table_index_costs_hits_and_never_a_wrong_read() -> None:
    for seed in range(300):
        run = random_run(seed, make_pool=partial(BlockPool, index_bytes=1))
        assert run.runner.wrong == [], seed


def test_the_shadow_sees_a_hit_on_the_eight_bit_index_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BlockPool, "lookup", lambda self, key: self._table.get(key[:1]))
    assert any(random_run(seed, make_pool=partial(BlockPool, index_bytes=1)).runner.wrong for seed in range(200))


def _blind(secret: bytes, parent: bytes, slots: Iterable[bytes]) -> bytes:
    return hashlib.blake2b(b"".join(slots), digest_size=16).digest()


def _short(secret: bytes, parent: bytes, slots: Iterable[bytes]) -> bytes:
    return _DIGEST(secret, parent, slots)[:1]


_DIGEST = keys.block_digest


@pytest.mark.parametrize("digest", [_blind, _short])
def test_the_shadow_sees_a_key_that_does_not_stand_for_the_whole_prefix(monkeypatch: pytest.MonkeyPatch, digest: object) -> None:
    monkeypatch.setattr(keys, "block_digest", digest)
    assert any(random_run(seed).runner.wrong for seed in range(200))


def test_the_shadow_sees_a_root_without_the_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "root_digest", lambda secret, root: b"root")
    assert any(random_run(seed).runner.wrong for seed in range(200))


def test_the_shadow_sees_publication_at_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    settle = Scheduler._settle

    def hasty(self, sequence, hits, draft):  # type: ignore[no-untyped-def]
        settle(self, sequence, hits, draft)
        for block, key in zip(sequence.blocks, sequence.chain.digests[: sequence.prompt_blocks], strict=False):
            self.pool.publish(block, key)

    monkeypatch.setattr(Scheduler, "_settle", hasty)
    monkeypatch.setattr(Scheduler, "check", lambda self: None)  # it would see it first
    assert any(random_run(seed).runner.wrong for seed in range(200))
