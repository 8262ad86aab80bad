"""Tiny random checkpoints, and the command run in this process."""

from pathlib import Path

import pytest
from tests.cli.running import Here
from tools.make_checkpoint import make


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("voxcpm2", tmp_path_factory.mktemp("checkpoint") / "tiny")


@pytest.fixture(scope="session")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("voxcpm", tmp_path_factory.mktemp("checkpoint") / "older")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Here:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    return Here(monkeypatch, capfdbinary)
