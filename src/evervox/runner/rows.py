"""What the device keeps for each resident sequence: one row of the last patches and one of the decoder's tails."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from evervox.runner.inputs import Inputs
    from evervox.runner.load import Loaded


@dataclass(slots=True)
class Resident:
    """One sequence that the runner knows: its inputs, the patches made so far (resumed ones included) and its row, if seated."""

    inputs: Inputs
    made: list[NDArray[np.floating[Any]]] = field(default_factory=list)
    row: int | None = None

    @classmethod
    def of(cls, inputs: Inputs) -> Resident:
        return cls(inputs, [] if inputs.patches is None else [p.copy() for p in inputs.patches])

    @property
    def prompt_slots(self) -> int:
        return len(self.inputs.tokens)

    @property
    def length(self) -> int:
        return self.prompt_slots + len(self.made)

    def heard(self, patches: int) -> NDArray[np.floating[Any]]:
        """The last patches that the decoder has been fed, `[at most patches, patch_size, latent_dim]`: context, then made."""
        features = self.inputs.features
        context = features[len(features) - self.inputs.context_patches :]
        return np.concatenate([context, *(p[None] for p in self.made[-patches:])])[-patches:]

    def previous(self) -> NDArray[np.floating[Any]] | None:
        """The patch `[patch_size, latent_dim]` that conditions the next one; None is zeros, unless the last slot is audio."""
        if self.made:
            return self.made[-1]
        return self.inputs.features[-1] if self.inputs.is_audio[-1] else None


class Rows:
    """A fixed number of rows on the device. A sequence is seated when its first span comes, and stands up when parked or done.

    `last` `[count + 1, patch_size, latent_dim]` and `tails` have one row more, which belongs to padding.
    """

    def __init__(self, loaded: Loaded, count: int) -> None:
        config, model, vae = loaded.config, loaded.model, loaded.vae
        self._vae, self._patch_size = vae, config.patch_size
        self._reach = -(-vae.decoder_reach // config.patch_size)
        self._free = list(range(count))[::-1]
        self.count = count
        self.last = torch.zeros(count + 1, config.patch_size, config.latent_dim, device=model.device, dtype=model.dtype)
        self.tails = vae.new_tails(count + 1)

    @property
    def num_taken(self) -> int:
        return self.count - len(self._free)

    @property
    def num_bytes(self) -> int:
        return self.last.nbytes + self.tails.num_bytes

    def seat(self, resident: Resident) -> int:
        """Give the sequence a row, if it has none, as if it had sat there from its beginning."""
        if resident.row is None:
            row = self._free.pop()
            try:
                previous = resident.previous()
                self.last[row] = 0 if previous is None else torch.from_numpy(previous)
                self._rebuild(row, resident)
            except BaseException:
                self._free.append(row)
                raise
            resident.row = row
        return resident.row

    def leave(self, resident: Resident) -> None:
        """Free the row. What was in it can be made again from the patches."""
        if resident.row is not None:
            self._free.append(resident.row)
            resident.row = None

    def _rebuild(self, row: int, resident: Resident) -> None:
        self.tails.reset(row)
        heard = resident.heard(self._reach)
        if len(heard):
            frames = torch.from_numpy(heard).to(self._vae.device, self._vae.dtype).flatten(0, 1)
            self._vae.decode(frames[None], self.tails, self._index([row]))

    def _index(self, rows: list[int]) -> Tensor:
        return torch.tensor(rows, device=self.last.device)
