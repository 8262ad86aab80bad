"""Ours against the PyPI package `voxcpm` 2.0.3 on one CPU: the same folder, the same text length, one process each, in turns.

Every round runs each contender once, so a noisy machine is noisy for all; a ratio is the median over rounds of one round's
quotient. Parts are time inside that part. All wait passively for their threads, as our worker does, unless OMP_WAIT_POLICY says
otherwise. The floor of a part is the larger of its weights' bytes over the measured read bandwidth and its operations over the
measured rate of large products.

    python tools/make_checkpoint.py voxcpm /tmp/half --size 0.5b
    python -m benchmarks.versus /tmp/half --threads 2 --out docs/benchmarks/versus.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from benchmarks.contenders import CLOCKS

if TYPE_CHECKING:
    from collections.abc import Callable

Json = dict[str, Any]
PARTS = ("LM", "residual", "DiT", "encoder", "VAE")
EVALUATIONS = 9
BYTES = {"bfloat16": 2, "float32": 4, "int8": 1}


class Child:
    """One contender in its own process. Between runs it waits on its standard input and takes no time."""

    def __init__(
        self, name: str, dtype: str, folder: Path, *, threads: int, clock: str, environment: dict[str, str] | None = None
    ) -> None:
        self.label = f"{name} {dtype}"
        command = [sys.executable, "-m", "benchmarks.contenders", name, dtype, str(folder), str(threads), clock]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        variables = {"OMP_WAIT_POLICY": "passive", **os.environ, **(environment or {})}
        self.process = subprocess.Popen(command, **pipes, text=True, env=variables)
        self.load_seconds = self._read()["load_s"]

    def run(self, streams: int, patches: int) -> Json:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"streams": streams, "patches": patches}) + "\n")
        self.process.stdin.flush()
        return self._read()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _read(self) -> Json:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.label} died: run python -m benchmarks.contenders by hand to see why")
        answer: Json = json.loads(line)
        return answer


def machine(threads: int, clock: str) -> Json:
    """Read bandwidth in GB/s and rates of large products in GFLOP/s: best of several, for a floor must not be too high."""
    torch.set_num_threads(threads)
    now = CLOCKS[clock]

    def seconds(call: Callable[[], object]) -> float:
        began = now()
        call()
        return now() - began

    block = torch.ones(64 * 2**20)
    bandwidth = max(block.nbytes / 1e9 / seconds(block.sum) for _ in range(10))
    rates = {}
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        a = torch.ones(1024, 1024, dtype=dtype)
        rates[name] = max(2 * 1024**3 / 1e9 / seconds(lambda a=a: a @ a) for _ in range(10))
    return {
        "threads": threads,
        "clock": clock,
        "read_gb_per_s": bandwidth,
        "gflop_per_s": rates,
        "cpu": _cpu(),
        "torch": torch.__version__,
    }


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")


def floors(folder: Path, found: Json) -> dict[str, Json]:
    """Milliseconds per part and dtype that no implementation on this machine can beat, for one stream."""
    from evervox.models.voxcpm.config import VoxConfig
    from evervox.models.voxcpm.model import VoxModel
    from evervox.models.voxcpm.vae import AudioVae

    config = VoxConfig.from_checkpoint(folder)
    with torch.device("meta"):
        model, vae = VoxModel(config), AudioVae(config.vae)
    count = {
        "LM": _matrices(model.lm), "residual": _matrices(model.residual), "encoder": _matrices(model.encoder),
        "DiT": _matrices(model.dit.stack), "VAE": _matrices(vae.decoder),
    }  # fmt: skip
    rows = {"LM": 1, "residual": 1, "encoder": config.patch_size + 1, "DiT": 2 * (2 * config.patch_size + 1)}
    flops = {part: 2 * count[part] * rows[part] for part in rows} | {"VAE": _vae_flops(config)}
    result: dict[str, Json] = {}
    for dtype in BYTES:
        result[dtype] = {}
        for part, weights in count.items():
            own = "float32" if part == "VAE" else dtype
            rate = found["gflop_per_s"]["float32" if own == "float32" else "bfloat16"] * (2 if own == "int8" else 1)
            passes = EVALUATIONS if part == "DiT" else 1
            reading = weights * BYTES[own] / found["read_gb_per_s"] / 1e6
            result[dtype][part] = passes * max(reading, flops[part] / rate / 1e6)
    return result


def _matrices(module: torch.nn.Module) -> int:
    return sum(m.weight.numel() for m in module.modules() if isinstance(m, torch.nn.Linear))


def _vae_flops(config: Any) -> float:
    """Of one patch: each linear layer at the rate that its stage runs at."""
    from evervox.models.voxcpm.vae import AudioVae

    with torch.device("meta"):
        decoder = AudioVae(config.vae).decoder
    steps, total = config.patch_size, 2 * _matrices(decoder.first) * config.patch_size
    for stage, rate in zip(decoder.stages, config.vae.decoder_rates, strict=True):
        total += 2 * steps * _matrices(stage.conv)
        steps *= rate
        total += 2 * steps * _matrices(stage.units)
    return total + 2 * steps * _matrices(decoder.last)


def compare(children: list[Child], *, rounds: int, patches: int, streams: list[int]) -> tuple[list[Json], dict[int, list[Json]]]:
    """One stream each, in turns; then ours at several streams, in turns with one stream of the package."""
    singles = []
    for index in range(rounds):
        singles.append({child.label: child.run(1, patches) for child in children})
        print(f"round {index + 1}/{rounds}:", {k: round(v["step_ms"]) for k, v in singles[-1].items()}, flush=True)
    many: dict[int, list[Json]] = {}
    for number in streams:
        at_once = {child: number if child.label.startswith("evervox") else 1 for child in children}
        many[number] = [{child.label: child.run(n, patches) for child, n in at_once.items()} for _ in range(max(1, rounds // 2))]
        print(f"{number} streams:", {k: round(v["step_ms"]) for k, v in many[number][-1].items()}, flush=True)
    return singles, many


def summary(singles: list[Json], many: dict[int, list[Json]], dtypes: list[str]) -> Json:
    """Medians over rounds, and ratios of one round's two contenders."""
    table = {}
    for label in singles[0]:
        runs = [one[label] for one in singles]
        table[label] = {
            "step_ms": median(r["step_ms"] for r in runs),
            "first_ms": median(r["first_ms"] for r in runs),
            "parts_ms": {part: median(r["parts_ms"][part] for r in runs) for part in PARTS},
            "peak_rss_mb": max(r["peak_rss_mb"] for r in runs),
        }
    ratios: Json = {}
    for dtype in dtypes:
        ours, theirs = f"evervox {dtype}", f"voxcpm {dtype if dtype != 'int8' else 'bfloat16'}"
        if ours not in table or theirs not in table:
            continue
        ratios[f"{ours} / {theirs}"] = {
            "step": median(one[theirs]["step_ms"] / one[ours]["step_ms"] for one in singles),
            "first": median(one[theirs]["first_ms"] / one[ours]["first_ms"] for one in singles),
            **{part: median(one[theirs]["parts_ms"][part] / one[ours]["parts_ms"][part] for one in singles) for part in PARTS},
        }
        for number, runs in many.items():
            quotients = (number * run[theirs]["step_ms"] / run[ours]["step_ms"] for run in runs)
            ratios[f"{ours} / {theirs}"][f"throughput at {number}"] = median(quotients)
    return {"contenders": table, "ratios": ratios}


