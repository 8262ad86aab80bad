"""The recipe, one subcommand per stage; each goes on where a killed run stopped. See README.md."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

CODEC = Path("src/evervox/voice/audiovae.safetensors")


def main() -> None:
    arguments = _parser().parse_args()
    import torch

    torch.set_num_threads(arguments.threads)
    STAGES[arguments.stage](arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.train_voice", description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs/voice"), help="where everything that is not shipped goes")
    parser.add_argument("--threads", type=int, default=1)
    stages = parser.add_subparsers(dest="stage", required=True)
    data = stages.add_parser("data", help="the teacher speaks")
    data.add_argument("--shards", type=int, default=40)
    data.add_argument("--utterances", type=int, default=250, help="of one shard: 250 are about ten minutes")
    vae = stages.add_parser("vae", help="train a codec from nothing, on the data")
    vae.add_argument("--steps", type=int, default=6700)
    vae.add_argument("--minutes", type=float, default=None, help="stop early; the schedule stays that of --steps")
    latents = stages.add_parser("latents", help="encode the data")
    latents.add_argument("--codec", type=Path, default=None, help="default: the codec of the vae stage")
    latents.add_argument("--shards", type=int, default=None, help="encode only the first")
    latents.add_argument("--plain", action="store_true", help="do not compile the encoder: slower, but starts at once")
    lm = stages.add_parser("lm", help="train the language model and the flow")
    lm.add_argument("--steps", type=int, default=5400)
    lm.add_argument("--save-every", type=float, default=240.0, help="seconds between checkpoints")
    lm.add_argument("--minutes", type=float, default=None, help="stop early; the schedule stays that of --steps")
    export = stages.add_parser("export", help="write the checkpoint folder")
    export.add_argument("--codec", type=Path, default=None, help="default: the codec of the vae stage")
    export.add_argument("--out", type=Path, default=Path("src/evervox/voice"))
    gate = stages.add_parser("gate", help="write the codec's reconstructions for tools.evaluate_voice --wavs")
    gate.add_argument("--codec", type=Path, default=CODEC)
    return parser


def _data(arguments: argparse.Namespace) -> None:
    from .data import make

    make(arguments.runs / "data", arguments.shards, size=arguments.utterances)


def _vae(arguments: argparse.Namespace) -> None:
    from .vae import train_codec

    train_codec(arguments.runs / "vae", arguments.runs / "data", arguments.steps, stop_at=_deadline(arguments))


def _latents(arguments: argparse.Namespace) -> None:
    from .latents import encode_shards

    folders = arguments.runs / "data", arguments.runs / "latents"
    encode_shards(*folders, _codec(arguments), limit=arguments.shards, compiled=not arguments.plain)


def _lm(arguments: argparse.Namespace) -> None:
    from .train import train

    folders = arguments.runs / "lm", arguments.runs / "latents"
    train(*folders, arguments.steps, stop_at=_deadline(arguments), save_every=arguments.save_every)


def _export(arguments: argparse.Namespace) -> None:
    from .export import copy_notice, export, export_codec
    from .normalise import Scale
    from .train import averaged, new_voice

    scale = Scale.measure(arguments.runs / "latents" / "0000.npz")
    step, weights = averaged(arguments.runs / "lm" / "state.pt")
    export(arguments.out, new_voice(len(scale.kept)).shape, weights)
    export_codec(arguments.out, _codec(arguments), scale)
    copy_notice(arguments.out)
    print(f"step {step}: {sum(file.stat().st_size for file in arguments.out.iterdir()) / 1e6:.1f} MB in {arguments.out}")


def _gate(arguments: argparse.Namespace) -> None:
    from .gate import write_reconstructions

    write_reconstructions(arguments.codec, arguments.runs / "gate")


def _codec(arguments: argparse.Namespace) -> Path:
    return arguments.codec or arguments.runs / "vae" / "audiovae.safetensors"  # type: ignore[no-any-return]


def _deadline(arguments: argparse.Namespace) -> float | None:
    return None if arguments.minutes is None else time.time() + 60 * arguments.minutes


STAGES = {"data": _data, "vae": _vae, "latents": _latents, "lm": _lm, "export": _export, "gate": _gate}

if __name__ == "__main__":
    main()
