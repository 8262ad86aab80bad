"""What the runner is given for one sequence, and what one step gives back. Host memory only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from evervox.core.plan import Outcome, StepPlan
    from evervox.ledger import Ledger
    from evervox.request import Sampling


@dataclass(frozen=True, slots=True)
class Inputs:
    """A sequence's prompt, encoded.

    `tokens` int32 `[slots]`, 0 at audio slots; `is_audio` bool `[slots]`; `features` `[audio slots, patch_size, latent_dim]`, in
    order; `context_patches`: how many of the last features the decoder is fed first; `patches` `[made, patch_size, latent_dim]`
    or None: what a resumed stream has made already, prefilled like the prompt and not emitted again.
    """

    tokens: NDArray[np.int32]
    is_audio: NDArray[np.bool_]
    features: NDArray[np.floating[Any]]
    context_patches: int
    sampling: Sampling
    patches: NDArray[np.floating[Any]] | None = None


@dataclass(frozen=True, slots=True)
class Emitted:
    """One new patch of one sequence: float32 `samples`, and `latents`.

    `latents` is `[patch_size, latent_dim]`, float32 (float64 where the model is).
    """

    seq: int
    latents: NDArray[np.floating[Any]]
    samples: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class StepResult:
    """Outcomes of every span of the plan; patches of the spans that emit."""

    outcomes: tuple[Outcome, ...]
    emitted: tuple[Emitted, ...]


class Flight(Protocol):
    """A step on its way. Flights are taken in the order in which they were launched."""

    def result(self) -> StepResult:
        """Wait for it. Sequences that were released meanwhile are left out.

        If it raises, nothing of the plan counts; what was launched after it must be dropped. Then the spans may be given again.
        """

    def is_done(self) -> bool:
        """Whether `result` would not have to wait."""

    def drop(self) -> None:
        """Do without its result: nothing of the plan counts."""


class Runner(Protocol):
    """All device work. Called from one thread, except `encode`, which any one other thread may call meanwhile."""

    @property
    def steps_ahead(self) -> int:
        """How many steps may be launched before the result of the one before them is taken; 0 where that gains nothing."""

    @property
    def num_blocks(self) -> int:
        """Blocks of the KV cache; plans name them from 0 on."""

    @property
    def patch_shape(self) -> tuple[int, int]:
        """`(patch_size, latent_dim)`."""

    def register(self, ledger: Ledger) -> None:
        """Enter what outlives a request: rows, sequences, bytes on the device."""

    def add(self, seq: int, inputs: Inputs) -> None:
        """Take a sequence's inputs (host memory only; a row is taken when its first span comes)."""

    def launch(self, plan: StepPlan) -> Flight:
        """Compute the plan's spans. If it raises, nothing of the plan counts.

        The same spans may be given again then, once what was launched before has been taken.
        """

    def release(self, seq: int) -> None:
        """Forget a sequence in any state. Unknown ids are fine."""

    def encode(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Encode `[patches * encoder_samples_per_patch]` samples to `[patches, patch_size, latent_dim]` latents."""
