"""What the server asks of an engine. `engine.client.Engine` fulfils it; so does the small one that the tests use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evervox.engine.voice import Voice
    from evervox.ledger import Line
    from evervox.request import AudioChunk, SpeechRequest


class Info(Protocol):
    """What a caller may know of the loaded model."""

    @property
    def name(self) -> str: ...
    @property
    def sample_rate(self) -> int: ...
    @property
    def patch_seconds(self) -> float: ...
    @property
    def has_reference(self) -> bool: ...
    @property
    def timesteps(self) -> int: ...


class Ready(Protocol):
    """Whether a request sent now would be worked on, and if not, why."""

    @property
    def is_ready(self) -> bool: ...
    @property
    def reason(self) -> str | None: ...


class Stats(Protocol):
    """A frozen dataclass: the ledger of both processes, and numbers under their own names."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def ledger(self) -> Sequence[Line]: ...


class SpeechStream(Protocol):
    """One utterance being made. Errors of `evervox.errors` come from `anext`; `aclose` ends the work at once."""

    @property
    def seed(self) -> int: ...
    async def __anext__(self) -> AudioChunk: ...
    async def aclose(self) -> None: ...


class SpeechEngine(Protocol):
    """An engine that is open."""

    @property
    def info(self) -> Info: ...
    def speak(self, request: SpeechRequest) -> SpeechStream: ...
    async def encode(self, voice: Voice) -> Voice: ...
    def stats(self) -> Stats: ...
    def ready(self) -> Ready: ...
