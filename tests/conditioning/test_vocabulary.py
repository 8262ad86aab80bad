"""Words that a small model was never taught are told apart from those that it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evervox.conditioning.vocabulary import unknown_words
from evervox.models.voxcpm.hub import SHIPPED

if TYPE_CHECKING:
    from pathlib import Path


def test_the_shipped_voice_knows_its_words_in_any_case_and_figures_one_by_one() -> None:
    assert unknown_words("One, two: 'THREE' 4 0 7.", SHIPPED) == []


def test_what_it_does_not_know_is_named_once_and_in_order() -> None:
    assert unknown_words("One zebra, 407 zebras and a Zebra 你好", SHIPPED) == ["zebra", "407", "zebras", "你好"]


def test_a_checkpoint_without_a_list_knows_everything(tmp_path: Path) -> None:
    assert unknown_words("zebra", tmp_path) == []
