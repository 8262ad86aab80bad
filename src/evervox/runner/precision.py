"""Which products of float32 matrices a GPU's tensor cores compute in TF32: those of the decoder, as the reference's
convolutions are by torch's default, and no others.

Torch has one such setting for the whole process, read when a product is launched, so for a moment it holds for other threads
too. The one that launches products beside the step is the encoder's: the two take turns. A recorded stage keeps what was
chosen while recording; its replays change and wait for nothing.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from threading import Lock
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

_turn = Lock()


def exact(device: torch.device) -> AbstractContextManager[object]:
    """Products that are launched within, in any thread, are not in TF32."""
    return _turn if device.type == "cuda" else nullcontext()


@contextmanager
def tf32(device: torch.device) -> Iterator[None]:
    """Products of float32 matrices that are launched within are in TF32. Elsewhere than on a GPU nothing changes."""
    if device.type != "cuda":
        yield
        return
    matmul = torch.backends.cuda.matmul
    # torch 2.9 has the newer name, deprecates the older one and refuses to mix them
    name, on = ("fp32_precision", "tf32") if hasattr(matmul, "fp32_precision") else ("allow_tf32", True)
    with _turn:
        before = getattr(matmul, name)
        setattr(matmul, name, on)
        try:
            yield
        finally:
            setattr(matmul, name, before)
