"""Models with random weights, made on the device, and sequences to speak with them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tools.make_checkpoint import full_config, merge, tiny_config

from evervox.core.plan import Span, StepPlan
from evervox.models.voxcpm.config import VoxConfig
from evervox.models.voxcpm.model import VoxModel
from evervox.models.voxcpm.vae import AudioVae
from evervox.request import Sampling
from evervox.runner.inputs import Inputs, StepResult
from evervox.runner.load import Loaded

if TYPE_CHECKING:
    from evervox.runner.flight import Flight
    from evervox.runner.runner import PagedRunner


def small_config() -> VoxConfig:
    """The tiny model with heads wide enough for the kernels that serve."""
    config = tiny_config("voxcpm2")
    factors = {name: [1.0 + 0.01 * i for i in range(32)] for name in ("long_factor", "short_factor")}
    wide = {"kv_channels": 64}
    changes = {"lm_config": wide | {"rope_scaling": factors}, "encoder_config": wide, "dit_config": wide, "max_length": 1024}
    return parse(merge(config, changes))


def config_of(size: str) -> VoxConfig:
    """`small`, or the published sizes 0.5b, 1.5 and 2."""
    return small_config() if size == "small" else parse(full_config(size))


def parse(raw: dict[str, Any]) -> VoxConfig:
    with TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(raw))
        return VoxConfig.from_checkpoint(folder)


def random_model(config: VoxConfig, device: torch.device, dtype: torch.dtype) -> Loaded:
    """Weights as a fresh model has them: small normals, norms of 1, biases of 0. The VAE is float32, or float64 with the rest."""
    vae_dtype = torch.float64 if dtype is torch.float64 else torch.float32
    torch.manual_seed(0)
    with torch.device(device):
        model, vae = VoxModel(config), AudioVae(config.vae).to(vae_dtype)
    model.to(device)  # its angles are made on the CPU, whatever the device
    if dtype is torch.float64:
        model.double()
    for parameter in model.parameters():  # and not the angles, which stay float32
        parameter.data = parameter.data.to(dtype)
    for module in (model, vae):
        module.eval().requires_grad_(False)
        for name, parameter in module.named_parameters():
            if parameter.ndim > 1 or "alpha" in name:
                parameter.normal_(std=0.5 * parameter.shape[-1] ** -0.5)
            else:
                parameter.fill_(0.0 if name.endswith("bias") or "shift" in name else 1.0)
    return Loaded(Path(), config, model, vae)


@dataclass
class Talk:
    """One sequence with blocks of its own, advanced by hand: what is timed is the runner and nothing else."""

    seq: int
    prompt: int
    blocks: tuple[int, ...]
    done: int = 0

    def start(self, runner: PagedRunner, *, timesteps: int = 10, patches: int = 10_000) -> Talk:
        config = runner.config
        tokens = np.random.default_rng(self.seq).integers(200, min(500, config.vocab_size), self.prompt).astype(np.int32)
        empty = np.zeros((0, config.patch_size, config.latent_dim), np.float32)
        sampling = Sampling(self.seq, timesteps, 2.0, 1.0, min_patches=2, max_patches=patches)
        runner.add(self.seq, Inputs(tokens, np.zeros(self.prompt, np.bool_), empty, 0, sampling))
        return self

    def span(self, size: int) -> Span:
        """The prompt first, then slot by slot."""
        start, self.done = (0, self.prompt) if not self.done else (self.done, self.done + 1)
        return Span(self.seq, start, self.done, self.blocks[: -(-self.done // size)], True, None)


def talks(runner: PagedRunner, count: int, prompt: int, patches: int) -> list[Talk]:
    """`count` sequences, each with blocks for `prompt + patches` slots."""
    each = -(-(prompt + patches) // runner.block_size)
    if count * each > runner.num_blocks:
        raise ValueError(f"{count} sequences of {each} blocks do not fit into {runner.num_blocks}")
    return [Talk(seq, prompt, tuple(range(seq * each, (seq + 1) * each))).start(runner) for seq in range(count)]


def launch(runner: PagedRunner, some: list[Talk]) -> Flight:
    """Start one step of all of them."""
    return runner.launch(StepPlan(0, tuple(talk.span(runner.block_size) for talk in some)))


def advance(runner: PagedRunner, some: list[Talk]) -> StepResult:
    """One step of all of them."""
    return launch(runner, some).result()
