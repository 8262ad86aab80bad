"""Who waits and who stutters: three ways to order the same arrivals, with fixed step costs.

A step costs BASE + SLOT per slot + PATCH per patch made, about those of VoxCPM2 on an RTX 4090. Requests arrive as a
Poisson process at a share of the capacity (the rate at which full rows of decode and their prefill take all the time).
"earliest deadline" is the real scheduler; "a step ahead" the same as a GPU is driven, each step planned LEAD before the one
before it ends, at the same costs. "prefill first" computes nothing else while a prompt is waiting for a row that is free;
"decode first" gives prompts what the running streams leave of the slot budget; both serve in order of arrival.

    python benchmarks/schedule.py --out docs/benchmarks
"""

from __future__ import annotations

import argparse
import json
import random
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING, Any, Protocol

from evervox.core.keys import root_key, text_key
from evervox.core.plan import Outcome, StepPlan
from evervox.core.scheduler import NewSequence, Scheduler, SchedulerLimits

if TYPE_CHECKING:
    from collections.abc import Callable

BASE, SLOT, PATCH = 0.0077, 0.000035, 0.00055  # seconds
LEAD = 0.008  # twice what planning and launching 64 rows takes
ROWS, SLOTS, PATCH_SECONDS = 64, 256, 0.16
PROMPTS, PATCHES = (40, 400), (50, 150)
MEAN_PROMPT, MEAN_PATCHES = sum(PROMPTS) / 2, sum(PATCHES) / 2
CAPACITY = 1 / (MEAN_PROMPT * SLOT + MEAN_PATCHES * (PATCH + BASE / ROWS))  # requests a second
LIMITS = SchedulerLimits(num_blocks=6000, max_running=ROWS, slots_per_step=SLOTS, patch_seconds=PATCH_SECONDS)
ROOT = root_key(b"weights", "bfloat16", None, b"")


@dataclass
class Stream:
    seq: int
    arrival: float
    prompt: int
    patches: int
    made: int = 0
    computed: int = 0
    first_audio: float = 0.0
    dry: float = 0.0
    stalls: int = 0
    stalled: float = 0.0

    def hear(self, now: float) -> None:
        self.made += 1
        if self.made == 1:
            self.first_audio = self.dry = now
        elif now > self.dry:
            self.stalls += 1
            self.stalled += now - self.dry
        self.dry = max(self.dry, now) + PATCH_SECONDS


Work = list[tuple[int, int, bool]]  # stream, slots, whether a patch is made


class Policy(Protocol):
    def submit(self, stream: Stream, now: float) -> None: ...
    def plan(self, now: float) -> Work: ...
    def follow(self, now: float) -> None:
        """The step that was planned ends soon."""

    def commit(self, now: float) -> None: ...


