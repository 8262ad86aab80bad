"""Freed memory goes back to the system once a crowd has left: glibc keeps it in the arena of each thread that encoded."""

from __future__ import annotations

import asyncio
import ctypes
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from evervox.server.admission import Gate
    from evervox.server.encoding import Threads

PERIOD = 5.0


async def keep_tidy(gate: Gate, threads: Threads, period: float = PERIOD) -> None:
    """Trim whenever nobody is there and somebody was since the last time. Runs until cancelled."""
    trim, seen = _trimmer(), 0
    while trim is not None:
        await asyncio.sleep(period)
        if len(gate) == 0 and gate.num_entered != seen:
            seen = gate.num_entered
            await threads.run(trim, 0)


def _trimmer() -> Callable[[int], object] | None:
    """glibc's, or None where the C library has none."""
    try:
        found: Callable[[int], object] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None
    return found
