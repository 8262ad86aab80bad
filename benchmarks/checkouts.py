"""Two checkouts of this repository in turns on one checkpoint and one thread: is what changed faster?

Each round runs both once, in an order that alternates, so a noisy machine is noisy for both; a ratio is the median over rounds of
one round's quotient, above 1 where the second is faster. Where a process's memory happens to lie makes several per cent of
difference as long as it lives, so both are started anew several times.

    git worktree add --detach /tmp/before HEAD~1
    python -m benchmarks.checkouts /tmp/before . src/evervox/voice --starts 8
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.contenders import CLOCKS
from benchmarks.versus import PARTS, Child

HERE = Path(__file__).resolve().parents[1]


class Checkout(Child):
    """This checkout's benchmark over that checkout's package."""

    def __init__(self, root: Path, dtype: str, folder: Path, *, clock: str) -> None:
        path = os.pathsep.join((str(root.resolve() / "src"), str(HERE)))
        super().__init__("evervox", dtype, folder, threads=1, clock=clock, environment={"PYTHONPATH": path})


def milliseconds(result: dict[str, Any]) -> dict[str, float]:
    """The whole step and its parts."""
    return {"step": result["step_ms"], **{part: result["parts_ms"][part] for part in PARTS}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", type=Path, nargs=2)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--clock", choices=CLOCKS, default="cpu")
    parser.add_argument("--starts", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3, help="after each start")
    parser.add_argument("--patches", type=int, default=20)
    parser.add_argument("--streams", type=int, default=1)
    args = parser.parse_args()
    rounds: list[list[dict[str, float]]] = []
    for _ in range(args.starts):
        children = [Checkout(root, args.dtype, args.folder, clock=args.clock) for root in args.checkouts]
        for index in range(args.rounds):
            order = (1, -1)[index % 2]
            results = [milliseconds(child.run(args.streams, args.patches)) for child in children[::order]]
            rounds.append(results[::order])
        for child in children:
            child.close()
    for part in ("step", *PARTS):
        pairs = [(first[part], second[part]) for first, second in rounds]
        before, after = (median(times) for times in zip(*pairs, strict=True))
        ratio = median(first / second for first, second in pairs)
        print(json.dumps({"part": part, "before_ms": round(before, 2), "after_ms": round(after, 2), "ratio": round(ratio, 3)}))


if __name__ == "__main__":
    sys.exit(main())
