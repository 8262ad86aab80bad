"""The shipped voice under deaths of the worker. Slow: it generates real speech."""

from __future__ import annotations

import asyncio
import signal

import numpy as np
import pytest
from tests.engine.helpers import Assassin, Heard, listen

from evervox.engine.client import Engine
from evervox.request import SpeechRequest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

REQUESTS = [SpeechRequest(text="the boat came home over the grey water", seed=seed, min_patches=24) for seed in range(8)]


async def speak(dtype: str, sign: signal.Signals | None, strikes: int) -> tuple[list[Heard], list[dict[int, int]]]:
    """All eight at once, and how many patches each had at every strike."""
    at: list[dict[int, int]] = []
    async with Engine.start(dtype=dtype, step_timeout=15) as engine:
        readers = [asyncio.create_task(listen(engine.speak(request))) for request in REQUESTS]
        assassin = Assassin(engine)
        for _ in range(strikes):
            await assassin.progress()
            await assassin.progress()
            await assassin.strike(sign or signal.SIGKILL)
            at.append(assassin.made())
            assert min(at[-1].values()) > 1
        return await asyncio.gather(*readers), at


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
def test_not_a_sample_changes_in_float64(sign: signal.Signals) -> None:
    async def main() -> None:
        expected, _ = await speak("float64", None, 0)
        heard, _ = await speak("float64", sign, 3 if sign == signal.SIGKILL else 1)
        for one, other in zip(expected, heard, strict=True):
            assert one.finish.num_patches == other.finish.num_patches
            np.testing.assert_allclose(other.samples, one.samples, rtol=0, atol=1e-6)

    asyncio.run(main())


def test_no_seam_is_heard_in_float32() -> None:
    """The steepest edge where a new worker took over is no steeper than those of the speech around it."""

    async def main() -> None:
        heard, at = await speak("float32", signal.SIGKILL, 2)
        for number, one in enumerate(heard, 1):
            edges = np.abs(np.diff(one.samples))
            per_patch = len(one.samples) // one.finish.num_patches
            assert at[0][number] > 0
            # What was on its way when the worker died still arrived: the seam is one patch later then.
            for made in (counts[number] + late for counts in at if number in counts for late in (0, 1)):
                if not 0 < made < one.finish.num_patches:
                    continue
                seam = made * per_patch
                around = edges[max(0, seam - per_patch) : seam + per_patch]
                assert edges[seam - 8 : seam + 8].max() <= max(np.quantile(around, 0.999), 0.02)

    asyncio.run(main())
