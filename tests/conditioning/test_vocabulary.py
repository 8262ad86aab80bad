"""A small model is told what it can say: its words, and numbers by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tools.train_voice.grammar import number_words

from evervox.conditioning.text import TextTokenizer
from evervox.conditioning.vocabulary import Vocabulary
from evervox.models.voxcpm.hub import SHIPPED

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def shipped() -> Vocabulary:
    vocabulary = Vocabulary.of(SHIPPED)
    assert vocabulary is not None
    return vocabulary


def test_the_shipped_voice_knows_its_words_in_any_case_and_figures_one_by_one(shipped: Vocabulary) -> None:
    assert shipped.unknown("One, two: 'THREE' 4 0 7, 407 and 0800123.") == []


def test_what_it_does_not_know_is_named_once_and_in_order(shipped: Vocabulary) -> None:
    assert shipped.unknown("One zebra, 40 zebras and a Zebra 你好") == ["zebra", "zebras", "你好"]


@pytest.mark.parametrize(
    ("text", "spelt"),
    [
        ("at 10 or 7", "at ten or 7"),
        ("407!", "four hundred seven!"),
        ("20, 21, 99", "twenty, twenty one, ninety nine"),
        ("1000 2019", "one thousand two thousand nineteen"),
        ("9999", "nine thousand nine hundred ninety nine"),
        ("007 and 12345", "zero zero seven and one two three four five"),
    ],
)
def test_numbers_are_spelt_as_it_was_taught_them(shipped: Vocabulary, text: str, spelt: str) -> None:
    assert shipped.spell(text) == spelt
    tokenizer = TextTokenizer.from_checkpoint(SHIPPED)
    assert tokenizer.ids(text) == tokenizer.ids(spelt)


def test_amounts_are_named_as_in_the_texts_that_it_learnt_from(shipped: Vocabulary) -> None:
    assert [shipped.spell(str(value)) for value in range(10, 10_000)] == [number_words(value) for value in range(10, 10_000)]


def test_who_was_not_taught_the_names_reads_figures() -> None:
    assert Vocabulary({"four", "hundred"}).spell("407 400") == "407 four hundred"


def test_a_checkpoint_without_a_list_knows_everything(tmp_path: Path) -> None:
    assert Vocabulary.of(tmp_path) is None
