"""Loading is strict: a folder that does not fit is one clear error that names the tensors."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.oracle import quiet, reference
from tools.make_checkpoint import KINDS, make

from evervox.errors import CheckpointError, ConfigError
from evervox.models.voxcpm.config import VoxConfig
from evervox.models.voxcpm.hub import checkpoint_folder
from evervox.runner.load import load

if TYPE_CHECKING:
    from collections.abc import Callable

Tensors = dict[str, torch.Tensor]
STOP = "stop_head.weight"


@cache
def template(kind: str = "voxcpm2") -> Path:
    return make(kind, Path(mkdtemp(prefix="evervox-test-")))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(template(), tmp_path / "checkpoint"))


def edit(path: Path, change: Callable[[Tensors], object]) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def state(folder: Path) -> Tensors:
    return load(folder, device="cpu").model.state_dict()


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_saved_by_the_reference_loads(kind: str, tmp_path: Path) -> None:
    modules = reference()
    cls = modules.model2.VoxCPM2Model if kind == "voxcpm2" else modules.model.VoxCPMModel
    with quiet():
        theirs = cls.from_local(str(template(kind)), optimize=False, device="cpu")
    saved = Path(shutil.copytree(template(kind), tmp_path / "saved"))
    tensors = theirs.state_dict()
    vae = {k.removeprefix("audio_vae."): v for k, v in tensors.items() if k.startswith("audio_vae.")}
    (saved / "model.safetensors").unlink()
    (saved / "audiovae.safetensors").unlink()
    torch.save(
        {"state_dict": {k: v for k, v in tensors.items() if k not in {f"audio_vae.{n}" for n in vae}}},
        saved / "pytorch_model.bin",
    )
    torch.save({"state_dict": vae}, saved / "audiovae.pth")
    ours, again = state(template(kind)), state(saved)
    assert all(torch.equal(ours[name], again[name]) for name in ours)


def test_sharded_weights(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    before = state(folder)
    (folder / "model.safetensors").unlink()
    for shard in range(3):
        save_file({n: tensors[n] for n in names[shard::3]}, folder / f"model-0000{shard + 1}-of-00003.safetensors")
    after = state(folder)
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("file", ["model.safetensors", "audiovae.safetensors"])
def test_missing_leftover_and_misshapen_tensors_are_named(folder: Path, file: str) -> None:
    victim, bent = {"model.safetensors": (STOP, "stop_proj.bias")}.get(file, ("encoder.fc_mu.bias", "decoder.model.0.bias"))

    def spoil(tensors: Tensors) -> None:
        tensors["surprise.weight"] = tensors.pop(victim)
        tensors[bent] = tensors[bent][:-1].clone()

    edit(folder / file, spoil)
    with pytest.raises(CheckpointError) as caught:
        load(folder, device="cpu")
    for part in (f"missing: {victim}", "left over: surprise.weight", f"wrong shape: {bent} is"):
        assert part in str(caught.value)


def test_one_part_of_a_fused_tensor_missing_is_named(folder: Path) -> None:
    name = "residual_lm.layers.1.self_attn.k_proj.weight"
    edit(folder / "model.safetensors", lambda tensors: tensors.pop(name))
    with pytest.raises(CheckpointError, match=name):
        load(folder, device="cpu")


@pytest.mark.parametrize("file", ["model.safetensors", "audiovae.safetensors"])
def test_a_truncated_file(folder: Path, file: str) -> None:
    path = folder / file
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(CheckpointError, match=file):
        load(folder, device="cpu")


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"architecture": "other"}, "architecture 'other' is unknown"),
        ({"lm_config": {}}, "is missing"),
        ({"lm_config": "no"}, "config.json"),
    ],
)
def test_a_config_that_is_not_ours(folder: Path, change: dict[str, object], part: str) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CheckpointError, match=part):
        load(folder, device="cpu")


@pytest.mark.parametrize("text", ["{", "[]", ""])
def test_a_config_that_is_no_json_object(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load(folder, device="cpu")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "audiovae.safetensors"])
def test_a_file_that_is_not_there(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(CheckpointError):
        load(folder, device="cpu")


def test_where_a_model_is(tmp_path: Path) -> None:
    assert checkpoint_folder(tmp_path) == tmp_path
    assert checkpoint_folder(None).name == "voice"
    with pytest.raises(CheckpointError, match="does not exist"):
        checkpoint_folder("no such/folder/at all")
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="is a file"):
        checkpoint_folder(tmp_path / "file")


@pytest.mark.parametrize(("dtype", "device"), [("float8", "cpu"), ("auto", "cuda:99"), ("auto", "tpu"), ("auto", "mps")])
def test_dtype_and_device_are_checked(folder: Path, dtype: str, device: str) -> None:
    with pytest.raises(ConfigError, match="float8" if dtype == "float8" else device):
        load(folder, dtype=dtype, device=device)


@pytest.mark.parametrize(("text", "timesteps"), [(None, 10), ("{}", 10), ('{"inference_timesteps": 6, "top_k": 3}', 6)])
def test_a_checkpoint_may_name_its_own_number_of_timesteps(folder: Path, text: str | None, timesteps: int) -> None:
    if text is not None:
        (folder / "generation_config.json").write_text(text)
    assert VoxConfig.from_checkpoint(folder).timesteps == timesteps


@pytest.mark.parametrize("value", ["1", "101", "true", '"6"', "6.5", "null"])
def test_a_number_of_timesteps_that_is_none(folder: Path, value: str) -> None:
    (folder / "generation_config.json").write_text(f'{{"inference_timesteps": {value}}}')
    with pytest.raises(CheckpointError, match=r"generation_config.json: inference_timesteps must be 2 to 100"):
        VoxConfig.from_checkpoint(folder)
