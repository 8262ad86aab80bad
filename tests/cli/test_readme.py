"""The README's lines are run, with a tiny checkpoint in place of the large ones."""

import re
import shlex
from pathlib import Path

import pytest
from tests.cli.running import Here
from tests.conditioning.audio_made import encode, tone

README = Path(__file__).parents[2] / "README.md"


def lines() -> list[str]:
    """Each `evervox say` and `evervox inspect` of the README's shell blocks."""
    blocks = re.findall(r"```sh\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if re.search(r"evervox (say|inspect)", line)]


def test_there_are_some() -> None:
    assert len(lines()) >= 6


@pytest.mark.parametrize("line", lines())
def test_a_line_of_the_readme(quick: Here, folder: Path, tmp_path: Path, line: str) -> None:
    (tmp_path / "me.m4a").write_bytes(encode("m4a", tone(44100, 0.2)[None]))
    (tmp_path / "start.wav").write_bytes(encode("wav", tone(44100, 0.2)[None]))
    (tmp_path / "chapter.txt").write_text("Hello.\n")
    words = shlex.split(line, comments=True)
    stdin = (tmp_path / words[1]).read_text() if words[:1] == ["cat"] else ""
    begin = next(at for at, word in enumerate(words) if word.endswith("evervox"))
    end = words.index("|", begin) if "|" in words[begin:] else None
    large = ("openbmb/VoxCPM2", "path/to/checkpoint")
    arguments = [str(folder) if word in large else word for word in words[begin + 1 : end]]
    ran = quick(*arguments, stdin=stdin)
    assert ran.returncode == 0, ran.stderr
    output = arguments[arguments.index("-o") + 1] if "-o" in arguments else "-"
    assert ran.stdout if output == "-" else (tmp_path / output).stat().st_size


def test_the_python_examples(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "me.m4a").write_bytes(encode("m4a", tone(44100, 0.2)[None]))
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    played: list[int] = []
    exec(example.replace("openbmb/VoxCPM2", str(folder)), {"play": lambda samples, rate: played.append(rate)})
    assert played == [48000] * len(played) != []
    assert (tmp_path / "hello.wav").stat().st_size > 44
