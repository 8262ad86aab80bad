"""evervox batch: many lines at once, bad ones among them, interrupted and resumed."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import av
import pytest
from typer.testing import CliRunner

from evervox import errors
from evervox.engine import batch as module

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_RUNNER", "{}")
    monkeypatch.setenv("EVERVOX_RUNNER", "tests.engine.fake_runner:create")


def speak(file: Path, out: Path, model: Path, **more: Any) -> module.Tally:
    options = {"audio_format": "wav", "max_running": 4, **more}
    return asyncio.run(module.run(file, out, model=str(model), **options))


def manifest(out: Path) -> dict[int, dict[str, Any]]:
    return {record["line"]: record for record in map(json.loads, (out / "manifest.jsonl").read_text().splitlines())}


def test_every_line_of_a_text_file_is_spoken_once(checkpoint: Path, tmp_path: Path) -> None:
    file, out = tmp_path / "book.txt", tmp_path / "out"
    file.write_text("\n".join(f"This is line {i}." for i in range(1, 21)) + "\n\n  \nThe last one.\n")
    tally = speak(file, out, checkpoint)
    assert (tally.done, tally.skipped, tally.failed) == (21, 0, 0)
    records = manifest(out)
    assert sorted(records) == [*range(1, 21), 23]
    assert records[23]["text"] == "The last one."
    with av.open(str(out / "000001.wav")) as wav:
        assert float(wav.duration / av.time_base) == pytest.approx(records[1]["seconds"], abs=0.01)
    again = speak(file, out, checkpoint)
    assert (again.done, again.skipped, again.failed) == (0, 21, 0)


def test_a_bad_line_is_reported_and_skipped(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "lines.jsonl", tmp_path / "out"
    lines = [
        {"text": "Good.", "name": "good", "seed": 3},
        {"text": "x" * 5000},
        {"text": "Bad guidance.", "cfg": "high"},
        {"text": "No clip.", "reference": "nowhere.wav"},
        {"text": "The same name.", "name": "good"},
        {"text": "Out of here.", "name": "../good"},
        {"text": "A typo.", "sede": 3},
        {"no": "text"},
    ]
    file.write_text("\n".join([*map(json.dumps, lines), "{not json", json.dumps({"text": "Good again."})]))
    tally = speak(file, out, checkpoint)
    assert (tally.done, tally.failed) == (2, 8)
    records = manifest(out)
    assert records[1]["seed"] == 3
    named = {2: "4,096", 3: "cfg", 4: "nowhere.wav", 5: "line 1", 6: "name", 7: "sede", 8: "text", 9: "JSON"}
    for line, word in named.items():
        assert word in records[line]["error"]
    assert "line 3: cfg" in capsys.readouterr().err
    assert {path.name for path in out.iterdir()} == {"good.wav", "000010.wav", "manifest.jsonl"}


def test_an_interrupted_batch_goes_on_where_it_was(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_RUNNER", '{"step": 0.01}')
    file, out = tmp_path / "book.txt", tmp_path / "out"
    file.write_text("\n".join(f"This is line {i}." for i in range(40)))

    async def interrupted() -> None:
        work = asyncio.create_task(module.run(file, out, model=str(checkpoint), audio_format="wav", max_running=4))
        while not out.is_dir() or len(list(out.glob("*.wav"))) < 8:
            await asyncio.sleep(0.01)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work

    asyncio.run(interrupted())
    with (out / "manifest.jsonl").open("a") as file_:
        file_.write('{"line": 40, "dige')  # and the disk was full, besides
    before = len(list(out.glob("*.wav")))
    assert not list(out.glob("*.part"))
    changed = file.read_text().replace("line 0.", "another line.")
    file.write_text(changed)
    tally = speak(file, out, checkpoint)
    assert tally.done + tally.skipped == 40
    assert tally.skipped in (before - 1, before - 2)  # one line has changed; one file may lack its record
    assert manifest_ok(out, 40)


def manifest_ok(out: Path, count: int) -> bool:
    records = [line for line in (out / "manifest.jsonl").read_text().splitlines() if line.endswith("}")]
    return {json.loads(record)["line"] for record in records} == set(range(1, count + 1))


def test_the_command_says_how_it_went(checkpoint: Path, tmp_path: Path) -> None:
    import typer

    app = typer.Typer()
    app.command()(module.batch)
    file = tmp_path / "a.txt"
    file.write_text("One.\nTwo.")
    result = CliRunner().invoke(app, [str(file), "--out", str(tmp_path / "out"), "--model", str(checkpoint), "--format", "flac"])
    assert result.exit_code == 0
    assert "2 spoken, 0 were there, 0 failed" in result.stderr


@pytest.mark.parametrize(
    ("name", "error"), [("none.txt", errors.NotFound), ("a.csv", errors.BadRequest), ("b.txt", errors.BadRequest)]
)
def test_a_file_that_cannot_be_used_is_named(checkpoint: Path, tmp_path: Path, name: str, error: type[Exception]) -> None:
    (tmp_path / "a.csv").write_text("x")
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(error, match="file"):
        speak(tmp_path / name, tmp_path / "out", checkpoint)
