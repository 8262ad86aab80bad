"""Packs utterances into rows of a fixed size: a pure function of the seed and the step, so that a killed run resumes exactly."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from .data import ragged
from .latents import PATCH, TAIL_PATCHES
from .tokenizer import AUDIO_START, CHARACTERS, CONTROLS, REFERENCE_END, REFERENCE_START

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .normalise import Scale

ROWS, SLOTS, PATCHES, CHOSEN = 6, 160, 672, 192  # CHOSEN: patches that the DiT learns from in one step
MAIN_REFERENCE_SHARE = 0.06
LONGEST_REFERENCE = 25  # patches
JOINED_SHARE = 0.25  # of sentences that are followed by another
NOISE = 0.35
PATIENCE = 8  # utterances that may fail to fit before a batch counts as full
RARE, FIGURES = 0.5, (CHARACTERS.index("0") + len(CONTROLS), CHARACTERS.index("9") + len(CONTROLS))


@dataclass(frozen=True)
class Example:
    """One utterance: text ids, normalised patches [n, PATCH, latent], and per frame the phoneme and the text slot spoken."""

    ids: np.ndarray
    patches: np.ndarray
    phonemes: np.ndarray
    slots: np.ndarray
    voice: int


@dataclass
class Batch:
    """Tensors of one step; `patches` lists the audio of all rows, and per-patch fields go with it."""

    tokens: Tensor  # [rows, slots]
    is_text: Tensor
    is_audio: Tensor
    positions: Tensor
    bias: Tensor  # [rows, 1, slots, slots]
    pointer: Tensor  # [rows, slots, slots]: where a slot that predicts audio should look
    patches: Tensor  # [PATCHES, PATCH, latent]
    noise: Tensor  # [PATCHES]: deviation of the noise on the inputs
    slot: Tensor  # [PATCHES]: flat slot, rows * slots for padding
    before: Tensor  # [PATCHES]: the patch that conditions it, PATCHES for none
    weight: Tensor  # [PATCHES]: 1 where the loss counts
    stop: Tensor
    phonemes: Tensor  # [PATCHES, PATCH]
    chosen: Tensor  # [CHOSEN]


def load(folder: Path, scale: Scale, limit: int | None = None) -> list[Example]:
    """All utterances of a folder of latents, in order."""
    out = []
    for path in sorted(p for p in folder.glob("[0-9]*.npz") if ".part" not in p.name)[:limit]:
        with np.load(path) as shard:
            rows = [ragged(shard, name) for name in ("ids", "latents", "phonemes", "slots")]
            voices = shard["voices"]
        for ids, latents, phonemes, slots, voice in zip(*rows, voices, strict=True):
            frames = len(latents)
            patches = scale.apply(torch.from_numpy(latents.astype(np.float32))).numpy()
            padding = (0, frames - len(phonemes))
            out.append(
                Example(
                    ids.astype(np.int64),
                    patches.reshape(-1, PATCH, patches.shape[-1]),
                    np.pad(phonemes, padding).reshape(-1, PATCH).astype(np.int64),
                    np.pad(slots, padding, constant_values=len(ids)).reshape(-1, PATCH).astype(np.int64),
                    int(voice),
                )
            )
    return out


@dataclass(frozen=True)
class _Segment:
    example: Example
    reference: np.ndarray | None

    @property
    def length(self) -> int:
        before = 0 if self.reference is None else len(self.reference) + 2
        return before + len(self.example.ids) + 1 + len(self.example.patches)


def rarity(examples: Sequence[Example]) -> list[float]:
    """Weight of each example: the mean of its words' counts to the power -RARE, so that seldom words are learnt too."""
    ids = [example.ids[example.ids > REFERENCE_END] for example in examples]
    figures = [example.ids[(example.ids >= FIGURES[0]) & (example.ids <= FIGURES[1])] for example in examples]
    words = [np.concatenate(pair) for pair in zip(ids, figures, strict=True)]
    counts = np.bincount(np.concatenate(words))
    return [float((np.maximum(counts[each], 1.0) ** -RARE).mean()) if len(each) else 0.0 for each in words]


def _join(first: Example, second: Example) -> Example:
    """Two sentences in one breath: the first one's silent tail is the pause between them."""
    return Example(
        np.concatenate((first.ids, second.ids)),
        np.concatenate((first.patches, second.patches)),
        np.concatenate((first.phonemes, second.phonemes)),
        np.concatenate((first.slots, second.slots + len(first.ids))),
        first.voice,
    )


