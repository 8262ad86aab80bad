"""Single values of a request: right type, finite, in range. Every error names the field and its bounds."""

from __future__ import annotations

import math
import operator

from evervox.errors import BadRequest, TooLarge


def integer(value: object, field: str, low: int, high: int, why: str = "") -> int:
    """An integer in [low, high]. True and 3.0 are none."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise BadRequest(f"must be an integer, not {value!r}", field=field)
    if not low <= number <= high:
        raise BadRequest(f"must be {low} to {high}, not {number}{why}", field=field)
    return number


def number(value: object, field: str, low: float, high: float = math.inf, *, above: bool = False) -> float:
    """A finite number in [low, high], or in (low, high] with `above`."""
    try:
        result = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        result = math.nan
    if isinstance(value, (bool, str, bytes)) or not math.isfinite(result):
        raise BadRequest(f"must be a finite number, not {value!r}", field=field)
    if not low <= result <= high or (above and result == low):
        bounds = f"above {low:g}" if above else f"{low:g} to {high:g}"
        raise BadRequest(f"must be {bounds}, not {result:g}", field=field)
    return result


def text(value: object, field: str, max_characters: int) -> str:
    """A string that is more than blanks."""
    if not isinstance(value, str):
        raise BadRequest(f"must be a string, not {type(value).__name__}", field=field)
    if len(value) > max_characters:
        raise TooLarge(f"has {len(value):,} characters; the limit is {max_characters:,}", field=field)
    if not value.strip():
        raise BadRequest("must not be empty or blank", field=field)
    return value
