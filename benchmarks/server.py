"""What clients of a running server get: time to first byte, gaps, real-time factor, whether every file is whole, and the server's
event loop lag and memory meanwhile.

    evervox serve --port 8000 &
    python benchmarks/server.py http://127.0.0.1:8000 --clients 1 --rounds 20
    python benchmarks/server.py http://127.0.0.1:8000 --clients 64 --leave 0.1

Talks to this machine alone. Each client asks `--rounds` times, the formats in turn; `--leave` is the share that goes away early.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import re
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httpx2

FORMATS = ("mp3", "opus", "aac", "flac", "wav", "pcm")
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass
class Seen:
    """What the clients measured, seconds."""

    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    whole: int = 0
    left: int = 0
    refused: dict[int, int] = field(default_factory=dict)
    cut: int = 0


async def ask(client: httpx2.AsyncClient, body: dict[str, object], seen: Seen, leaves_after: int | None) -> None:
    """One request, read to its end or until the client leaves."""
    began = last = time.perf_counter()
    num_bytes = 0
    try:
        async with client.stream("POST", "/v1/audio/speech", json=body) as response:
            if response.status_code != 200:
                seen.refused[response.status_code] = seen.refused.get(response.status_code, 0) + 1
                return
            async for part in response.aiter_raw():
                now = time.perf_counter()
                (seen.gaps if num_bytes else seen.first).append(now - (last if num_bytes else began))
                last, num_bytes = now, num_bytes + len(part)
                if leaves_after is not None and num_bytes > leaves_after:
                    seen.left += 1
                    return
        seen.whole += 1
    except httpx2.RemoteProtocolError:
        seen.cut += 1


async def crowd(arguments: argparse.Namespace) -> tuple[Seen, float]:
    seen, draw, formats = Seen(), random.Random(arguments.seed), itertools.cycle(arguments.formats)
    limits = httpx2.Limits(max_connections=arguments.clients)

    async def one(client: httpx2.AsyncClient, number: int) -> None:
        for turn in range(arguments.rounds):
            body = {"input": arguments.text, "seed": number * 1000 + turn, "response_format": next(formats)}
            await ask(client, body, seen, draw.randrange(3000) if draw.random() < arguments.leave else None)

    async with httpx2.AsyncClient(base_url=arguments.url, timeout=300, limits=limits) as client:
        began = time.perf_counter()
        await asyncio.gather(*(one(client, number) for number in range(arguments.clients)))
        return seen, time.perf_counter() - began


def metrics(url: str) -> dict[str, float]:
    return {name: float(value) for name, value in re.findall(r"^(\S+) (\S+)$", httpx2.get(f"{url}/metrics").text, re.MULTILINE)}


def lag(before: dict[str, float], after: dict[str, float], share: float) -> float:
    """Upper edge of the bucket in which that share of the event loop's lags lies, seconds."""
    edges = [name for name in after if name.startswith("evervox_loop_lag_seconds_bucket")]
    counts = [(float(re.findall(r'le="([^"]+)"', name)[0]), after[name] - before.get(name, 0.0)) for name in edges]
    return next(edge for edge, count in counts if count >= share * counts[-1][1])


def share_of(values: list[float], share: float) -> float | None:
    return round(sorted(values)[min(len(values) - 1, int(share * len(values)))], 4) if values else None


def held(url: str) -> dict[str, int]:
    """Entries of the ledger that must be empty when nobody asks for anything."""
    lines = httpx2.get(f"{url}/v1/stats").json()["ledger"]
    names = ("open speech requests", "encoder calls", "helper calls", "jobs", "open requests", "live sequences")
    return {line["name"]: line["size"] for line in lines if line["name"] in names and line["size"]}


def report(arguments: argparse.Namespace) -> dict[str, object]:
    before = metrics(arguments.url)
    seen, seconds = asyncio.run(crowd(arguments))
    time.sleep(6)
    after = metrics(arguments.url)
    audio = after["evervox_audio_seconds_total"] - before["evervox_audio_seconds_total"]
    return {
        "clients": arguments.clients,
        "whole": seen.whole,
        "left": seen.left,
        "cut": seen.cut,
        "refused": seen.refused,
        "first byte, s": {f"p{share}": share_of(seen.first, share / 100) for share in (50, 95, 99)},
        "gap, s": {f"p{share}": share_of(seen.gaps, share / 100) for share in (50, 95, 99)},
        "audio per second": round(audio / seconds, 2),
        "loop lag at most, s": {f"p{share}": lag(before, after, share / 100) for share in (50, 99)},
        "memory of the HTTP process, MiB": [round(m["process_resident_memory_bytes"] / 2**20, 1) for m in (before, after)],
        "held afterwards": held(arguments.url),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--leave", type=float, default=0.0)
    parser.add_argument("--text", default="Hello there, how are you today?")
    parser.add_argument("--formats", nargs="+", default=FORMATS, choices=FORMATS)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if urlsplit(arguments.url).hostname not in LOOPBACK or arguments.clients * arguments.rounds > 10_000:
        parser.error("only a server on this machine, and at most 10,000 requests")
    print(json.dumps(report(arguments), indent=2))


if __name__ == "__main__":
    main()
