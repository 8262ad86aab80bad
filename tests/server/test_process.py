from __future__ import annotations

import asyncio
import json
import random
import signal
import socket
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.engine.conftest import checkpoint  # noqa: F401  a fixture
from tests.server.process import COMMAND, Serving, serving
from tests.server.sound import decode

from evervox.audio.encoders import FORMATS

if TYPE_CHECKING:
    from pathlib import Path

TEXT = "one two three four five six seven eight nine ten"
IDLE = {"open speech requests", "encoder calls", "helper calls", "jobs", "open requests", "live sequences", "resume bytes"}


async def speak(client: httpx2.AsyncClient, seed: int, fmt: str = "pcm", **body: Any) -> bytes:
    """The whole file; raises where it is not whole."""
    response = await client.post("/v1/audio/speech", json={"input": TEXT, "seed": seed, "response_format": fmt, **body})
    assert response.status_code == 200, response.text
    return response.content


async def leave(client: httpx2.AsyncClient, seed: int, fmt: str, bytes_first: int) -> None:
    """Read a little and go away."""
    body = {"input": TEXT, "seed": seed, "response_format": fmt}
    async with client.stream("POST", "/v1/audio/speech", json=body) as response:
        seen = 0
        async for part in response.aiter_raw():
            seen += len(part)
            if seen >= bytes_first:
                return


def client_of(served: Serving) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=served.url, timeout=60, limits=httpx2.Limits(max_connections=200))


def settled(served: Serving) -> dict[str, int]:
    """What is held once nothing is open any more, or after three seconds."""
    for _ in range(60):
        held = served.held
        if not any(held[name] for name in IDLE):
            break
        time.sleep(0.05)
    return held


def lag_percentile(served: Serving, share: float) -> float:
    """The upper edge of the bucket in which that share of the event loop's lags lies."""
    text = httpx2.get(f"{served.url}/metrics").text
    lag = next(family for family in text_string_to_metric_families(text) if family.name == "evervox_loop_lag_seconds")
    buckets = [(float(s.labels["le"]), s.value) for s in lag.samples if s.name.endswith("_bucket")]
    return next(edge for edge, count in buckets if count >= share * buckets[-1][1])


def test_a_dead_worker_is_not_heard(checkpoint: Path, tmp_path: Path) -> None:  # noqa: F811
    with serving(tmp_path, model=checkpoint, fake={"step": 0.03, "load": 0.5}) as served:

        async def main() -> tuple[list[bytes], list[bytes], list[bool]]:
            async with client_of(served) as client:
                twins = await asyncio.gather(*(speak(client, seed) for seed in range(16)))
                streams = [asyncio.create_task(speak(client, seed)) for seed in range(16)]
                await asyncio.sleep(0.25)
                assert not any(stream.done() for stream in streams)
                served.kill_worker()
                seen = []
                while not all(stream.done() for stream in streams):
                    seen.append((await client.get("/ready")).status_code == 200)
                    assert (await client.get("/health")).status_code == 200
                    await asyncio.sleep(0.02)
                return twins, [stream.result() for stream in streams], seen

        twins, heard, seen = asyncio.run(main())
        assert heard == twins
        assert False in seen
        assert served.is_ready()
        assert served.stats["engine"]["restarts"] == 1


def test_sigterm_lets_streams_finish_and_leaves_with_0(checkpoint: Path, tmp_path: Path) -> None:  # noqa: F811
    with serving(tmp_path, model=checkpoint, fake={"step": 0.05}) as served:

        async def main() -> list[bytes]:
            async with client_of(served) as client:
                streams = [asyncio.create_task(speak(client, 1, fmt)) for fmt in (*FORMATS, "pcm")]
                await asyncio.sleep(0.3)
                served.process.send_signal(signal.SIGTERM)
                return list(await asyncio.gather(*streams))

        *files, again = asyncio.run(main())
        assert served.process.wait(10) == 0
        assert files[-1] == again
        seconds = len(again) / 2 / _rate(served)
        for fmt, data in zip(FORMATS, files, strict=True):
            assert abs(decode(data, fmt, _rate(served))[1] - seconds) < 0.05
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(f"{served.url}/health")


