"""One step's arrays -> the stages' buffers, padded -> the stages, recorded or not -> one copy back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from evervox.models.voxcpm.flow import num_evaluations

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from evervox.runner.batch import Emission, Packed
    from evervox.runner.graphs import GraphSet
    from evervox.runner.stages import Stages


class Executor:
    """Runs the stages in order. Two copies to the device at most: one before the language models, one before the solver."""

    def __init__(self, stages: Stages, graphs: GraphSet) -> None:
        self.stages, self.graphs = stages, graphs

    def language(self, packed: Packed, picks: NDArray[np.int64]) -> None:
        """Start the language models; `picks`: the packed slots whose hidden states `emit` goes on with, in its order."""
        if packed.is_decode:
            self._decode(packed, picks)
        else:
            self._prefill(packed, picks)

    def emit(self, made: Emission) -> NDArray[np.floating[Any]]:
        """Solve, decode and fetch: `[E, samples + latents + 2]`, the last two being the stop and whether the latents are finite.

        The noise is drawn while the device is busy with the language models.
        """
        evaluations = np.array([num_evaluations(timesteps) for timesteps in made.timesteps], np.int64)
        self._send_emission(made, evaluations)
        count = len(evaluations)
        self._run("begin", count)
        for step in range(int(evaluations[0])):
            self._run("solve", int(np.count_nonzero(evaluations > step)))
        self._run("finish", count)
        return self.stages.results.fetch(count)

    def _decode(self, packed: Packed, picks: NDArray[np.int64]) -> None:
        size = self.graphs.size_for("decode", len(packed.contexts))
        write = self.stages.language.write
        write("positions", packed.positions, size)
        write("slot_mapping", packed.slots, size)
        write("span_starts", np.arange(size + 1, dtype=np.int32), size + 1)
        write("context_lens", packed.contexts, size)
        write("span_rows", packed.rows, size)
        write("picks", picks, size)
        write("block_tables", packed.tables, size)
        self.stages.language.send()
        self.graphs.run("decode", size)

    def _prefill(self, packed: Packed, picks: NDArray[np.int64]) -> None:
        size = self.graphs.size_for("prefill", len(packed.tokens))
        write, spans = self.stages.language.write, self.stages.max_rows
        starts = np.pad(packed.starts, (0, spans + 1 - len(packed.starts)), mode="edge")
        write("positions", packed.positions, size)
        write("slot_mapping", packed.slots, size)
        write("span_starts", starts, spans + 1)
        write("context_lens", packed.contexts, spans)
        write("picks", picks, spans)
        write("block_tables", packed.tables, spans)
        write("tokens", packed.tokens, size)
        write("is_audio", packed.is_audio, size)
        patches = self._write_patches(packed, size)
        self.stages.language.send()
        if patches:
            self.graphs.run("encode", patches)
        self.graphs.run("prefill", size)

    def _write_patches(self, packed: Packed, slots: int) -> int:
        """Where the audio slots' patches come from; returns the size to encode, 0 for none."""
        write, count = self.stages.language.write, len(packed.patches)
        write("embedding_of", np.where(packed.is_audio, np.cumsum(packed.is_audio) - 1, 0), slots)
        if not count:
            return 0
        size = self.graphs.size_for("encode", count)
        from_host = np.array([patch is not None for patch in packed.patches])
        write("patch_rows", packed.rows, size)
        write("from_host", from_host, size)
        if from_host.any():
            shape = self.stages.config.patch_size, self.stages.config.latent_dim
            empty = np.zeros(shape)
            write("host_patches", np.stack([empty if patch is None else patch for patch in packed.patches]), size)
        return size

    def _send_emission(self, made: Emission, evaluations: NDArray[np.int64]) -> None:
        size = max(self.graphs.size_for(stage, len(evaluations)) for stage in ("begin", "solve", "finish"))
        write, times = self.stages.emission.write, self.stages.times
        write("rows", made.rows, size)
        write("first", np.array([times.first(timesteps) for timesteps in made.timesteps], np.int64), size)
        write("evaluations", evaluations, size)
        write("cfg", made.cfg, size)
        write("noise", made.noise(), size)
        self.stages.emission.send()

    def _run(self, stage: str, count: int) -> None:
        self.graphs.run(stage, self.graphs.size_for(stage, count))
