"""A plan and its sequences -> the arrays of one step. Host arithmetic only; `runner.stages` says what the arrays are for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from evervox.models.voxcpm.flow import num_evaluations
from evervox.runner.noise import patch_noises

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from evervox.core.plan import Span
    from evervox.runner.rows import Resident

Member = tuple["Span", "Resident"]


@dataclass(frozen=True, slots=True)
class Packed:
    """N slots of S spans, one after another.

    `tokens`, `positions`, `slots` (where keys and values go) int64 `[N]`, `is_audio` bool `[N]`; `starts` int32 `[S + 1]`,
    `contexts` int32 `[S]`, `tables` int32 `[S, blocks]`. The p-th audio slot's patch is `patches[p]` `[patch_size, latent_dim]`,
    or, where that is None, the last patch of row `rows[p]`.
    """

    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    is_audio: NDArray[np.bool_]
    slots: NDArray[np.int64]
    starts: NDArray[np.int32]
    contexts: NDArray[np.int32]
    tables: NDArray[np.int32]
    patches: list[NDArray[np.floating[Any]] | None]
    rows: NDArray[np.int64]

    @property
    def is_decode(self) -> bool:
        """Is every span one slot that holds its row's last patch?"""
        return len(self.tokens) == len(self.contexts) == len(self.patches) and all(patch is None for patch in self.patches)


@dataclass(frozen=True, slots=True)
class Seating:
    """What belongs into `rows` `[S]` that were just taken: each one's last patch, `previous` `[S, patch_size, latent_dim]`.

    The first C have been heard already: the decoder is fed `heard[i]` `[C, patch_size, latent_dim]` in the rows `heard_rows[i]`,
    for i in order. Padding's row stands where one has heard less than others.
    """

    rows: NDArray[np.int64]
    previous: NDArray[np.floating[Any]]
    heard: NDArray[np.floating[Any]]
    heard_rows: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Emission:
    """The spans that make a patch, by falling number of solver evaluations; `picks` int64: each one's last packed slot."""

    members: tuple[Member, ...]
    picks: NDArray[np.int64]

    @property
    def rows(self) -> NDArray[np.int64]:
        return np.array([_row(resident) for _, resident in self.members], np.int64)

    @property
    def timesteps(self) -> list[int]:
        return [resident.inputs.sampling.timesteps for _, resident in self.members]

    @property
    def cfg(self) -> NDArray[np.float64]:
        return np.array([resident.inputs.sampling.cfg for _, resident in self.members])

    def noise(self) -> NDArray[np.floating[Any]]:
        """`[E, patch_size, latent_dim]`, scaled by the temperatures."""
        inputs = [resident.inputs for _, resident in self.members]
        of = [(resident.inputs.sampling.seed, resident.num_made) for _, resident in self.members]
        temperatures = np.array([each.sampling.temperature for each in inputs])
        noise: NDArray[np.floating[Any]] = patch_noises(of, *inputs[0].features.shape[1:]) * temperatures[:, None, None]
        return noise


def seating(residents: Sequence[Resident], reach: int, null_row: int) -> Seating:
    """Of sequences that were just seated, one at least. `reach`: how many patches settle the decoder."""
    patch = residents[0].inputs.features.shape[1:]
    some = sorted(((r.heard(reach), r) for r in residents), key=lambda pair: -len(pair[0]))
    lengths = [len(patches) for patches, _ in some if len(patches)]
    longest = max(lengths, default=0)
    heard = np.zeros((longest, len(lengths), *patch))
    rows = np.full((longest, len(lengths)), null_row, np.int64)
    for column, length in enumerate(lengths):
        heard[longest - length :, column] = some[column][0]
        rows[longest - length :, column] = _row(some[column][1])
    nothing = np.zeros(patch)
    previous = [r.previous() for _, r in some]
    return Seating(
        rows=np.array([_row(r) for _, r in some], np.int64),
        previous=np.stack([nothing if latents is None else latents for latents in previous]),
        heard=heard,
        heard_rows=rows,
    )


def pack(members: Sequence[Member], block_size: int) -> Packed:
    """Core's block b is block b + 1 of the cache: block 0 is padding's."""
    firsts, stops = (np.array(ends) for ends in zip(*((span.start, span.stop) for span, _ in members), strict=True))
    starts = np.cumsum([0, *(stops - firsts)])
    tables = np.zeros((len(members), max(len(span.blocks) for span, _ in members)), np.int32)
    for index, (span, _) in enumerate(members):
        tables[index, : len(span.blocks)] = np.asarray(span.blocks, np.int32) + 1
    owners = np.repeat(np.arange(len(members)), stops - firsts)
    positions = np.arange(starts[-1]) + (firsts - starts[:-1])[owners]
    tokens, is_audio = _contents(members, starts)
    audio = [(members[owners[slot]][1], int(positions[slot])) for slot in np.flatnonzero(is_audio)]
    return Packed(
        tokens=tokens,
        positions=positions,
        is_audio=is_audio,
        slots=tables[owners, positions // block_size].astype(np.int64) * block_size + positions % block_size,
        starts=starts.astype(np.int32),
        contexts=stops.astype(np.int32),
        tables=tables,
        patches=[_patch(resident, position) for resident, position in audio],
        rows=np.array([_row(resident) for resident, _ in audio], np.int64),
    )


def _contents(members: Sequence[Member], starts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Tokens (0 at audio) and whether each slot is audio: the prompts', then patches made."""
    tokens, is_audio = np.zeros(starts[-1], np.int64), np.ones(starts[-1], np.bool_)
    for (span, resident), start in zip(members, starts, strict=False):
        if span.start < resident.prompt_slots:
            prompt = slice(span.start, span.stop)
            own = slice(start, start + min(span.stop, resident.prompt_slots) - span.start)
            tokens[own], is_audio[own] = resident.inputs.tokens[prompt], resident.inputs.is_audio[prompt]
    return tokens, is_audio


def _patch(resident: Resident, position: int) -> NDArray[np.floating[Any]] | None:
    """The patch of an audio slot; None for the last that was made, which is in the row."""
    inputs, made = resident.inputs, position - resident.prompt_slots
    if made < 0:
        patch: NDArray[np.floating[Any]] = inputs.features[int(np.count_nonzero(inputs.is_audio[:position]))]
        return patch
    return None if made == resident.num_made - 1 else resident.made[made]


def emission(members: Sequence[Member]) -> Emission | None:
    """None where no span makes a patch."""
    ends = np.cumsum([span.stop - span.start for span, _ in members])
    emitting = [(member, int(end) - 1) for member, end in zip(members, ends, strict=True) if member[0].emits]
    if not emitting:
        return None
    emitting.sort(key=lambda item: -num_evaluations(item[0][1].inputs.sampling.timesteps))
    return Emission(tuple(member for member, _ in emitting), np.array([slot for _, slot in emitting], np.int64))


def _row(resident: Resident) -> int:
    if resident.row is None:
        raise RuntimeError("a sequence is in a step without a row")
    return resident.row
