"""Long texts: pieces in order, one voice, two in work at most, and no more audio than was asked for."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.engine.helpers import drain, listen, settled

from evervox.conditioning.split import split
from evervox.engine import utterance
from evervox.request import RawAudio, SpeechRequest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.engine.conftest import StartFake

    from evervox.engine.client import Engine

ENGLISH = "Dr. Smith paid $3.50 to Mr. Jones at 5 p.m. today. He left! Did he? See v. 2.0.3, e.g. this one. The U.S. team won."
CHINESE = "今天天气很好！你觉得呢？价格是3.5元。他说：“走吧。”然后离开了。"
TONE = RawAudio(np.sin(np.arange(8000) / 9).astype(np.float32) * 0.5, 16000)


def test_a_short_text_is_one_piece() -> None:
    assert split("Hello. There.", 100) == ["Hello. There."]
    assert split(" \n ", 100) == []


def test_english_is_cut_at_sentence_ends_only() -> None:
    assert split(ENGLISH, 60) == [
        "Dr. Smith paid $3.50 to Mr. Jones at 5 p.m. today.",
        "He left! Did he? See v. 2.0.3, e.g. this one.",
        "The U.S. team won.",
    ]


def test_chinese_is_cut_at_sentence_ends_only() -> None:
    assert split(CHINESE, 20) == ["今天天气很好！", "你觉得呢？价格是3.5元。", "他说：“走吧。”然后离开了。"]


@pytest.mark.parametrize("text", ["word " * 200, "字" * 500, "a,b;c:" * 100, "x" * 999])
def test_a_sentence_that_is_too_long_is_cut_where_it_can_be(text: str) -> None:
    pieces = split(text, 50)
    assert all(0 < len(piece) <= 50 for piece in pieces)
    assert "".join("".join(pieces).split()) == "".join(text.split())
    if " " in text:
        assert all(set(piece.split()) == {"word"} for piece in pieces)


def test_nothing_is_lost_of_4096_characters() -> None:
    text = (f"{ENGLISH} {CHINESE} " * 40)[:4096]
    assert "".join("".join(split(text, 200)).split()) == "".join(text.split())


def sentences(count: int) -> str:
    return " ".join(f"This is sentence {number}." for number in range(count))


async def alone(engine: Engine, texts: list[str], **fields: object) -> list[np.ndarray]:
    return [(await listen(engine.speak(SpeechRequest(text=text, **fields)))).samples for text in texts]  # type: ignore[arg-type]


def test_pieces_in_a_given_voice_are_those_spoken_alone_one_after_another(start_fake: StartFake) -> None:
    async def main() -> None:
        async with start_fake(piece_text=40) as engine:
            text = sentences(9)
            whole = await listen(engine.speak(SpeechRequest(text=text, seed=3, reference=TONE)))
            expected = await alone(engine, split(text, 40), seed=3, reference=TONE)
            assert len(expected) > 3
            assert whole.finish.seed == 3
            assert len(whole.samples) == whole.finish.num_patches * engine.info.samples_per_patch
            apart = np.concatenate(expected)
            fade = int(utterance.FADE_SECONDS * engine.info.sample_rate)
            joins = np.cumsum([len(samples) for samples in expected])[:-1]
            near = np.abs(np.arange(len(apart))[:, None] - joins).min(1) <= fade
            np.testing.assert_array_equal(whole.samples[~near], apart[~near])
            assert all(abs(whole.samples[join - 1]) + abs(whole.samples[join]) < 1e-6 for join in joins)
            await settled(engine)

    asyncio.run(main())


@pytest.mark.parametrize("has_reference", [True, False])
def test_without_a_voice_the_first_piece_is_the_voice_of_the_others(
    start_fake: StartFake, checkpoint: Path, checkpoint_without_reference: Path, has_reference: bool
) -> None:
    async def main() -> None:
        model = checkpoint if has_reference else checkpoint_without_reference
        async with start_fake(model=model, piece_text=40) as engine:
            seen: list[SpeechRequest] = []
            prepare = engine._preparer
            engine._preparer = lambda request: (seen.append(request), prepare(request))[1]  # type: ignore[method-assign]
            await listen(engine.speak(SpeechRequest(text=sentences(6), seed=3)))
            first, *others = seen
            assert first.reference is None
            assert first.prompt is None
            clips = {getattr(request.reference if has_reference else request.prompt, "digest", None) for request in others}
            assert len(clips) == 1
            assert None not in clips
            if not has_reference:
                assert {request.prompt_text for request in others} == {first.text}

    asyncio.run(main())


def test_two_pieces_at_most_are_in_work(start_fake: StartFake) -> None:
    async def main() -> None:
        async with start_fake({"step": 0.002}, piece_text=40) as engine:
            reader = asyncio.create_task(drain(engine.speak(SpeechRequest(text=sentences(20), reference=TONE))))
            most = 0
            while not reader.done():
                most = max(most, len(engine._supervisor._jobs))
                await asyncio.sleep(0.002)
            assert most == 2

    asyncio.run(main())


def test_max_seconds_counts_over_all_pieces(start_fake: StartFake) -> None:
    async def main() -> None:
        async with start_fake(piece_text=40) as engine:
            seconds = 40 * engine.info.patch_seconds
            heard = await listen(engine.speak(SpeechRequest(text=sentences(20), max_seconds=seconds)))
            assert heard.finish.reason == "length"
            assert heard.finish.num_patches == 40
            await settled(engine)

    asyncio.run(main())


def test_4096_characters_begin_as_soon_as_their_first_sentence(start_fake: StartFake) -> None:
    async def first_audio(engine: Engine, text: str) -> float:
        await settled(engine)  # a step that still runs for the one before would count
        began = time.monotonic()
        async with engine.speak(SpeechRequest(text=text, reference=TONE)) as stream:
            await anext(stream)
        return time.monotonic() - began

    async def main() -> None:
        text = (sentences(200))[:4096]
        async with start_fake({"step": 0.05}) as engine:
            heard = await listen(engine.speak(SpeechRequest(text=text, reference=TONE, max_seconds=1.0)))
            assert heard.finish.num_patches > 200
            short = min([await first_audio(engine, "This is sentence 0.") for _ in range(5)])
            long = min([await first_audio(engine, text) for _ in range(5)])
            assert long < 1.3 * short + 0.02

    asyncio.run(main())
