"""Everything that only a GPU can show, in one command: correctness first, then the benchmark. Prints a table, writes JSON.

    PYTHONPATH=src python -m tools.gpu_check --out gpu_check.json          # minutes on one GPU
    PYTHONPATH=src python -m tools.gpu_check --dry-run                     # the same code, tiny, on a CPU

Needs torch, numpy, safetensors and tokenizers, and triton for the kernels. Each part runs in a process of its own, so that one
that takes its GPU context down, or hangs, costs no other its result. Exit code 1 where a part failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from tools.gpu_check.parts import Found, run_bench, run_checks
from tools.gpu_check.table import table


def main() -> int:
    options = parse()
    started = time.perf_counter()
    found: Found = {"dry_run": options.dry_run, "checks": [], "bench": []}
    if not options.skip_checks:
        run_checks(found, options)
    for size in [] if options.skip_bench else (["small"] if options.dry_run else options.sizes):
        run_bench(found, options, size)
        if options.out is not None:
            options.out.write_text(json.dumps(found, indent=1))
    found["seconds"] = round(time.perf_counter() - started, 1)
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=1))
    print(table(found))
    return 0 if all(check["passed"] for check in found["checks"]) and not any("error" in b for b in found["bench"]) else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tools.gpu_check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="JSON file to write, after each part")
    parser.add_argument("--dry-run", action="store_true", help="tiny and on a CPU")
    parser.add_argument("--sizes", nargs="*", default=["2", "0.5b"], help="published sizes to measure, of 0.5b, 1.5 and 2")
    parser.add_argument("--rows", nargs="*", type=int, default=[1, 8, 16, 32, 64])
    parser.add_argument("--steps", type=int, default=40, help="timed decode steps per number of rows")
    parser.add_argument("--part-seconds", type=float, default=240, help="a process that takes longer is ended (default 240)")
    parser.add_argument("--skip-checks", action="store_true")
    parser.add_argument("--skip-bench", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
