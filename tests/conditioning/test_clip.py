"""Clips of every source become whole patches, padded on the right side, named by what they hold."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conditioning.audio_made import encode, tone
from tests.conditioning.models_made import config_of

from evervox.conditioning.clip import ClipLoader
from evervox.conditioning.limits import Limits
from evervox.errors import BadRequest, ConfigError, NotFound, TooLarge
from evervox.request import ClipLatents, RawAudio

CONFIG = config_of("voxcpm2")
PATCH = CONFIG.encoder_samples_per_patch
RATE = CONFIG.vae.encoder_sample_rate


@pytest.fixture
def loader() -> ClipLoader:
    return ClipLoader(CONFIG, Limits(clip_seconds=2.0, clip_bytes=1_000_000))


def test_a_prompt_is_padded_on_the_left_and_a_reference_on_the_right(loader: ClipLoader) -> None:
    samples = tone(RATE, (2 * PATCH + 3) / RATE) + np.float32(0.6)
    left = loader.load(RawAudio(samples, RATE), field="prompt", side="left")
    right = loader.load(RawAudio(samples, RATE), field="reference", side="right")
    assert left.num_patches == right.num_patches == 3
    assert left.samples is not None
    assert right.samples is not None
    np.testing.assert_array_equal(left.samples[PATCH - 3 :], samples)
    np.testing.assert_array_equal(right.samples[: 2 * PATCH + 3], samples)
    assert not left.samples[: PATCH - 3].any()
    assert not right.samples[2 * PATCH + 3 :].any()
    assert left.digest != right.digest


def test_whole_patches_are_not_padded(loader: ClipLoader) -> None:
    clip = loader.load(RawAudio(tone(RATE, 2 * PATCH / RATE), RATE), field="prompt", side="left")
    assert clip.num_patches == 2
    assert clip.samples is not None
    assert len(clip.samples) == 2 * PATCH


def test_one_sample_is_one_patch(loader: ClipLoader) -> None:
    assert loader.load(RawAudio(np.ones(1, np.float32), RATE), field="prompt", side="left").num_patches == 1


def test_path_bytes_and_samples_are_the_same_clip(loader: ClipLoader, tmp_path: Path) -> None:
    data = encode("wav", tone(44100, 0.5)[None])
    path = tmp_path / "clip.wav"
    path.write_bytes(data)
    clips = [loader.load(source, field="prompt", side="left") for source in (str(path), path, data)]
    assert len({clip.digest for clip in clips}) == 1
    assert len(clips[0].digest) == 16


def test_the_digest_follows_the_content(loader: ClipLoader) -> None:
    samples = tone(RATE, 0.1)
    other = samples.copy()
    other[7] += 1e-3
    one, same, two = (
        loader.load(RawAudio(s, RATE), field="prompt", side="left").digest for s in (samples, samples.copy(), other)
    )
    assert one == same != two


def test_a_clip_owns_its_samples(loader: ClipLoader) -> None:
    samples = tone(RATE, 2 * PATCH / RATE)  # nothing to resample, nothing to pad
    clip = loader.load(RawAudio(samples, RATE), field="prompt", side="left")
    before = samples.copy()
    samples[:] = 0
    np.testing.assert_array_equal(clip.samples, before)


def test_latents_pass_through_under_a_digest_of_their_own(loader: ClipLoader) -> None:
    latents = np.random.default_rng(0).normal(size=(3, CONFIG.patch_size, CONFIG.latent_dim)).astype(np.float32)
    one = loader.load(ClipLatents(latents, b"said"), field="prompt", side="left")
    two = loader.load(ClipLatents(latents + 1, b"said"), field="prompt", side="left")
    assert one.num_patches == 3
    assert one.samples is None
    np.testing.assert_array_equal(one.latents, latents)
    assert one.latents is not None
    assert not one.latents.flags.writeable
    assert one.digest != two.digest  # what the caller says of them is not believed


GOOD = np.zeros((2, CONFIG.patch_size, CONFIG.latent_dim), np.float32)
BAD: list[tuple[Any, type[BadRequest], str]] = [
    ("/nowhere/clip.wav", NotFound, "there is no file /nowhere/clip.wav"),
    ("http://127.0.0.1/clip.wav", NotFound, "there is no file"),
    ("concat:a.wav|b.wav", NotFound, "there is no file"),
    ("a\0b", BadRequest, "cannot read"),
    (Path("/"), BadRequest, "cannot read /: Is a directory"),
    ("", BadRequest, "cannot read"),
    (b"", BadRequest, "the file is empty"),
    (b"x" * 1_000_001, TooLarge, "1,000,001 bytes; the limit is 1,000,000"),
    (b"just text", BadRequest, "is not a wav, mp3, flac, ogg, m4a or webm file"),
    (7, BadRequest, "must be a path, the bytes of a file, samples or latents, not int"),
    (None, BadRequest, "not NoneType"),
    (RawAudio(np.zeros(0, np.float32), RATE), BadRequest, "the clip has no samples"),
    (RawAudio(np.zeros((2, 8), np.float32), RATE), BadRequest, r"shape \[samples\], not float32 \(2, 8\)"),
    (RawAudio(np.zeros(8, np.int16), RATE), BadRequest, "floats"),  # type: ignore[arg-type]
    (RawAudio(np.full(8, np.nan, np.float32), RATE), BadRequest, "finite"),
    (RawAudio(np.zeros(8, np.float32), 0), BadRequest, "4000 to 384000 Hz, not 0"),
    (RawAudio(np.zeros(8, np.float32), "16000"), BadRequest, "Hz, not '16000'"),  # type: ignore[arg-type]
    (RawAudio(np.zeros(2 * RATE + 1, np.float32), RATE), TooLarge, "longer than 2 seconds"),
    (ClipLatents(GOOD[:0], b""), BadRequest, "hold no patches"),
    (ClipLatents(GOOD[0], b""), BadRequest, r"shape \[patches, 4, 8\]"),
    (ClipLatents(GOOD[:, :, :3], b""), BadRequest, r"not float32 \(2, 4, 3\)"),
    (ClipLatents(GOOD + np.inf, b""), BadRequest, "finite"),
    (ClipLatents(np.zeros((10_000, 4, 8), np.float32), b""), TooLarge, "longer than 2 seconds"),
]


@pytest.mark.parametrize(("source", "kind", "message"), BAD, ids=lambda value: str(value)[:24] if not callable(value) else "")
def test_bad_sources_name_the_field_and_the_limit(loader: ClipLoader, source: Any, kind: type[BadRequest], message: str) -> None:
    with pytest.raises(kind, match=f"^reference: .*{message}") as caught:
        loader.load(source, field="reference", side="right")
    assert caught.value.field == "reference"


def test_a_large_file_is_refused_unread(loader: ClipLoader, tmp_path: Path) -> None:
    path = tmp_path / "large.wav"
    with path.open("wb") as file:
        file.truncate(10**12)  # sparse: reading it would not fit anywhere
    with pytest.raises(TooLarge, match="1,000,000,000,000 bytes"):
        loader.load(path, field="prompt", side="left")


@pytest.mark.parametrize("name", ["text", "clip_seconds", "clip_bytes"])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_limits_are_positive(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be above 0"):
        Limits(**{name: value})
