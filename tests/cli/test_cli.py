"""The command as people run it, on a tiny random checkpoint: in its own process where streams matter, else by its `main`."""

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from tests.cli.running import COMMAND, Here, Ran, run
from tests.conditioning.audio_made import encode, tone

from evervox import __version__
from evervox.conditioning.decode import decode


def decoded(data: bytes) -> tuple[np.ndarray, int]:
    return decode(data, field="what was said", max_seconds=60)


def said(ran: Ran) -> re.Match[str]:
    """The closing line, taken apart."""
    assert ran.returncode == 0, ran.stderr
    line = re.search(
        r"([\d.]+) s of audio in [\d.]+ s: first audio after [\d.]+ s, RTF [\d.]+, seed (\d+), finish (stop|length)\n",
        ran.stderr,
    )
    assert line is not None, ran.stderr
    return line


def test_a_wav_file(here: Here, folder: Path, tmp_path: Path) -> None:
    ran = here("say", "hello", "--model", folder, "--seed", 7, "-o", tmp_path / "out.wav")
    line = said(ran)
    samples, rate = decoded((tmp_path / "out.wav").read_bytes())
    assert rate == 48000
    assert len(samples) / rate == pytest.approx(float(line[1]), abs=0.006)
    assert line[2] == "7"
    assert ran.stdout == b""
    assert [path.name for path in tmp_path.iterdir()] == ["out.wav"]  # no part file stays
    assert len((tmp_path / "out.wav").read_bytes()) == 44 + 2 * len(samples)


def test_the_same_seed_says_the_same_and_streams_to_stdout(folder: Path) -> None:
    arguments = ("say", "-", "--model", folder, "--seed", 7, "-o", "-", "--format")
    wav, pcm = run(*arguments, "wav", stdin=b"hello\n"), run(*arguments, "pcm", stdin=b"hello")
    samples, rate = decoded(wav.stdout)
    assert rate == 48000
    np.testing.assert_array_equal(np.frombuffer(pcm.stdout, "<i2") / np.float32(32768), samples)
    assert said(wav)[1] == said(pcm)[1]
    assert wav.stderr.count("\n") == 1  # no bars in a log


@pytest.mark.parametrize("name", ["a.mp3", "a.flac", "a.ogg", "a.aac"])
def test_the_suffix_gives_the_format(quick: Here, folder: Path, tmp_path: Path, name: str) -> None:
    said(quick("say", "hi", "--model", folder, "--max-seconds", "0.1", "-o", tmp_path / name))
    assert len(decoded((tmp_path / name).read_bytes())[0])


def test_clips_instructions_and_numbers_reach_the_model(quick: Here, folder: Path, tmp_path: Path) -> None:
    clip = tmp_path / "clip.mp3"
    clip.write_bytes(encode("mp3", tone(44100, 0.1)[None]))
    common = ("--model", folder, "--seed", 1, "--max-seconds", "0.03", "-o", "-", "--format", "pcm")
    spoken = [
        quick("say", "hello", *common).stdout,
        quick("say", "hello", *common, "--reference", clip).stdout,
        quick("say", "hello", *common, "--prompt", clip, "--prompt-text", "well ").stdout,
        quick("say", "hello", *common, "--instructions", "slow").stdout,
        quick("say", "hello", *common, "--timesteps", 4).stdout,
        quick("say", "hello", *common, "--cfg", 1).stdout,
    ]
    assert all(spoken)
    assert len(set(spoken)) == len(spoken)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["say"], "Missing argument 'text'"),
        (["say", ""], "text: must not be empty or blank"),
        (["say", " \n"], "text: must not be empty or blank"),
        (["say", "-"], "text: must not be empty or blank"),
        (["say", "x" * 5000], "text: has 5,000 characters; the limit is 4,096"),
        (["say", "hi", "--reference", "/nowhere.wav"], "reference: there is no file /nowhere.wav"),
        (["say", "hi", "--reference", __file__], "reference: is not a wav, mp3, flac, ogg, m4a or webm file"),
        (["say", "hi", "--reference", "/"], "reference: cannot read /: Is a directory"),
        (["say", "hi", "--prompt", "a.wav"], "prompt: needs prompt_text"),
        (["say", "hi", "--prompt-text", "a"], "prompt_text: needs prompt"),
        (["say", "hi", "--timesteps", "0"], "timesteps: must be 2 to 100, not 0"),
        (["say", "hi", "--timesteps", "x"], "Invalid value for '--timesteps'"),
        (["say", "hi", "--cfg", "nan"], "cfg: must be a finite number, not nan"),
        (["say", "hi", "--seed", "-5"], "seed: must be 0 to"),
        (["say", "hi", "--max-seconds", "0"], "max_seconds: must be above 0, not 0"),
        (["say", "hi", "--format", "avi"], "format: must be one of mp3, opus, aac, flac, wav, pcm, not 'avi'"),
        (["say", "hi", "-o", "a.avi"], "format: must be one of"),
        (["say", "hi", "-o", "/nowhere/a.wav"], "output: there is no folder /nowhere"),
        (["say", "hi", "-o", "/"], "output: / is a folder"),
        (["say", "hi", "--loud"], "No such option"),
        (["sing"], "No such command 'sing'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    here: Here, folder: Path, arguments: list[str], message: str, tmp_path: Path
) -> None:
    rest = ["--model", folder] if arguments[0] == "say" else []
    check_one_line(here(*arguments, *rest), message)
    assert not list(tmp_path.iterdir())


