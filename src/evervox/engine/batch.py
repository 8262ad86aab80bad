"""Many texts from one file, spoken at once; resumes where it stopped, and a bad line costs nobody else anything."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from dataclasses import dataclass, fields
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evervox.errors import BadRequest, EngineFailure, EvervoxError, NotFound, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evervox.engine.client import Engine
    from evervox.engine.manifest import Manifest

FORMATS = ("wav", "mp3", "flac", "opus", "aac", "pcm")
CLIPS = ("reference", "prompt")
SAFE_NAME = re.compile(r"^[\w-][\w.-]{0,99}$")


@dataclass(frozen=True, slots=True)
class Item:
    """One line of the input: its number from 1 on, what it says, and a digest of all that decides its audio."""

    line: int
    content: str
    digest: str


@dataclass(slots=True)
class Tally:
    """How a batch went."""

    done: int = 0
    skipped: int = 0
    failed: int = 0


def batch(
    file: Annotated[Path, typer.Argument(help=".txt: a text per line. .jsonl: an object per line.", show_default=False)],
    *,
    out: Annotated[Path, typer.Option(help="Folder for the audio files and manifest.jsonl; made if need be.")],
    model: Annotated[
        str | None, typer.Option(help="Checkpoint folder or hub id; without it, the small voice that ships.")
    ] = None,
    audio_format: Annotated[str, typer.Option("--format", help=", ".join(FORMATS))] = "wav",
    max_running: Annotated[int, typer.Option(help="Texts spoken at once.")] = 16,
) -> None:
    """Speak every line of a file.

    A .jsonl line is an object with "text" and, if wanted, "name" (the file's, else the line's number) and any field of a request:
    reference, prompt, prompt_text, instructions, seed, timesteps, cfg, max_seconds. Clip paths are relative to FILE.

    Run it again to go on where it stopped: lines whose audio is there are skipped. A bad line is reported and skipped; the
    exit code is then 1.

    evervox batch book.txt --out book

    evervox batch lines.jsonl --out audio --model openbmb/VoxCPM2 --format flac
    """
    tally = asyncio.run(run(file, out, model=model, audio_format=audio_format, max_running=max_running))
    print(f"{tally.done} spoken, {tally.skipped} were there, {tally.failed} failed: {out / 'manifest.jsonl'}", file=sys.stderr)
    if tally.failed:
        raise typer.Exit(1)


async def run(file: Path, out: Path, *, model: str | None, audio_format: str, max_running: int, **settings: Any) -> Tally:
    """Raises `BadRequest`, `NotFound` and what keeps the engine from starting; a line's error goes to the manifest."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    from evervox.engine.client import Engine
    from evervox.engine.manifest import Manifest

    if audio_format not in FORMATS:
        raise BadRequest(f"must be one of {', '.join(FORMATS)}, not {audio_format!r}", field="format")
    items = list(read(file, f"{model} {audio_format}"))
    out.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=True, highlight=False)
    bar = Progress(*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn(), console=console)
    engine = Engine.start(model, max_running=max_running, **settings)
    with Manifest(out) as manifest, bar:
        todo = [item for item in items if not manifest.has(item.line, item.digest)]
        job = Batch(engine, file.parent, out, audio_format=audio_format, manifest=manifest, bar=bar, num_lines=len(items))
        job.tally.skipped = len(items) - len(todo)
        if todo:
            async with engine:
                await job.speak(todo, max_running)
    return job.tally


