"""What a step sends to the device and brings back: one buffer each way, at addresses that never change."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

ALIGNMENT = 256  # bytes: what kernels assume of a tensor's start


@dataclass(frozen=True, slots=True)
class Field:
    """One named input: its largest shape, of which the first axis is padded with `padding`."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    padding: int = 0

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Side:
    """Host memory, and when the last copy had read it."""

    buffer: Tensor
    sent: torch.cuda.Event | None

    def wait(self) -> None:
        """Until it may be written again."""
        if self.sent is not None:
            self.sent.synchronize()


def host_sides(there: Tensor) -> list[Side]:
    """What is written before it is sent to the buffer `there`."""
    if there.device.type != "cuda":
        return [Side(there, None)]
    return [Side(torch.zeros_like(there, device="cpu", pin_memory=True), torch.cuda.Event()) for _ in range(2)]  # type: ignore[no-untyped-call]


class Staging:
    """Named inputs side by side in one buffer, pinned on the host and again on the device.

    `write` fills the host's side; `send` moves everything up to the last field written in one copy, so what is rarely written
    belongs at the end. The host has two sides that take turns: while a step is computed, the next is written. On a CPU it has
    the device's. A tensor `staging[name]` keeps its address for ever. Of fields that a step does not write, what is sent
    is undefined.
    """

    def __init__(self, fields: Mapping[str, Field], device: torch.device) -> None:
        self._fields = dict(fields)
        self._ends: dict[str, int] = {}
        size = 0
        for name, field in self._fields.items():
            size = -(-size // ALIGNMENT) * ALIGNMENT + field.num_bytes
            self._ends[name] = size
        self._device = torch.zeros(size, dtype=torch.uint8, device=device)
        self._views_there = self._views(self._device)
        self._sides = host_sides(self._device)
        self._views_here = [self._views(side.buffer) for side in self._sides]
        for views in self._views_here:
            for name, field in self._fields.items():
                views[name].fill_(field.padding)
        self._device.copy_(self._sides[0].buffer)
        self._turn = self._written = 0

    def __getitem__(self, name: str) -> Tensor:
        """The device's tensor, at its largest shape."""
        return self._views_there[name]

    @property
    def num_bytes(self) -> int:
        return self._device.nbytes

    def write(self, name: str, values: NDArray[np.generic[Any]], size: int) -> None:
        """Put `values` at the front of the field, and padding after them up to `size`. Narrower rows are filled with padding."""
        if not self._written:
            self._sides[self._turn].wait()
        field, side = self._fields[name], self._views_here[self._turn][name]
        if not len(values) <= size <= len(side):
            raise ValueError(f"{name}: {len(values)} values, padded to {size}, do not fit into {len(side)}")
        source = torch.from_numpy(values)
        target = side[: len(source)]
        if source.ndim > 1 and source.shape[1] < side.shape[1]:
            target[:, source.shape[1] :].fill_(field.padding)
            target = target[:, : source.shape[1]]
        target.copy_(source)
        side[len(source) : size].fill_(field.padding)
        self._written = max(self._written, self._ends[name])

    def send(self) -> None:
        """Start the copy; it is ordered before whatever is launched next."""
        side = self._sides[self._turn]
        if side.sent is not None:
            self._device[: self._written].copy_(side.buffer[: self._written], non_blocking=True)
            side.sent.record()
        self._turn = (self._turn + 1) % len(self._sides)
        self._written = 0

    def _views(self, buffer: Tensor) -> dict[str, Tensor]:
        return {
            name: buffer[self._ends[name] - field.num_bytes : self._ends[name]].view(field.dtype).view(field.shape)
            for name, field in self._fields.items()
        }


class Readback:
    """`[rows, width]` numbers that a step brings back in one copy. `slots` steps may be on their way at once."""

    def __init__(self, rows: int, width: int, device: torch.device, dtype: torch.dtype, *, slots: int) -> None:
        self.device = torch.zeros(rows, width, device=device, dtype=dtype)
        on_gpu = device.type == "cuda"
        self._free = [_Slot(torch.zeros_like(self.device, device="cpu", pin_memory=on_gpu), on_gpu) for _ in range(slots)]

    @property
    def num_bytes(self) -> int:
        return self.device.nbytes

    def start(self, rows: int) -> Fetch:
        """Copy the first `rows` once the device has come this far."""
        slot = self._free.pop()
        slot.host[:rows].copy_(self.device[:rows], non_blocking=True)
        if slot.arrived is not None:
            slot.arrived.record()
        return Fetch(self._free, slot, rows)


class _Slot:
    def __init__(self, host: Tensor, on_gpu: bool) -> None:
        self.host = host
        self.arrived = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]


class Fetch:
    """Numbers on their way to the host. One of `wait` and `close` is called once."""

    def __init__(self, free: list[_Slot], slot: _Slot, rows: int) -> None:
        self._free, self._slot, self._rows = free, slot, rows

    def is_done(self) -> bool:
        """Whether they have arrived."""
        return self._slot.arrived is None or self._slot.arrived.query()  # type: ignore[no-untyped-call]

    def wait(self) -> NDArray[np.floating[Any]]:
        """The numbers, which are the caller's."""
        try:
            if self._slot.arrived is not None:
                self._slot.arrived.synchronize()
            array: NDArray[np.floating[Any]] = self._slot.host[: self._rows].numpy().copy()
        finally:
            self._free.append(self._slot)
        return array

    def close(self) -> None:
        """Wait, and do without them."""
        self.wait()