def _rate(served: Serving) -> int:
    """Of the tiny checkpoint, by its banner."""
    return int(float(served.log.read_text().split(" kHz")[0].split()[-1]) * 1000)


def test_64_clients_of_whom_some_leave(checkpoint: Path, tmp_path: Path) -> None:  # noqa: F811
    with serving(tmp_path, "--max-waiting", "128", model=checkpoint, fake={"step": 0.01}) as served:
        draw = random.Random(1)

        async def crowd(number: int) -> None:
            async with client_of(served) as client:
                twins = dict(enumerate(await asyncio.gather(*(speak(client, seed) for seed in range(8)))))
                work, wanted = [], []
                for turn in range(number):
                    fmt, seed = FORMATS[turn % len(FORMATS)], turn % 8
                    if draw.random() < 0.1:
                        work.append(asyncio.create_task(leave(client, seed, fmt, draw.randrange(1, 4000))))
                        wanted.append(None)
                    else:
                        work.append(asyncio.create_task(speak(client, seed, fmt)))
                        wanted.append((fmt, twins[seed]))
                for got, want in zip(await asyncio.gather(*work), wanted, strict=True):
                    _check(got, want, rate)

        rate = int(httpx2.get(f"{served.url}/v1/models").json()["data"][0]["sample_rate"])
        asyncio.run(crowd(24))  # libraries and threads are warm after it
        before, rss = settled(served), served.rss
        asyncio.run(crowd(64))
        after = settled(served)
        assert {name: after[name] for name in IDLE} == {name: before[name] for name in IDLE} == dict.fromkeys(IDLE, 0)
        for _ in range(60):  # what was freed is given back within five seconds
            if served.rss - rss < 24 << 20:
                break
            time.sleep(0.2)
        assert served.rss - rss < 24 << 20
        assert lag_percentile(served, 0.5) < 0.02


def _check(got: bytes | None, want: tuple[str, bytes] | None, rate: int) -> None:
    if want is None or got is None:
        return
    fmt, twin = want
    if fmt == "pcm":
        assert got == twin
    elif fmt == "wav":
        assert got[44:] == twin
    else:
        assert abs(decode(got, fmt, rate)[1] - len(twin) / 2 / rate) < 0.05


def test_health_answers_while_the_model_is_loaded(checkpoint: Path, tmp_path: Path) -> None:  # noqa: F811
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    seen: list[tuple[int, int, int]] = []

    def knock() -> None:
        end = time.monotonic() + 30
        url = f"http://127.0.0.1:{port}"
        while time.monotonic() < end and not seen:
            try:
                health = httpx2.get(f"{url}/health").status_code
            except httpx2.TransportError:
                time.sleep(0.05)
                continue
            spoken = httpx2.post(f"{url}/v1/audio/speech", json={"input": "hi"}).status_code
            seen.append((health, httpx2.get(f"{url}/ready").status_code, spoken))

    knocker = threading.Thread(target=knock)
    knocker.start()
    with serving(tmp_path, "--port", str(port), model=checkpoint, fake={"load": 1.5}) as served:
        knocker.join()
        assert seen == [(200, 503, 503)]
        assert served.is_ready()


def test_the_log_is_json_where_asked(checkpoint: Path, tmp_path: Path) -> None:  # noqa: F811
    with serving(tmp_path, "--log-format", "json", "--alias", "tts-1", model=checkpoint, fake={}) as served:
        reply = httpx2.post(f"{served.url}/v1/audio/speech", json={"input": "hi", "model": "tts-1"})
        assert reply.status_code == 200
    line = next(line for line in served.log.read_text().splitlines() if line.startswith("{"))
    assert json.loads(line)["id"] == reply.headers["x-request-id"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--model", "/nowhere"], "/nowhere"),
        (["--request-timeout", "-1"], "request_timeout"),
        (["--keys-file", "/nowhere"], "keys_file"),
        (["--max-running", "0"], "max_running"),
        (["--host", "203.0.113.1"], "host, port: 203.0.113.1"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(options: list[str], said: str) -> None:
    done = subprocess.run([*COMMAND, *options], capture_output=True, check=False, timeout=60, text=True)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
