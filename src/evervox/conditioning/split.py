"""A long text cut into pieces at sentence ends, each long enough to be worth a sequence and short enough to be one."""

from __future__ import annotations

import re

from sentencex import segment

_CLAUSE = re.compile(r"(?<=[,;:，；：、—])\s*|\s+")


def split(text: str, max_chars: int) -> list[str]:
    """Pieces of at most `max_chars` characters, in order; none is blank, and together they say what `text` says.

    A text that fits is one piece. Otherwise its first sentence is a piece, so that it is heard soon, and the others are packed
    together; one that is too long by itself is cut at a
    clause or a space, and in the middle of a word only where there is neither.
    """
    if len(text) <= max_chars:
        return [text] if text.strip() else []
    pieces: list[str] = []
    for sentence in segment("en", text):  # its rules for "en" know the ends of Chinese sentences as well
        for part in _parts(sentence, max_chars):
            if len(pieces) > 1 and len((pieces[-1] + part).strip()) <= max_chars:
                pieces[-1] += part
            elif part.strip():
                pieces.append(part)
    return [piece.strip() for piece in pieces]


def _parts(sentence: str, max_chars: int) -> list[str]:
    """The sentence with the space around it, in parts that are short enough without theirs."""
    parts: list[str] = []
    while len(sentence.strip()) > max_chars:
        sentence = sentence.lstrip()
        cuts = [match.end() for match in _CLAUSE.finditer(sentence, 1, max_chars + 1) if match.end() <= max_chars]
        cut = cuts[-1] if cuts else max_chars
        parts.append(sentence[:cut])
        sentence = sentence[cut:]
    return [*parts, sentence]
