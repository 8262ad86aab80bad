"""The engine without asyncio, voices and files."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import av
import numpy as np
import pytest

from evervox import TTS, RawAudio, Voice, errors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

from tests.engine.helpers import LONG

TONE = RawAudio(np.sin(np.arange(8000) / 9).astype(np.float32) * 0.5, 16000)


@pytest.fixture(scope="module")
def tts(checkpoint: Path) -> Iterator[TTS]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAKE_RUNNER", '{"step": 0.003}')
        with TTS(checkpoint, runner="tests.engine.fake_runner:create", max_running=4, max_waiting=4) as tts:
            yield tts


def test_speak_gives_a_whole_utterance(tts: TTS, tmp_path: Path) -> None:
    speech = tts.speak("Hello.", seed=5)
    assert speech.seed == 5
    assert speech.finish.reason == "stop"
    assert len(speech.samples) == speech.finish.num_patches * tts.info.samples_per_patch
    np.testing.assert_array_equal(speech.samples, tts.speak("Hello.", seed=5).samples)
    for suffix in ("wav", "flac", "mp3", "ogg"):
        speech.save(tmp_path / f"x.{suffix}")
        with av.open(str(tmp_path / f"x.{suffix}")) as file:
            assert file.streams.audio[0].codec_context.sample_rate == speech.sample_rate
    with pytest.raises(errors.BadRequest, match="suffix"):
        speech.save(tmp_path / "x.txt")


def test_stream_is_the_same_audio_and_ends_when_left(tts: TTS) -> None:
    whole = tts.speak("Hello.", seed=5).samples
    np.testing.assert_array_equal(np.concatenate([chunk.samples for chunk in tts.stream("Hello.", seed=5)]), whole)
    stream = tts.stream(LONG, min_patches=300)
    next(stream)
    assert tts.stats().open_requests == 1
    stream.close()
    assert tts.stats().open_requests == 0
    for chunk in tts.stream(LONG, min_patches=300):
        assert chunk.start == 0
        break
    time.sleep(0.05)
    assert tts.stats().open_requests == 0


def test_threads_share_an_engine(tts: TTS) -> None:
    results: dict[int, np.ndarray] = {}

    def speak(seed: int) -> None:
        results[seed] = tts.speak("Together.", seed=seed).samples

    threads = [threading.Thread(target=speak, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(results[seed], tts.speak("Together.", seed=seed).samples) for seed in range(4))


def test_errors_come_out_as_they_are(tts: TTS) -> None:
    with pytest.raises(errors.BadRequest, match="text"):
        tts.speak(" ")
    with pytest.raises(errors.BadRequest, match="there is no field 'speed'"):
        tts.speak("a", speed=2)


def test_a_closed_engine_says_so(checkpoint: Path) -> None:
    tts = TTS(checkpoint, runner="tests.engine.fake_runner:create")
    tts.close()
    tts.close()
    with pytest.raises(errors.Unavailable, match="closed"):
        tts.speak("Nobody.")
    with pytest.raises(errors.ConfigError, match=r"max_running: .*greater than or equal to 1, not 0"):
        TTS(checkpoint, max_running=0)
    with pytest.raises(errors.CheckpointError, match="does not exist"):
        TTS("/no/such/folder")


def test_a_voice_is_used_saved_and_loaded(tts: TTS, tmp_path: Path) -> None:
    voice = Voice.from_clip(TONE, "la la")
    voice.save(tmp_path / "voice.safetensors")
    loaded = Voice.load(tmp_path / "voice.safetensors")
    assert (loaded.digest, loaded.transcript) == (voice.digest, "la la")
    said = [tts.speak("Hello.", seed=1, voice=v).samples for v in (voice, loaded)]
    np.testing.assert_array_equal(*said)
    assert not np.array_equal(said[0][:200], tts.speak("Hello.", seed=1).samples[:200])


def test_voices_of_every_kind_come_back_from_disk(tts: TTS, tmp_path: Path) -> None:
    tts.speak("Hello.").save(tmp_path / "clip.wav")
    latents = np.arange(3 * 4 * 8, dtype=np.float32).reshape(3, 4, 8)
    for voice in (Voice.from_clip(tmp_path / "clip.wav"), Voice.from_clip(TONE), Voice.from_latents(latents, "three")):
        voice.save(tmp_path / "v")
        loaded = Voice.load(tmp_path / "v")
        assert loaded.digest == voice.digest
        assert tts.speak("Hi.", voice=loaded, seed=1).samples.any()


def test_a_voice_file_that_is_none_or_damaged_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.NotFound):
        Voice.load(tmp_path / "none")
    (tmp_path / "text").write_text("not a voice")
    with pytest.raises(errors.BadRequest, match="is not a voice"):
        Voice.load(tmp_path / "text")
    Voice.from_clip(TONE).save(tmp_path / "v")
    data = bytearray((tmp_path / "v").read_bytes())
    data[-1] ^= 1
    (tmp_path / "v").write_bytes(data)
    with pytest.raises(errors.BadRequest, match="damaged"):
        Voice.load(tmp_path / "v")


def test_a_model_without_reference_needs_the_words(checkpoint_without_reference: Path) -> None:
    with TTS(checkpoint_without_reference, runner="tests.engine.fake_runner:create") as tts:
        with pytest.raises(errors.BadRequest, match="transcript"):
            tts.speak("Hi.", voice=Voice.from_clip(TONE))
        assert tts.speak("Hi.", voice=Voice.from_clip(TONE, "la")).finish.prompt_slots > 10
