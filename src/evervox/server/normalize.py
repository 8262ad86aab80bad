"""Numbers and abbreviations spelled out, by the `wetext` package where it is installed."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING

from evervox.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable


def normalize(text: str) -> str:
    """The text as it is read aloud. Raises `Unsupported` without the extra. Slow: not for the event loop."""
    return _normalizer()(text)


@lru_cache(1)
def _normalizer() -> Callable[[str], str]:
    try:
        wetext = import_module("wetext")
    except ImportError:
        raise Unsupported("normalize: needs the extra, pip install 'evervox[normalize]'", field="normalize") from None
    made: Callable[[str], str] = wetext.Normalizer(lang="auto", operator="tn").normalize
    return made
