"""What Prometheus reads. One registry per app; labels are route templates, formats and reasons, never what a client chose."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from evervox.ledger import Ledger, Line
    from evervox.server.contract import Stats

FIRST_AUDIO = (0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1, 2, 5, 10, 30)
GAPS = (0.01, 0.02, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.5, 1, 2, 5, 10)
RTF = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.25, 1.5, 2, 4)
LAG = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1)
LAG_PERIOD = 0.02

TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The server's own series, and those read from the engine when Prometheus asks."""

    def __init__(self, stats: Callable[[], Stats], ledger: Ledger) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter("evervox_requests", "HTTP requests", ["method", "route", "status"], registry=registry)
        self.seconds = Histogram("evervox_request_seconds", "Whole requests", ["route"], registry=registry)
        self.first_audio = Histogram(
            "evervox_first_audio_seconds", "From request to first audio", ["format"], buckets=FIRST_AUDIO, registry=registry
        )
        self.gaps = Histogram("evervox_chunk_gap_seconds", "Between two chunks of a stream", buckets=GAPS, registry=registry)
        self.rtf = Histogram("evervox_rtf", "Seconds spent per second of audio, by stream", buckets=RTF, registry=registry)
        self.audio = Counter("evervox_audio_seconds", "Audio made", registry=registry)
        self.sent = Counter("evervox_sent_bytes", "Encoded audio sent", ["format"], registry=registry)
        self.underruns = Counter("evervox_underruns", "Times that a listener's buffer ran dry", registry=registry)
        self.streams = Counter("evervox_streams", "Speech streams by how they ended", ["outcome"], registry=registry)
        self.prompt_slots = Counter("evervox_prompt_slots", "Slots of prompts", registry=registry)
        self.cached_slots = Counter("evervox_cached_slots", "Slots of prompts that the cache held", registry=registry)
        self.ready = Gauge("evervox_ready", "1 when the engine takes requests", registry=registry)
        self.lag = Histogram("evervox_loop_lag_seconds", "How late the event loop wakes", buckets=LAG, registry=registry)
        registry.register(EngineCollector(stats, ledger))
        ProcessCollector(registry=registry)

    def render(self) -> bytes:
        return bytes(generate_latest(self.registry))

    async def watch_loop(self) -> None:
        """Measure the loop's lag until cancelled."""
        while True:
            due = time.perf_counter() + LAG_PERIOD
            await asyncio.sleep(LAG_PERIOD)
            self.lag.observe(max(0.0, time.perf_counter() - due))


GAUGES = ("open_requests", "model_share", "running", "waiting")


def counters(stats: Stats) -> dict[str, Any]:
    """Everything among the statistics but the ledger."""
    names = (field.name for field in dataclasses.fields(stats))
    return {name: getattr(stats, name) for name in names if name != "ledger"}


class EngineCollector(Collector):
    """Both ledgers as two gauges by name, and every number among the engine's statistics under its own name."""

    def __init__(self, stats: Callable[[], Stats], ledger: Ledger) -> None:
        self._stats, self._ledger = stats, ledger

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        yield from _ledger([*self._ledger.read(), *stats.ledger])
        for name, value in counters(stats).items():
            if isinstance(value, (int, float)):
                kind = GaugeMetricFamily if name in GAUGES else CounterMetricFamily
                yield kind(f"evervox_engine_{name}", f"The engine's {name.replace('_', ' ')}", value=float(value))


def _ledger(lines: Iterable[Line]) -> Iterator[Metric]:
    size = GaugeMetricFamily("evervox_ledger_size", "What outlives a request", labels=["name", "owner", "unit"])
    limit = GaugeMetricFamily("evervox_ledger_limit", "How much of it there may be", labels=["name", "owner", "unit"])
    for line in lines:
        labels = [line.name, line.owner, line.unit]
        size.add_metric(labels, line.size)
        if line.limit is not None:
            limit.add_metric(labels, line.limit)
    return iter((size, limit))


class Meter:
    """One stream's times, as its listener would have them; time in which the listener held us up does not count.

    The listener plays from the first chunk on. Whenever a chunk comes after all earlier ones have been played, that is an
    underrun, and playing goes on from there.
    """

    def __init__(self, metrics: Metrics, fmt: str, speed: float, started: float) -> None:
        self._metrics, self._fmt, self._speed = metrics, fmt, speed
        self._started = started
        self._held = 0.0
        self._last: float | None = None
        self._dry_at = 0.0
        self.first_audio: float | None = None
        self.audio_seconds = 0.0
        self.underruns = 0

    def hold(self, seconds: float) -> None:
        """The listener or the encoder took this long; the engine is not to blame."""
        self._held += seconds

    def chunk(self, now: float, seconds: float) -> None:
        """A chunk of `seconds` of audio has come."""
        now -= self._held
        if self._last is None:
            self.first_audio, self._dry_at = now - self._started, now
            self._metrics.first_audio.labels(self._fmt).observe(self.first_audio)
        else:
            self._metrics.gaps.observe(now - self._last)
            if now > self._dry_at:
                self.underruns += 1
                self._metrics.underruns.inc()
                self._dry_at = now
        self._last = now
        self._dry_at += seconds / self._speed
        self.audio_seconds += seconds
        self._metrics.audio.inc(seconds)

    @property
    def rtf(self) -> float | None:
        """Seconds from the request to the last chunk, per second of audio."""
        return (self._last - self._started) / self.audio_seconds if self._last is not None and self.audio_seconds else None
