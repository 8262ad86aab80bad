"""What a killed engine leaves in the temporary directory goes when the next one starts; nothing else does."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from evervox.engine.scratch import LOCK, PREFIX, Scratch, remove_abandoned

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from tests.engine.conftest import StartFake

HOLDER = "import sys, time; from evervox.engine.scratch import Scratch; print(Scratch().path, flush=True); time.sleep(600)"


def test_a_killed_owner_leaves_nothing_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    holder = subprocess.Popen([sys.executable, "-c", HOLDER], env=environment, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    theirs = holder.stdout.readline().strip()
    with holder.stdout:
        mine = Scratch()
        assert {str(path) for path in tmp_path.iterdir()} == {theirs, str(mine.path)}
        holder.kill()
        holder.wait()
    remove_abandoned(tmp_path)
    assert list(tmp_path.iterdir()) == [mine.path]
    mine.remove()
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_an_abandoned_engine_stays(tmp_path: Path) -> None:
    (tmp_path / f"{PREFIX}new").mkdir()  # not locked yet
    (tmp_path / f"{PREFIX}old").mkdir()
    os.utime(tmp_path / f"{PREFIX}old", (0, time.time() - 100))
    (tmp_path / "evervox-other").mkdir()
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / LOCK).touch()
    (tmp_path / f"{PREFIX}link").symlink_to(tmp_path / "target")
    (tmp_path / f"{PREFIX}file").touch()
    remove_abandoned(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{PREFIX}new",
        "evervox-other",
        "target",
        f"{PREFIX}link",
        f"{PREFIX}file",
    }


def test_an_engine_that_closes_leaves_nothing(start_fake: StartFake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    async def main() -> None:
        async with start_fake():
            assert len(list(tmp_path.glob(f"{PREFIX}*"))) == 1

    asyncio.run(main())
    assert list(tmp_path.glob(f"{PREFIX}*")) == []
