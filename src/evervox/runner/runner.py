"""The engine's device work: one step of many sequences over the paged cache. Its slow twin is `runner.simple`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from evervox.layers.paged import PagedCache, SdpaAttend
from evervox.runner import gpu, memory
from evervox.runner.batch import emission, pack, seating
from evervox.runner.execute import Executor
from evervox.runner.flight import Flight
from evervox.runner.graphs import GraphSet
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
    from evervox.runner.batch import Emission, Member
    from evervox.runner.graphs import Key, Recorder
    from evervox.runner.inputs import Inputs, StepResult
    from evervox.runner.stages import StepAttend
    from evervox.runner.staging import Fetch

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
        steps_ahead: int = 0,
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
        self.steps_ahead = steps_ahead
        self.stages = Stages(
            loaded, self.caches, self.rows, attend or plain, max_slots=slots, blocks=longest, steps_ahead=steps_ahead
        )
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
        """Launch, and wait."""
        return self.launch(plan).result()

    def launch(self, plan: StepPlan) -> Flight:
        """Compute every span. Where this raises, the cache may be half written but no sequence has moved."""
        with torch.inference_mode(), self._first():
            return self._launch(plan)

    def _launch(self, plan: StepPlan) -> Flight:
        for seq in plan.parked:
            if seq in self._residents:
                self.rows.leave(self._residents[seq])
        members = [(span, self._residents[span.seq]) for span in plan.spans]
        try:
            return Flight(self, members, *self._compute(members))
        except BaseException:
            for _, resident in members:
                self.rows.leave(resident)
            raise

    def _compute(self, members: list[Member]) -> tuple[Emission | None, Fetch | None]:
        if not members:
            return None, None
        seated = [resident for _, resident in members if self.rows.seat(resident)]
        seats = seating(seated, self.rows.reach, self.rows.count) if seated else None
        made = emission(members)
        picks = np.zeros(0, np.int64) if made is None else made.picks
        self._execute.language(pack(members, self.block_size), picks, seats)
        return made, None if made is None else self._execute.emit(made)

    def is_here(self, seq: int, resident: Resident) -> bool:
        """Whether it has not been released."""
        return self._residents.get(seq) is resident


def create(folder: str | Path, settings: Settings) -> PagedRunner:
    """Load a checkpoint, size the cache, record the shapes. Raises `CheckpointError` and `ConfigError`."""
    gpu.set_up()
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
        steps_ahead=1,
        attend=gpu.kernel_attend(loaded.config, dtype),
        recorder=gpu.recorder(device, settings),
        graph_memory=gpu.graph_memory(found.total, settings),
    )
