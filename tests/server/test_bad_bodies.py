"""Sixty bodies that are wrong in one way each: the status, and the field that the message names."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

if TYPE_CHECKING:
    from tests.server.conftest import Running

GOOD: dict[str, Any] = {"input": "Hello."}
LONG = "x" * 4097
CLIP = base64.b64encode(b"a clip").decode()
NOT_AUDIO = base64.b64encode(b"not audio at all").decode()

TABLE: list[tuple[str, dict[str, Any] | bytes, int, str]] = [
    ("no input", {"input": ...}, 422, "input"),
    ("empty input", {"input": ""}, 422, "input"),
    ("blank input", {"input": "  \n "}, 422, "input"),
    ("input too long", {"input": LONG}, 422, "input"),
    ("input is a number", {"input": 5}, 422, "input"),
    ("input is a list", {"input": ["Hello."]}, 422, "input"),
    ("input is null", {"input": None}, 422, "input"),
    ("unknown field", {"volume": 3}, 422, "volume"),
    ("a field of another server", {"stream": True}, 422, "stream"),
    ("the engine's own name of a field", {"timesteps": 10}, 422, "timesteps"),
    ("unknown model", {"model": "tts-1"}, 404, "model"),
    ("model is a number", {"model": 1}, 422, "model"),
    ("unknown voice", {"voice": "alloy"}, 404, "voice"),
    ("voice climbs", {"voice": "../default"}, 422, "voice"),
    ("voice is absolute", {"voice": "/etc/passwd"}, 422, "voice"),
    ("voice has NUL", {"voice": "a\0b"}, 422, "voice"),
    ("voice of 300 characters", {"voice": "v" * 300}, 422, "voice"),
    ("voice is an emoji", {"voice": "🎙"}, 422, "voice"),
    ("voice is empty", {"voice": ""}, 422, "voice"),
    ("voice ends with a line", {"voice": "ada\n"}, 422, "voice"),
    ("voice is an empty object", {"voice": {}}, 422, "voice"),
    ("voice by id climbs", {"voice": {"id": "../x"}}, 422, "voice"),
    ("voice object with more", {"voice": {"id": "default", "style": "x"}}, 422, "voice"),
    ("adapter climbs", {"adapter": "../x"}, 422, "adapter"),
    ("adapter is absolute", {"adapter": "/tmp/x"}, 422, "adapter"),
    ("adapter has NUL", {"adapter": "a\0"}, 422, "adapter"),
    ("adapter of 300 characters", {"adapter": "a" * 300}, 422, "adapter"),
    ("adapter is an emoji", {"adapter": "🦜"}, 422, "adapter"),
    ("unknown format", {"response_format": "wma"}, 422, "response_format"),
    ("format in capitals", {"response_format": "MP3"}, 422, "response_format"),
    ("format is null", {"response_format": None}, 422, "response_format"),
    ("too slow", {"speed": 0.24}, 422, "speed"),
    ("too fast", {"speed": 4.01}, 422, "speed"),
    ("speed is text", {"speed": "1.0"}, 422, "speed"),
    ("speed is true", {"speed": True}, 422, "speed"),
    ("speed is NaN", b'{"input": "Hello.", "speed": NaN}', 422, "speed"),
    ("speed is infinite", b'{"input": "Hello.", "speed": 1e999}', 422, "speed"),
    ("unknown stream format", {"stream_format": "ws"}, 422, "stream_format"),
    ("negative seed", {"seed": -1}, 422, "seed"),
    ("seed too large", {"seed": 2**63}, 422, "seed"),
    ("seed is a fraction", {"seed": 1.5}, 422, "seed"),
    ("seed is text", {"seed": "7"}, 422, "seed"),
    ("one timestep", {"inference_timesteps": 1}, 422, "inference_timesteps"),
    ("101 timesteps", {"inference_timesteps": 101}, 422, "inference_timesteps"),
    ("negative guidance", {"cfg_value": -0.1}, 422, "cfg_value"),
    ("guidance too large", {"cfg_value": 10.5}, 422, "cfg_value"),
    ("no seconds", {"max_seconds": 0}, 422, "max_seconds"),
    ("too many seconds", {"max_seconds": 3601}, 422, "max_seconds"),
    ("instructions too long", {"instructions": LONG}, 422, "instructions"),
    ("prompt text too long", {"prompt_text": LONG}, 422, "prompt_text"),
    ("prompt text is empty", {"prompt_text": ""}, 422, "prompt_text"),
    ("reference is not base64", {"reference_audio": "no base64!"}, 422, "reference_audio"),
    ("reference is not ASCII", {"reference_audio": "ééééé"}, 422, "reference_audio"),
    ("reference is not audio", {"reference_audio": NOT_AUDIO}, 422, "reference_audio"),
    ("prompt is not base64", {"prompt_audio": "====="}, 422, "prompt_audio"),
    ("prompt is not audio", {"prompt_audio": NOT_AUDIO, "prompt_text": "hm"}, 422, "prompt_audio"),
    ("normalize is text", {"normalize": "yes"}, 422, "normalize"),
    ("unknown priority", {"priority": "high"}, 422, "priority"),
    ("tenant climbs", {"tenant": "../x"}, 422, "tenant"),
    ("not JSON", b"{", 422, "body"),
    ("not an object", b"[]", 422, "body"),
    ("no body", b"", 422, "body"),
    ("not UTF-8", b'{"input": "\xff"}', 422, "body"),
    ("a lone surrogate", b'{"input": "\\ud800"}', 422, "body"),
    ("deep nesting", b'{"input": ' + b"[" * 5000 + b"]" * 5000 + b"}", 422, "body"),
]  # fmt: skip


@pytest.fixture(scope="module")
def module_running(module_start: Any) -> Running:
    running: Running = module_start()
    return running


@pytest.mark.parametrize(("body", "status", "field"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_a_bad_body_is_refused_by_name(module_running: Running, body: dict[str, Any] | bytes, status: int, field: str) -> None:
    raw = body if isinstance(body, bytes) else json.dumps({k: v for k, v in (GOOD | body).items() if v is not ...})
    headers = {"Content-Type": "application/json"}
    response = httpx2.post(f"{module_running.url}/v1/audio/speech", content=raw, headers=headers)
    problem = response.json()["error"]
    assert response.status_code == status, problem
    assert problem["param"] == field
    assert field in problem["message"]
    assert problem["type"] == "invalid_request_error"
    assert len(problem["message"]) < 300


def test_there_are_sixty() -> None:
    assert len(TABLE) >= 60


def test_a_text_is_never_repeated(module_running: Running) -> None:
    secret = "my secret words"
    body = {"input": [secret], "instructions": [secret], "prompt_text": secret * 400, "reference_audio": secret}
    response = httpx2.post(f"{module_running.url}/v1/audio/speech", json=body)
    assert response.status_code == 422
    assert "secret" not in response.text
    assert "secret" not in module_running.lines[-1]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_only_json_is_read(module_running: Running, kind: str) -> None:
    response = httpx2.post(f"{module_running.url}/v1/audio/speech", content=b'{"input": "x"}', headers={"Content-Type": kind})
    assert (response.status_code, response.json()["error"]["code"]) == (415, "unsupported_media_type")


def test_a_body_over_the_limit_is_refused_by_its_stated_length(module_running: Running) -> None:
    response = httpx2.post(f"{module_running.url}/v1/audio/speech", json={"input": "x" * (49 << 20)})
    assert response.status_code == 413
    assert "50331648" in response.json()["error"]["message"]


def test_a_body_over_the_limit_is_refused_while_it_comes(module_start: Any) -> None:
    running: Running = module_start(max_body_bytes=4096)
    parts = (b"x" * 1000 for _ in range(100))
    response = httpx2.post(f"{running.url}/v1/audio/speech", content=parts, headers={"Content-Type": "application/json"})
    assert response.status_code == 413


def test_a_clip_over_the_limit_is_refused(module_start: Any) -> None:
    running: Running = module_start(max_clip_bytes=2048)
    body = {**GOOD, "reference_audio": base64.b64encode(bytes(2049)).decode()}
    response = httpx2.post(f"{running.url}/v1/audio/speech", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (413, "reference_audio")


@pytest.mark.parametrize(
    "path", ["/nowhere", "/v1", "/static/../serve.py", "/static/%2e%2e%2fa.py", "/static/app.py", "/v1/voices/%00/x"]
)
def test_unknown_paths_are_problems_too(module_running: Running, path: str) -> None:
    response = httpx2.get(f"{module_running.url}{path}")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "not_found"


def test_a_wrong_method_is_a_problem_too(module_running: Running) -> None:
    response = httpx2.get(f"{module_running.url}/v1/audio/speech")
    assert (response.status_code, response.json()["error"]["code"]) == (405, "method_not_allowed")
