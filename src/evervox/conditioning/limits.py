"""How much of each thing one request may bring."""

from __future__ import annotations

from dataclasses import dataclass

from evervox.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Limits:
    """`text` in characters (of each text), `clip_seconds` of audio per clip, `clip_bytes` of its file."""

    text: int = 4096
    clip_seconds: float = 60.0
    clip_bytes: int = 100 * 1024 * 1024

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be above 0, not {getattr(self, name)!r}")
