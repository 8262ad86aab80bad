"""Triton kernels. Importing this package imports no triton; importing one of its modules does."""

from __future__ import annotations

import logging
from functools import cache
from importlib.util import find_spec

log = logging.getLogger(__name__)


@cache
def has_triton() -> bool:
    """Is triton installed? Answers without importing it."""
    return find_spec("triton") is not None


@cache
def can_launch() -> bool:
    """Do kernels run on this machine's GPU? Tried once: triton builds what launches them with the machine's C compiler."""
    if not has_triton():
        return False
    from triton.runtime import driver

    try:
        _ = driver.active.utils
    except Exception as error:
        log.warning(
            "no kernels of our own, so everything is slower: triton needs a C compiler and a writable TRITON_CACHE_DIR: %s", error
        )
        return False
    return True
