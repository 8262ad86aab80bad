"""Tiny random checkpoints, and the command run in this process with one worker for all of its runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.running import Here
from tools.make_checkpoint import make

from evervox import TTS, Engine, SpeechRequest, cli


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("voxcpm2", tmp_path_factory.mktemp("checkpoint") / "tiny")


@pytest.fixture(scope="session")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("voxcpm", tmp_path_factory.mktemp("checkpoint") / "older")


@pytest.fixture(scope="module")
def loaded(folder: Path) -> Iterator[tuple[Engine, TTS]]:
    engine = Engine.start(folder)
    with TTS(engine) as tts:
        yield engine, tts


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Here:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    return Here(monkeypatch, capfdbinary)


@pytest.fixture
def quick(here: Here, folder: Path, loaded: tuple[Engine, TTS], monkeypatch: pytest.MonkeyPatch) -> Here:
    """`here`, but `say` finds the tiny checkpoint loaded, and takes it for the shipped one too."""
    load, (engine, tts) = cli._load, loaded

    @contextmanager
    def find(model: str | None, request: SpeechRequest) -> Iterator[TTS]:
        if model not in (None, str(folder)):
            with load(model, request) as other:
                yield other
            return
        engine.check(request)
        yield tts

    monkeypatch.setattr(cli, "_load", find)
    return here
