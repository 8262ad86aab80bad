"""The shipped folder is a checkpoint like any other: the reference's own loader reads it and speaks the same latents."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tests.models.pair import DOUBLE, Pair, load_pair, our_latents, their_latents

import evervox
from evervox.conditioning.prepare import Preparer
from evervox.conditioning.text import TextTokenizer
from evervox.models.voxcpm.config import VoxConfig
from evervox.request import SpeechRequest

VOICE = Path(evervox.__file__).parent / "voice"
TEXTS = ["Hello Anna.", "three zero seven", "The red door is open, 你好 zebra!"]


@cache
def pair() -> Pair:
    return load_pair(VOICE, "voxcpm2", DOUBLE)


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_and_latents_equal_the_references(text: str) -> None:
    both = pair()
    tokenizer = TextTokenizer.from_checkpoint(VOICE)
    prepared = Preparer(VoxConfig.from_checkpoint(VOICE), tokenizer).prepare(SpeechRequest(text=text, seed=7))
    inputs = both.ours.inputs(prepared.prompt, prepared.sampling)
    assert inputs.tokens.tolist() == [*both.theirs.text_tokenizer(text), 101]
    ours, theirs = our_latents(both, inputs), their_latents(both, inputs)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


def test_the_folder_is_small_and_says_what_it_is() -> None:
    assert sum(file.stat().st_size for file in VOICE.iterdir()) <= 16_000_000
    assert "Kokoro" in (VOICE / "NOTICE").read_text()
    assert "Licence" in (VOICE / "README.md").read_text()


def test_every_word_of_the_vocabulary_is_one_token() -> None:
    tokenizer = TextTokenizer.from_checkpoint(VOICE)
    words = (VOICE / "vocabulary.txt").read_text().split()
    assert len(words) > 180
    for word in words:
        assert len(tokenizer.ids(f"{word} {word.capitalize()}")) == 4, word
