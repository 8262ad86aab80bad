"""Voices turned into latents by the worker."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.engine.helpers import listen, settled

from evervox.engine.voice import Voice
from evervox.errors import BadRequest
from evervox.request import ClipLatents, RawAudio, SpeechRequest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.engine.conftest import StartFake

CLIP = RawAudio(np.full(16000, 0.25, np.float32), 16000)


def test_latents_speak_like_the_clip(start_fake: StartFake) -> None:
    async def main() -> None:
        async with start_fake() as engine:
            voice = Voice.from_clip(CLIP, "Well.")
            encoded = await engine.encode(voice)
            assert isinstance(encoded.clip, ClipLatents)
            assert np.allclose(encoded.clip.latents[:-1], 0.25)
            assert encoded.transcript == "Well."
            request = SpeechRequest(text="one two", seed=1)
            heard = await listen(engine.speak(voice_of(request, voice)))
            again = await listen(engine.speak(voice_of(request, encoded)))
            assert np.array_equal(heard.samples, again.samples)
            await settled(engine)

    asyncio.run(main())


def voice_of(request: SpeechRequest, voice: Voice) -> SpeechRequest:
    return replace(request, **voice.fields(has_reference=True))


def test_an_encode_outlives_the_worker(start_fake: StartFake) -> None:
    async def main() -> None:
        async with start_fake({"encode": 0.4}) as engine:
            task = asyncio.create_task(engine.encode(Voice.from_clip(CLIP)))
            await asyncio.sleep(0.2)
            pid = engine.stats().pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            assert isinstance((await task).clip, ClipLatents)
            assert engine.stats().restarts == 1

    asyncio.run(main())


def test_an_encode_that_nobody_waits_for_is_let_go_of(start_fake: StartFake) -> None:
    async def main() -> None:
        async with start_fake({"encode": 0.3}) as engine:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(engine.encode(Voice.from_clip(CLIP)), 0.1)
            await settled(engine)

    asyncio.run(main())


def test_what_is_wrong_with_a_voice_is_said(start_fake: StartFake, checkpoint_without_reference: Path) -> None:
    async def main() -> None:
        async with start_fake(model=checkpoint_without_reference) as engine:
            with pytest.raises(BadRequest, match="transcript"):
                await engine.encode(Voice.from_clip(CLIP))
            with pytest.raises(BadRequest, match="prompt"):
                await engine.encode(Voice.from_clip(b"not audio", "Well."))

    asyncio.run(main())
