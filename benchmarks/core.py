"""What the prefix cache saves, and what the core costs.

Hit rate: 32 live requests at a time; 200 voices, drawn by Zipf(1.0), each with a reference clip of 5 to 15 s at 6.25
patches a second; a text of 20 to 120 tokens that never repeats; 100 patches made. The same trace under each rule, in the
same memory. A reference slot can be reused from the second use of its voice on. "whole blocks" counts those that lie in
blocks of 16 slots of the clip alone, which is what any rule with such blocks could find; "all" counts every slot of the
clip.

    python benchmarks/core.py --out docs/benchmarks
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import time
import tracemalloc
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from evervox.core.blocks import BlockPool, _FreeList
from evervox.core.keys import KeyChain, clip_key, root_key, text_key
from evervox.core.plan import Outcome
from evervox.core.scheduler import NewSequence, Scheduler, SchedulerLimits

if TYPE_CHECKING:
    from evervox.core.sequence import Sequence

VOICES, LIVE, PATCHES = 200, 32, 100
CLIP_SECONDS, TEXT, PATCHES_PER_SECOND = (5.0, 15.0), (20, 120), 6.25
MEAN_SLOTS = round(sum(CLIP_SECONDS) / 2 * PATCHES_PER_SECOND + sum(TEXT) / 2 + 3 + PATCHES)
POOLS = (40, 60, 100, 175)  # requests
ROOT = root_key(b"weights", "bfloat16", None, b"")


class RemoveAtFree(BlockPool):
    """A freed block loses its entry."""

    __slots__ = ()

    def _retire(self, block: int) -> None:
        self._unmap(block)
        self._unproven.push_back(block)


class PlainLru(BlockPool):
    """Every freed block goes to the end of the one queue."""

    __slots__ = ()

    def _list_of(self, block: int) -> _FreeList:
        return self._unproven

    def _retire(self, block: int) -> None:
        self._unproven.push_back(block)


class SharesGenerated(Scheduler):
    """Publishes generated blocks like any other, and keeps them at the end."""

    def _end(self, sequence: Sequence) -> None:
        sequence.seal()
        for place in range(sequence.prompt_blocks, sequence.computed // self.limits.block_size):
            self.pool.publish(sequence.blocks[place], sequence.chain.digests[place])
        del sequence.chain.digests[sequence.prompt_blocks :]
        super()._end(sequence)


RULES: dict[str, tuple[int, type[BlockPool], type[Scheduler]]] = {
    "ours": (16, BlockPool, Scheduler),
    "ours, 8-slot blocks": (8, BlockPool, Scheduler),
    "ours, 4-slot blocks": (4, BlockPool, Scheduler),
    "256-slot blocks": (256, BlockPool, Scheduler),
    "remove at free": (16, RemoveAtFree, Scheduler),
    "plain LRU, generated blocks shared": (16, PlainLru, SharesGenerated),
}


@dataclass
class Trace:
    """Requests as (voice, length of its clip in patches, tokens of text)."""

    requests: list[tuple[int, int, int]]

    @classmethod
    def draw(cls, count: int, seed: int) -> Trace:
        rng = random.Random(seed)
        clips = [round(rng.uniform(*CLIP_SECONDS) * PATCHES_PER_SECOND) for _ in range(VOICES)]
        weights = [1 / rank for rank in range(1, VOICES + 1)]
        voices = rng.choices(range(VOICES), weights, k=count)
        return cls([(voice, clips[voice], rng.randint(*TEXT)) for voice in voices])

    def new(self, seq: int) -> NewSequence:
        voice, clip, text = self.requests[seq]
        digest = voice.to_bytes(16, "big")
        keys = [text_key(103), *[clip_key(digest, patch) for patch in range(clip)], text_key(104)]
        keys += [text_key(1000 + seq * 200 + place) for place in range(text)] + [text_key(101)]
        return NewSequence(seq, keys, ROOT, PATCHES)


def first_starts(trace: Trace, rule: str, pool_requests: int) -> tuple[dict[int, int], Scheduler]:
    """The slots that each request found in the cache when it was first admitted."""
    block_size, make_pool, make_scheduler = RULES[rule]
    num_blocks = pool_requests * -(-MEAN_SLOTS // 16) * 16 // block_size
    limits = SchedulerLimits(
        num_blocks=num_blocks, max_running=LIVE, slots_per_step=512, patch_seconds=0.16, block_size=block_size
    )
    scheduler = make_scheduler(limits, b"secret", make_pool(num_blocks))
    starts: dict[int, int] = {}
    now, submitted = 0.0, 0
    while submitted < len(trace.requests) or not scheduler.is_idle:
        while submitted < len(trace.requests) and scheduler.num_running + scheduler.num_waiting < LIVE:
            scheduler.submit(trace.new(submitted), now)
            submitted += 1
        plan = scheduler.plan(now)
        for span in plan.spans:
            starts.setdefault(span.seq, span.start)
        now += 0.02
        scheduler.commit(plan, [Outcome(span.seq) for span in plan.spans], now)
    return starts, scheduler


def hit_rate(trace: Trace, rule: str, pool_requests: int) -> dict[str, float]:
    starts, scheduler = first_starts(trace, rule, pool_requests)
    if rule.startswith("ours"):
        scheduler.check()
    seen: set[int] = set()
    hits = hits_whole = whole = total = 0
    for seq, (voice, clip, _) in enumerate(trace.requests):
        if voice in seen:
            block = 16  # the ruler is the same for every rule
            total += clip + 1
            whole += (clip + 1) // block * block
            hits += min(starts[seq], clip + 1)
            hits_whole += min(starts[seq], (clip + 1) // block * block)
        seen.add(voice)
    return {
        "whole_blocks": round(hits_whole / whole, 4),
        "all": round(hits / total, 4),
        "preemptions": scheduler.preemptions,
    }


def hit_rates(count: int, seed: int) -> dict[str, Any]:
    trace = Trace.draw(count, seed)
    return {rule: {str(pool): hit_rate(trace, rule, pool) for pool in POOLS} for rule in RULES}


# Costs


def step_times(num_blocks: int, rows: int, steps: int, slots: int = 100) -> list[float]:
    """Seconds of `plan` + `commit` for steps in which every row decodes, in a pool whose blocks are all in the table."""
    limits = SchedulerLimits(num_blocks=num_blocks, max_running=rows, slots_per_step=256, patch_seconds=0.16)
    scheduler = Scheduler(limits, b"secret")
    fill(scheduler.pool)
    for seq in range(rows):
        keys = [text_key(seq * 1000 + slot) for slot in range(slots)]
        scheduler.submit(NewSequence(seq, keys, ROOT, steps + 300), 0.0)
    now = 0.0
    times: list[float] = []
    while len(times) < steps:
        start = time.perf_counter()
        plan = scheduler.plan(now)
        planned = time.perf_counter() - start
        outcomes = [Outcome(span.seq) for span in plan.spans]
        now += 0.02
        start = time.perf_counter()
        scheduler.commit(plan, outcomes, now)
        if sum(span.stop - span.start for span in plan.spans) == rows:
            times.append(planned + time.perf_counter() - start)
    return times


def fill(pool: BlockPool) -> None:
    """Publish every block of an empty pool and free it again."""
    blocks = pool.acquire((), pool.num_blocks) or ()
    for block in blocks:
        pool.publish(block, block.to_bytes(16, "big"))
    pool.release(blocks)


def bytes_per_block(num_blocks: int) -> float:
    """Memory of a pool whose blocks are all in the table, keys included."""
    gc.collect()
    tracemalloc.start()
    pool = BlockPool(num_blocks)
    fill(pool)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return used / pool.num_blocks


def key_seconds_per_slot(slots: int = 256, rounds: int = 400) -> float:
    """A clip's slot keys and its chain, per slot."""
    times = []
    for turn in range(rounds):
        digest = turn.to_bytes(16, "big")
        start = time.perf_counter()
        KeyChain(b"secret", ROOT, 16).extend([clip_key(digest, patch) for patch in range(slots)])
        times.append((time.perf_counter() - start) / slots)
    return median(times)


