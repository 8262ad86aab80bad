"""The engine's device work: one step of many sequences over the paged cache. Its slow twin is `runner.simple`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from evervox.core.plan import Outcome
from evervox.layers.paged import PagedCache, SdpaAttend
from evervox.runner import memory
from evervox.runner.batch import Emission, Member, Packed, emission, pack
from evervox.runner.inputs import Emitted, Inputs, StepResult
from evervox.runner.load import Loaded, load
from evervox.runner.rows import Resident, Rows
from evervox.runner.simple import encode_samples

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from evervox.config import Settings
    from evervox.core.plan import StepPlan
    from evervox.ledger import Ledger


class PagedRunner:
    """Implements `runner.inputs.Runner`. Owns the cache, the rows and what it knows of each sequence."""

    def __init__(self, loaded: Loaded, *, num_blocks: int, block_size: int, max_running: int) -> None:
        self.loaded, self.config, self.model, self.vae = loaded, loaded.config, loaded.model, loaded.vae
        self.num_blocks, self.block_size = num_blocks, block_size
        where, dtype = self.model.device, self.model.dtype
        self.rows = Rows(loaded, max_running)
        self.caches = [
            PagedCache.empty(stack, num_blocks + 1, block_size, device=where, dtype=dtype)
            for stack in (self.config.lm, self.config.residual)
        ]
        self._residents: dict[int, Resident] = {}

    @property
    def patch_shape(self) -> tuple[int, int]:
        return self.config.patch_size, self.config.latent_dim

    def register(self, ledger: Ledger) -> None:
        """Enter rows, sequences and bytes."""
        cache = sum(c.num_bytes for c in self.caches)
        rows, held = self.rows, self.rows.num_bytes
        ledger.register("rows", lambda: rows.num_taken, limit=rows.count, owner="runner")
        ledger.register("sequences in the runner", self._residents, limit=None, owner="runner")
        ledger.register("kv cache", lambda: cache, limit=cache, owner="runner", unit="bytes")
        ledger.register("row memory", lambda: held, limit=held, owner="runner", unit="bytes")

    def add(self, seq: int, inputs: Inputs) -> None:
        """Host memory only."""
        self._residents[seq] = Resident.of(inputs)

    def release(self, seq: int) -> None:
        """Forget a sequence in any state; unknown ids are fine."""
        resident = self._residents.pop(seq, None)
        if resident is not None:
            self.rows.leave(resident)

    def encode(self, samples: NDArray[np.float32]) -> NDArray[np.floating[Any]]:
        """Latents `[patches, patch_size, latent_dim]` of whole patches of samples. Any thread."""
        return encode_samples(self.loaded, samples)

    @torch.inference_mode()
    def step(self, plan: StepPlan) -> StepResult:
        """Compute every span. Where this raises, the cache may be half written but no sequence has moved."""
        for seq in plan.parked:
            if seq in self._residents:
                self.rows.leave(self._residents[seq])
        if not plan.spans:
            return StepResult((), ())
        members = [(span, self._residents[span.seq]) for span in plan.spans]
        for _, resident in members:
            self.rows.seat(resident)
        hidden, residual = self._language(pack(members, self.block_size, self.model.dtype, self.model.device))
        made = emission(members, self.model.dtype, self.model.device)
        if made is None:
            return StepResult(tuple(Outcome(span.seq) for span, _ in members), ())
        return self._emit(members, made, hidden[made.slots], residual[made.slots])

    def _language(self, packed: Packed) -> tuple[Tensor, Tensor]:
        """Hidden states `[N, hidden]` of the LM and the residual LM."""
        x = self.model.embed_text(packed.tokens)
        patches = torch.cat((packed.host_patches, self.rows.last[packed.rows]))
        if len(patches):
            x[torch.cat((packed.host_slots, packed.row_slots))] = self.model.embed_patches(patches)
        attend = SdpaAttend(packed.metadata, self.block_size)
        lm, residual = (attend.over(cache) for cache in self.caches)
        return self.model.language(x, packed.is_audio, packed.positions, lm, residual)

    def _emit(self, members: list[Member], made: Emission, hidden: Tensor, residual: Tensor) -> StepResult:
        mu = self.model.condition(hidden, residual)
        latents = self.model.next_patch(mu, self.rows.last[made.rows], made.noise, made.steps, made.cfg)
        if not bool(torch.isfinite(latents).all()):
            raise FloatingPointError("the solver made a patch that is not finite")
        stops = (self.model.stop_logits(hidden).argmax(-1) == 1).tolist()
        audio = self.vae.decode(latents.to(self.vae.dtype), self.rows.tails, made.rows)
        self.rows.last[made.rows] = latents
        emitted = [
            _own(member, patch, samples)
            for member, patch, samples in zip(made.members, to_host(latents), to_host(audio), strict=False)
        ]
        stopped = {
            span.seq
            for (span, resident), stop in zip(made.members, stops, strict=True)
            if stop and len(resident.made) > resident.inputs.sampling.min_patches
        }
        for (_, resident), patch in zip(made.members, emitted, strict=True):
            resident.made.append(patch.latents)
        return StepResult(tuple(Outcome(span.seq, span.seq in stopped) for span, _ in members), tuple(emitted))


def to_host(tensor: Tensor) -> NDArray[np.floating[Any]]:
    """float32, or float64 where the tensor is."""
    wide = tensor if tensor.dtype is torch.float64 else tensor.float()
    array: NDArray[np.floating[Any]] = wide.cpu().numpy()
    return array


def _own(member: Member, latents: NDArray[np.floating[Any]], samples: NDArray[np.floating[Any]]) -> Emitted:
    """Copies: a view of the batch would keep the whole batch alive."""
    return Emitted(member[0].seq, latents.copy(), samples.astype(np.float32, copy=True))


def create(folder: str | Path, settings: Settings) -> PagedRunner:
    """Load a checkpoint and size the cache. Raises `CheckpointError` and `ConfigError`."""
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    loaded = load(Path(folder), dtype=settings.dtype, device=settings.device)
    on_gpu = loaded.model.device.type == "cuda"
    found = memory.cuda_memory(loaded.model.device) if on_gpu else memory.host_memory()
    share = settings.device_share if on_gpu else memory.CPU_SHARE
    blocks = memory.size_cache(loaded.config, settings, loaded.model.dtype, found, share)
    return PagedRunner(loaded, num_blocks=blocks, block_size=settings.block_size, max_running=settings.max_running)