class EarliestDeadline:
    """The scheduler that is served."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(LIMITS, b"secret")
        self.step: StepPlan = StepPlan(0, ())

    def submit(self, stream: Stream, now: float) -> None:
        keys = [text_key(stream.seq * 1000 + slot) for slot in range(stream.prompt)]
        self.scheduler.submit(NewSequence(stream.seq, keys, ROOT, stream.patches), now)

    def plan(self, now: float) -> Work:
        self.step = self.scheduler.plan(now)
        return [(span.seq, span.stop - span.start, span.emits) for span in self.step.spans]

    def follow(self, now: float) -> None:
        pass

    def commit(self, now: float) -> None:
        self.scheduler.commit(self.step, [Outcome(span.seq) for span in self.step.spans], now)


class OneStepAhead(EarliestDeadline):
    """The same on a device that the host runs ahead of: a step is planned a little before the one before it ends."""

    def __init__(self) -> None:
        super().__init__()
        self.following = StepPlan(0, ())

    def plan(self, now: float) -> Work:
        self.step = self.following or self.scheduler.plan(now)
        return [(span.seq, span.stop - span.start, span.emits) for span in self.step.spans]

    def follow(self, now: float) -> None:
        goes_on = self.step and not self.step.is_short
        self.following = self.scheduler.plan(now, after=self.step) if goes_on else StepPlan(0, ())


class InOrderOfArrival:
    """The two usual rules. Blocks are no object to it."""

    def __init__(self, is_prefill_first: bool) -> None:
        self._is_prefill_first = is_prefill_first
        self._waiting: deque[Stream] = deque()
        self._running: list[Stream] = []
        self._work: list[tuple[Stream, int, bool]] = []

    def submit(self, stream: Stream, now: float) -> None:
        self._waiting.append(stream)

    def plan(self, now: float) -> Work:
        while self._waiting and len(self._running) < ROWS:
            self._running.append(self._waiting.popleft())
        decodes = [(stream, 1, True) for stream in self._running if stream.computed >= stream.prompt]
        if not self._is_prefill_first:
            self._work = decodes[:SLOTS] + self._prefills(SLOTS - len(decodes))
        else:
            self._work = self._prefills(SLOTS) or decodes[:SLOTS]
        return [(stream.seq, slots, emits) for stream, slots, emits in self._work]

    def _prefills(self, budget: int) -> list[tuple[Stream, int, bool]]:
        work = []
        for stream in self._running:
            slots = min(budget, stream.prompt - stream.computed)
            if slots > 0:
                work.append((stream, slots, stream.computed + slots == stream.prompt))
                budget -= slots
        return work

    def follow(self, now: float) -> None:
        pass

    def commit(self, now: float) -> None:
        for stream, slots, _ in self._work:
            stream.computed += slots
        self._running = [stream for stream in self._running if stream.made < stream.patches]


def arrivals(load: float, count: int, seed: int) -> list[Stream]:
    rng = random.Random(seed)
    now, streams = 0.0, []
    for seq in range(count):
        now += rng.expovariate(load * CAPACITY)
        streams.append(Stream(seq, now, rng.randint(*PROMPTS), rng.randint(*PATCHES)))
    return streams


def simulate(policy: Policy, streams: list[Stream]) -> list[Stream]:
    now, next_up, open_streams = 0.0, 0, 0

    def arrive(until: float) -> None:
        nonlocal next_up, open_streams
        while next_up < len(streams) and streams[next_up].arrival <= until:
            policy.submit(streams[next_up], streams[next_up].arrival)
            next_up, open_streams = next_up + 1, open_streams + 1

    while next_up < len(streams) or open_streams:
        arrive(now)
        work = policy.plan(now)
        if not work:
            now = streams[next_up].arrival
            continue
        now += BASE + SLOT * sum(slots for _, slots, _ in work) + PATCH * sum(emits for _, _, emits in work)
        arrive(now - LEAD)
        policy.follow(now - LEAD)
        for seq, _, emits in work:
            if emits:
                streams[seq].hear(now)
                open_streams -= streams[seq].made == streams[seq].patches
        policy.commit(now)
    return streams


def measure(streams: list[Stream]) -> dict[str, float]:
    waits = [stream.first_audio - stream.arrival for stream in streams]
    cuts = quantiles(waits, n=100)
    return {
        "ttfa_p50_s": round(cuts[49], 4),
        "ttfa_p95_s": round(cuts[94], 4),
        "ttfa_p99_s": round(cuts[98], 4),
        "streams_with_underrun_pct": round(100 * sum(stream.stalls > 0 for stream in streams) / len(streams), 3),
        "stalled_s_per_1000_streams": round(1000 * sum(stream.stalled for stream in streams) / len(streams), 3),
    }


POLICIES: dict[str, Callable[[], Policy]] = {
    "earliest deadline": EarliestDeadline,
    "a step ahead": OneStepAhead,
    "prefill first": lambda: InOrderOfArrival(True),
    "decode first": lambda: InOrderOfArrival(False),
}


def worse_measure(rows: dict[str, dict[str, float]]) -> dict[str, float]:
    """Each policy's worse measure of the two, each measure relative to the worst policy's."""
    names = ("ttfa_p95_s", "streams_with_underrun_pct")
    worst = {name: max(row[name] for row in rows.values()) or 1.0 for name in names}
    return {policy: round(max(row[name] / worst[name] for name in names), 4) for policy, row in rows.items()}


def run(loads: list[float], count: int, seeds: list[int]) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for load in loads:
        rows = {}
        for name, make in POLICIES.items():
            streams = [stream for seed in seeds for stream in simulate(make(), arrivals(load, count, seed))]
            rows[name] = measure(streams)
        results[str(load)] = {"policies": rows, "worse_measure": worse_measure(rows)}
    return results


def plot(results: dict[str, Any], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for axis, (measured, label) in zip(
        axes,
        [("ttfa_p95_s", "time to first audio, p95 (s)"), ("streams_with_underrun_pct", "streams with an underrun (%)")],
        strict=True,
    ):
        for name in POLICIES:
            loads = [float(load) for load in results]
            axis.plot(loads, [results[load]["policies"][name][measured] for load in results], marker="o", label=name)
        axis.set(xlabel="load (share of capacity)", ylabel=label)
        if measured == "ttfa_p95_s":
            axis.set_yscale("log")
        else:
            axis.set_ylim(-0.02, max(1.0, *(row[measured] for load in results.values() for row in load["policies"].values())))
        axis.grid(alpha=0.3)
    axes[0].legend()
    figure.savefig(path, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    parser.add_argument("--requests", type=int, default=1500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--loads", type=float, nargs="+", default=[0.5, 0.7, 0.85, 0.95])
    args = parser.parse_args()
    results = run(args.loads, args.requests, list(range(args.seeds)))
    config = {"base_s": BASE, "slot_s": SLOT, "patch_s": PATCH, "rows": ROWS, "slots_per_step": SLOTS}
    config |= {"capacity_requests_per_s": round(CAPACITY, 3), "requests": args.requests, "seeds": args.seeds}
    print(json.dumps(results, indent=1))
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "schedule.json").write_text(json.dumps({"config": config, "loads": results}, indent=1) + "\n")
    plot(results, args.out / "schedule.png")


if __name__ == "__main__":
    main()
