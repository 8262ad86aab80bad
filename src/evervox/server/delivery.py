"""How audio travels: as the bytes of a file, or as server-sent events that carry it in base64."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, Protocol

from evervox.audio.encoders import MEDIA_TYPES

if TYPE_CHECKING:
    from evervox.audio.encoders import AudioFormat
    from evervox.request import Finish
    from evervox.server.schemas import ProblemBody


class Delivery(Protocol):
    """Turns what there is to say into bytes of the body."""

    media_type: str

    def audio(self, data: bytes) -> bytes: ...
    def done(self, finish: Finish, audio_seconds: float) -> bytes: ...
    def failed(self, problem: ProblemBody) -> bytes: ...


class FileDelivery:
    """The file itself: no place for anything beside it, so a failure shows only in that the connection is cut."""

    def __init__(self, fmt: AudioFormat, sample_rate: int) -> None:
        self.media_type = MEDIA_TYPES[fmt]
        if fmt == "pcm":
            self.media_type += f";rate={sample_rate};channels=1;encoding=s16le"

    def audio(self, data: bytes) -> bytes:
        return data

    def done(self, finish: Finish, audio_seconds: float) -> bytes:
        return b""

    def failed(self, problem: ProblemBody) -> bytes:
        return b""


class EventDelivery:
    """OpenAI's events, `speech.audio.delta` and `speech.audio.done`; the last says how it ended; `error` comes before a cut."""

    media_type = "text/event-stream"

    def audio(self, data: bytes) -> bytes:
        return _event("speech.audio.delta", audio=base64.b64encode(data).decode()) if data else b""

    def done(self, finish: Finish, audio_seconds: float) -> bytes:
        usage = {
            "input_tokens": finish.prompt_slots,
            "output_tokens": finish.num_patches,
            "total_tokens": finish.prompt_slots + finish.num_patches,
            "input_token_details": {"cached_tokens": finish.cached_slots},
        }
        seconds = round(audio_seconds, 4)
        return _event("speech.audio.done", usage=usage, finish_reason=finish.reason, seed=finish.seed, audio_seconds=seconds)

    def failed(self, problem: ProblemBody) -> bytes:
        return _event("error", error=problem.error.model_dump())


def _event(kind: str, **content: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **content})}\n\n".encode()
