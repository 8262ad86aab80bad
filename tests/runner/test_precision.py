"""The decoder's products, and no others, are in TF32. The setting can be read and written without a GPU."""

from __future__ import annotations

from pathlib import Path
from tempfile import mkdtemp
from threading import Thread
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from tests.runner.fakes import StaticAttend
from tools.make_checkpoint import make
from torch.utils._python_dispatch import TorchDispatchMode

from evervox.layers.paged import PagedCache
from evervox.runner import simple, stages
from evervox.runner.load import load
from evervox.runner.precision import exact, tf32
from evervox.runner.rows import Rows
from evervox.runner.simple import encode_samples
from evervox.runner.stages import Stages

if TYPE_CHECKING:
    from evervox.runner.load import Loaded

GPU = torch.device("cuda")
PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.addmm_.default, torch.ops.aten.bmm.default)


def now() -> str:
    return torch.backends.cuda.matmul.fp32_precision


def test_it_is_set_and_restored() -> None:
    before = now()
    assert before != "tf32"
    with tf32(GPU):
        assert now() == "tf32"
    assert now() == before
    with pytest.raises(ZeroDivisionError), tf32(GPU):
        _ = 1 / 0
    assert now() == before
    with exact(GPU):  # it is free again
        pass


def test_what_was_there_before_comes_back() -> None:
    before = now()
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    try:
        with tf32(GPU):
            assert now() == "tf32"
        assert now() == "ieee"
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def test_an_older_torch_is_told_its_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    class Older:
        allow_tf32 = False

    older = Older()
    monkeypatch.setattr(torch.backends.cuda, "matmul", older)
    with tf32(GPU):
        assert older.allow_tf32
    assert not older.allow_tf32


def test_nothing_changes_on_a_cpu() -> None:
    before = now()
    with tf32(torch.device("cpu")):
        assert now() == before


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return load(make("voxcpm2", Path(mkdtemp(prefix="evervox-test-"))), dtype="float32", device="cpu")


def test_a_clip_is_not_encoded_meanwhile(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simple, "exact", lambda device: exact(GPU))
    samples = np.zeros(loaded.config.encoder_samples_per_patch, np.float32)
    other = Thread(target=encode_samples, args=(loaded, samples))
    with tf32(GPU):
        other.start()
        other.join(0.3)
        assert other.is_alive()
    other.join(30)
    assert not other.is_alive()


class Products(TorchDispatchMode):
    """Notes the setting at every operation, and whether that is one of torch's products."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[tuple[str, bool]] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found.add((now(), function in PRODUCTS))
        return function(*args, **(kwargs or {}))


def test_the_stages_that_decode_and_no_others(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "tf32", lambda device: tf32(GPU))
    stacks = (loaded.config.lm, loaded.config.residual)
    caches = [PagedCache.empty(stack, 9, 16, device="cpu", dtype=torch.float32) for stack in stacks]
    made = Stages(loaded, caches, Rows(loaded, 4), StaticAttend, max_slots=32, blocks=4, steps_ahead=1)
    before = now()
    for stage in made.list(record_language=True):
        with torch.inference_mode(), Products() as products:
            stage.run(2, False)
        if stage.name in ("feed", "finish"):
            assert products.found == {("tf32", True), ("tf32", False), (before, False)}
        else:
            assert {precision for precision, _ in products.found} == {before}
