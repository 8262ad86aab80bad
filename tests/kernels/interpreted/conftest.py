"""Makes Triton's older interpreters run on newer NumPy: they make loop bounds of arrays of one element, which it refuses."""

from typing import Any

import triton
from triton.runtime import interpreter

if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9):
    _patch = interpreter._patch_lang_tensor

    def _patch_lang_tensor(tensor: Any, *scope: Any) -> None:
        _patch(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    interpreter._patch_lang_tensor = _patch_lang_tensor
