"""The parts as processes: each writes what it finds as it goes, a line of JSON a result."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

Found = dict[str, Any]


def run_checks(found: Found, options: argparse.Namespace) -> None:
    """All checks, in as few processes as come through; one that takes its process down has failed."""
    first, total = 0, 1
    while first < total:
        lines, ending = run(["checks", str(first)], options)
        if lines:
            found.update(lines[0]["machine"])
            total = lines[0]["total"]
        checks = lines[1:]
        if not checks or (ending and len(checks) < total - first and checks[-1]["passed"]):
            name = lines[0]["names"][first + len(checks)] if lines else "start"
            checks.append({"name": name, "passed": False, "detail": ending or "it ended early", "seconds": 0.0})
        found["checks"] += checks
        first += len(checks)
        if options.out is not None:
            options.out.write_text(json.dumps(found, indent=1))


def run_bench(found: Found, options: argparse.Namespace, size: str) -> None:
    """One size."""
    rows = [1, 2] if options.dry_run else options.rows
    lines, ending = run(["bench", size, json.dumps(rows), str(2 if options.dry_run else options.steps)], options)
    if lines:
        found.update(lines[0]["machine"])
    found["bench"] += lines[1:] or [{"size": size, "error": ending or "it ended early"}]


def run(part: list[str], options: argparse.Namespace) -> tuple[list[dict[str, Any]], str]:
    """What the process wrote, and how it ended if that was not well."""
    with TemporaryDirectory() as folder:
        out = Path(folder) / "lines"
        out.touch()
        command = [sys.executable, "-m", "tools.gpu_check.part", str(out), "cpu" if options.dry_run else "cuda", *part]
        try:
            code = subprocess.run(command, check=False, timeout=options.part_seconds).returncode
            ending = "" if code == 0 else f"its process ended with code {code}"
        except subprocess.TimeoutExpired:
            ending = f"its process was ended after {options.part_seconds:g} s"
        return [json.loads(line) for line in out.read_text().splitlines()], ending
