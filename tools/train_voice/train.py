"""The training loop: checkpoints by the clock, resumes from the last one, and is the same run whether killed or not."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import defaultdict
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import tokenizer
from .batches import Packer, load
from .losses import losses, total
from .model import ModelShape, Voice
from .normalise import Scale
from .optimiser import optimisers, rate, set_rate

if TYPE_CHECKING:
    from pathlib import Path

SAVE_EVERY = 240.0  # seconds
LOG_EVERY = 25
CLIP = 2.0


class Average:
    """Exponential average of the weights; it forgets faster while the run is young."""

    def __init__(self, voice: Voice, decay: float = 0.998) -> None:
        self._decay = decay
        self.weights = {name: value.detach().clone() for name, value in voice.named_parameters()}

    @torch.no_grad()
    def update(self, voice: Voice, step: int) -> None:
        """After each optimiser step."""
        decay = min(self._decay, (step + 1) / (step + 10))
        names = list(self.weights)
        current = dict(voice.named_parameters())
        torch._foreach_lerp_([self.weights[n] for n in names], [current[n] for n in names], 1 - decay)


def new_voice(latent: int, seed: int = 0) -> Voice:
    """An untrained voice for latents of this size."""
    torch.manual_seed(seed)
    return Voice(ModelShape(tokenizer.build().get_vocab_size(), latent))


def train(
    folder: Path,
    data: Path,
    steps: int,
    *,
    seed: str = "voice",
    stop_at: float | None = None,
    save_every: float = SAVE_EVERY,
) -> None:
    """Runs to `steps`, or to the moment `stop_at` (seconds of `time.time`); a later call goes on from the checkpoint.

    SIGTERM saves and ends it."""
    folder.mkdir(parents=True, exist_ok=True)
    scale = Scale.measure(data / "0000.npz")
    examples = load(data, scale)
    voice = new_voice(len(scale.kept))
    average, optimiser = Average(voice), optimisers(voice)
    path = folder / "state.pt"
    start = _resume(path, voice, average, optimiser) if path.exists() else 0
    print(
        f"{len(examples)} utterances, {sum(len(e.patches) for e in examples) * 0.08 / 60:.0f} minutes; from step {start}",
        flush=True,
    )
    packer, saved, sums = Packer(examples, seed), time.time(), defaultdict(float)
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    began = time.time()
    for step in range(start, steps):
        torch.manual_seed(hash_step(seed, step))
        batch = packer.batch(step)
        with torch.autocast("cpu", torch.bfloat16):
            parts = losses(voice, batch)
        loss = total(parts)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(voice.parameters(), CLIP)
        if torch.isfinite(norm):
            for one in optimiser:
                set_rate(one, rate(step, steps))
                one.step()
        voice.zero_grad(set_to_none=True)
        average.update(voice, step)
        for name, value in {"total": loss, "norm": norm, **parts}.items():
            sums[name] += float(value)
        if (step + 1) % LOG_EVERY == 0:
            _log(folder, step + 1, sums, (time.time() - began) / (step + 1 - start))
            sums.clear()
        done = bool(asked) or (stop_at is not None and time.time() > stop_at)
        if time.time() - saved > save_every or step + 1 == steps or done:
            _save(path, voice, average, optimiser, step + 1)
            saved = time.time()
        if done:
            break


def hash_step(seed: str, step: int) -> int:
    """A seed for torch's generator, unrelated between steps."""
    from random import Random

    return Random(f"{seed}:{step}").getrandbits(63)


def _save(path: Path, voice: Voice, average: Average, optimiser: list[torch.optim.Optimizer], step: int) -> None:
    state = {
        "step": step,
        "shape": asdict(voice.shape),
        "voice": voice.state_dict(),
        "average": average.weights,
        "optimisers": [one.state_dict() for one in optimiser],
    }
    scratch = path.with_suffix(".part")
    torch.save(state, scratch)
    os.replace(scratch, path)


def _resume(path: Path, voice: Voice, average: Average, optimiser: list[torch.optim.Optimizer]) -> int:
    state: dict[str, Any] = torch.load(path, weights_only=True)
    voice.load_state_dict(state["voice"])
    average.weights = state["average"]
    for one, saved in zip(optimiser, state["optimisers"], strict=True):
        one.load_state_dict(saved)
    return int(state["step"])


def averaged(path: Path) -> tuple[int, dict[str, Tensor]]:
    """Step and averaged weights of a checkpoint."""
    state: dict[str, Any] = torch.load(path, weights_only=True)
    return int(state["step"]), state["average"]


def _log(folder: Path, step: int, sums: dict[str, float], seconds: float) -> None:
    row = {"step": step, "seconds_per_step": round(seconds, 3), **{name: round(v / LOG_EVERY, 4) for name, v in sums.items()}}
    with (folder / "log.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(" ".join(f"{name} {value}" for name, value in row.items()), flush=True)
