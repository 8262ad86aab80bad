"""Everything that only a GPU can show, in one command: correctness first, then the benchmark. Prints a table, writes JSON.

    PYTHONPATH=src python -m tools.gpu_check --out gpu_check.json          # minutes on one GPU
    PYTHONPATH=src python -m tools.gpu_check --dry-run                     # the same code, tiny, on a CPU

Needs torch, numpy, safetensors and tokenizers, and triton for the kernels. Exit code 1 where a check failed.
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from evervox.runner.gpu import set_up

TARGETS = {"decode_ms at 1 row": 4.0, "decode_over_floor at 64 rows": 1.6, "first_audio_ms": 12.0}
"""For VoxCPM2 in bfloat16 with 10 timesteps on an H200."""


def main() -> int:
    options = parse()
    set_up()
    device = torch.device("cpu" if options.dry_run else "cuda")
    started = time.perf_counter()
    found: dict[str, Any] = {"device": name_of(device), "torch": torch.__version__, "dry_run": options.dry_run}
    for part, run in (("checks", run_checks), ("bench", run_bench)):
        found[part] = [] if getattr(options, f"skip_{part}") else run(device, options)
        found["seconds"] = round(time.perf_counter() - started, 1)
        if options.out is not None:  # after each part: the next one may take the process down
            options.out.write_text(json.dumps(found, indent=1))
    print(table(found))
    return 1 if any(not check["passed"] for check in found["checks"]) or any("error" in b for b in found["bench"]) else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tools.gpu_check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--dry-run", action="store_true", help="tiny and on a CPU")
    parser.add_argument("--sizes", nargs="*", default=["2", "0.5b"], help="published sizes to measure, of 0.5b, 1.5 and 2")
    parser.add_argument("--rows", nargs="*", type=int, default=[1, 8, 16, 32, 64])
    parser.add_argument("--steps", type=int, default=40, help="timed decode steps per number of rows")
    parser.add_argument("--skip-checks", action="store_true")
    parser.add_argument("--skip-bench", action="store_true")
    return parser.parse_args()


def run_checks(device: torch.device, options: argparse.Namespace) -> list[dict[str, Any]]:
    from tools.gpu_check.checks import CHECKS

    results = []
    for check in CHECKS:
        started = time.perf_counter()
        try:
            passed, detail = True, check(device)
        except Exception as error:
            passed, detail = False, f"{type(error).__name__}: {error}"
            traceback.print_exc()
        results.append(
            {"name": check.__name__, "passed": passed, "detail": detail, "seconds": round(time.perf_counter() - started, 1)}
        )
        print(f"{'ok' if passed else 'FAILED':<7}{check.__name__}: {detail}", flush=True)
    return results


def run_bench(device: torch.device, options: argparse.Namespace) -> list[dict[str, Any]]:
    from tools.gpu_check.bench import measure

    found = []
    for size in ["small"] if options.dry_run else options.sizes:
        try:
            found.append(measure(device, size, *((1, 2), 2) if options.dry_run else (tuple(options.rows), options.steps)))
        except Exception as error:
            traceback.print_exc()
            found.append({"size": size, "error": f"{type(error).__name__}: {error}"})
    return found


def name_of(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def table(found: dict[str, Any]) -> str:
    """What a person reads."""
    lines = [f"{found['device']}, torch {found['torch']}, {found['seconds']} s", ""]
    lines += [f"{'ok' if c['passed'] else 'FAILED':<7}{c['name']:<45}{c['seconds']:>7} s  {c['detail']}" for c in found["checks"]]
    lines += [f"FAILED {bench['size']}: {bench['error']}" for bench in found["bench"] if "error" in bench]
    for bench in (bench for bench in found["bench"] if "error" not in bench):
        lines += [
            "",
            f"{bench['size']} {bench['dtype']}: floor {bench['floor_ms']} ms ({bench['weight_gb_per_step']} GB of weights at",
        ]
        lines[-1] += (
            f" {bench['copy_gb_per_s']} GB/s), {bench['shapes']} shapes in {bench['recording_s']} s, {bench['graph_mib']} MiB"
        )
        lines += [f"{'rows':>6}{'ms per step':>14}{'over the floor':>16}"]
        lines += [f"{rows:>6}{ms:>14}{bench['decode_over_floor'][rows]:>16}" for rows, ms in bench["decode_ms"].items()]
        lines += [f"each step awaited, at {rows} rows: {ms} ms" for rows, ms in bench["decode_ms_waiting"].items()]
        lines += [f"the host's part of a step, at {rows} rows: {ms} ms" for rows, ms in bench["launch_ms"].items()]
        lines += [f"first audio of a 100-slot prompt: {bench['first_audio_ms']} ms"]
        lines += [f"stages, ms, at {rows} rows: {ms}" for rows, ms in bench["stage_ms"].items()]
        lines += [f"run eagerly {bench['eager_runs']}, recorded after start {bench['recorded_after_start']}"]
    lines += ["", "targets, VoxCPM2 on an H200: " + ", ".join(f"{name} <= {bound:g}" for name, bound in TARGETS.items())]
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
