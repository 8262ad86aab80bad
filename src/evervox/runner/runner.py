"""The engine's device work: one step of many sequences over the paged cache. Its slow twin is `runner.simple`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from evervox.core.plan import Outcome
from evervox.layers.paged import PagedCache, SdpaAttend
from evervox.runner import gpu, memory
from evervox.runner.batch import emission, pack
from evervox.runner.execute import Executor
from evervox.runner.graphs import GraphSet
from evervox.runner.inputs import Emitted, Inputs, StepResult
from evervox.runner.load import Loaded, load
from evervox.runner.recorder import show_progress, side_stream
from evervox.runner.rows import Resident, Rows
from evervox.runner.simple import encode_samples
from evervox.runner.stages import Stages

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from evervox.config import Settings
    from evervox.core.plan import StepPlan
    from evervox.layers.attention_metadata import AttentionMetadata
    from evervox.ledger import Ledger
    from evervox.runner.batch import Emission
    from evervox.runner.graphs import Key, Recorder
    from evervox.runner.stages import StepAttend

SMALL_MODEL = 50_000_000
"""Parameters. The shipped voice, with 6 million, is 1.7 times slower on two threads than on one."""


class PagedRunner:
    """Implements `runner.inputs.Runner`. Owns the cache, the rows and what it knows of each sequence."""

    def __init__(
        self,
        loaded: Loaded,
        *,
        num_blocks: int,
        block_size: int,
        max_running: int,
        max_slots: int = 1024,
        attend: Callable[[AttentionMetadata], StepAttend] | None = None,
        recorder: Recorder | None = None,
        graph_memory: int | None = None,
    ) -> None:
        """`max_slots` of one step. `attend` None is the plain attention, which cannot be recorded. `record` uses `recorder`."""
        self.loaded, self.config, self.model, self.vae = loaded, loaded.config, loaded.model, loaded.vae
        self.num_blocks, self.block_size = num_blocks, block_size
        where, dtype = self.model.device, self.model.dtype
        self.rows = Rows(loaded, max_running)
        self.caches = [
            PagedCache.empty(stack, num_blocks + 1, block_size, device=where, dtype=dtype)
            for stack in (self.config.lm, self.config.residual)
        ]
        longest = min(num_blocks, -(-self.config.max_length // block_size))
        plain = partial(SdpaAttend, block_size=block_size)
        slots = max(max_slots, max_running)
        self.stages = Stages(loaded, self.caches, self.rows, attend or plain, max_slots=slots, blocks=longest)
        self.graphs = GraphSet(self.stages.list(record_language=attend is not None), recorder, memory_limit=graph_memory)
        self._execute, self._records = Executor(self.stages, self.graphs), recorder is not None
        self._first, self._second = side_stream(where, first=True), side_stream(where, first=False)
        self._residents: dict[int, Resident] = {}

    def record(self, progress: Callable[[int, int, Key, int], None] | None = None) -> None:
        """Record every shape, over padding alone. Once, before the first step."""
        with torch.inference_mode(), self._first():
            if self._records:
                self.stages.times.fill_all()
            self.graphs.record(progress)

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
        buffers = self.stages.num_bytes
        ledger.register("step buffers", lambda: buffers, limit=buffers, owner="runner", unit="bytes")
        self.graphs.register(ledger)

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
        with self._second():
            return encode_samples(self.loaded, samples)

    def step(self, plan: StepPlan) -> StepResult:
        """Compute every span. Where this raises, the cache may be half written but no sequence has moved."""
        with torch.inference_mode(), self._first():
            return self._step(plan)

    def _step(self, plan: StepPlan) -> StepResult:
        for seq in plan.parked:
            if seq in self._residents:
                self.rows.leave(self._residents[seq])
        if not plan.spans:
            return StepResult((), ())
        members = [(span, self._residents[span.seq]) for span in plan.spans]
        for _, resident in members:
            self.rows.seat(resident)
        made = emission(members)
        self._execute.language(pack(members, self.block_size), np.zeros(0, np.int64) if made is None else made.picks)
        if made is None:
            return StepResult(tuple(Outcome(span.seq) for span, _ in members), ())
        emitted, stops = self._emit(made)
        return StepResult(tuple(Outcome(span.seq, span.seq in stops) for span, _ in members), emitted)

    def _emit(self, made: Emission) -> tuple[tuple[Emitted, ...], set[int]]:
        """Every emitting sequence's patch, and which of them stop. If this raises, rows are made again from the patches."""
        try:
            results = self._execute.emit(made)
            if not results[:, -1].all():
                raise FloatingPointError("the solver made a patch that is not finite")
        except BaseException:
            for _, resident in made.members:
                self.rows.leave(resident)
            raise
        stops = set()
        emitted = []
        for (span, resident), numbers in zip(made.members, results, strict=True):
            patch = self._own(span.seq, numbers)
            if numbers[-2] and len(resident.made) > resident.inputs.sampling.min_patches:
                stops.add(span.seq)
            resident.made.append(patch.latents)
            emitted.append(patch)
        return tuple(emitted), stops

    def _own(self, seq: int, numbers: NDArray[np.floating[Any]]) -> Emitted:
        """Copies: the next step overwrites what came back."""
        samples = self.config.samples_per_patch
        return Emitted(seq, numbers[samples:-2].reshape(self.patch_shape).copy(), numbers[:samples].astype(np.float32, copy=True))


def create(folder: str | Path, settings: Settings) -> PagedRunner:
    """Load a checkpoint, size the cache, record the shapes. Raises `CheckpointError` and `ConfigError`."""
    gpu.set_up_allocator()
    loaded = load(Path(folder), dtype=settings.dtype, device=settings.device)
    threads = settings.threads or default_threads(sum(p.numel() for p in loaded.model.parameters()))
    if threads is not None:
        torch.set_num_threads(threads)
    runner = _on_gpu(loaded, settings) if loaded.model.device.type == "cuda" else _on_cpu(loaded, settings)
    runner.record(show_progress)
    return runner


def default_threads(parameters: int) -> int | None:
    """One for a model so small that its threads wait for each other longer than they compute; else torch's own choice."""
    return 1 if parameters < SMALL_MODEL else None


def _on_cpu(loaded: Loaded, settings: Settings) -> PagedRunner:
    blocks = memory.size_cache(loaded.config, settings, loaded.model.dtype, memory.host_memory(), memory.CPU_SHARE)
    return PagedRunner(
        loaded,
        num_blocks=blocks,
        block_size=settings.block_size,
        max_running=settings.max_running,
        max_slots=settings.slots_per_step,
    )


def _on_gpu(loaded: Loaded, settings: Settings) -> PagedRunner:
    device, dtype = loaded.model.device, loaded.model.dtype
    found = gpu.memory_taken(loaded, settings)
    return PagedRunner(
        loaded,
        num_blocks=memory.size_cache(loaded.config, settings, dtype, found, settings.device_share),
        block_size=settings.block_size,
        max_running=settings.max_running,
        max_slots=settings.slots_per_step,
        attend=gpu.kernel_attend(loaded.config, dtype),
        recorder=gpu.recorder(device, settings),
        graph_memory=gpu.graph_memory(found.total, settings),
    )
