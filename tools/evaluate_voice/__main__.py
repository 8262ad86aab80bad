"""Measures a voice: `python -m tools.evaluate_voice --checkpoint src/evervox/voice --out runs/voice/evaluation`.

Speech comes from a checkpoint folder (`--checkpoint`), a training state (`--state` with `--codec`), or files made elsewhere
(`--wavs`: a folder of WAVs at 16 kHz and a `texts.json` that maps file name to {"kind", "text", "stopped"}).
Writes `report.json` and `report.png`.
"""

from __future__ import annotations

import argparse
import json
import time
import wave
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from . import sound, texts
from .recogniser import Recogniser
from .words import canonical, word_error_rate


@dataclass
class Utterance:
    """One measured utterance."""

    kind: str
    text: str
    samples: np.ndarray
    stopped: bool
    heard: str = ""


def main() -> None:
    arguments = _arguments()
    folder: Path = arguments.out
    folder.mkdir(parents=True, exist_ok=True)
    utterances, speed = _read(arguments.wavs) if arguments.wavs else _speak(arguments)
    recogniser = Recogniser(arguments.whisper, arguments.threads)
    for utterance in utterances:
        utterance.heard = recogniser(utterance.samples)
    report = {"speed": speed, "controls": _controls(recogniser, utterances), **_summary(utterances)}
    if arguments.run_ons:
        report["run_ons"] = _run_ons(arguments)
    (folder / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    _plot(report, folder / "report.png")
    print(json.dumps({name: value for name, value in report.items() if name != "utterances"}, indent=1))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--checkpoint", type=Path)
    source.add_argument("--state", type=Path)
    source.add_argument("--wavs", type=Path)
    parser.add_argument("--codec", type=Path, default=Path("src/evervox/voice/audiovae.safetensors"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--whisper", type=Path, default=Path("runs/whisper"))
    parser.add_argument("--digits", type=int, default=20, help="digit strings to speak")
    parser.add_argument("--sentences", type=int, default=20, help="sentences to speak")
    parser.add_argument("--run-ons", type=int, default=0, help="further utterances to count run-ons in, without recognising them")
    parser.add_argument("--timesteps", type=int, default=5, help="the voice's own number is 5")
    parser.add_argument("--cfg", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def _speaker(arguments: argparse.Namespace):  # type: ignore[no-untyped-def]
    import torch
    from tools.train_voice.generate import Options, Speaker
    from tools.train_voice.train import averaged

    torch.set_num_threads(arguments.threads)
    if arguments.checkpoint:
        speaker = Speaker.from_folder(arguments.checkpoint)
    else:
        speaker = Speaker(averaged(arguments.state)[1], arguments.codec)
    return speaker, Options(timesteps=arguments.timesteps, cfg=arguments.cfg)


def _speak(arguments: argparse.Namespace) -> tuple[list[Utterance], dict[str, float]]:
    speaker, options = _speaker(arguments)
    kinds = {"digits": texts.digit_strings(arguments.digits), "sentences": texts.sentences(arguments.sentences)}
    out, began = [], time.perf_counter()
    for kind, said in kinds.items():
        if said:
            out += [Utterance(kind, t, s, end) for t, (s, end) in zip(said, speaker(said, arguments.seed, options), strict=True)]
    seconds = sum(len(one.samples) for one in out) / sound.SAMPLE_RATE
    wavs = arguments.out / "wavs"
    wavs.mkdir(exist_ok=True)
    for number, one in enumerate(out):
        _write(wavs / f"{one.kind}_{number:03d}.wav", one.samples)
    return out, {"batch_rtf": round((time.perf_counter() - began) / max(seconds, 1e-9), 3)}


def _run_ons(arguments: argparse.Namespace) -> dict[str, float]:
    """How often a voice fails to stop before the length cap."""
    speaker, options = _speaker(arguments)
    half = arguments.run_ons // 2
    said = texts.digit_strings(half, "run-ons") + texts.sentences(arguments.run_ons - half, "run-ons")
    failed = sum(
        not stopped for start in range(0, len(said), 50) for _, stopped in speaker(said[start : start + 50], start, options)
    )
    return {"utterances": len(said), "run_ons": failed}


def _read(folder: Path) -> tuple[list[Utterance], dict[str, float]]:
    described = json.loads((folder / "texts.json").read_text())
    out = []
    for name, row in described.items():
        with wave.open(str(folder / name), "rb") as file:
            if file.getframerate() != sound.SAMPLE_RATE or file.getnchannels() != 1:
                raise ValueError(f"{name}: expected mono at {sound.SAMPLE_RATE} Hz")
            samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768
        out.append(Utterance(row["kind"], row["text"], samples, row.get("stopped", True)))
    return out, {}


def _write(path: Path, samples: np.ndarray) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(sound.SAMPLE_RATE)
        file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())


def _controls(recogniser: Recogniser, utterances: list[Utterance]) -> dict[str, object]:
    """What would show that the measure itself is broken."""
    said, heard = [u.text for u in utterances], [u.heard for u in utterances]
    return {
        "silence": recogniser(sound.silence()),
        "noise": recogniser(sound.noise()),
        "shuffled_wer": round(word_error_rate(texts.shuffled(said), heard), 4),
    }


def _summary(utterances: list[Utterance]) -> dict[str, object]:
    kinds: dict[str, dict[str, float]] = {}
    rows = []
    for kind in dict.fromkeys(u.kind for u in utterances):
        group = [u for u in utterances if u.kind == kind]
        kinds[kind] = {
            "utterances": len(group),
            "wer": round(word_error_rate([u.text for u in group], [u.heard for u in group]), 4),
            "run_ons": sum(not u.stopped for u in group),
        }
        measured = [sound.measures(u.samples, len(u.text.split())) for u in group]
        for name in measured[0]:
            kinds[kind][name] = round(float(np.mean([m[name] for m in measured])), 4)
        for one, plain in zip(group, measured, strict=True):
            row = {k: v for k, v in asdict(one).items() if k != "samples"}
            rows.append({**row, "wer": round(word_error_rate([one.text], [one.heard]), 3), **plain})
    return {"kinds": kinds, "utterances": rows}


def _plot(report: dict[str, object], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows: list[dict[str, float]] = report["utterances"]  # type: ignore[assignment]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    for kind in dict.fromkeys(str(row["kind"]) for row in rows):
        group = [row for row in rows if row["kind"] == kind]
        left.hist([row["wer"] for row in group], bins=np.linspace(0, 1, 21), alpha=0.6, label=kind)
        right.scatter([len(canonical(str(row["text"]))) for row in group], [row["seconds"] for row in group], s=12, label=kind)
    left.set(xlabel="word error rate of an utterance", ylabel="utterances")
    right.set(xlabel="words", ylabel="seconds")
    left.legend()
    right.legend()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
