"""No stage touches the host: neither a tensor that lies there nor a value. The meta device stands in for a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from tools.gpu_check.fixtures import config_of, random_model
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from evervox.layers.paged import PagedCache
from evervox.runner.rows import Rows
from evervox.runner.stages import Stages
from evervox.runner.staging import Staging

if TYPE_CHECKING:
    from evervox.layers.attention_metadata import AttentionMetadata
    from evervox.runner.graphs import Stage

DEVICE = torch.device("meta")


class NoHost(TorchDispatchMode):
    """Refuses an operation that sees a tensor of the host; one that looks at a value has none on this device."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = {leaf.device for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        if found - {DEVICE}:
            raise RuntimeError(f"{function} sees a tensor on {found}")
        return function(*args, **(kwargs or {}))


class Attend:
    """Neither kernel: gives something of the right shape."""

    def __init__(self, metadata: AttentionMetadata) -> None:
        self.metadata = metadata

    def over(self, cache: PagedCache) -> Any:
        meta = self.metadata

        def call(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            given = (meta.slot_mapping, meta.block_tables, meta.span_starts, meta.context_lens, cache.keys, q, k, v)
            assert {tensor.device for tensor in given} == {DEVICE}
            return torch.empty_like(q)

        return call


def stages(size: str, dtype: torch.dtype) -> list[Stage]:
    loaded = random_model(config_of(size), DEVICE, dtype)
    stacks = (loaded.config.lm, loaded.config.residual)
    caches = [PagedCache.empty(stack, 9, 16, device=DEVICE, dtype=dtype) for stack in stacks]
    made = Stages(loaded, caches, Rows(loaded, 4), Attend, max_slots=32, blocks=4, steps_ahead=1)
    return made.list(record_language=True)


@pytest.mark.parametrize(
    ("size", "dtype"), [("small", torch.float64), *((size, torch.bfloat16) for size in ("small", "0.5b", "1.5", "2"))]
)
def test_no_stage_touches_the_host(size: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    on_host = Staging.__getitem__

    def on_device(staging: Staging, name: str) -> Tensor:
        tensor = on_host(staging, name)
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=DEVICE)

    monkeypatch.setattr(Staging, "__getitem__", on_device)
    for stage in stages(size, dtype):
        with torch.inference_mode(), NoHost():
            stage.run(2, False)
