"""The texts that a voice is measured on: drawn by seed, never from the training seeds."""

from __future__ import annotations

from random import Random

from tools.train_voice import grammar


def digit_strings(count: int, seed: str = "evaluation") -> list[str]:
    """Three to eight digits in words."""
    rng = Random(f"digits/{seed}")
    return [grammar.digit_string(rng, 3, 8) for _ in range(count)]


def sentences(count: int, seed: str = "evaluation") -> list[str]:
    """Sentences of the grammar, written as people write them."""
    rng = Random(f"sentences/{seed}")
    return [grammar.punctuate(rng, grammar.sentence(rng)) for _ in range(count)]


def shuffled(texts: list[str]) -> list[str]:
    """The same texts, none in its own place."""
    return [*texts[1:], *texts[:1]]
