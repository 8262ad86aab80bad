from __future__ import annotations

import json
import re
import threading
import time
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.server.fake import FakeEngine, FakeReady

from evervox.server.metrics import Meter, Metrics

if TYPE_CHECKING:
    from tests.server.conftest import Running, Start


def metrics(running: Running) -> dict[str, float]:
    """Every sample by name and labels."""
    text = httpx2.get(f"{running.url}/metrics").text
    return {
        s.name + "".join(f",{k}={v}" for k, v in sorted(s.labels.items())): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


def speak(running: Running, **body: Any) -> httpx2.Response:
    return httpx2.post(f"{running.url}/v1/audio/speech", json={"input": "one two three four", **body}, timeout=30)


def test_a_stream_is_measured(start: Start) -> None:
    running = start(FakeEngine(step=0.02))
    speak(running, response_format="wav")
    seen = metrics(running)
    assert seen["evervox_audio_seconds_total"] == pytest.approx(0.64)
    assert seen["evervox_first_audio_seconds_count,format=wav"] == 1
    assert 0.02 <= seen["evervox_first_audio_seconds_sum,format=wav"] < 0.5
    assert (seen["evervox_chunk_gap_seconds_count"], seen["evervox_rtf_count"], seen["evervox_underruns_total"]) == (3, 1, 0)
    assert (seen["evervox_prompt_slots_total"], seen["evervox_cached_slots_total"]) == (7, 3)
    assert seen["evervox_streams_total,outcome=stop"] == 1
    assert seen["evervox_sent_bytes_total,format=wav"] == 44 + 4 * 2560 * 2
    assert seen["evervox_ready"] == 1
    assert seen["evervox_ledger_limit,name=open speech requests,owner=server,unit=items"] == 256
    assert seen["evervox_engine_restarts_total"] == 0


def test_no_path_or_method_makes_a_series_of_its_own(running: Running) -> None:
    def knock(turns: range) -> int:
        with httpx2.Client(base_url=running.url) as client:
            for turn in turns:
                client.get(f"/nowhere/{turn}?x={turn}")
                client.delete(f"/v1/voices/v{turn}")
                client.request(("PROPFIND", "MKCOL", "LOCK", "PUT", "TRACE")[turn % 5], "/")
        return len(metrics(running))

    knock(range(10))
    assert knock(range(10, 12)) == knock(range(12, 50))
    assert metrics(running)["evervox_requests_total,method=DELETE,route=/v1/voices/{name},status=404"] == 50


def test_statistics_hold_both_ledgers(running: Running) -> None:
    stats = httpx2.get(f"{running.url}/v1/stats").json()
    assert {"open speech requests", "stored voices", "connections", "open requests"} <= {line["name"] for line in stats["ledger"]}
    assert (stats["ready"], stats["draining"], stats["engine"]["restarts"]) == (True, False, 0)


def test_ready_follows_the_engine_and_health_does_not(running: Running) -> None:
    assert httpx2.get(f"{running.url}/ready").json() == {"ready": True, "reason": None}
    running.engine.state = FakeReady(False, "the worker is being restarted")
    down = httpx2.get(f"{running.url}/ready")
    assert (down.status_code, down.json()["reason"]) == (503, "the worker is being restarted")
    assert httpx2.get(f"{running.url}/health").json() == {"status": "ok"}
    running.engine.state = FakeReady()
    assert httpx2.get(f"{running.url}/ready").status_code == 200


def test_draining_finishes_streams_and_takes_no_new_ones(start: Start) -> None:
    running = start(FakeEngine(step=0.1))
    replies: list[httpx2.Response] = []
    thread = threading.Thread(target=lambda: replies.append(speak(running, input="word " * 12, response_format="pcm")))
    with httpx2.Client(base_url=running.url) as client:
        client.get("/health")
        thread.start()
        while not running.engine.open:
            time.sleep(0.01)
        running.server.handle_exit(15, None)
        time.sleep(0.15)
        assert client.get("/ready").status_code == 503
        assert client.get("/health").status_code == 200
        refused = client.post("/v1/audio/speech", json={"input": "hi"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
    thread.join(20)
    assert (replies[0].status_code, len(replies[0].content)) == (200, 12 * 2560 * 2)
    for _ in range(100):
        if running.server.should_exit:
            return
        time.sleep(0.02)
    pytest.fail("the server did not leave")


def test_draining_has_a_limit(start: Start) -> None:
    running = start(FakeEngine(step=0.1), drain_timeout=0.3)
    url, body = f"{running.url}/v1/audio/speech", {"input": "word " * 300}
    with httpx2.stream("POST", url, json=body) as response:
        running.server.handle_exit(15, None)
        with pytest.raises(httpx2.RemoteProtocolError):
            response.read()
    for _ in range(100):
        if not running.engine.open:
            return
        time.sleep(0.02)
    pytest.fail("the stream was not let go of")


def lines(running: Running, number: int) -> list[str]:
    """The first lines of the log, once they are there: a line is written when the response has been sent."""
    for _ in range(100):
        if len(running.lines) >= number:
            break
        time.sleep(0.01)
    return running.lines


SPOKEN = r"\d\d:\d\d:\d\d POST   /v1/audio/speech 200 \d+ ms opus 0.64 s of audio, first after \d+ ms, rtf \d.\d\d, stop \[\w+\]"


def test_a_line_per_request_for_a_person(running: Running) -> None:
    speak(running, response_format="opus")
    httpx2.get(f"{running.url}/health")
    httpx2.get(f"{running.url}/v1/models\u202e?key=secret")
    spoken, odd = lines(running, 2)
    assert re.fullmatch(SPOKEN, spoken)
    assert "\\u202e" in odd
    assert "secret" not in odd


def test_a_line_per_request_for_a_machine(start: Start) -> None:
    running = start(log_format="json")
    reply = speak(running, seed=3)
    facts = json.loads(lines(running, 1)[0])
    assert (facts["status"], facts["path"], facts["outcome"], facts["seed"]) == (200, "/v1/audio/speech", "stop", 3)
    assert (facts["id"], facts["complete"], facts["audio_seconds"]) == (reply.headers["x-request-id"], True, 0.64)


def test_the_page_may_load_nothing_from_elsewhere(running: Running) -> None:
    for path in ("/", "/static/playground.js", "/static/playground.css"):
        response = httpx2.get(running.url + path, timeout=30)
        assert response.status_code == 200
        assert "default-src 'self'" in response.headers["content-security-policy"]
        assert not re.findall(r"(?:https?:)?//[a-z][\w.-]+\.\w+", re.sub(r"http://www\.w3\.org\S+", "", response.text))


class TestMeter:
    """The listener's buffer, with times set by hand."""

    def meter(self) -> Meter:
        return Meter(Metrics(lambda: FakeEngine().stats(), _NoLedger()), "wav", 1.0, 10.0)  # type: ignore[arg-type]

    def test_chunks_in_time(self) -> None:
        meter = self.meter()
        for now in (10.5, 10.6, 10.7):
            meter.chunk(now, 0.16)
        assert (meter.first_audio, meter.underruns) == (0.5, 0)
        assert meter.rtf == pytest.approx(0.7 / 0.48)

    def test_a_late_chunk_is_one_underrun(self) -> None:
        meter = self.meter()
        for now in (10.0, 10.2, 10.3, 10.45):
            meter.chunk(now, 0.16)
        assert meter.underruns == 1

    def test_a_listener_who_holds_us_up_makes_none(self) -> None:
        meter = self.meter()
        meter.chunk(10.0, 0.16)
        meter.hold(5.0)
        meter.chunk(15.1, 0.16)
        assert meter.underruns == 0


class _NoLedger:
    def read(self) -> list[Any]:
        return []
