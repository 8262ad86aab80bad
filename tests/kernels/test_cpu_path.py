"""Nothing on the CPU path imports triton: it is a gigabyte, and many installations lack it."""

import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

import evervox.kernels

PROGRAM = """
import pkgutil, sys
import evervox
for module in pkgutil.walk_packages(evervox.__path__, "evervox."):
    if not module.name.startswith("evervox.kernels.") and not module.name.endswith("__main__"):
        __import__(module.name)
import torch
print(*(name for name in sys.modules if name.split(".")[0] == "triton"))
"""


def test_importing_everything_but_the_kernels_imports_no_triton() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stdout.split()


def test_asking_for_triton_does_not_import_it(monkeypatch: pytest.MonkeyPatch) -> None:
    evervox.kernels.has_triton.cache_clear()
    monkeypatch.setattr("evervox.kernels.find_spec", lambda name: None)
    assert not evervox.kernels.has_triton()
    evervox.kernels.has_triton.cache_clear()


@pytest.fixture
def fresh() -> Iterator[None]:
    evervox.kernels.can_launch.cache_clear()
    yield
    evervox.kernels.can_launch.cache_clear()


@pytest.mark.usefixtures("fresh")
def test_without_triton_nothing_can_be_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evervox.kernels, "has_triton", lambda: False)
    assert not evervox.kernels.can_launch()


@pytest.mark.usefixtures("fresh")
@pytest.mark.skipif(not evervox.kernels.has_triton(), reason="triton is not installed")
def test_a_triton_that_builds_no_launcher_is_said_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        @property
        def utils(self) -> object:
            raise RuntimeError("Failed to find C compiler.")

    from triton.runtime import driver

    with monkeypatch.context() as patched:
        patched.setattr(type(driver), "active", Broken())
        assert not evervox.kernels.can_launch()
        assert not evervox.kernels.can_launch()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "C compiler" in caplog.text


@pytest.mark.usefixtures("fresh")
@pytest.mark.skipif(not evervox.kernels.has_triton(), reason="triton is not installed")
def test_a_driver_that_is_built_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime import driver

    monkeypatch.setattr(type(driver), "active", SimpleNamespace(utils=object()))
    assert evervox.kernels.can_launch()
