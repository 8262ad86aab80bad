"""What a worker finds in its environment."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from tests.engine.conftest import StartFake


@pytest.mark.parametrize(("given", "found"), [(None, "passive"), ("active", "active")])
def test_threads_sleep_unless_told_otherwise(
    start_fake: StartFake, monkeypatch: pytest.MonkeyPatch, given: str | None, found: str
) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_WAIT_POLICY", given)

    async def main() -> str:
        async with start_fake() as engine:
            return psutil.Process(engine.stats().pid).environ()["OMP_WAIT_POLICY"]

    assert asyncio.run(main()) == found
