"""Faster or slower speech at the same pitch: FFmpeg's `atempo`, chained so that each link stays where it blends well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import av
import numpy as np
from av.audio.frame import AudioFrame
from av.filter import Graph

if TYPE_CHECKING:
    from numpy.typing import NDArray

MIN_SPEED = 0.25
MAX_SPEED = 4.0


def links(speed: float) -> list[float]:
    """Factors in [0.5, 2] whose product is `speed`: beyond 2, `atempo` drops samples instead of blending them."""
    if speed > 2.0:
        return [2.0, speed / 2.0]
    return [0.5, speed / 0.5] if speed < 0.5 else [speed]


def frame_of(samples: NDArray[np.floating[Any]], sample_rate: int, pts: int | None = None) -> AudioFrame:
    """Mono float samples as one frame of FFmpeg's."""
    frame = AudioFrame.from_ndarray(np.ascontiguousarray(samples, dtype=np.float32).reshape(1, -1), format="flt", layout="mono")
    frame.sample_rate = sample_rate
    frame.pts = pts
    return frame


class Tempo:
    """Push samples, get samples `speed` times as fast; what comes out of all pushes and `finish` lasts `1 / speed` as long.

    Exactly: the filter holds back its last windows, so `finish` pushes silence behind the sound and cuts at the rounded length.
    """

    def __init__(self, sample_rate: int, speed: float) -> None:
        if not MIN_SPEED <= speed <= MAX_SPEED:
            raise ValueError(f"speed: {speed} is outside [{MIN_SPEED}, {MAX_SPEED}]")
        self._sample_rate, self._speed = sample_rate, speed
        self._taken = self._given = 0
        self._graph: Graph | None = _graph(sample_rate, speed)

    def push(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Float32 `[n]` in, float32 `[m]` out, `m` as many as are ready."""
        if not len(samples) or self._graph is None:
            return np.zeros(0, np.float32)
        self._graph.push(frame_of(samples, self._sample_rate, self._taken))
        self._taken += len(samples)
        return self._drain()

    def finish(self) -> NDArray[np.float32]:
        """The rest; frees the filter."""
        if self._graph is None or not self._taken:
            self.close()
            return np.zeros(0, np.float32)
        silence = np.zeros(self._sample_rate // 4, np.float32)
        self._graph.push(frame_of(silence, self._sample_rate, self._taken))
        self._graph.push(None)
        rest = self._drain()
        self.close()
        return np.pad(rest, (0, max(0, round(self._taken / self._speed) - self._given)))

    def close(self) -> None:
        """Free the filter; any number of times."""
        self._graph = None

    def _drain(self) -> NDArray[np.float32]:
        """What the filter has ready, never past the length that the input so far is worth."""
        assert self._graph is not None
        parts = [np.zeros(0, np.float32)]
        while True:
            try:
                parts.append(np.asarray(self._graph.pull().to_ndarray(), dtype=np.float32).reshape(-1))
            except (av.BlockingIOError, av.EOFError):
                break
        ready = np.concatenate(parts)[: round(self._taken / self._speed) - self._given]
        self._given += len(ready)
        return ready


def _graph(sample_rate: int, speed: float) -> Graph:
    graph = Graph()
    last = graph.add_abuffer(sample_rate=sample_rate, format="flt", layout="mono")
    for factor in links(speed):
        link = graph.add("atempo", f"{factor:.9f}")
        last.link_to(link)
        last = link
    last.link_to(graph.add("abuffersink"))
    graph.configure()
    return graph
