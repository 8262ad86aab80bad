"""The reference implementation, the PyPI package `voxcpm`, as an oracle for tests. Test-only: nothing in `src` may import this.

Its top module pulls in packages that the models do not need, so a bare package stands in for it and only the submodules run.
`torchaudio` and `librosa`, which it uses to read clips, are stubbed: an attribute of theirs that is called fails loudly.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import types
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Reference:
    """The modules of `voxcpm` that tests compare with."""

    vae: types.ModuleType
    vae2: types.ModuleType
    minicpm: types.ModuleType
    locenc: types.ModuleType
    locdit: types.ModuleType
    layers: types.ModuleType
    model: types.ModuleType
    model2: types.ModuleType


@contextmanager
def quiet() -> Iterator[None]:
    """Run reference code that uses deprecated parts of its libraries: our tests turn warnings into errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@functools.cache
def reference() -> Reference:
    """Import the oracle once. Skips the test when the package `voxcpm` is not installed."""
    spec = importlib.util.find_spec("voxcpm")
    if spec is None or spec.submodule_search_locations is None:
        pytest.skip("the reference package is not installed: pip install --no-deps voxcpm==2.0.3")
    package = types.ModuleType("voxcpm")
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules["voxcpm"] = package
    for name in ("torchaudio", "librosa"):
        sys.modules.setdefault(name, _stub(name))
    names = {
        "vae": "modules.audiovae.audio_vae",
        "vae2": "modules.audiovae.audio_vae_v2",
        "minicpm": "modules.minicpm4",
        "locenc": "modules.locenc",
        "locdit": "modules.locdit",
        "layers": "modules.layers",
        "model": "model.voxcpm",
        "model2": "model.voxcpm2",
    }
    with quiet():
        return Reference(**{key: importlib.import_module(f"voxcpm.{name}") for key, name in names.items()})


def _stub(name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__spec__ = importlib.util.spec_from_loader(name, loader=None)

    def missing(attribute: str) -> Any:
        raise AttributeError(f"{name} is a stub in these tests; {attribute} was asked for")

    module.__getattr__ = missing  # type: ignore[method-assign]
    return module
