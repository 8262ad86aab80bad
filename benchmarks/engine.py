"""What the engine adds and what it costs: throughput, its own share of a step, recovery, slow readers, long texts.

Throughput: eight requests of equal length at once, against the same eight one after another through the plain generator in
this process, with as many threads. Rounds alternate between the two, so that a busy machine troubles both; the ratio is that
of the medians. The engine's own share is the part of the worker's step time outside `runner.step`: planning, committing,
encoding messages. Recovery is from SIGKILL to the first chunk that any stream gets afterwards, and the slowest stream's.

    python benchmarks/engine.py --out docs/benchmarks
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from evervox.conditioning.prepare import Preparer
from evervox.conditioning.text import TextTokenizer
from evervox.engine.client import Engine
from evervox.models.voxcpm.hub import checkpoint_folder
from evervox.request import SpeechRequest
from evervox.runner.simple import SimpleGenerator

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from evervox.request import AudioChunk

TEXT = "the small boat came home over the grey water before it was dark"
STREAMS = 8
SPARE_SECONDS = 8.0  # until a spare worker is ready again
LONG = "The boat came home. " * 204


def requests(patches: int, seconds: float, count: int = STREAMS) -> list[SpeechRequest]:
    """Eight of exactly `patches` patches."""
    cap = (patches + 0.5) * seconds
    return [SpeechRequest(text=TEXT, seed=seed, min_patches=patches, max_seconds=cap) for seed in range(count)]


class Plain:
    def __init__(self, model: Path) -> None:
        self.generator = SimpleGenerator.load(model)
        self.preparer = Preparer(self.generator.config, TextTokenizer.from_checkpoint(model))

    def speak(self, wanted: list[SpeechRequest]) -> float:
        """Seconds for all of them, one after another."""
        began = time.perf_counter()
        for request in wanted:
            prepared = self.preparer.prepare(request)
            for _ in self.generator.stream(prepared.prompt, prepared.sampling):
                pass
        return time.perf_counter() - began


async def read(stream: AsyncIterator[AudioChunk], times: list[float] | None = None, pause: float = 0.0) -> int:
    """Chunks read; when each came goes to `times`."""
    count = 0
    async for _ in stream:
        count += 1
        if times is not None:
            times.append(time.perf_counter())
        if pause:
            await asyncio.sleep(pause)
    return count


async def at_once(engine: Engine, wanted: list[SpeechRequest]) -> float:
    began = time.perf_counter()
    counts = await asyncio.gather(*(read(engine.speak(request)) for request in wanted))
    assert len(set(counts)) == 1, counts
    return time.perf_counter() - began


async def throughput(engine: Engine, plain: Plain, patches: int, rounds: int) -> dict[str, Any]:
    wanted = requests(patches, engine.info.patch_seconds)
    await at_once(engine, wanted)
    plain.speak(wanted[:1])
    spent: dict[str, list[float]] = {"engine": [], "plain": []}
    for _ in range(rounds):
        spent["plain"].append(plain.speak(wanted))
        before = time.process_time()
        spent["engine"].append(await at_once(engine, wanted))
        client_cpu = time.process_time() - before
    await asyncio.sleep(0.3)
    audio = STREAMS * patches * engine.info.patch_seconds
    return {
        "patches": patches,
        "seconds": {name: [round(value, 3) for value in values] for name, values in spent.items()},
        "audio_per_second": {name: round(audio / median(values), 2) for name, values in spent.items()},
        "ratio": round(median(spent["plain"]) / median(spent["engine"]), 2),
        "engine_share_of_a_step": round(1 - engine.stats().model_share, 4),
        "client_cpu_share": round(client_cpu / spent["engine"][-1], 4),
    }


async def recovery(engine: Engine, patches: int, kills: int) -> dict[str, Any]:
    first, last = [], []
    for _ in range(kills):
        times: list[list[float]] = [[] for _ in range(STREAMS)]
        wanted = requests(patches, engine.info.patch_seconds)
        readers = [asyncio.create_task(read(engine.speak(r), t)) for r, t in zip(wanted, times, strict=True)]
        while not all(times):
            await asyncio.sleep(0.01)
        pid = engine.stats().pid
        assert pid is not None
        killed = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        assert set(await asyncio.gather(*readers)) == {patches}
        gaps = [max(b - a for a, b in zip([killed, *t], t, strict=False) if b > killed) for t in times]
        first.append(min(gaps))
        last.append(max(gaps))
        await asyncio.sleep(SPARE_SECONDS)
    return {"first_chunk": _spread(first), "slowest_stream": _spread(last), "kills": kills, "unit": "s"}


async def slow_reader(engine: Engine, patches: int, rounds: int) -> dict[str, Any]:
    wanted = requests(patches, engine.info.patch_seconds)
    without, beside = [], []
    for _ in range(rounds):
        without.append(await at_once(engine, wanted))
        slow = asyncio.create_task(read(engine.speak(requests(10 * patches, engine.info.patch_seconds, 1)[0]), None, 1.0))
        await asyncio.sleep(2.0)
        beside.append(await at_once(engine, wanted))
        slow.cancel()
        await asyncio.wait([slow])
    return {"without": _spread(without), "beside": _spread(beside), "slower": round(median(beside) / median(without) - 1, 4)}


async def long_text(engine: Engine, rounds: int) -> dict[str, Any]:
    async def first_audio(text: str) -> float:
        began = time.perf_counter()
        async with engine.speak(SpeechRequest(text=text, seed=1)) as stream:
            await anext(stream)
        return time.perf_counter() - began

    pairs = [(await first_audio("The boat came home."), await first_audio(LONG)) for _ in range(rounds)]
    sentence, whole = (median(values) for values in zip(*pairs, strict=True))
    return {
        "characters": len(LONG),
        "sentence": round(sentence, 3),
        "whole": round(whole, 3),
        "ratio": round(whole / sentence, 2),
    }


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": round(median(values), 3), "least": round(min(values), 3), "most": round(max(values), 3)}


async def measure(model: Path, options: argparse.Namespace) -> dict[str, Any]:
    threads = options.threads or os.cpu_count()
    torch.set_num_threads(threads)
    plain = Plain(model)
    result: dict[str, Any] = {"model": model.name, "threads": threads, "streams": STREAMS, "load": os.getloadavg()}
    async with Engine.start(model, threads=threads, stream_buffer=8, max_running=9) as engine:
        result["throughput"] = await throughput(engine, plain, options.patches, options.rounds)
        result["long_text"] = await long_text(engine, options.rounds)
        result["slow_reader"] = await slow_reader(engine, options.patches, options.rounds)
        result["recovery"] = await recovery(engine, options.patches, options.kills)
    async with Engine.start(model, threads=threads, stream_buffer=8, max_running=9, spare=True) as engine:
        await asyncio.sleep(SPARE_SECONDS)
        result["recovery_with_spare"] = await recovery(engine, options.patches, options.kills)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="checkpoint folder; without it the shipped voice")
    parser.add_argument("--out", type=Path, help="folder for engine.json")
    parser.add_argument("--patches", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    result = asyncio.run(measure(checkpoint_folder(options.model), options))
    print(json.dumps(result, indent=1))
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "engine.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
