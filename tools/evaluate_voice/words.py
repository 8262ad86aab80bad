"""One spelling for what is said and what is heard: lower-case words, and every number as its digits.

"Seven thirty", "7:30" and "seven three zero" all become "7 3 0", so a recogniser is not charged for its taste in numerals;
and it gets no credit for a wrong word.
"""

from __future__ import annotations

import re

UNITS = {w: n for n, w in enumerate(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])}
TEENS = {
    w: n
    for n, w in enumerate(
        ["ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"], start=10
    )
}
TENS = {w: 10 * n for n, w in enumerate(["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"], start=2)}
SCALES = {"hundred": 100, "thousand": 1000}
NUMBERS = {**UNITS, **TEENS, **TENS}


def canonical(text: str) -> list[str]:
    """The words of a text, numbers as single digits."""
    text = text.lower().replace("’", "'")
    text = re.sub(r"\$(\d[\d,]*)\.(\d\d)\b", r"\1 dollars and \2 cents", text)
    text = re.sub(r"\$(\d[\d,]*)", r"\1 dollars", text)
    text = re.sub(r"(\d)\s*°(\s*[cf]\b)?", r"\1 degrees", text)
    text = re.sub(r"(?<=\d),(?=\d\d\d)", "", text)
    text = re.sub(r"(\d)(st|nd|rd|th)\b", r"\1", text)
    text = re.sub(r"\bo'?clock\b", "oclock", text).replace("'", "")
    words = re.findall(r"[a-z]+|\d", text)
    return _numbers_as_digits(words)


def _numbers_as_digits(words: list[str]) -> list[str]:
    out: list[str] = []
    at = 0
    while at < len(words):
        value, used = _number(words[at:])
        if used:
            out += str(value)
        elif words[at] in ("oh", "o") and out and out[-1].isdigit():
            out.append("0")
            used = 1
        else:
            out.append(words[at])
            used = 1
        at += used
    return out


def _number(words: list[str]) -> tuple[int, int]:
    """The value of the longest number at the start, and how many words it takes; (0, 0) if there is none."""
    total, used = 0, 0
    value, taken = _below_hundred(words)
    while taken:
        used += taken
        if words[used : used + 1] and words[used] in SCALES:
            scale = SCALES[words[used]]
            used += 1
            total += value * scale
            value, taken = _below_hundred(words[used:])
            if taken and words[used + taken : used + taken + 1] == ["thousand"]:
                return total, used
            continue
        return total + value, used
    return total, used


def _below_hundred(words: list[str]) -> tuple[int, int]:
    first = words[0] if words else ""
    if first in TENS and len(words) > 1 and UNITS.get(words[1], 0) > 0:
        return TENS[first] + UNITS[words[1]], 2
    return (NUMBERS[first], 1) if first in NUMBERS else (0, 0)


def word_error_rate(said: list[str], heard: list[str]) -> float:
    """Errors over all texts, as a share of the words said."""
    import jiwer

    pairs = [(canonical(s), canonical(h)) for s, h in zip(said, heard, strict=True)]
    errors, words = 0, 0
    for reference, hypothesis in pairs:
        result = jiwer.process_words(" ".join(reference), " ".join(hypothesis))
        errors += result.substitutions + result.deletions + result.insertions
        words += len(reference)
    return errors / max(1, words)
