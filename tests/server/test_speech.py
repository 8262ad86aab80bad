from __future__ import annotations

import base64
import json
import subprocess
import time
from typing import TYPE_CHECKING, Any

import httpx2
import numpy as np
import pytest
from openai import APIStatusError, OpenAI
from tests.server.fake import FakeEngine
from tests.server.sound import decode, pitch

from evervox import errors
from evervox.audio.encoders import FORMATS, MEDIA_TYPES, AudioFormat

if TYPE_CHECKING:
    from tests.server.conftest import Running, Start

WORDS = "one two three four five six seven"
SECONDS = 7 * 0.16


def post(running: Running, **body: Any) -> httpx2.Response:
    return httpx2.post(f"{running.url}/v1/audio/speech", json={"input": WORDS, **body})


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


def settle(running: Running) -> None:
    """Until the engine has nothing open, or a second has passed."""
    for _ in range(100):
        if not running.engine.open and not len(running.state.gate):
            return
        time.sleep(0.01)


@pytest.fixture
def client(running: Running) -> OpenAI:
    return OpenAI(base_url=f"{running.url}/v1", api_key="not-needed", max_retries=0)


@pytest.mark.parametrize("fmt", FORMATS)
def test_the_openai_client_gets_a_whole_file(client: OpenAI, fmt: AudioFormat) -> None:
    response = client.audio.speech.create(model="fake-voice", voice="default", input=WORDS, response_format=fmt)
    samples, seconds = decode(response.content, fmt)
    assert abs(seconds - SECONDS) < 0.05
    assert abs(pitch(samples, seconds) - 220) < 3
    assert response.response.headers["content-type"].startswith(MEDIA_TYPES[fmt])


@pytest.mark.parametrize("fmt", FORMATS)
def test_the_openai_client_gets_a_stream(start: Start, fmt: AudioFormat) -> None:
    client = OpenAI(base_url=f"{start(FakeEngine(step=0.08)).url}/v1", api_key="x", max_retries=0)
    arrivals, data = [], b""
    with client.audio.speech.with_streaming_response.create(
        model="fake-voice", voice="default", input=WORDS, response_format=fmt
    ) as response:
        for part in response.iter_bytes():
            arrivals.append(time.perf_counter())
            data += part
    assert len(arrivals) >= 5
    assert arrivals[-1] - arrivals[0] > 0.3
    assert abs(decode(data, fmt)[1] - SECONDS) < 0.05


def test_mp3_is_the_default_as_with_openai(client: OpenAI) -> None:
    response = client.audio.speech.create(model="fake-voice", voice={"id": "default"}, input=WORDS)
    assert response.response.headers["content-type"] == "audio/mpeg"


def test_events_carry_the_same_audio_and_end_with_usage(running: Running) -> None:
    plain = post(running, response_format="pcm", seed=9)
    told = post(running, response_format="pcm", seed=9, stream_format="sse")
    assert told.headers["content-type"].startswith("text/event-stream")
    *deltas, done = events(told.text)
    assert {delta["type"] for delta in deltas} == {"speech.audio.delta"}
    assert b"".join(base64.b64decode(delta["audio"]) for delta in deltas) == plain.content
    assert done["type"] == "speech.audio.done"
    assert done["usage"] == {
        "input_tokens": 7,
        "output_tokens": 7,
        "total_tokens": 14,
        "input_token_details": {"cached_tokens": 3},
    }
    assert (done["finish_reason"], done["seed"], done["audio_seconds"]) == ("stop", 9, SECONDS)


def test_headers_say_what_the_bytes_are(running: Running) -> None:
    headers = post(running, response_format="opus", seed=3).headers
    assert (headers["x-audio-sample-rate"], headers["x-audio-channels"], headers["x-seed"]) == ("48000", "1", "3")
    assert headers["transfer-encoding"] == "chunked"
    assert "rate=16000;channels=1" in post(running, response_format="pcm").headers["content-type"]


def test_a_seed_that_is_not_given_is_drawn_and_told(running: Running) -> None:
    seeds = {post(running, response_format="pcm").headers["x-seed"] for _ in range(4)}
    assert len(seeds) == 4
    assert all(int(seed) < 2**53 for seed in seeds)


