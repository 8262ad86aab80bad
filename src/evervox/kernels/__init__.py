"""Triton kernels. Importing this package imports no triton; importing one of its modules does."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec


@cache
def has_triton() -> bool:
    """Is triton installed? Answers without importing it."""
    return find_spec("triton") is not None
