"""How fast a model is on this machine: time to first audio, real-time factor, and how many listeners it can keep."""

from __future__ import annotations

import asyncio
import json
import platform
import subprocess
import time
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer

from evervox.errors import BadRequest
from evervox.request import SpeechRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evervox.engine.client import Engine

TEXT = "The quick brown fox jumps over the lazy dog, and then it rests for a while in the shade of an old tree."
MAX_STREAMS = 256
BAR = 40


@dataclass(frozen=True, slots=True)
class Heard:
    """One stream: seconds until its first audio and until its end, of its audio, and by which a chunk came too late."""

    first: float
    total: float
    audio: float
    late: float


@dataclass(frozen=True, slots=True)
class Level:
    """`streams` at once. `rtf`: seconds per second of one listener's audio; `speed`: audio seconds per second, all together."""

    streams: int
    first_ms: float
    worst_first_ms: float
    rtf: float
    speed: float
    late_ms: float

    @property
    def is_real_time(self) -> bool:
        """No listener, playing from the first chunk on, ran dry."""
        return self.late_ms <= 0


def bench(
    *,
    model: Annotated[
        str | None, typer.Option(help="Checkpoint folder or hub id; without it, the small voice that ships.")
    ] = None,
    streams: Annotated[
        str, typer.Option(help="Numbers of listeners to try; stops at the first that cannot be kept.")
    ] = "1,2,4,8,16,32,64",
    seconds: Annotated[float, typer.Option(help="Audio per listener.")] = 5.0,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N. [auto]")] = None,
    dtype: Annotated[str | None, typer.Option(help="auto, float32, bfloat16 or int8 (CPU). [auto]")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads of the model.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the numbers as JSON.")] = None,
) -> None:
    """Measure this machine: time to first audio, real-time factor, listeners at real time.

    evervox bench

    evervox bench --model openbmb/VoxCPM2 --streams 1,8,32 --out bench.json
    """
    numbers = _numbers(streams)
    if not 0.1 <= seconds <= 60:
        raise BadRequest(f"must be 0.1 to 60, not {seconds}", field="seconds")
    given = {"device": device, "dtype": dtype, "threads": threads}
    settings = {name: value for name, value in given.items() if value is not None}
    levels, about = asyncio.run(run(model, numbers, seconds, settings))
    print("\n".join(report(levels, about)))
    if out is not None:
        out.write_text(json.dumps({"about": about, "levels": [asdict(level) for level in levels]}, indent=1) + "\n", "utf-8")


async def run(
    model: str | None, numbers: list[int], seconds: float, settings: dict[str, str | int]
) -> tuple[list[Level], dict[str, str]]:
    """Levels up to the first that is not at real time, and what was measured. Raises what keeps the engine from starting."""
    from rich.console import Console

    from evervox.engine.client import Engine

    console = Console(stderr=True, highlight=False)
    levels: list[Level] = []
    with console.status("loading") as status:
        async with Engine.start(model, max_running=max(numbers), **settings) as engine:
            await _listen(engine, seconds, seed=0)
            for number in numbers:
                status.update(f"{number} at once")
                levels.append(await _level(engine, number, seconds))
                if not levels[-1].is_real_time:
                    break
            return levels, _about(engine)


def report(levels: list[Level], about: dict[str, str]) -> Iterator[str]:
    """A table with bars for people, then one line to paste."""
    top = max(level.speed for level in levels)
    yield f"{'streams':>7}  {'first audio':>11}  {'worst':>8}  {'RTF':>6}  {'late':>7}  audio seconds per second"
    for level in levels:
        bar = "#" * max(1, round(BAR * level.speed / top))
        late = "-" if level.is_real_time else f"{level.late_ms:.0f} ms"
        yield (
            f"{level.streams:>7}  {level.first_ms:>8.0f} ms  {level.worst_first_ms:>5.0f} ms  {level.rtf:>6.3f}  {late:>7}  "
            f"{bar} {level.speed:.1f}"
        )
    kept = max((level.streams for level in levels if level.is_real_time), default=0)
    last = "at least " if levels[-1].is_real_time else ""
    yield ""
    yield (
        f"{' | '.join(about.values())} | first audio {levels[0].first_ms:.0f} ms, RTF {levels[0].rtf:.3f} alone | "
        f"{last}{kept} streams at real time, {top:.1f} s of audio per second"
    )


async def _level(engine: Engine, number: int, seconds: float) -> Level:
    heard = await asyncio.gather(*(_listen(engine, seconds, seed) for seed in range(number)))
    total = max(one.total for one in heard)
    return Level(
        streams=number,
        first_ms=1000 * median(one.first for one in heard),
        worst_first_ms=1000 * max(one.first for one in heard),
        rtf=median(one.total / one.audio for one in heard),
        speed=sum(one.audio for one in heard) / total,
        late_ms=1000 * max(one.late for one in heard),
    )


async def _listen(engine: Engine, seconds: float, seed: int) -> Heard:
    """Play from the first chunk on: `late` is the longest that the player, if it had no more, would have waited."""
    patches = max(1, round(seconds / engine.info.patch_seconds))
    request = SpeechRequest(text=TEXT, seed=seed, min_patches=patches, max_seconds=patches * engine.info.patch_seconds)
    began = time.monotonic()
    first, audio, late, now = 0.0, 0.0, 0.0, began
    async for chunk in engine.speak(request):
        now = time.monotonic()
        if not audio:
            first = now - began
        else:
            late = max(late, now - (began + first + audio))
        audio += len(chunk.samples) / chunk.sample_rate
    return Heard(first, now - began, audio, late)


def _numbers(streams: str) -> list[int]:
    try:
        numbers = sorted({int(part) for part in streams.split(",")})
    except ValueError:
        raise BadRequest(f"must be numbers and commas (1,2,4), not {streams!r}", field="streams") from None
    if numbers[0] < 1 or numbers[-1] > MAX_STREAMS:
        raise BadRequest(f"must be 1 to {MAX_STREAMS}, not {streams!r}", field="streams")
    return numbers


def _about(engine: Engine) -> dict[str, str]:
    settings = engine.settings
    gpu = None if settings.device == "cpu" else _gpu()
    cpu = f"{_cpu()}, {settings.threads or 'default'} threads"
    return {
        "version": f"evervox {version('evervox')}",
        "torch": f"torch {version('torch')}",
        "model": f"{engine.info.name} ({engine.info.model.name})",
        "dtype": settings.dtype,
        "machine": gpu or cpu,
    }


def _gpu() -> str | None:
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        names = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return None
    return names[0].strip() if names else None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor() or "CPU")
