"""A step as eight stages over static buffers, so that each can be recorded by size. The runner fills, runs and reads.

    seat      last patches from the host -> rows that were taken    by rows
    feed      a patch that was heard before -> the decoder's tails  by rows
    encode    patches -> embeddings                             by patches
    prefill   tokens and embeddings -> last hidden states       by slots
    decode    last patches -> last hidden states                by rows
    begin     hidden states -> the solver's start, the stop     by rows
    solve     one evaluation; counts itself                     by rows
    finish    the solver's end -> patch and samples             by rows

Rows are indices into `runner.rows.Rows`, whose last row belongs to padding; block 0 of a cache likewise. What padding computes
stays in them. Order in a step: seat, where rows were taken, and feed as often as needed; encode and prefill, or decode; begin,
solve as often as needed, finish.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from evervox.layers.attention_metadata import AttentionMetadata
from evervox.models.voxcpm.config import Conditioning
from evervox.models.voxcpm.flow import guided_velocity
from evervox.runner.graphs import Stage, row_sizes, slot_sizes
from evervox.runner.precision import tf32
from evervox.runner.staging import Field, Readback, Staging
from evervox.runner.times import TimeTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from evervox.layers.attention import Attend
    from evervox.layers.paged import PagedCache
    from evervox.models.voxcpm.config import VoxConfig
    from evervox.runner.load import Loaded
    from evervox.runner.rows import Rows


class StepAttend(Protocol):
    """One step's metadata, made ready for each stack's cache."""

    def over(self, cache: PagedCache) -> Attend: ...


def language_fields(loaded: Loaded, *, slots: int, rows: int, blocks: int, reach: int) -> dict[str, Field]:
    """Inputs of seat, feed, encode, prefill and decode; what is seldom written comes last. `blocks`: of the longest table."""
    index, dtype = torch.int64, loaded.model.dtype
    patch = (loaded.config.patch_size, loaded.config.latent_dim)
    return {
        "positions": Field((slots,), index),
        "slot_mapping": Field((slots,), index),
        "span_starts": Field((rows + 1,), torch.int32),
        "context_lens": Field((rows,), torch.int32),
        "span_rows": Field((rows,), index, padding=rows),
        "picks": Field((rows,), index),
        "block_tables": Field((rows, blocks), torch.int32),
        "tokens": Field((slots,), index),
        "is_audio": Field((slots,), torch.bool),
        "embedding_of": Field((slots,), index),
        "patch_rows": Field((slots,), index, padding=rows),
        "from_host": Field((slots,), torch.bool),
        "seat_rows": Field((rows,), index, padding=rows),
        "seat_patches": Field((rows, *patch), dtype),
        "host_patches": Field((slots, *patch), dtype),
        "heard_rows": Field((reach, rows), index, padding=rows),
        "heard": Field((reach, rows, *patch), loaded.vae.dtype),
    }


def emission_fields(config: VoxConfig, dtype: torch.dtype, *, rows: int) -> dict[str, Field]:
    """Inputs of begin, solve and finish, in order of falling evaluations."""
    return {
        "rows": Field((rows,), torch.int64, padding=rows),
        "first": Field((rows,), torch.int64),
        "evaluations": Field((rows,), torch.int64),
        "cfg": Field((rows,), dtype),
        "noise": Field((rows, config.patch_size, config.latent_dim), dtype),
    }


class Stages:
    """The buffers, and what is computed on them."""

    def __init__(
        self,
        loaded: Loaded,
        caches: list[PagedCache],
        rows: Rows,
        attend: Callable[[AttentionMetadata], StepAttend],
        *,
        max_slots: int,
        blocks: int,
        steps_ahead: int,
    ) -> None:
        self.config, self.model, self.vae = loaded.config, loaded.model, loaded.vae
        self.caches, self.rows, self._attend = caches, rows, attend
        self.max_slots, self.max_rows = max_slots, rows.count
        device, dtype = self.model.device, self.model.dtype
        fields = language_fields(loaded, slots=max_slots, rows=rows.count, blocks=blocks, reach=rows.reach)
        self.language = Staging(fields, device)
        self.emission = Staging(emission_fields(self.config, dtype, rows=rows.count), device)
        self.times = TimeTable(self.model)
        self._make_buffers(device, dtype)
        wide = torch.float64 if dtype is torch.float64 else torch.float32
        self.results = Readback(rows.count, sum(self._numbers) + 1, device, wide, slots=steps_ahead + 1)

    def _make_buffers(self, device: torch.device, dtype: torch.dtype) -> None:
        config, rows = self.config, self.max_rows
        patch = (config.patch_size, config.latent_dim)
        tokens = 1 if config.conditioning is Conditioning.SUMMED else 2

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, device=device, dtype=dtype)

        self._embeddings = zeros(self.max_slots, config.lm.hidden)
        self._hidden, self._residual = zeros(rows, config.lm.hidden), zeros(rows, config.lm.hidden)
        self._guided = zeros(2, rows, tokens, config.dit.hidden)
        self._projected = zeros(rows, config.patch_size, config.dit.hidden)
        self._x = zeros(rows, *patch)
        self._audio_slots = torch.ones(rows, device=device, dtype=torch.bool)
        self._fed, self._evaluation = (torch.zeros(1, device=device, dtype=torch.int64) for _ in range(2))
        self._numbers = (config.samples_per_patch, config.patch_size * config.latent_dim)

    @property
    def num_bytes(self) -> int:
        """Of all buffers together."""
        own = (self._embeddings, self._hidden, self._residual, self._guided, self._projected, self._x)
        parts = (self.language, self.emission, self.times, self.results)
        return sum(buffer.nbytes for buffer in own) + sum(part.num_bytes for part in parts)

    def list(self, *, record_language: bool) -> list[Stage]:
        """All eight with the sizes to record. `record_language` False: the attention at hand cannot be recorded."""
        by_rows, by_slots = row_sizes(self.max_rows), slot_sizes(self.max_slots)
        return [
            Stage("seat", by_rows, self.seat),
            Stage("feed", by_rows, self.feed),
            Stage("encode", by_slots, self.encode),
            Stage("prefill", by_slots if record_language else (), self.prefill),
            Stage("decode", by_rows if record_language else (), self.decode),
            Stage("begin", by_rows, self.begin),
            Stage("solve", by_rows, self.solve),
            Stage("finish", by_rows, self.finish),
        ]

    def seat(self, size: int, adapters: bool) -> None:
        """Rows begin anew, after the last patch of each."""
        rows = self.language["seat_rows"][:size]
        self.rows.last.index_copy_(0, rows, self.language["seat_patches"][:size])
        self.rows.tails.state.index_fill_(0, rows, 0)
        self._fed.zero_()

    def feed(self, size: int, adapters: bool) -> None:
        """The decoder hears the next patch of each of the first rows. Counts itself."""
        latents, rows = (self.language[name].index_select(0, self._fed)[0, :size] for name in ("heard", "heard_rows"))
        self._decode_audio(latents, rows)
        self._fed.add_(1).remainder_(self.rows.reach)  # recording feeds again and again

    def encode(self, size: int, adapters: bool) -> None:
        """Patches from the host or from rows to `embeddings`."""
        given = self.language
        own = self.rows.last.index_select(0, given["patch_rows"][:size])
        patches = torch.where(given["from_host"][:size, None, None], given["host_patches"][:size], own)
        self._embeddings[:size].copy_(self.model.embed_patches(patches))

    def prefill(self, size: int, adapters: bool) -> None:
        """Packed slots of any spans."""
        given = self.language
        is_audio = given["is_audio"][:size]
        text = self.model.embed_text(given["tokens"][:size])
        audio = self._embeddings.index_select(0, given["embedding_of"][:size])
        x = torch.where(is_audio.unsqueeze(1), audio, text)
        self._run_language(x, is_audio, spans=self.max_rows, picks=self.max_rows, longest=max(2, size))

    def decode(self, size: int, adapters: bool) -> None:
        """One slot a row: its last patch."""
        x = self.model.embed_patches(self.rows.last.index_select(0, self.language["span_rows"][:size]))
        self._run_language(x, self._audio_slots[:size], spans=size, picks=size, longest=1)

    def _run_language(self, x: Tensor, is_audio: Tensor, *, spans: int, picks: int, longest: int) -> None:
        given, slots = self.language, len(x)
        attend = self._attend(
            AttentionMetadata(
                slot_mapping=given["slot_mapping"][:slots],
                block_tables=given["block_tables"][:spans],
                span_starts=given["span_starts"][: spans + 1],
                context_lens=given["context_lens"][:spans],
                max_query=longest,
            )
        )
        lm, residual = (attend.over(cache) for cache in self.caches)
        for out, made in zip(
            (self._hidden, self._residual),
            self.model.language(x, is_audio, given["positions"][:slots], lm, residual),
            strict=True,
        ):
            out[:picks].copy_(made.index_select(0, given["picks"][:picks]))

    def begin(self, size: int, adapters: bool) -> None:
        """What all evaluations of a patch share is made here, once."""
        given, hidden = self.emission, self._hidden[:size]
        self._guided[0, :size].copy_(self.model.condition(hidden, self._residual[:size]))
        previous = self.rows.last.index_select(0, given["rows"][:size])
        self._projected[:size].copy_(self.model.dit.cond_proj(previous))
        self._x[:size].copy_(given["noise"][:size])
        self.results.device[:size, -1].copy_(self.model.stop_logits(hidden).argmax(-1) == 1)
        self._evaluation.zero_()

    def solve(self, size: int, adapters: bool) -> None:
        """One Euler step of the first rows; those that have done all of theirs stay as they are."""
        given, x = self.emission, self._x[:size]
        done = self._evaluation >= given["evaluations"][:size]
        entry = torch.where(done, 0, given["first"][:size] + self._evaluation)
        velocity = guided_velocity(
            self.model.dit,
            x,
            self._guided[:, :size],
            time=self.times.embeddings.index_select(0, entry),
            cond=self._projected[:size],
            cfg=given["cfg"][:size],
        )
        moved = x - self.times.dt.index_select(0, entry)[:, None, None] * velocity
        x.copy_(torch.where(done[:, None, None], x, moved))
        self._evaluation.add_(1)

    def finish(self, size: int, adapters: bool) -> None:
        """Samples, latents and stop, side by side; the rows move on."""
        rows, latents = self.emission["rows"][:size], self._x[:size]
        audio = self._decode_audio(latents.to(self.vae.dtype), rows)
        self.rows.last.index_copy_(0, rows, latents)
        samples, out = self._numbers[0], self.results.device[:size]
        out[:, :samples].copy_(audio)
        out[:, samples:-1].copy_(latents.flatten(1))

    def _decode_audio(self, latents: Tensor, rows: Tensor) -> Tensor:
        with tf32(self.model.device):
            return self.vae.decode(latents, self.rows.tails, rows)
