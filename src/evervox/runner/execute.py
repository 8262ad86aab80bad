"""One step's arrays -> the stages' buffers, padded -> the stages, recorded or not -> one copy back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from evervox.models.voxcpm.flow import num_evaluations

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from evervox.runner.batch import Emission, Packed, Seating
    from evervox.runner.graphs import GraphSet
    from evervox.runner.stages import Stages
    from evervox.runner.staging import Fetch

    Run = tuple[str, int]  # a stage and its size


class Executor:
    """Runs the stages in order. Two copies to the device at most: one before the language models, one before the solver."""

    def __init__(self, stages: Stages, graphs: GraphSet) -> None:
        self.stages, self.graphs = stages, graphs

    def language(self, packed: Packed, picks: NDArray[np.int64], seats: Seating | None) -> None:
        """Start the language models; `picks`: the packed slots whose hidden states `emit` goes on with, in its order."""
        runs = [] if seats is None else self._write_seats(seats)
        runs += self._write_decode(packed, picks) if packed.is_decode else self._write_prefill(packed, picks)
        self.stages.language.send()
        for stage, size in runs:
            self.graphs.run(stage, size)

    def emit(self, made: Emission) -> Fetch:
        """Solve, decode, and start to bring back `[E, samples + latents + 1]`: the stop comes last.

        The noise is drawn while the device is busy with the language models.
        """
        evaluations = np.array([num_evaluations(timesteps) for timesteps in made.timesteps], np.int64)
        self._send_emission(made, evaluations)
        count = len(evaluations)
        self._run("begin", count)
        for step in range(int(evaluations[0])):
            self._run("solve", int(np.count_nonzero(evaluations > step)))
        self._run("finish", count)
        return self.stages.results.start(count)

    def _write_seats(self, seats: Seating) -> list[Run]:
        write = self.stages.language.write
        size = self.graphs.size_for("seat", len(seats.rows))
        write("seat_rows", seats.rows, size)
        write("seat_patches", seats.previous, size)
        longest, count = seats.heard_rows.shape
        if not count:
            return [("seat", size)]
        write("heard_rows", seats.heard_rows, longest)
        write("heard", seats.heard, longest)
        return [("seat", size)] + [("feed", self.graphs.size_for("feed", count))] * longest

    def _write_decode(self, packed: Packed, picks: NDArray[np.int64]) -> list[Run]:
        size = self.graphs.size_for("decode", len(packed.contexts))
        write = self.stages.language.write
        write("positions", packed.positions, size)
        write("slot_mapping", packed.slots, size)
        write("span_starts", np.arange(size + 1, dtype=np.int32), size + 1)
        write("context_lens", packed.contexts, size)
        write("span_rows", packed.rows, size)
        write("picks", picks, size)
        write("block_tables", packed.tables, size)
        return [("decode", size)]

    def _write_prefill(self, packed: Packed, picks: NDArray[np.int64]) -> list[Run]:
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
        return [("encode", patches), ("prefill", size)] if patches else [("prefill", size)]

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
