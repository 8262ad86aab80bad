"""What crosses the border arrives as it was."""

from __future__ import annotations

import numpy as np
import pytest

from evervox import errors
from evervox.conditioning.layout import PromptClip, lay_out
from evervox.engine import messages
from evervox.engine.jobs import Job
from evervox.request import Sampling

SAMPLING = Sampling(seed=2**63 - 1, timesteps=10, cfg=2.0, temperature=1.0, min_patches=2, max_patches=9)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "bool"])
def test_arrays_keep_dtype_and_shape_and_own_their_memory(dtype: str) -> None:
    array = (np.arange(24).reshape(2, 3, 4).transpose(2, 0, 1) % 5).astype(dtype)
    back = messages.Array.of(array).numpy()
    np.testing.assert_array_equal(back, array)
    assert back.dtype == array.dtype
    assert back.flags.owndata or back.base.flags.owndata
    assert back.flags.writeable


def test_a_prompt_arrives_whole() -> None:
    clips = [
        PromptClip(b"one", 2, samples=np.arange(8, dtype=np.float32)),
        PromptClip(b"two", 1, latents=np.ones((1, 4, 8), np.float32)),
    ]
    prompt = lay_out([5, 6, 7], 2, reference=clips[0], prompt=clips[1])
    job = Job(prompt, SAMPLING, wake=lambda: None, tenant="t", priority="batch")
    job.patches = [np.full((4, 8), number / 3) for number in range(2)]
    [submit] = messages.decode_to_worker(messages.encode([job.submit(10)]))
    assert isinstance(submit, messages.Submit)
    back = messages.unpack_prompt(submit)
    np.testing.assert_array_equal(back.tokens, prompt.tokens)
    np.testing.assert_array_equal(back.is_audio, prompt.is_audio)
    assert (back.target_tokens, back.context_patches) == (prompt.target_tokens, prompt.context_patches)
    assert [clip.digest for clip in back.clips] == [b"one", b"two"]
    np.testing.assert_array_equal(back.clips[0].samples, clips[0].samples)
    np.testing.assert_array_equal(back.clips[1].latents, clips[1].latents)
    assert back.clips[0].latents is None
    assert (submit.sampling, submit.tenant, submit.priority, submit.credit) == (SAMPLING, "t", "batch", 10)
    assert submit.patches is not None
    np.testing.assert_array_equal(submit.patches.numpy(), np.stack(job.patches))


def every_error() -> list[errors.EvervoxError]:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.EvervoxError)]
    return [kind("what is wrong") for kind in kinds]


@pytest.mark.parametrize("error", every_error(), ids=lambda error: type(error).__name__)
def test_an_error_keeps_its_type_message_and_field(error: errors.EvervoxError) -> None:
    if isinstance(error, errors.BadRequest):
        error = type(error)("is wrong", field="text")
    back = messages.rebuild(*messages.describe(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert getattr(back, "field", None) == getattr(error, "field", None)


def test_any_other_error_is_ours() -> None:
    back = messages.rebuild(*messages.describe(KeyError("x")))
    assert type(back) is errors.EngineFailure
    assert str(back) == "KeyError: 'x'"
    assert type(messages.rebuild("SystemExit", "no", None)) is errors.EngineFailure


def test_a_gap_or_a_repeat_of_patches_is_an_error() -> None:
    job = Job(lay_out([5], 1), SAMPLING, wake=lambda: None)
    chunk = messages.Chunk(1, 1, messages.Array.of(np.zeros((4, 8))), messages.Array.of(np.zeros(3, np.float32)))
    job.take(chunk)
    assert isinstance(job.error, errors.EngineFailure)
    assert "patch 1 arrived where 0 was due" in str(job.error)