def costs() -> dict[str, float]:
    small: list[float] = []
    large: list[float] = []
    for _ in range(5):  # by turns, so that a busy machine is busy for both
        small += step_times(1_000, 16, 300)
        large += step_times(100_000, 16, 300)
    return {
        "plan_commit_ms_64_running": round(1e3 * median(step_times(4_000, 64, 600)), 4),
        "plan_commit_ms_1000_blocks": round(1e3 * median(small), 4),
        "plan_commit_ms_100000_blocks": round(1e3 * median(large), 4),
        "ratio_100000_to_1000_blocks": round(median(large) / median(small), 3),
        "key_us_per_slot": round(1e6 * key_seconds_per_slot(), 3),
        "bytes_per_block": round(bytes_per_block(100_000), 1),
    }


def plot(rates: dict[str, Any], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained", sharey=True)
    titles = {"whole_blocks": "in whole blocks of 16 slots", "all": "all slots of the clip"}
    for axis, (measured, title) in zip(axes, titles.items(), strict=True):
        for rule, by_pool in rates.items():
            axis.plot(POOLS, [100 * by_pool[str(pool)][measured] for pool in POOLS], marker="o", label=rule)
        axis.axhline(95, color="grey", linewidth=0.8, linestyle="--")
        axis.set(xlabel="pool (requests that fit)", title=title, ylim=(-2, 102), xticks=POOLS)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("reused reference slots (%)")
    axes[1].legend(fontsize=7, loc="lower right", bbox_to_anchor=(1, 0.05))
    figure.savefig(path, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    config = {"requests": args.requests, "seed": args.seed, "mean_slots": MEAN_SLOTS, "live": LIVE, "voices": VOICES}
    results = {"config": config, "costs": costs(), "hit_rates": hit_rates(args.requests, args.seed)}
    print(json.dumps(results, indent=1))
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "core.json").write_text(json.dumps(results, indent=1) + "\n")
    plot(results["hit_rates"], args.out / "core.png")


if __name__ == "__main__":
    main()
