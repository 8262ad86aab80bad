"""The launcher's set-up: what it installs and when, and that it can be interrupted anywhere. Nothing is installed here."""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from types import ModuleType

LAUNCHER = Path(__file__).parents[1] / "evervox"


class Machine:
    """A checkout in an empty folder; commands are noted, and the one that makes the environment leaves a python."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        loader = importlib.machinery.SourceFileLoader("launcher", str(LAUNCHER))
        spec = importlib.util.spec_from_loader("launcher", loader)
        assert spec is not None
        self.launcher: ModuleType = importlib.util.module_from_spec(spec)
        loader.exec_module(self.launcher)
        self.ran: list[str] = []
        self.interrupted_at: str | None = None
        self.venv = folder / ".venv"
        (folder / "pyproject.toml").write_text("[project]")
        for name, value in {
            "ROOT": folder, "VENV": self.venv, "MARK": self.venv / "incomplete", "STAMP": self.venv / "evervox-stamp",
            "call": self.call, "works": (self.venv / "bin" / "python").exists,
        }.items():  # fmt: skip
            monkeypatch.setattr(self.launcher, name, value)
        monkeypatch.setattr(self.launcher, "GPU", folder / "gpu")
        monkeypatch.setattr(self.launcher.shutil, "which", lambda name: None)

    def call(self, *command: Any, hint: str) -> None:
        told = " ".join(map(str, command[1:])).replace(str(self.venv.parent), "ROOT")
        self.ran.append(told)
        if "venv" in command:
            (self.venv / "bin").mkdir()
            (self.venv / "bin" / "python").touch()
        if self.interrupted_at is not None and self.interrupted_at in told:
            raise KeyboardInterrupt

    def start(self, *, test: bool = False, interrupted_at: str | None = None) -> list[str]:
        """What one start of the launcher ran."""
        self.ran.clear()
        self.interrupted_at = interrupted_at
        if not self.launcher.is_current(test):
            self.launcher.set_up(test)
        return list(self.ran)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


MAKE = "-m venv ROOT/.venv"
INSTALL = "-m pip install --disable-pip-version-check --no-compile torch==2.13.0 -e ROOT"
INSTALL_ALL = INSTALL + "[dev]"
ORACLE = "-m pip install --disable-pip-version-check --no-compile --no-deps voxcpm==2.0.3"


def test_the_first_start_makes_and_installs_and_the_second_does_nothing(machine: Machine) -> None:
    assert machine.start() == [MAKE, INSTALL]
    assert machine.start() == []


def test_the_test_command_installs_more_once(machine: Machine) -> None:
    machine.start()
    assert machine.start(test=True) == [INSTALL_ALL, ORACLE]
    assert machine.start(test=True) == machine.start() == []


def test_a_changed_pyproject_installs_again_and_keeps_the_test_part(machine: Machine) -> None:
    machine.start(test=True)
    (machine.venv.parent / "pyproject.toml").write_text("[project] # changed")
    assert machine.start() == [INSTALL_ALL, ORACLE]


@pytest.mark.parametrize("point", ["venv", "torch", "voxcpm"])
@pytest.mark.parametrize("begun", [False, True])
def test_what_was_interrupted_is_made_anew(machine: Machine, point: str, begun: bool) -> None:
    if begun:
        machine.start()
        (machine.venv.parent / "pyproject.toml").write_text("[project] # changed")
        if point == "venv":
            (machine.venv / "bin" / "python").unlink()
            (machine.venv / "bin").rmdir()
    with pytest.raises(KeyboardInterrupt):
        machine.start(test=True, interrupted_at=point)
    (machine.venv / "half-a-package").mkdir()
    assert machine.start(test=True) == [MAKE, INSTALL_ALL, ORACLE]
    assert not (machine.venv / "half-a-package").exists()
    assert machine.start(test=True) == []


def test_an_interrupted_clean_up_is_made_anew(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        machine.start(interrupted_at="torch")

    def interrupt() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(machine.launcher, "empty", interrupt)
        with pytest.raises(KeyboardInterrupt):
            machine.start()
    assert machine.start() == [MAKE, INSTALL]


def test_an_environment_made_by_hand_is_completed_not_emptied(machine: Machine) -> None:
    (machine.venv / "bin").mkdir(parents=True)
    (machine.venv / "bin" / "python").touch()
    (machine.venv / "mine").touch()
    assert machine.start() == [INSTALL]
    assert (machine.venv / "mine").exists()


@pytest.mark.parametrize("sign", ["device", "command"])
def test_a_gpu_gets_the_ordinary_build(machine: Machine, monkeypatch: pytest.MonkeyPatch, sign: str) -> None:
    if sign == "device":
        machine.launcher.GPU.touch()
    else:
        monkeypatch.setattr(machine.launcher.shutil, "which", {"nvidia-smi": "/usr/bin/nvidia-smi"}.get)
    assert machine.start()[-1] == "-m pip install --disable-pip-version-check --no-compile torch -e ROOT"
