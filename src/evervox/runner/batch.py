"""A plan and its sequences -> the arrays of one step. Host arithmetic only; the runner moves the result to the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from evervox.layers.attention_metadata import AttentionMetadata
from evervox.models.voxcpm.flow import Steps, num_evaluations
from evervox.runner.noise import patch_noise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from evervox.core.plan import Span
    from evervox.runner.rows import Resident

Member = tuple["Span", "Resident"]


@dataclass(frozen=True, slots=True)
class Packed:
    """N slots of all spans, one after another.

    `tokens`, `positions` int64 `[N]`, `is_audio` bool `[N]`. An audio slot's patch comes from the host (`host_patches`
    `[h, patch_size, latent_dim]` for `host_slots` `[h]`) or from a row's last patch (`rows` `[r]` for `row_slots` `[r]`).
    """

    tokens: Tensor
    positions: Tensor
    is_audio: Tensor
    host_patches: Tensor
    host_slots: Tensor
    row_slots: Tensor
    rows: Tensor
    metadata: AttentionMetadata


@dataclass(frozen=True, slots=True)
class Emission:
    """The E spans that make a patch, by falling number of solver evaluations.

    `slots`, `rows` int64 `[E]`: each one's last packed slot and its row; `noise` `[E, patch_size, latent_dim]`, `cfg` `[E]`.
    """

    members: tuple[Member, ...]
    slots: Tensor
    rows: Tensor
    noise: Tensor
    cfg: Tensor
    steps: Steps


def pack(members: Sequence[Member], block_size: int, dtype: torch.dtype, device: torch.device) -> Packed:
    """Core's block b is block b + 1 of the cache: block 0 is padding's."""
    lengths = [span.stop - span.start for span, _ in members]
    starts = np.cumsum([0, *lengths])
    tables = np.zeros((len(members), max(len(span.blocks) for span, _ in members)), np.int32)
    for index, (span, _) in enumerate(members):
        tables[index, : len(span.blocks)] = np.asarray(span.blocks, np.int32) + 1
    positions = np.concatenate([np.arange(span.start, span.stop) for span, _ in members])
    owners = np.repeat(np.arange(len(members)), lengths)
    slots = tables[owners, positions // block_size].astype(np.int64) * block_size + positions % block_size
    tokens, is_audio = (np.concatenate(parts) for parts in zip(*(_content(*member) for member in members), strict=True))
    sources = [_source(members[owners[slot]][1], int(positions[slot])) for slot in np.flatnonzero(is_audio)]
    host, rows = _split(np.flatnonzero(is_audio), sources)
    shape = members[0][1].inputs.features.shape[1:]
    patches = np.stack([patch for _, patch in host]) if host else np.zeros((0, *shape), np.float32)

    def put(array: NDArray[Any] | list[int]) -> Tensor:
        return torch.from_numpy(np.asarray(array, np.int64) if isinstance(array, list) else array).to(device)

    return Packed(
        tokens=put(tokens),
        positions=put(positions),
        is_audio=put(is_audio),
        host_patches=put(patches).to(dtype),
        host_slots=put([slot for slot, _ in host]),
        row_slots=put([slot for slot, _ in rows]),
        rows=put([row for _, row in rows]),
        metadata=AttentionMetadata(
            slot_mapping=put(slots),
            block_tables=put(tables),
            span_starts=put(starts.astype(np.int32)),
            context_lens=put(np.asarray([span.stop for span, _ in members], np.int32)),
            max_query=max(lengths),
        ),
    )


def _content(span: Span, resident: Resident) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Tokens (0 at audio) and whether each is audio, of a span's slots: the prompt's, then patches made."""
    inputs = resident.inputs
    tokens = inputs.tokens[span.start : span.stop].astype(np.int64)
    audio = inputs.is_audio[span.start : span.stop]
    made = span.stop - span.start - len(tokens)
    return np.pad(tokens, (0, made)), np.pad(audio, (0, made), constant_values=True)


def _source(resident: Resident, position: int) -> int | NDArray[np.floating[Any]]:
    """Where the patch of an audio slot is: in a row, if it is the last that was made, or here."""
    inputs, made = resident.inputs, position - resident.prompt_slots
    if made < 0:
        patch: NDArray[np.floating[Any]] = inputs.features[int(np.count_nonzero(inputs.is_audio[:position]))]
        return patch
    return _row(resident) if made == len(resident.made) - 1 else resident.made[made]


def _split(
    slots: NDArray[np.int64], sources: list[int | NDArray[np.floating[Any]]]
) -> tuple[list[tuple[int, NDArray[np.floating[Any]]]], list[tuple[int, int]]]:
    pairs = list(zip(slots.tolist(), sources, strict=True))
    return [(s, x) for s, x in pairs if not isinstance(x, int)], [(s, x) for s, x in pairs if isinstance(x, int)]


def emission(members: Sequence[Member], dtype: torch.dtype, device: torch.device) -> Emission | None:
    """None where no span makes a patch."""
    ends = np.cumsum([span.stop - span.start for span, _ in members])
    emitting = [(member, int(end) - 1) for member, end in zip(members, ends, strict=True) if member[0].emits]
    if not emitting:
        return None
    emitting.sort(key=lambda item: -num_evaluations(item[0][1].inputs.sampling.timesteps))
    chosen = tuple(member for member, _ in emitting)
    noise = np.stack([_noise(resident) for _, resident in chosen])
    settings = [resident.inputs.sampling for _, resident in chosen]
    return Emission(
        members=chosen,
        slots=torch.tensor([slot for _, slot in emitting], device=device),
        rows=torch.tensor([_row(resident) for _, resident in chosen], device=device),
        noise=torch.from_numpy(noise).to(device, dtype),
        cfg=torch.tensor([s.cfg for s in settings], device=device, dtype=dtype),
        steps=Steps.of([s.timesteps for s in settings], dtype).to(device),
    )


def _noise(resident: Resident) -> NDArray[np.floating[Any]]:
    sampling = resident.inputs.sampling
    patch_size, latent_dim = resident.inputs.features.shape[1:]
    noise = patch_noise(sampling.seed, len(resident.made), patch_size, latent_dim)
    noise *= sampling.temperature
    return noise


def _row(resident: Resident) -> int:
    if resident.row is None:
        raise RuntimeError("a sequence is in a step without a row")
    return resident.row
