"""docs/api.md and deploy/ say what is so: examples run, tables and panels name what exists."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import pytest
import yaml
from tests.server.test_voices import CLIP

from evervox.config import ServerSettings, Settings
from evervox.server import problems
from evervox.server.schemas import SpeechBody

if TYPE_CHECKING:
    from tests.server.conftest import Running, Start

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "api.md").read_text("utf-8")
BLOCKS = re.findall(r"```(sh|python)\n(.*?)```", PAGE, re.DOTALL)
HERE = "http://127.0.0.1:8000"


@pytest.fixture(scope="module")
def module_running(module_start: Start) -> Running:
    return module_start()


@pytest.mark.parametrize(("kind", "code"), BLOCKS, ids=[f"{number}-{kind}" for number, (kind, _) in enumerate(BLOCKS)])
def test_an_example_runs(module_running: Running, tmp_path: Path, kind: str, code: str) -> None:
    assert HERE in code
    (tmp_path / "me.wav").write_bytes(CLIP)
    command = ["bash", "-euo", "pipefail", "-c"] if kind == "sh" else [sys.executable, "-c"]
    environment = os.environ | {"no_proxy": "127.0.0.1"}
    done = subprocess.run(
        [*command, code.replace(HERE, module_running.url)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert b"error" not in done.stdout or b"speed" in done.stdout
    for name in re.findall(r"-o (\S+)|_file\(\"(\S+)\"\)", code):
        assert (tmp_path / "".join(name)).stat().st_size > 300


def test_there_are_enough() -> None:
    assert len(BLOCKS) >= 7


def test_every_field_is_in_the_table() -> None:
    rows = re.findall(r"^\| (`[^|]+`) \|", PAGE.split("## Speak")[1].split("### Events")[0], re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == set(SpeechBody.model_fields)


def test_the_table_of_errors_is_the_table_in_the_code() -> None:
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \|", PAGE.split("## Errors")[1].split("## Keys")[0], re.MULTILINE)
    told = {(int(status), code) for status, codes in rows for code in re.findall(r"`(\w+)`", codes)}
    inner = {"checkpoint", "config", "error"}
    assert told == {(status, cls.code) for cls, status in problems.STATUS.items() if cls.code not in inner} | {(500, "internal")}


def series(running: Running) -> set[str]:
    text = httpx2.get(f"{running.url}/metrics").text
    return set(re.findall(r"^(\w+)[ {]", text, re.MULTILINE))


def test_every_series_is_in_the_table(module_running: Running) -> None:
    httpx2.post(f"{module_running.url}/v1/audio/speech", json={"input": "hi"})
    rows = PAGE.split("| series |")[1].split("A Grafana")[0]
    told = set(re.findall(r"`(evervox_\w+)`", rows))
    real = {re.sub(r"_(bucket|sum|count|created)$", "", name) for name in series(module_running) if name.startswith("evervox_")}
    real -= {name for name in real if name.startswith("evervox_engine_") or f"{name}_total" in real}
    assert told == real


def test_the_dashboard_asks_for_series_that_exist(module_running: Running) -> None:
    httpx2.post(f"{module_running.url}/v1/audio/speech", json={"input": "hi"})
    dashboard = json.loads((ROOT / "deploy" / "grafana.json").read_text())
    asked = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"\b((?:evervox|process)_\w+)", target["expr"])
    }
    assert asked <= series(module_running)
    assert len(dashboard["panels"]) >= 12


def test_containers_name_settings_that_exist() -> None:
    known = {f"EVERVOX_SERVER_{name.upper()}" for name in ServerSettings.model_fields}
    known |= {f"EVERVOX_{name.upper()}" for name in Settings.model_fields} | {"EVERVOX_MODEL"}
    texts = (PAGE, (ROOT / "deploy" / "Dockerfile").read_text(), (ROOT / "deploy" / "compose.yaml").read_text())
    named = {name for text in texts for name in re.findall(r"EVERVOX_[A-Z_]*[A-Z](?![A-Z_…])", text)}
    assert named <= known
    services = yaml.safe_load(texts[2])["services"]
    assert set(services) == {"cpu", "cuda"}