def report(result: Json) -> None:
    """The table for people."""
    print(f"\n{'ms per patch':18s}" + "".join(f"{part:>10s}" for part in PARTS) + f"{'all':>10s}{'first':>10s}{'RSS MB':>10s}")
    for label, row in result["contenders"].items():
        numbers = [row["parts_ms"][part] for part in PARTS] + [row["step_ms"], row["first_ms"], row["peak_rss_mb"]]
        print(f"{label:18s}" + "".join(f"{number:10.1f}" for number in numbers))
    for dtype, row in result["floors_ms"].items():
        numbers = [row[part] for part in PARTS]
        print(f"{'floor ' + dtype:18s}" + "".join(f"{number:10.1f}" for number in [*numbers, sum(numbers)]))
    for label, row in result["ratios"].items():
        print(f"{label}: " + ", ".join(f"{name} {value:.2f}x" for name, value in row.items()))


def plot(result: Json, path: Path) -> None:
    """Stacked bars: where the milliseconds go."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    bars = {label: row["parts_ms"] for label, row in result["contenders"].items()}
    bars |= {f"floor {dtype}": row for dtype, row in result["floors_ms"].items() if f"evervox {dtype}" in bars}
    figure, axes = plt.subplots(figsize=(9, 0.6 * len(bars) + 1.5))
    left = [0.0] * len(bars)
    for part in PARTS:
        widths = [row[part] for row in bars.values()]
        axes.barh(list(bars), widths, left=left, label=part)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set_xlabel(f"ms per patch, one stream, threads: {result['machine']['threads']}")
    axes.invert_yaxis()
    axes.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: with one thread, on a machine in use")
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "int8"], choices=BYTES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--patches", type=int, default=8)
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 2, 4, 8])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    theirs = [dtype for dtype in options.dtypes if dtype != "int8"]
    children = [Child("evervox", dtype, options.folder, threads=options.threads, clock=options.clock) for dtype in options.dtypes]
    children += [Child("voxcpm", dtype, options.folder, threads=options.threads, clock=options.clock) for dtype in theirs]
    found = machine(options.threads, options.clock)
    singles, many = compare(children, rounds=options.rounds, patches=options.patches, streams=options.streams)
    for child in children:
        child.close()
    result = {"machine": found, **summary(singles, many, options.dtypes), "floors_ms": floors(options.folder, found)}
    result["streams"] = {number: [{k: r["step_ms"] for k, r in run.items()} for run in runs] for number, runs in many.items()}
    report(result)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")
        plot(result, options.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
