"""A step between its launch and its results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from evervox.core.plan import Outcome
from evervox.runner.inputs import Emitted, StepResult

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from evervox.runner.batch import Emission, Member
    from evervox.runner.rows import Resident
    from evervox.runner.runner import PagedRunner
    from evervox.runner.staging import Fetch


class Flight:
    """Implements `runner.inputs.Flight`. From its launch on, the rows hold what it makes."""

    def __init__(self, runner: PagedRunner, members: list[Member], made: Emission | None, fetch: Fetch | None) -> None:
        self._runner, self._members, self._fetch = runner, members, fetch
        self._emitting = () if made is None else made.members
        for _, resident in self._emitting:
            resident.ahead += 1

    def result(self) -> StepResult:
        """Patches of the spans that emit. If this raises, rows are made again from the patches that were there before."""
        try:
            return self._read(self._land())
        except BaseException:
            self._stand_up()
            raise

    def is_done(self) -> bool:
        return self._fetch is None or self._fetch.is_done()

    def drop(self) -> None:
        """The rows have moved on and are made again."""
        try:
            self._land()
        finally:
            self._stand_up()

    def _land(self) -> NDArray[np.floating[Any]]:
        fetch, self._fetch = self._fetch, None
        for _, resident in self._emitting:
            resident.ahead -= 1
        return np.zeros((0, 1)) if fetch is None else fetch.wait()

    def _stand_up(self) -> None:
        for _, resident in self._emitting:
            self._runner.rows.leave(resident)

    def _read(self, numbers: NDArray[np.floating[Any]]) -> StepResult:
        here = [self._runner.is_here(span.seq, resident) for span, resident in self._emitting]
        if not np.isfinite(numbers[here, self._runner.config.samples_per_patch :]).all():
            raise FloatingPointError("the solver made a patch that is not finite")
        emitted, stops = [], set()
        for (span, resident), row, is_here in zip(self._emitting, numbers, here, strict=True):
            if is_here:
                if row[-1] and len(resident.made) > resident.inputs.sampling.min_patches:
                    stops.add(span.seq)
                emitted.append(self._take(span.seq, resident, row))
        left = [span.seq for span, resident in self._members if self._runner.is_here(span.seq, resident)]
        return StepResult(tuple(Outcome(seq, seq in stops) for seq in left), tuple(emitted))

    def _take(self, seq: int, resident: Resident, row: NDArray[np.floating[Any]]) -> Emitted:
        """Copies the latents: they outlive the other numbers of the step."""
        samples = self._runner.config.samples_per_patch
        latents = row[samples:-1].reshape(self._runner.patch_shape).copy()
        resident.made.append(latents)
        return Emitted(seq, latents, row[:samples].astype(np.float32, copy=False))
