from __future__ import annotations
import httpx2
from tests.server.conftest import Running


def test_a(running: Running) -> None:
    r = httpx2.post(running.url + "/v1/audio/speech", json={"input": "hello you there", "response_format": "wav"})
    print(r.status_code, r.headers, len(r.content))
    r = httpx2.post(
        running.url + "/v1/audio/speech", json={"input": "hello you there", "stream_format": "sse", "response_format": "pcm"}
    )
    print(r.text[-400:])
    print(httpx2.get(running.url + "/metrics").text[-3000:])
    print(httpx2.get(running.url + "/v1/stats").text)
    print(httpx2.post(running.url + "/v1/audio/speech", json={"input": "", "foo": 1, "speed": 9}).text)
    print(httpx2.get(running.url + "/openapi.json").status_code)
    print(running.lines)
    assert 0
