"""Which words a model with a small vocabulary was never taught. A checkpoint says so by a `vocabulary.txt`, one word a line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

FILE = "vocabulary.txt"
WORD = re.compile(r"[\w']+")


def unknown_words(text: str, folder: Path) -> list[str]:
    """The words of `text` that are not in the vocabulary, in order, once each; none where the checkpoint has no list.

    Single figures are known where their names are; punctuation and capitals do not matter.
    """
    path = folder / FILE
    if not path.is_file():
        return []
    known = set(path.read_text("utf-8").split()) | set("0123456789")
    return list(dict.fromkeys(word for word in WORD.findall(text.lower()) if word.strip("'") not in known))
