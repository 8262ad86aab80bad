"""Where a checkpoint is: the voice that ships, a local folder, or a hub id that is downloaded once. Imports no torch."""

from __future__ import annotations

import re
from pathlib import Path

from evervox.errors import CheckpointError

SHIPPED = Path(__file__).parents[2] / "voice"
HUB_ID = re.compile(r"^[\w.-]+/[\w.-]+$")
PATTERNS = ["*.json", "*.safetensors", "pytorch_model.bin", "audiovae.pth", "tokenizer*"]


def checkpoint_folder(model: str | Path | None = None) -> Path:
    """The folder of `model`: None is the shipped voice; else a local folder or a hub id such as `openbmb/VoxCPM2`.

    Raises `CheckpointError` when there is no such folder and no such download.
    """
    if model is None:
        return SHIPPED
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists():
        raise CheckpointError(f"model {model} is a file; a checkpoint is a folder with config.json and weights")
    if not HUB_ID.match(str(model)):
        raise CheckpointError(f"model folder {model} does not exist")
    return _download(str(model))


def _download(repo: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(repo, allow_patterns=PATTERNS))
    except RepositoryNotFoundError:
        raise CheckpointError(f"model {repo} is neither a local folder nor a public repository of the model hub") from None
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(
            f"model {repo} is not a local folder and could not be downloaded ({reason}); without a network, copy the "
            "checkpoint here and pass its folder"
        ) from None
