"""evervox bench: what it counts, and what it says."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
import typer
from tools.make_checkpoint import make
from typer.testing import CliRunner

from evervox.engine import bench as module
from evervox.engine.bench import Level
from evervox.errors import BadRequest

if TYPE_CHECKING:
    from pathlib import Path

ABOUT = {"version": "evervox 1", "machine": "a CPU, 2 threads"}


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_RUNNER", "{}")
    monkeypatch.setenv("EVERVOX_RUNNER", "tests.engine.fake_runner:create")


@pytest.fixture(scope="module")
def slow_rate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model at 1 kHz: 120 ms of audio per patch, as real ones have."""
    changes = {"audio_vae_config": {"out_sample_rate": 1000}}
    return make("voxcpm2", tmp_path_factory.mktemp("slow-rate"), changes=changes)


def level(streams: int, speed: float, late_ms: float = 0.0) -> Level:
    return Level(streams, first_ms=50, worst_first_ms=60, rtf=0.2, speed=speed, late_ms=late_ms)


def test_a_fast_engine_keeps_every_number_of_listeners(slow_rate: Path) -> None:
    levels, about = asyncio.run(module.run(str(slow_rate), [1, 3], 2.0, {}))
    assert [one.streams for one in levels] == [1, 3]
    assert all(one.is_real_time and 0 < one.first_ms <= one.worst_first_ms and one.rtf < 1 < one.speed for one in levels)
    assert about["model"].startswith("VoxCPM2")


def test_a_slow_engine_stops_at_the_first_that_runs_dry(slow_rate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_RUNNER", json.dumps({"step": 0.2}))
    levels, _ = asyncio.run(module.run(str(slow_rate), [1, 2], 1.0, {}))
    assert [one.streams for one in levels] == [1]
    assert levels[0].late_ms > 100
    assert levels[0].rtf > 1


def test_the_report_names_the_most_that_were_kept() -> None:
    lines = list(module.report([level(1, 4.0), level(2, 8.0), level(4, 9.0, late_ms=30)], ABOUT))
    assert "30 ms" in lines[3]
    assert lines[-1].startswith("evervox 1 | a CPU, 2 threads | first audio 50 ms, RTF 0.200 alone | 2 streams at real time")
    assert "at least 2 streams" in list(module.report([level(1, 4.0), level(2, 8.0)], ABOUT))[-1]
    assert "0 streams at real time" in list(module.report([level(1, 0.5, late_ms=900)], ABOUT))[-1]


def test_the_command_writes_json(slow_rate: Path, tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(module.bench)
    out = tmp_path / "bench.json"
    result = CliRunner().invoke(app, ["--model", str(slow_rate), "--streams", "2,1", "--seconds", "0.5", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert [one["streams"] for one in json.loads(out.read_text())["levels"]] == [1, 2]


@pytest.mark.parametrize("streams", ["", "0", "1,x", "1,257", "-3"])
def test_bad_numbers_are_refused(streams: str) -> None:
    with pytest.raises(BadRequest, match="streams"):
        module.bench(streams=streams)


@pytest.mark.parametrize("seconds", [0.0, 61.0, float("nan")])
def test_bad_seconds_are_refused(seconds: float) -> None:
    with pytest.raises(BadRequest, match="seconds"):
        module.bench(streams="1", seconds=seconds)