def test_an_older_model_takes_no_reference(here: Here, older: Path, tmp_path: Path) -> None:
    clip = tmp_path / "clip.wav"
    clip.write_bytes(encode("wav8", tone(8000, 0.1)[None]))
    check_one_line(here("say", "hi", "--model", older, "--reference", clip), "reference: VoxCPM takes no reference clip")


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        ("nothing", "config.json does not exist"),
        ("architecture", "architecture 'qwen' is unknown; known are 'voxcpm' and 'voxcpm2'"),
        ("truncated", "model.safetensors"),
        ("tokenizer", "tokenizer.json does not exist"),
    ],
)
def test_a_bad_checkpoint_is_one_line_and_exit_code_2(here: Here, folder: Path, tmp_path: Path, harm: str, message: str) -> None:
    if harm != "nothing":
        for path in folder.iterdir():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    if harm == "architecture":
        (tmp_path / "config.json").write_text((folder / "config.json").read_text().replace('"voxcpm2"', '"qwen"'))
    if harm == "truncated":
        (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:1000])
    if harm == "tokenizer":
        (tmp_path / "tokenizer.json").unlink()
    check_one_line(here("say", "hi", "--model", tmp_path, "-o", tmp_path / "a.wav"), message)
    assert not (tmp_path / "a.wav").exists()


@pytest.mark.parametrize("model", ["/nowhere", "no/such-model"])
def test_a_missing_model(here: Here, model: str) -> None:
    check_one_line(here("say", "hi", "--model", model), model)


def check_one_line(ran: Ran, message: str) -> None:
    assert ran.returncode == 2, ran.stderr
    assert message in ran.stderr
    assert ran.stderr.startswith("evervox: ")
    assert ran.stderr.count("\n") == 1
    assert ran.stdout == b""


def test_errors_come_out_of_the_installed_command_too(folder: Path) -> None:
    check_one_line(run("say", "-", "--model", folder, stdin=b"\xff\xfe"), "text: ")


def test_a_reader_that_leaves_is_no_traceback(folder: Path) -> None:
    command = f'"{COMMAND}" say "hello the world" --model "{folder}" -o - | head -c 50 | wc -c'
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, timeout=100)
    assert ran.stdout.strip() == "50"
    assert "Traceback" not in ran.stderr


def test_inspect_tells_what_a_checkpoint_is(here: Here, folder: Path, older: Path) -> None:
    second = here("inspect", folder).stdout.decode()
    for part in (
        "VoxCPM2 (reference clips",
        "48,000 Hz",
        "16,000 Hz",
        "512 tokens",
        "3 x hidden 32",
        "safetensors",
        "parameters",
    ):
        assert part in second
    first = here("inspect", older).stdout.decode()
    assert "VoxCPM\n" in first
    assert "reference clips" not in first


def test_inspect_tells_of_adapters(here: Here, folder: Path, tmp_path: Path) -> None:
    voice = tmp_path / "her"
    voice.mkdir()
    (voice / "lora_config.json").write_text('{"lora_config": {"r": 8, "alpha": 16, "enable_lm": true, "enable_dit": true}}')
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    assert "adapter her" in here("inspect", tmp_path).stdout.decode()
    assert "rank 8, alpha 16, on lm, dit" in here("inspect", voice).stdout.decode()


def test_inspect_refuses_what_is_neither(here: Here, tmp_path: Path) -> None:
    check_one_line(here("inspect", tmp_path), "config.json does not exist")


def test_version_and_help(here: Here) -> None:
    assert here("--version").stdout.decode() == f"evervox {__version__}\n"
    told = here("say", "--help").stdout.decode()
    for option in ("--model", "--reference", "--prompt-text", "--instructions", "--seed", "--timesteps", "--cfg", "--output"):
        assert option in told
    assert "evervox say" in told