@pytest.mark.parametrize("speed", [0.25, 0.8, 1.5, 4.0])
def test_speed_changes_the_length_and_not_the_pitch(running: Running, speed: float) -> None:
    samples, seconds = decode(post(running, response_format="wav", speed=speed).content, "wav")
    assert abs(seconds - SECONDS / speed) < 0.05
    assert abs(pitch(samples, seconds) - 220) < 12


def test_every_field_reaches_the_engine(running: Running) -> None:
    clip = base64.b64encode(b"a clip").decode()
    fields = {"instructions": "calm", "seed": 4, "cfg_value": 1.5, "inference_timesteps": 6, "max_seconds": 3.5}
    post(running, reference_audio=clip, prompt_audio=f"data:audio/wav;base64,{clip}", prompt_text="hm", adapter="mine",
         priority="batch", tenant="t", **fields)  # fmt: skip
    request = running.engine.requests[-1]
    assert (request.text, request.instructions, request.seed, request.cfg) == (WORDS, "calm", 4, 1.5)
    assert (request.timesteps, request.max_seconds, request.reference, request.prompt) == (6, 3.5, b"a clip", b"a clip")
    assert (request.prompt_text, request.adapter, request.priority, request.tenant) == ("hm", "mine", "batch", "t")
    assert request.timeout == 300.0


ERRORS = [
    (errors.BadRequest("text: too odd", field="text"), 422, "input"),
    (errors.TooLarge("text has 9 characters", field="text"), 413, "input"),
    (errors.Unsupported("reference: not with this model", field="reference"), 422, "reference_audio"),
    (errors.NotFound("adapter: none", field="adapter"), 404, "adapter"),
    (errors.Conflict("taken"), 409, None),
    (errors.Overloaded("full", retry_after=7.2), 429, None),
    (errors.Unavailable("gone"), 503, None),
    (errors.DeadlineExceeded("too late"), 504, None),
    (errors.EngineFailure("broke"), 500, None),
]


@pytest.mark.parametrize(("error", "status", "field"), ERRORS, ids=[type(e[0]).__name__ for e in ERRORS])
def test_an_error_before_the_first_audio_is_a_status(
    start: Start, error: errors.EvervoxError, status: int, field: str | None
) -> None:
    running = start(FakeEngine(fail_at=0, error=error))
    response = post(running)
    problem = response.json()["error"]
    assert (response.status_code, problem["code"], problem["param"]) == (status, error.code, field)
    assert field is None or field in problem["message"]
    assert ("retry-after" in response.headers) == (status in (429, 503))
    if status == 429:
        assert response.headers["retry-after"] == "8"
    settle(running)
    assert not running.engine.open


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_failure_after_the_first_audio_cuts_the_connection(start: Start, fmt: AudioFormat) -> None:
    running = start(FakeEngine(fail_at=5, step=0.01))
    with pytest.raises(httpx2.RemoteProtocolError):
        post(running, response_format=fmt)
    settle(running)
    assert not running.engine.open
    assert "the step failed" in running.lines[-1]


def test_curl_notices_a_cut_stream(start: Start) -> None:
    running = start(FakeEngine(fail_at=4))
    body = json.dumps({"input": WORDS, "response_format": "wav"})
    command = ["curl", "-sS", f"{running.url}/v1/audio/speech", "-H", "Content-Type: application/json", "-d", body]
    done = subprocess.run([*command, "-o", "/dev/null"], check=False, capture_output=True, timeout=20)
    assert done.returncode == 18, done.stderr


def test_curl_streams_into_a_pipe(start: Start) -> None:
    running = start(FakeEngine(step=0.1))
    body = json.dumps({"input": WORDS, "response_format": "wav"})
    command = ["curl", "-sSN", f"{running.url}/v1/audio/speech", "-H", "Content-Type: application/json", "-d", body]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as curl:
        assert curl.stdout is not None
        first = curl.stdout.read(44)
        early = time.perf_counter()
        rest = curl.stdout.read()
        assert time.perf_counter() - early > 0.4
    assert first[:4] == b"RIFF"
    assert first[4:8] == first[40:44] == b"\xff" * 4
    assert len(rest) == round(SECONDS * 16000) * 2


def read_all(response: httpx2.Response, into: list[str]) -> None:
    into.extend(response.iter_text())