def read(file: Path, salt: str) -> Iterator[Item]:
    """The lines that are not blank. Raises `NotFound` and `BadRequest`."""
    if not file.is_file():
        raise NotFound(f"there is no file {file}", field="file")
    if file.suffix.lower() not in (".txt", ".jsonl"):
        raise BadRequest(f"must end in .txt or .jsonl, not {file.name!r}", field="file")
    is_text = file.suffix.lower() == ".txt"
    try:
        lines = file.read_text("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise BadRequest(f"is not UTF-8 text: {error}", field="file") from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            content = json.dumps({"text": line.strip()}, ensure_ascii=False) if is_text else line.strip()
            yield Item(number, content, blake2b(f"{salt} {content}".encode(), digest_size=16).hexdigest())


class Batch:
    """One run over the lines that are still to be spoken."""

    def __init__(
        self, engine: Engine, base: Path, out: Path, *, audio_format: str, manifest: Manifest, bar: Any, num_lines: int
    ) -> None:
        self.tally = Tally()
        self._engine = engine
        self._base = base
        self._out = out
        self._format = audio_format
        self._manifest = manifest
        self._bar = bar
        self._task = bar.add_task("speaking", total=num_lines)
        self._names: dict[str, int] = {}

    async def speak(self, items: list[Item], max_running: int) -> None:
        """All of them, `max_running` at a time."""
        self._bar.advance(self._task, self.tally.skipped)
        waiting = iter(items)

        async def worker() -> None:
            for item in waiting:
                await self._one(item)

        tasks = [asyncio.create_task(worker()) for _ in range(min(max_running, len(items)))]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _one(self, item: Item) -> None:
        """Speak a line, or write down why not. An engine that is gone ends the batch."""
        try:
            record = await self._spoken(item)
            self.tally.done += 1
        except Unavailable:
            raise
        except (EvervoxError, OSError) as error:
            record = {"error": str(error), "code": getattr(error, "code", "os")}
            self.tally.failed += 1
            self._bar.console.print(f"line {item.line}: {error}", markup=False)
        self._manifest.add({"line": item.line, "digest": item.digest, **record})
        self._bar.advance(self._task)

    async def _spoken(self, item: Item) -> dict[str, Any]:
        import numpy as np

        from evervox.engine.files import write_audio

        name, request = self._parse(item)
        chunks = [chunk async for chunk in self._engine.speak(request)]
        finish = chunks[-1].finish
        if finish is None:
            raise EngineFailure("the stream ended before its last chunk")
        samples = np.concatenate([chunk.samples for chunk in chunks])
        path = self._out / f"{name}.{self._format}"
        write_audio(path, samples, chunks[0].sample_rate)
        seconds = round(len(samples) / chunks[0].sample_rate, 3)
        return {"file": path.name, "text": request.text, "seconds": seconds, "seed": finish.seed, "finish": finish.reason}

    def _parse(self, item: Item) -> tuple[str, Any]:
        """The file's name and the request. Raises `BadRequest`."""
        from evervox.request import SpeechRequest

        try:
            given = json.loads(item.content)
        except json.JSONDecodeError as error:
            raise BadRequest(f"is not JSON: {error}", field="line") from None
        if not isinstance(given, dict) or not isinstance(given.get("text"), str):
            raise BadRequest('must be an object with a "text"', field="line")
        name = self._name(given.pop("name", f"{item.line:06d}"), item.line)
        unknown = given.keys() - {field.name for field in fields(SpeechRequest)}
        if unknown:
            raise BadRequest("there is no such field", field=min(unknown))
        for clip in CLIPS:
            if given.get(clip) is not None:
                given[clip] = self._clip(given[clip], clip)
        return name, SpeechRequest(**{"priority": "batch", **given})

    def _name(self, name: object, line: int) -> str:
        if not isinstance(name, str) or not SAFE_NAME.match(name):
            raise BadRequest(f"must be 1 to 100 letters, digits, '.', '_' and '-', not {name!r}", field="name")
        if self._names.setdefault(name, line) != line:
            raise BadRequest(f"{name!r} is the name of line {self._names[name]} already", field="name")
        return name

    def _clip(self, path: object, field: str) -> str:
        if not isinstance(path, str):
            raise BadRequest(f"must be the path of a clip, not {path!r}", field=field)
        return str(self._base / Path(path).expanduser())
