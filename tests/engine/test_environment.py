"""What a worker finds in its environment, and what is said of a variable that nobody reads."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import psutil
import pytest

from evervox.config import unknown_variables
from evervox.engine.client import Engine

if TYPE_CHECKING:
    from pathlib import Path

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


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("EVERVOX_MAX_RUNING", "EVERVOX_MAX_RUNNING"),
        ("EVERVOX_SERVER_PROT", "EVERVOX_SERVER_PORT"),
        ("evervox_dtyp", "EVERVOX_DTYPE"),
        ("EVERVOX_QUITE_ANOTHER", None),
    ],
)
def test_a_misspelt_variable_is_named_with_the_one_that_was_meant(name: str, meant: str | None) -> None:
    known = {"EVERVOX_MAX_RUNNING": "3", "EVERVOX_SERVER_PORT": "1", "evervox_dtype": "auto", "PATH": "/bin"}
    assert unknown_variables({**known, name: "1"}) == {name: meant}


def test_it_is_said_at_start(checkpoint: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("EVERVOX_MAX_RUNING", "3")
    Engine.start(checkpoint)
    assert "EVERVOX_MAX_RUNING: there is no such setting; EVERVOX_MAX_RUNNING is one" in caplog.text
