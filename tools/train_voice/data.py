"""Draws texts and has the teacher speak them, in shards: a shard that exists is done, so a killed run goes on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import numpy as np

from . import grammar
from .teacher import SAMPLE_RATE, VOICES, Teacher
from .tokenizer import build

if TYPE_CHECKING:
    from pathlib import Path

SHARD = 250
MAIN_SHARE = 0.85


@dataclass(frozen=True)
class Item:
    """One utterance to make: the text that the model reads, the words that the teacher says, and the voice."""

    text: str
    spoken: str
    voice: str


def draw(seed: str) -> Item:
    """Nine twentieths digit strings, eight sentences of the grammar, three strings of unrelated words."""
    rng = Random(seed)
    kind = rng.random()
    if kind < 0.45:
        text = grammar.digit_string(rng)
        if rng.random() < 0.15 and text.count(" ") > 3:
            words = text.split()
            cut = rng.randint(2, len(words) - 2)
            text = " ".join(words[:cut]) + ", " + " ".join(words[cut:])
        text += rng.choice(["", "."])
    elif kind < 0.85:
        text = grammar.punctuate(rng, grammar.sentence(rng))
    else:
        text = grammar.salad(rng) + rng.choice(["", "."])
    voice = "heart" if rng.random() < MAIN_SHARE else rng.choice([name for name in VOICES if name != "heart"])
    written = _as_figures(text) if kind < 0.45 and rng.random() < 0.4 else text
    return Item(written, text, voice)


def _as_figures(text: str) -> str:
    for figure, word in enumerate(grammar.DIGITS):
        text = text.replace(word, str(figure))
    return text


def make(folder: Path, shards: int, seed: str = "train", size: int = SHARD) -> None:
    """Makes the shards that `folder` lacks; the same seed gives the same shards."""
    folder.mkdir(parents=True, exist_ok=True)
    teacher, tokenizer = Teacher(), build()
    for shard in range(shards):
        path = folder / f"{shard:04d}.npz"
        if path.exists():
            continue
        rows, seconds = [], 0.0
        for number in range(size):
            item = draw(f"{seed}/{shard}/{number}")
            encoding = tokenizer.encode(item.text)
            try:
                spoken = teacher.speak(item.spoken, encoding.tokens, item.voice, seed=shard * size + number)
            except ValueError:
                continue
            rows.append((item, encoding.ids, spoken))
            seconds += len(spoken.samples) / SAMPLE_RATE
        scratch = path.with_suffix(".part.npz")
        np.savez(
            scratch,
            texts=np.asarray([item.text for item, _, _ in rows]),
            voices=np.asarray([list(VOICES).index(item.voice) for item, _, _ in rows], np.int8),
            **_ragged("ids", [np.asarray(ids, np.int16) for _, ids, _ in rows]),
            **_ragged("samples", [np.round(s.samples * 32767).astype(np.int16) for _, _, s in rows]),
            **_ragged("phonemes", [s.phonemes for _, _, s in rows]),
            **_ragged("slots", [s.slots for _, _, s in rows]),
        )
        os.replace(scratch, path)
        print(f"{path.name}: {len(rows)} utterances, {seconds / 60:.1f} minutes", flush=True)


def _ragged(name: str, rows: list[np.ndarray]) -> dict[str, np.ndarray]:
    return {name: np.concatenate(rows), f"{name}_lengths": np.asarray([len(row) for row in rows])}


def ragged(shard: np.lib.npyio.NpzFile, name: str) -> list[np.ndarray]:
    """The rows of one field of a shard."""
    return np.split(shard[name], np.cumsum(shard[f"{name}_lengths"])[:-1])
