"""What the device keeps for each resident sequence: one row of the last patches and one of the decoder's tails."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from evervox.runner.inputs import Inputs
    from evervox.runner.load import Loaded


@dataclass(slots=True)
class Resident:
    """One sequence that the runner knows: its inputs, the patches made so far (resumed ones included) and its row, if seated.

    `ahead`: patches that the device makes but the host has not seen yet.
    """

    inputs: Inputs
    made: list[NDArray[np.floating[Any]]] = field(default_factory=list)
    row: int | None = None
    ahead: int = 0

    @classmethod
    def of(cls, inputs: Inputs) -> Resident:
        return cls(inputs, [] if inputs.patches is None else [p.copy() for p in inputs.patches])

    @property
    def prompt_slots(self) -> int:
        return len(self.inputs.tokens)

    @property
    def num_made(self) -> int:
        """Those that are ahead included."""
        return len(self.made) + self.ahead

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

    `last` `[count + 1, patch_size, latent_dim]` and `tails` have one row more, which belongs to padding. `reach`: patches that
    settle the tails.
    """

    def __init__(self, loaded: Loaded, count: int) -> None:
        config, model, vae = loaded.config, loaded.model, loaded.vae
        self._free = list(range(count))[::-1]
        self.count = count
        self.reach = -(-vae.decoder_reach // config.patch_size)
        self.last = torch.zeros(count + 1, config.patch_size, config.latent_dim, device=model.device, dtype=model.dtype)
        self.tails = vae.new_tails(count + 1)

    @property
    def num_taken(self) -> int:
        return self.count - len(self._free)

    @property
    def num_bytes(self) -> int:
        return self.last.nbytes + self.tails.num_bytes

    def seat(self, resident: Resident) -> bool:
        """Give the sequence a row. True where it had none: what belongs into the row has yet to be put there."""
        if resident.row is not None:
            return False
        if resident.ahead:
            raise RuntimeError("a sequence lost its row while a patch of it was being made")
        resident.row = self._free.pop()
        return True

    def leave(self, resident: Resident) -> None:
        """Free the row. What was in it can be made again from the patches."""
        if resident.row is not None:
            self._free.append(resident.row)
            resident.row = None
