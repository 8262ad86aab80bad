"""One part of the GPU check, run by `parts`: `part OUT DEVICE checks FIRST` or `part OUT DEVICE bench SIZE ROWS STEPS`.

The first line of OUT says what machine this is, each further line is a result.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from evervox.runner.gpu import set_up

if TYPE_CHECKING:
    from collections.abc import Iterator


def main(out: str, kind: str, part: str, *arguments: str) -> int:
    set_up()
    device = torch.device(kind)
    with Path(out).open("w", buffering=1) as file:
        for line in checks(device, int(arguments[0])) if part == "checks" else bench(device, *arguments):
            file.write(json.dumps(line) + "\n")
    return 0


def machine(device: torch.device) -> dict[str, Any]:
    return {"device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu", "torch": torch.__version__}


def checks(device: torch.device, first: int) -> Iterator[dict[str, Any]]:
    """From the `first` on, up to one that leaves the GPU's context unusable."""
    from tools.gpu_check.checks import CHECKS

    yield {"machine": machine(device), "total": len(CHECKS), "names": [check.__name__ for check in CHECKS]}
    for check in CHECKS[first:]:
        started, passed = time.perf_counter(), True
        try:
            detail = check(device)
        except Exception as error:
            passed, detail = False, f"{type(error).__name__}: {error}"
            traceback.print_exc()
        print(f"{'ok' if passed else 'FAILED':<7}{check.__name__}: {detail}", flush=True)
        yield {"name": check.__name__, "passed": passed, "detail": detail, "seconds": round(time.perf_counter() - started, 1)}
        if not passed:
            return  # the next one begins in a process that nothing has happened to


def bench(device: torch.device, size: str, rows: str, steps: str) -> Iterator[dict[str, Any]]:
    from tools.gpu_check.bench import measure

    yield {"machine": machine(device)}
    yield measure(device, size, tuple(json.loads(rows)), int(steps))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