class Packer:
    """Draws batches from a list of examples."""

    def __init__(self, examples: Sequence[Example], seed: str) -> None:
        self._examples, self._seed = examples, seed
        self._by_voice: dict[int, list[Example]] = {}
        for example in examples:
            self._by_voice.setdefault(example.voice, []).append(example)
        self._ends = {CHARACTERS.index(mark) + len(CONTROLS) for mark in ".?"}
        self._weights = list(itertools.accumulate(rarity(examples)))

    def batch(self, step: int) -> Batch:
        """The batch of this step."""
        rng = Random(f"{self._seed}/{step}")
        rows: list[list[_Segment]] = [[] for _ in range(ROWS)]
        patches, refused = 0, 0
        while refused < PATIENCE:
            segment = self._segment(rng)
            audio = len(segment.example.patches) + (0 if segment.reference is None else len(segment.reference))
            room = [row for row in rows if sum(s.length for s in row) + segment.length <= SLOTS]
            if room and patches + audio <= PATCHES:
                min(room, key=lambda row: SLOTS - sum(s.length for s in row)).append(segment)
                patches += audio
            else:
                refused += 1
        return _Builder(self._examples[0].patches.shape[-1]).build(rows, np.random.default_rng(rng.getrandbits(64)))

    def _segment(self, rng: Random) -> _Segment:
        example = rng.choices(self._examples, cum_weights=self._weights)[0]
        if example.voice == 0 and rng.random() >= MAIN_REFERENCE_SHARE:
            while example.ids[-1] in self._ends and rng.random() < JOINED_SHARE:
                example = _join(example, rng.choice(self._by_voice[0]))
            return _Segment(example, None)
        other = rng.choice(self._by_voice[example.voice]).patches
        return _Segment(example, other[: min(len(other) - TAIL_PATCHES, LONGEST_REFERENCE)])


class _Builder:
    """Fills the arrays of one batch."""

    def __init__(self, latent: int) -> None:
        self.tokens = np.zeros((ROWS, SLOTS), np.int64)
        self.is_text = np.zeros((ROWS, SLOTS), np.float32)
        self.is_audio = np.zeros((ROWS, SLOTS), np.float32)
        self.positions = np.zeros((ROWS, SLOTS), np.int64)
        self.segment = np.zeros((ROWS, SLOTS), np.int64)
        self.pointer = np.zeros((ROWS, SLOTS, SLOTS), np.float32)
        self.patches = np.zeros((PATCHES, PATCH, latent), np.float32)
        self.noise = np.zeros(PATCHES, np.float32)
        self.slot = np.full(PATCHES, ROWS * SLOTS, np.int64)
        self.before = np.full(PATCHES, PATCHES, np.int64)
        self.weight = np.zeros(PATCHES, np.float32)
        self.stop = np.zeros(PATCHES, np.int64)
        self.phonemes = np.zeros((PATCHES, PATCH), np.int64)
        self.used = 0

    def build(self, rows: list[list[_Segment]], rng: np.random.Generator) -> Batch:
        for row, segments in enumerate(rows):
            start = 0
            for number, segment in enumerate(segments, 1):
                self.segment[row, start : start + segment.length] = number
                self.positions[row, start : start + segment.length] = np.arange(segment.length)
                self._place(row, start, segment, rng)
                start += segment.length
        same = self.segment[:, :, None] == self.segment[:, None, :]
        allowed = same & np.tril(np.ones((SLOTS, SLOTS), bool))
        bias = np.where(allowed, 0.0, -np.inf).astype(np.float32)[:, None]
        chosen = rng.choice(np.flatnonzero(self.weight), CHOSEN, replace=False)
        arrays = (
            self.tokens, self.is_text, self.is_audio, self.positions, bias, self.pointer, self.patches,
            self.noise, self.slot, self.before, self.weight, self.stop, self.phonemes, np.sort(chosen),
        )  # fmt: skip
        return Batch(*(torch.from_numpy(array) for array in arrays))

    def _place(self, row: int, at: int, segment: _Segment, rng: np.random.Generator) -> None:
        example = segment.example
        noise = 0.0 if rng.random() < 0.3 else rng.uniform(0, NOISE)
        if segment.reference is not None:
            self._text(row, at, [REFERENCE_START])
            self._audio(row, at + 1, segment.reference, noise)
            at += 1 + len(segment.reference)
            self._text(row, at, [REFERENCE_END])
            at += 1
        self._text(row, at, [*example.ids, AUDIO_START])
        audio = at + len(example.ids) + 1
        span = self._audio(row, audio, example.patches, noise)
        self.weight[span] = 1
        self.before[span.start + 1 : span.stop] = np.arange(span.start, span.stop - 1)
        self.stop[span.stop - TAIL_PATCHES - 1 : span.stop] = 1
        self.phonemes[span] = example.phonemes
        for patch, slots in enumerate(example.slots):
            for slot in slots:
                self.pointer[row, audio + patch - 1, at + slot] += 1 / PATCH

    def _text(self, row: int, at: int, tokens: Sequence[int]) -> None:
        self.tokens[row, at : at + len(tokens)] = tokens
        self.is_text[row, at : at + len(tokens)] = 1

    def _audio(self, row: int, at: int, patches: np.ndarray, noise: float) -> slice:
        span = slice(self.used, self.used + len(patches))
        self.patches[span] = patches
        self.noise[span] = noise
        self.slot[span] = row * SLOTS + np.arange(at, at + len(patches))
        self.is_audio[row, at : at + len(patches)] = 1
        self.used = span.stop
        return span
