"""The command line. Audio and answers go to stdout, everything else to stderr; an error is one line and exit code 2."""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, cast

import typer
from rich.console import Console

from evervox import __version__
from evervox.audio.encoders import FORMATS, AudioFormat, make_encoder
from evervox.audio.pcm import wav_header
from evervox.engine.batch import batch
from evervox.engine.bench import bench
from evervox.errors import BadRequest, CheckpointError, ConfigError, EvervoxError
from evervox.request import SpeechRequest
from evervox.server.serve import serve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evervox.engine.tts import TTS
    from evervox.request import AudioChunk

MAX_PIECES_AT_ONCE = 2
USAGE, INTERRUPTED, BROKEN_PIPE = 2, 130, 141
UsageError = cast("type[Exception]", typer.BadParameter.__mro__[1])  # click's, which newer typer carries inside itself
SUFFIXES = {".ogg": "opus"}
stderr = Console(stderr=True, highlight=False)
app = typer.Typer(
    name="evervox",
    help="A speech server for the VoxCPM family that runs for weeks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """The installed command: runs `app` and turns errors into one line and an exit code."""
    try:
        code = app(standalone_mode=False)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the flush at exit has nowhere to go
        code = BROKEN_PIPE
    except (KeyboardInterrupt, typer.Abort):
        code = _fail("interrupted", INTERRUPTED)
    except UsageError as error:
        code = _fail(f"{cast('typer.BadParameter', error).format_message()} (evervox --help explains)", USAGE)
    except (BadRequest, CheckpointError, ConfigError) as error:
        code = _fail(str(error), USAGE)
    except (EvervoxError, OSError) as error:
        code = _fail(str(error), 1)
    sys.exit(code)


def _fail(message: str, code: int) -> int:
    print(f"evervox: {' '.join(message.split())}", file=sys.stderr)
    return code


def _version(wanted: bool) -> None:
    if wanted:
        print(f"evervox {__version__}")
        raise typer.Exit


@app.callback()
def options(
    *,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """A speech server for the VoxCPM family that runs for weeks."""


@app.command()
def say(
    text: Annotated[str, typer.Argument(help="What to say; - reads it from standard input.", show_default=False)],
    *,
    model: Annotated[
        str | None, typer.Option(help="Checkpoint folder or hub id (openbmb/VoxCPM2). Without it, the small voice that ships.")
    ] = None,
    reference: Annotated[
        str | None, typer.Option(help="Clip of the voice to speak in: wav, mp3, flac, ogg, m4a or webm. VoxCPM2 only.")
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="Clip to go on from; needs --prompt-text.")] = None,
    prompt_text: Annotated[str | None, typer.Option(help="The words spoken in the prompt clip.")] = None,
    instructions: Annotated[
        str | None, typer.Option(help='How to speak: "young woman, gentle". VoxCPM2 only, not with --prompt.')
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same speech. Drawn and shown when not given.")] = None,
    timesteps: Annotated[
        int | None,
        typer.Option(help="Solver steps per patch, 2 to 100: more is finer and slower. [the model's, as a rule 10]"),
    ] = None,
    cfg: Annotated[float, typer.Option(help="Guidance, 0 to 10: how closely to follow text and clips.")] = 2.0,
    max_seconds: Annotated[float | None, typer.Option(help="Stop after this much audio.")] = None,
    audio_format: Annotated[
        str | None, typer.Option("--format", help=f"{', '.join(FORMATS)}. Else the output's suffix, else wav.")
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="File to write (speech.wav), or - for standard output.")
    ] = None,
) -> None:
    """Speak a text.

    evervox say "Hello." -o hello.wav

    evervox say "Hello." -o - | aplay

    evervox say "Same voice." --model openbmb/VoxCPM2 --reference me.m4a -o me.flac

    cat chapter.txt | evervox say - -o chapter.mp3
    """
    fmt = _format(audio_format, output)
    request = SpeechRequest(
        text=_stdin() if text == "-" else text,
        reference=reference,
        prompt=prompt,
        prompt_text=prompt_text,
        instructions=instructions,
        seed=seed,
        timesteps=timesteps,
        cfg=cfg,
        max_seconds=max_seconds,
    )
    with _sink(output or f"speech.{fmt}", fmt) as sink, _load(model, request) as tts:
        _write(tts.send(request), fmt, sink)
    if output != "-":
        stderr.print(f"wrote {output or f'speech.{fmt}'}", markup=False)


@app.command()
def inspect(
    folder: Annotated[Path, typer.Argument(help="A checkpoint or adapter folder.", show_default=False)],
) -> None:
    """Print what a checkpoint is: family, rates, sizes, adapters."""
    from evervox.models.voxcpm.describe import describe

    lines = describe(folder)
    width = max(len(name) for name, _ in lines)
    print("\n".join(f"{name:<{width}}  {value}" for name, value in lines))


app.command()(batch)
app.command()(bench)
app.command()(serve)


def _format(given: str | None, output: str | None) -> AudioFormat:
    suffix = Path(output or "").suffix.lower()
    name = given or SUFFIXES.get(suffix, suffix[1:]) or "wav"
    if name not in FORMATS:
        raise BadRequest(f"must be one of {', '.join(FORMATS)}, not {name!r}", field="format")
    return name


def _stdin() -> str:
    try:
        return sys.stdin.read().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise BadRequest(f"standard input is not {error.encoding} text", field="text") from None


def _warn_of(unknown: list[str]) -> None:
    """Once, before it speaks."""
    if unknown:
        some = ", ".join(unknown[:5]) + (", ..." if len(unknown) > 5 else "")
        stderr.print(
            f"this small voice knows numbers and some 200 English words, and not: {some} (for any text: --model openbmb/VoxCPM2)",
            markup=False,
            soft_wrap=True,
        )


@contextmanager
def _load(model: str | None, request: SpeechRequest) -> Iterator[TTS]:
    """A model that is loaded. The request is checked before its weights are read."""
    from evervox.engine.client import Engine
    from evervox.engine.tts import TTS

    engine = Engine.start(model, max_running=MAX_PIECES_AT_ONCE, request_timeout=None)
    engine.check(request)
    _warn_of(engine.unknown_words(request.text))
    with stderr.status("loading the model"):
        tts = TTS(engine)
    with tts:
        yield tts


def _write(chunks: Iterator[AudioChunk], fmt: AudioFormat, sink: BinaryIO) -> None:
    """Chunk by chunk as it is made, then one line about it."""
    began = time.monotonic()
    first_audio, seconds, encoder = 0.0, 0.0, None
    with stderr.status("speaking") as status:
        for chunk in chunks:
            first_audio = first_audio or time.monotonic() - began
            encoder = encoder or make_encoder(fmt, chunk.sample_rate)
            sink.write(encoder.push(chunk.samples))
            sink.flush()
            seconds = (chunk.start + len(chunk.samples)) / chunk.sample_rate
            status.update(f"speaking: {seconds:.1f} s")
    assert encoder is not None, "a generation has at least one patch"
    assert chunk.finish is not None, "the last chunk says how it ended"
    sink.write(encoder.finish())
    if fmt == "wav" and sink.seekable():
        sink.seek(0)
        sink.write(wav_header(chunk.sample_rate, chunk.start + len(chunk.samples)))
    took = time.monotonic() - began
    stderr.print(
        f"{seconds:.2f} s of audio in {took:.2f} s: first audio after {first_audio:.2f} s, RTF {took / seconds:.2f}, "
        f"seed {chunk.finish.seed}, finish {chunk.finish.reason}",
        markup=False,
        soft_wrap=True,
    )


@contextmanager
def _sink(output: str, fmt: AudioFormat) -> Iterator[BinaryIO]:
    """Standard output, or a file that takes its name when it is whole."""
    if output == "-":
        if sys.stdout.isatty():
            raise BadRequest(f"- would print {fmt} audio on the terminal; pipe it, as in `-o - | aplay`", field="output")
        yield sys.stdout.buffer
        return
    path = Path(output).expanduser()
    if path.is_dir() or not path.parent.is_dir():
        what = f"{path} is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise BadRequest(what, field="output")
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            yield file
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
