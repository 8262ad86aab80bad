"""A tiny checkpoint, and engines over the fake runner."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from tools.make_checkpoint import make

from evervox.engine.client import Engine

if TYPE_CHECKING:
    from pathlib import Path

StartFake = Callable[..., Engine]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("voxcpm2", tmp_path_factory.mktemp("tiny2"))


@pytest.fixture(scope="session")
def checkpoint_without_reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("voxcpm", tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def start_fake(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> StartFake:
    """An engine over the fake runner; `fake` is what it is told, the rest are settings."""

    def start(fake: dict[str, float] | None = None, model: Path = checkpoint, **settings: Any) -> Engine:
        monkeypatch.setenv("FAKE_RUNNER", json.dumps(fake or {}))
        return Engine.start(model, runner="tests.engine.fake_runner:create", **settings)

    return start