def test_an_event_stream_says_what_failed_before_it_is_cut(start: Start) -> None:
    running = start(FakeEngine(fail_at=2))
    body = {"input": WORDS, "stream_format": "sse"}
    parts: list[str] = []
    with (
        httpx2.stream("POST", f"{running.url}/v1/audio/speech", json=body) as response,
        pytest.raises(httpx2.RemoteProtocolError),
    ):
        read_all(response, parts)
    last = events("".join(parts))[-1]
    assert (last["type"], last["error"]["code"], last["error"]["message"]) == ("error", "engine_failure", "the step failed")


def test_a_stream_without_a_last_chunk_is_a_failure(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    running = start(FakeEngine())
    monkeypatch.setattr("tests.server.fake.Finish", lambda *_: None)
    with pytest.raises(httpx2.RemoteProtocolError):
        post(running)


def test_a_client_that_leaves_ends_the_work_at_once(start: Start) -> None:
    running = start(FakeEngine(step=0.05))
    with httpx2.stream("POST", f"{running.url}/v1/audio/speech", json={"input": "word " * 400}) as response:
        parts = response.iter_bytes()
        next(parts)
        assert len(running.engine.open) == 1
    settle(running)
    assert not running.engine.open
    assert "disconnect" in running.lines[-1]


def test_a_client_that_leaves_before_the_first_audio_ends_the_work_too(start: Start) -> None:
    running = start(FakeEngine(step=30))
    with pytest.raises(httpx2.ReadTimeout):
        httpx2.post(f"{running.url}/v1/audio/speech", json={"input": WORDS}, timeout=0.3)
    settle(running)
    assert not running.engine.open


def test_time_runs_out_before_the_first_audio(start: Start) -> None:
    running = start(FakeEngine(step=30), request_timeout=0.2)
    assert (post(running).status_code, len(running.engine.open)) == (504, 0)


def test_time_runs_out_in_a_stream(start: Start) -> None:
    running = start(FakeEngine(step=0.1), request_timeout=0.5)
    with pytest.raises(httpx2.RemoteProtocolError):
        post(running, input="word " * 100)
    settle(running)
    assert not running.engine.open


def test_a_full_server_says_when_to_come_back(start: Start) -> None:
    running = start(FakeEngine(step=0.2), max_open=1)
    with httpx2.stream("POST", f"{running.url}/v1/audio/speech", json={"input": WORDS}) as response:
        parts = response.iter_bytes()
        next(parts)
        refused = post(running)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "2")
        assert "the limit is 1" in refused.json()["error"]["message"]
        list(parts)
    assert post(running).status_code == 200


def test_a_full_engine_says_when_to_come_back(start: Start) -> None:
    response = post(start(FakeEngine(max_open=0)))
    assert (response.status_code, response.headers["retry-after"]) == (429, "3")


def test_the_openai_client_reads_our_errors(client: OpenAI) -> None:
    with pytest.raises(APIStatusError) as caught:
        client.audio.speech.create(model="tts-9", voice="default", input="hi")
    assert caught.value.status_code == 404
    assert "fake-voice" in caught.value.message
    assert caught.value.param == "model"


def test_an_alias_is_a_model_too(start: Start) -> None:
    running = start(aliases=("tts-1",))
    assert post(running, model="tts-1").status_code == 200
    assert [model.id for model in OpenAI(base_url=f"{running.url}/v1", api_key="x").models.list()] == ["fake-voice", "tts-1"]


def test_normalize_without_its_extra_says_so(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr("evervox.server.normalize.import_module", missing)
    response = post(running, normalize=True)
    assert response.status_code == 422
    assert "evervox[normalize]" in response.json()["error"]["message"]
    assert response.json()["error"]["param"] == "normalize"


def test_normalize_spells_numbers_out(running: Running) -> None:
    pytest.importorskip("wetext", reason="needs the extra evervox[normalize]")
    assert post(running, input="I have 3 dogs.", normalize=True).status_code == 200
    assert running.engine.requests[-1].text == "I have three dogs."


def test_a_slow_reader_holds_up_nobody_and_gets_everything(start: Start) -> None:
    running = start(FakeEngine())
    with httpx2.stream("POST", f"{running.url}/v1/audio/speech", json={"input": "word " * 600, "response_format": "pcm"}) as slow:
        assert post(running).status_code == 200
        data = slow.read()
    assert len(data) == 600 * 2560 * 2
    assert np.frombuffer(data, "<i2").max() > 9000
