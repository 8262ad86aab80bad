"""Nothing on the CPU path imports triton: it is a gigabyte, and many installations lack it."""

import subprocess
import sys

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
