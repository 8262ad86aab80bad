"""Configs of tiny checkpoints of the three kinds, without their weights."""

import functools
import json
import tempfile
from pathlib import Path

from tools.make_checkpoint import tiny_config

from evervox.models.voxcpm.config import VoxConfig

KINDS = ("voxcpm", "voxcpm1.5", "voxcpm2")


@functools.cache
def config_of(kind: str) -> VoxConfig:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(tiny_config(kind)))
        return VoxConfig.from_checkpoint(folder)
