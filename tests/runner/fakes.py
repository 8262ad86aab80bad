"""A recorder for tests: it keeps the tensor operations of a stage and replays exactly those, on the tensors that it was given.

Like a CUDA graph it knows nothing of the Python around them: a size, an index or a branch that the host took while recording
stays as it was. And like one it cannot let the host look at a value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from evervox.layers.attention_metadata import AttentionMetadata
    from evervox.layers.paged import PagedCache


LOOKS = (torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)


class Tape(TorchDispatchMode):
    """Notes every operation with its inputs and outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[Any, Any, Any, list[Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in LOOKS:
            raise RuntimeError(f"a stage that is recorded looks at values: {func}")
        out = func(*args, **(kwargs or {}))
        self.lines.append((func, args, kwargs or {}, tree_flatten(out)[0]))
        return out


class TapeRecording:
    """Replays a tape. Tensors made on it are made anew each time; all others are the buffers themselves."""

    def __init__(self, tape: Tape, num_bytes: int) -> None:
        self.tape, self.num_bytes, self.replays = tape, num_bytes, 0

    def replay(self) -> None:
        self.replays += 1
        made: dict[int, Any] = {}

        def current(x: Any) -> Any:
            return made.get(id(x), x) if isinstance(x, torch.Tensor) else x

        with torch.inference_mode():
            for func, args, kwargs, outputs in self.tape.lines:
                out = tree_flatten(func(*tree_map(current, args), **tree_map(current, kwargs)))[0]
                made.update({id(old): new for old, new in zip(outputs, out, strict=True) if isinstance(old, torch.Tensor)})


class TapeRecorder:
    """`cost(call number)` is what each recording is said to take."""

    def __init__(self, cost: Callable[[int], int] = lambda n: 1) -> None:
        self.cost, self.recorded, self.cleared = cost, 0, 0

    def record(self, call: Callable[[], None]) -> TapeRecording:
        call()
        self.recorded += 1
        with torch.inference_mode(), Tape() as tape:
            call()
        return TapeRecording(tape, self.cost(self.recorded))

    def clear(self) -> None:
        self.cleared += 1


class StaticAttend:
    """Paged attention that looks at no value on the host: every query over its span's whole table, masked. For tiny models."""

    def __init__(self, metadata: AttentionMetadata) -> None:
        self.metadata = metadata
        slots = torch.arange(len(metadata.slot_mapping))
        starts, contexts = metadata.span_starts.long(), metadata.context_lens.long()
        self.span = torch.searchsorted(starts[1:], slots, right=True).clamp(max=metadata.num_spans - 1)
        self.last = contexts[self.span] - starts[self.span + 1] + slots
        self.limit = torch.where(slots < starts[-1], contexts[self.span], 0)

    def over(self, cache: PagedCache) -> Callable[[int, Tensor, Tensor, Tensor], Tensor]:
        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            cache.store(layer, self.metadata.slot_mapping, k, v)
            return self._attend(q, cache.keys[layer], cache.values[layer])

        return attend

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        size, group = keys.shape[1], q.shape[1] // keys.shape[2]
        at = torch.arange(self.metadata.block_tables.shape[1] * size)
        seen = (at <= self.last[:, None]) & (at < self.limit[:, None])
        flat = self.metadata.block_tables.long()[self.span][:, at // size] * size + at % size
        context = [torch.where(seen[..., None, None], x.flatten(0, 1)[flat], 0) for x in (keys, values)]
        key, value = (x.repeat_interleave(group, 2) for x in context)
        scores = torch.einsum("nhd,nkhd->nhk", q, key) / q.shape[2] ** 0.5
        weights = torch.where(seen[:, None], scores, -1e30).softmax(-1) * seen[:, None]
        return torch.einsum("nhk,nkhd->nhd", weights, value)
