"""Requests become prompts in the four layouts; every bad field is refused by name, with its bounds."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conditioning.audio_made import tone
from tests.conditioning.models_made import KINDS, config_of
from tests.conditioning.tokenizers_made import make

from evervox.conditioning.clips import ClipCache
from evervox.conditioning.limits import Limits
from evervox.conditioning.prepare import Preparer, slot_keys
from evervox.conditioning.text import TextTokenizer
from evervox.core.keys import clip_key, text_key
from evervox.errors import BadRequest, NotFound, TooLarge, Unsupported
from evervox.request import ClipLatents, RawAudio, SpeechRequest

CONFIG = config_of("voxcpm2")
RATE = CONFIG.vae.encoder_sample_rate
PATCH = CONFIG.encoder_samples_per_patch
CLIP = RawAudio(tone(RATE, 2.5 * PATCH / RATE), RATE)  # three patches, padded


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    return TextTokenizer.from_checkpoint(make(tmp_path_factory.mktemp("tokenizer"), layout="metaspace"))


@pytest.fixture(scope="module")
def preparer(tokenizer: TextTokenizer) -> Preparer:
    return Preparer(CONFIG, tokenizer, Limits(text=200, clip_seconds=5.0, clip_bytes=1_000_000))


def test_zero_shot(preparer: Preparer, tokenizer: TextTokenizer) -> None:
    prompt = preparer.prepare(SpeechRequest(text="hello\n 你好")).prompt
    assert prompt.tokens.tolist() == [*tokenizer.ids("hello 你好"), 101]
    assert prompt.tokens.dtype == np.int32
    assert not prompt.is_audio.any()
    assert (prompt.clips, prompt.context_patches) == ((), 0)
    assert prompt.target_tokens == len(prompt.tokens) - 1


def test_continuation(preparer: Preparer, tokenizer: TextTokenizer) -> None:
    prompt = preparer.prepare(SpeechRequest(text="world", prompt=CLIP, prompt_text="hello ")).prompt
    assert prompt.tokens.tolist() == [*tokenizer.ids("hello world"), 101, 0, 0, 0]
    assert prompt.is_audio.tolist() == [False] * (len(prompt.tokens) - 3) + [True] * 3
    assert prompt.target_tokens == len(tokenizer.ids("world"))
    assert prompt.context_patches == 3
    (clip,) = prompt.clips
    assert clip.samples is not None
    assert not clip.samples[: PATCH // 2].any()  # padded on the left


def test_reference(preparer: Preparer, tokenizer: TextTokenizer) -> None:
    prompt = preparer.prepare(SpeechRequest(text="world", reference=CLIP)).prompt
    assert prompt.tokens.tolist() == [103, 0, 0, 0, 104, *tokenizer.ids("world"), 101]
    assert prompt.is_audio.tolist() == [False, True, True, True] + [False] * (len(prompt.tokens) - 4)
    assert prompt.context_patches == 0
    (clip,) = prompt.clips
    assert clip.samples is not None
    assert not clip.samples[-PATCH // 2 :].any()  # padded on the right


def test_both(preparer: Preparer, tokenizer: TextTokenizer) -> None:
    prompt = preparer.prepare(SpeechRequest(text="world", reference=CLIP, prompt=CLIP, prompt_text="hello ")).prompt
    assert prompt.tokens.tolist() == [103, 0, 0, 0, 104, *tokenizer.ids("hello world"), 101, 0, 0, 0]
    assert int(prompt.is_audio.sum()) == sum(clip.num_patches for clip in prompt.clips) == 6
    assert prompt.clips[0].digest != prompt.clips[1].digest  # padded on different sides


def test_instructions_lead_in_parentheses(preparer: Preparer, tokenizer: TextTokenizer) -> None:
    prompt = preparer.prepare(SpeechRequest(text="hello", instructions=" young\nwoman ")).prompt
    assert prompt.tokens.tolist() == [*tokenizer.ids("(young woman)hello"), 101]


def test_slot_keys_name_tokens_and_patches(preparer: Preparer) -> None:
    prompt = preparer.prepare(SpeechRequest(text="a", reference=CLIP, prompt=CLIP, prompt_text="b")).prompt
    reference, spoken = (clip.digest for clip in prompt.clips)
    keys = slot_keys(prompt)
    assert len(keys) == prompt.num_slots
    assert keys[:5] == [text_key(103), *(clip_key(reference, patch) for patch in range(3)), text_key(104)]
    assert keys[-4:] == [text_key(101), *(clip_key(spoken, patch) for patch in range(3))]


def test_a_cached_clip_needs_no_encoder(tokenizer: TextTokenizer) -> None:
    cache = ClipCache(10_000)
    preparer = Preparer(CONFIG, tokenizer, clips=cache)
    (fresh,) = preparer.prepare(SpeechRequest(text="a", reference=CLIP)).prompt.clips
    assert fresh.latents is None
    kept = cache.put(fresh.digest, np.ones((3, CONFIG.patch_size, CONFIG.latent_dim), np.float32))
    (known,) = preparer.prepare(SpeechRequest(text="a", reference=CLIP)).prompt.clips
    assert known.latents is kept
    assert known.samples is None
    assert known.digest == fresh.digest


def test_sampling_is_what_was_asked(preparer: Preparer) -> None:
    request = SpeechRequest(text="a", seed=2**63 - 1, timesteps=2, cfg=0, temperature=0.5, min_patches=0)
    sampling = preparer.prepare(request).sampling
    assert (sampling.seed, sampling.timesteps, sampling.cfg, sampling.temperature) == (2**63 - 1, 2, 0.0, 0.5)
    assert sampling.min_patches == 0


def test_timesteps_are_the_models_own_unless_given(tokenizer: TextTokenizer) -> None:
    preparer = Preparer(replace(CONFIG, timesteps=7), tokenizer)
    assert preparer.prepare(SpeechRequest(text="a")).sampling.timesteps == 7
    assert preparer.prepare(SpeechRequest(text="a", timesteps=3)).sampling.timesteps == 3


def test_a_seed_is_drawn_and_told(preparer: Preparer) -> None:
    seeds = {preparer.prepare(SpeechRequest(text="a")).sampling.seed for _ in range(20)}
    assert len(seeds) == 20
    assert all(0 <= seed < 2**32 for seed in seeds)


def test_length_cap_by_text(preparer: Preparer) -> None:
    prepared = preparer.prepare(SpeechRequest(text="hello"))
    assert prepared.sampling.max_patches == 6 * prepared.prompt.target_tokens + 10


@pytest.mark.parametrize(("patches", "cap"), [(0.5, 1), (1.0, 1), (3.5, 3), (1000.0, None)])
def test_length_cap_by_seconds(preparer: Preparer, patches: float, cap: int | None) -> None:
    prepared = preparer.prepare(SpeechRequest(text="hello", max_seconds=patches * CONFIG.patch_seconds * 1.0001))
    assert prepared.sampling.max_patches == (cap or 6 * prepared.prompt.target_tokens + 10)


def test_length_cap_by_what_is_left(tokenizer: TextTokenizer) -> None:
    prepared = Preparer(replace(CONFIG, max_length=20), tokenizer).prepare(SpeechRequest(text="hello"))
    assert prepared.sampling.max_patches == 20 - prepared.prompt.num_slots


def test_no_room_left(tokenizer: TextTokenizer) -> None:
    with pytest.raises(TooLarge, match=r"^text.* take 101 slots .*the model has 101 \(max_length\)"):
        Preparer(replace(CONFIG, max_length=101), tokenizer).prepare(SpeechRequest(text=("x " * 50).strip()))
    assert Preparer(replace(CONFIG, max_length=102), tokenizer).prepare(SpeechRequest(text=("x " * 50).strip()))


def test_a_token_beyond_the_embedding(tokenizer: TextTokenizer) -> None:
    with pytest.raises(BadRequest, match=r"^text: holds token \d+; the model knows 100 tokens"):
        Preparer(replace(CONFIG, vocab_size=100), tokenizer).prepare(SpeechRequest(text="hello"))


def bad(field: str, message: str, kind: type[BadRequest] = BadRequest, **changes: Any) -> Any:
    return pytest.param(field, message, kind, changes, id="-".join(f"{k}={v!r}"[:30] for k, v in changes.items()))


@pytest.mark.parametrize(
    ("field", "message", "kind", "changes"),
    [
        bad("text", "must not be empty or blank", text=""),
        bad("text", "must not be empty or blank", text=" \n\t\u3000"),
        bad("text", "must be a string, not NoneType", text=None),
        bad("text", "must be a string, not bytes", text=b"hello"),
        bad("text", "must be a string, not int", text=5),
        bad("text", "not valid Unicode", text="a\udfff"),
        bad("text", "has 201 characters; the limit is 200", TooLarge, text="x" * 201),
        bad("reference", "there is no file", NotFound, reference="/nowhere.wav"),
        bad("reference", "the clip has no samples", reference=RawAudio(np.zeros(0, np.float32), RATE)),
        bad("reference", "is not a wav", reference=b"a text file named .wav"),
        bad("reference", "longer than 5 seconds", TooLarge, reference=RawAudio(np.zeros(6 * RATE, np.float32), RATE)),
        bad("reference", "latents must be floats of shape", reference=ClipLatents(np.zeros((1, 2, 3), np.float32), b"")),
        bad("prompt", "needs prompt_text", prompt=CLIP),
        bad("prompt_text", "needs prompt", prompt_text="hello"),
        bad("prompt_text", "must not be empty or blank", prompt=CLIP, prompt_text=" "),
        bad("prompt_text", "must be a string", prompt=CLIP, prompt_text=3),
        bad("prompt", "there is no file", NotFound, prompt="/nowhere.wav", prompt_text="hello"),
        bad("instructions", "no effect", Unsupported, instructions="gentle", prompt=CLIP, prompt_text="hello"),
        bad("instructions", "must not be empty or blank", instructions="  "),
        bad("instructions", "must be a string", instructions=["gentle"]),
        bad("seed", "must be 0 to 9223372036854775807, not -1", seed=-1),
        bad("seed", "must be 0 to 9223372036854775807", seed=2**63),
        bad("seed", "must be an integer, not True", seed=True),
        bad("seed", "must be an integer, not 1.0", seed=1.0),
        bad("seed", "must be an integer, not '1'", seed="1"),
        bad("timesteps", "must be 2 to 100, not 0 .*first step contributes zero", timesteps=0),
        bad("timesteps", "must be 2 to 100, not 1 .*first step contributes zero", timesteps=1),
        bad("timesteps", "must be 2 to 100, not 101$", timesteps=101),
        bad("timesteps", "must be an integer, not 2.5", timesteps=2.5),
        bad("cfg", "must be a finite number, not nan", cfg=float("nan")),
        bad("cfg", "must be a finite number, not inf", cfg=float("inf")),
        bad("cfg", "must be 0 to 10, not 10.5", cfg=10.5),
        bad("cfg", "must be 0 to 10, not -1", cfg=-1),
        bad("cfg", "must be a finite number, not '2'", cfg="2"),
        bad("cfg", "must be a finite number, not None", cfg=None),
        bad("temperature", "must be 0 to 2, not 2.1", temperature=2.1),
        bad("temperature", "must be a finite number", temperature=float("-inf")),
        bad("min_patches", "must be 0 to 512, not -1", min_patches=-1),
        bad("min_patches", "must be an integer", min_patches=2.5),
        bad("max_seconds", "must be above 0, not 0", max_seconds=0),
        bad("max_seconds", "must be a finite number, not nan", max_seconds=float("nan")),
        bad("max_seconds", "must be a finite number, not inf", max_seconds=float("inf")),
        bad("timeout", "must be above 0, not -1", timeout=-1),
        bad("adapter", "must be a string", adapter=7),
        bad("adapter", "must not be empty", adapter=""),
        bad("tenant", "must be a string", tenant=None),
        bad("tenant", "has 300 characters; the limit is 256", TooLarge, tenant="t" * 300),
        bad("priority", "must be 'live' or 'batch', not 'urgent'", priority="urgent"),
    ],
)
def test_bad_fields(preparer: Preparer, field: str, message: str, kind: type[BadRequest], changes: dict[str, Any]) -> None:
    with pytest.raises(kind, match=f"^{field}.*{message}") as caught:
        preparer.prepare(SpeechRequest(**{"text": "hello", **changes}))
    assert caught.value.field == field


@pytest.mark.parametrize("kind", KINDS[:2])
def test_what_older_models_cannot_do(tokenizer: TextTokenizer, kind: str) -> None:
    preparer = Preparer(config_of(kind), tokenizer)
    with pytest.raises(Unsupported, match="^reference: VoxCPM takes no reference clip"):
        preparer.prepare(SpeechRequest(text="a", reference=CLIP))
    with pytest.raises(Unsupported, match="^instructions: VoxCPM follows no instructions"):
        preparer.prepare(SpeechRequest(text="a", instructions="gentle"))
    assert preparer.prepare(SpeechRequest(text="a", prompt=CLIP, prompt_text="b")).prompt.context_patches == 2


def test_a_missing_tokenizer_token_is_unknown_not_lost(tmp_path: Path) -> None:
    tokenizer = TextTokenizer.from_checkpoint(make(tmp_path, layout="metaspace"))
    assert Preparer(CONFIG, tokenizer).prepare(SpeechRequest(text="龘")).prompt.target_tokens > 0
