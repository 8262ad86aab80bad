"""What a model with a small vocabulary was taught. Its checkpoint says so by a `vocabulary.txt`, one word a line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

FILE = "vocabulary.txt"
WORD = re.compile(r"[\w']+")
NUMBER = re.compile(r"\d{2,}")
UNITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
UNITS += ["thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


class Vocabulary:
    """The words of one checkpoint; None of `of` where it has no list and so knows everything."""

    def __init__(self, words: set[str]) -> None:
        self._words = words | set("0123456789")

    @classmethod
    def of(cls, folder: Path) -> Vocabulary | None:
        path = folder / FILE
        return cls(set(path.read_text("utf-8").split())) if path.is_file() else None

    def unknown(self, text: str) -> list[str]:
        """The words of `text` that were never taught, in order, once each. Single figures are known where their names are.

        Punctuation and capitals do not matter.
        """
        words = WORD.findall(self.spell(text).lower())
        return list(dict.fromkeys(word for word in words if word.strip("'") not in self._words))

    def spell(self, text: str) -> str:
        """Numbers in words, long ones and those that begin with 0 figure by figure, if it was taught these."""
        return NUMBER.sub(lambda match: self._spell(match[0]), text)

    def _spell(self, figures: str) -> str:
        is_name = len(figures) > 4 or figures[0] == "0"  # a telephone number or a code rather than an amount
        words = " ".join(UNITS[int(figure)] for figure in figures) if is_name else _amount(int(figures))
        return words if self._words.issuperset(words.split()) else figures


def _amount(value: int) -> str:
    """1 to 9,999, without "and"."""
    if value < 20:
        return UNITS[value]
    unit, name = (10, TENS[value // 10 - 2]) if value < 100 else (100, "hundred") if value < 1000 else (1000, "thousand")
    words = name if value < 100 else f"{_amount(value // unit)} {name}"
    return words + (f" {_amount(value % unit)}" if value % unit else "")
