"""Everything that the solver's schedules fix, made once per process: time embeddings and step sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from evervox.models.voxcpm.config import MAX_TIMESTEPS
from evervox.models.voxcpm.flow import num_evaluations, schedule

if TYPE_CHECKING:
    from evervox.models.voxcpm.model import VoxModel


class TimeTable:
    """Entry `first(n) + k` belongs to evaluation `k` of a schedule of `n` timesteps.

    `embeddings` `[entries, dit hidden]`, `dt` `[entries]`. A schedule is filled in when it is first asked for; memory for all is
    there from the start.
    """

    def __init__(self, model: VoxModel) -> None:
        self._model = model
        self._first = [0]
        for timesteps in range(MAX_TIMESTEPS + 1):
            self._first.append(self._first[-1] + max(0, num_evaluations(timesteps)))
        self._filled = bytearray(MAX_TIMESTEPS + 1)
        entries, hidden = self._first[-1], model.config.dit.hidden
        self.embeddings = torch.zeros(entries, hidden, device=model.device, dtype=model.dtype)
        self.dt = torch.zeros(entries, device=model.device, dtype=model.dtype)

    @property
    def num_bytes(self) -> int:
        return self.embeddings.nbytes + self.dt.nbytes

    def first(self, timesteps: int) -> int:
        """Where the schedule's entries begin."""
        if not self._filled[timesteps]:
            self._fill(timesteps)
        return self._first[timesteps]

    def fill_all(self) -> None:
        """So that nothing is left to be computed while serving."""
        for timesteps in range(1, MAX_TIMESTEPS + 1):
            self.first(timesteps)

    @torch.inference_mode()
    def _fill(self, timesteps: int) -> None:
        plan, model = schedule(timesteps, self._model.dtype), self._model
        where = slice(self._first[timesteps], self._first[timesteps + 1])
        t, dt = plan.t.to(model.device), plan.dt.to(model.device)
        if len(t):
            deltas = dt if model.config.mean_mode else torch.zeros_like(dt)
            self.embeddings[where], self.dt[where] = model.dit.embed_time(t, deltas), dt
        self._filled[timesteps] = 1
