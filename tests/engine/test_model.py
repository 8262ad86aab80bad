"""The engine over the real runner, with tiny random checkpoints in float64: what it says is what the plain generator says."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.engine.helpers import Assassin, listen, settled

from evervox.conditioning.prepare import Preparer
from evervox.conditioning.text import TextTokenizer
from evervox.engine.client import Engine
from evervox.request import RawAudio, SpeechRequest
from evervox.runner.simple import SimpleGenerator

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

CLIP = RawAudio(np.sin(np.arange(4000) / 20).astype(np.float32) * 0.3, 16000)
LATER_CLIP = RawAudio(np.sin(np.arange(2500) / 31).astype(np.float32) * 0.3, 16000)
SETTINGS = {"device": "cpu", "dtype": "float64", "threads": 1}
RUNNERS = ["evervox.runner.runner:create", "tests.engine.ahead_runner:create"]


def mixed(count: int) -> list[SpeechRequest]:
    """Every layout, with lengths, seeds, timesteps and guidance of all sorts."""
    draw = random.Random(count)
    layouts = [{}, {"reference": CLIP}, {"prompt": LATER_CLIP, "prompt_text": "before"}]
    layouts.append({"reference": CLIP, "prompt": LATER_CLIP, "prompt_text": "before"})
    return [
        SpeechRequest(
            text="mixed words of speech " * draw.randint(1, 3) + str(number),
            seed=draw.randrange(2**63),
            timesteps=draw.randint(4, 10),
            cfg=draw.uniform(1, 3),
            max_seconds=draw.uniform(0.01, 0.04),
            **layouts[number % len(layouts)],
        )
        for number in range(count)
    ]


class Plain:
    """The plain generator, one request after another."""

    def __init__(self, folder: Path) -> None:
        self.generator = SimpleGenerator.load(folder, dtype="float64", device="cpu")
        self.preparer = Preparer(self.generator.config, TextTokenizer.from_checkpoint(folder))

    def speak(self, request: SpeechRequest) -> NDArray[np.float32]:
        prepared = self.preparer.prepare(request)
        return np.concatenate([chunk.samples for chunk in self.generator.stream(prepared.prompt, prepared.sampling)])


@pytest.fixture(scope="module")
def plain(checkpoint: Path) -> Plain:
    return Plain(checkpoint)


@pytest.mark.parametrize("runner", RUNNERS)
def test_many_at_once_equal_the_plain_generator(checkpoint: Path, plain: Plain, runner: str) -> None:
    requests = mixed(8)

    async def main() -> None:
        async with Engine.start(checkpoint, max_running=3, slots_per_step=8, runner=runner, **SETTINGS) as engine:
            tasks = []
            for request in requests:
                tasks.append(asyncio.create_task(listen(engine.speak(request))))
                await asyncio.sleep(0.02)
            for request, heard in zip(requests, await asyncio.gather(*tasks), strict=True):
                assert len(heard.samples) == heard.finish.num_patches * engine.info.samples_per_patch
                np.testing.assert_allclose(heard.samples, plain.speak(request), rtol=0, atol=1e-6)
            await settled(engine)

    asyncio.run(main())


@pytest.mark.parametrize("runner", RUNNERS)
def test_kills_under_eight_streams_change_no_sample(checkpoint: Path, plain: Plain, runner: str) -> None:
    requests = [replace(request, max_seconds=0.05, min_patches=100, timesteps=4) for request in mixed(8)]

    async def main() -> None:
        async with Engine.start(checkpoint, runner=runner, **SETTINGS) as engine:
            readers = [asyncio.create_task(listen(engine.speak(request))) for request in requests]
            assassin = Assassin(engine)
            for _ in range(2):
                await assassin.progress()
                await assassin.strike()
                assert min(assassin.made().values()) > 0
            for request, reader in zip(requests, readers, strict=True):
                np.testing.assert_allclose((await reader).samples, plain.speak(request), rtol=0, atol=1e-6)
            assert engine.stats().restarts == 2

    asyncio.run(main())
