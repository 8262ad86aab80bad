"""From the bytes of a body to what the engine is asked for. Nothing here knows a rule about prompts: the engine has them."""

from __future__ import annotations

import base64
import binascii
import re
import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pydantic import ValidationError

from evervox.errors import BadRequest, EvervoxError, NotFound, TooLarge
from evervox.request import SpeechRequest
from evervox.server.normalize import normalize
from evervox.server.problems import WrongMedia, validation_error
from evervox.server.schemas import SpeechBody
from evervox.server.voices import DEFAULT_VOICE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request

    from evervox.audio.encoders import AudioFormat
    from evervox.server.contract import Info
    from evervox.server.encoding import Threads
    from evervox.server.voices import VoiceStore

SMALL_BODY = 32 * 1024
DRAWN_SEEDS = 2**32  # short enough for a JSON number in a browser
WIRE_FIELDS = {
    "text": "input",
    "reference": "reference_audio",
    "prompt": "prompt_audio",
    "timesteps": "inference_timesteps",
    "cfg": "cfg_value",
}
"""The engine's names of fields, and those of the HTTP interface where they differ."""


@dataclass(frozen=True, slots=True)
class Order:
    """A checked body: the engine's request, and how its audio is to be delivered."""

    request: SpeechRequest
    fmt: AudioFormat
    speed: float
    is_sse: bool


@dataclass(frozen=True, slots=True)
class OrderDesk:
    """Reads bodies. What takes time (a large body, a stored voice, the normaliser) runs on the encoders' threads."""

    info: Info
    aliases: Sequence[str]
    voices: VoiceStore
    threads: Threads
    max_clip_bytes: int
    timeout: float

    async def take(self, request: Request, tenant: str) -> Order:
        """Raises an `EvervoxError` that names the field as the client spelled it."""
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise WrongMedia("content-type: must be application/json")
        raw = await request.body()
        if len(raw) <= SMALL_BODY and not self._is_slow(raw):
            return self._order(raw, tenant)
        return await self.threads.run(self._order, raw, tenant)

    def _is_slow(self, raw: bytes) -> bool:
        """Whether it may name a stored voice or the normaliser; a wrong yes costs a thread hop only."""
        return b'"normalize"' in raw or b'"voice"' in raw

    def _order(self, raw: bytes, tenant: str) -> Order:
        try:
            body = SpeechBody.model_validate_json(raw)
        except ValidationError as error:
            raise validation_error(error.errors()) from None
        self._check_model(body.model)
        request = self._with_voice(self._request(body, tenant), body, tenant)
        return Order(request, body.response_format, body.speed, body.stream_format == "sse")

    def _check_model(self, model: str | None) -> None:
        served = (self.info.name, *self.aliases)
        if model is not None and model not in served:
            raise NotFound(f"model: {model[:80]!r} is not served here; there is {', '.join(served)}", field="model")

    def _request(self, body: SpeechBody, tenant: str) -> SpeechRequest:
        if tenant and body.tenant not in (None, tenant):
            raise BadRequest("tenant: your key names the tenant; leave it out", field="tenant")
        return SpeechRequest(
            text=normalize(body.input) if body.normalize else body.input,
            reference=self._clip(body.reference_audio, "reference_audio"),
            prompt=self._clip(body.prompt_audio, "prompt_audio"),
            prompt_text=body.prompt_text,
            instructions=body.instructions,
            seed=secrets.randbelow(DRAWN_SEEDS) if body.seed is None else body.seed,
            timesteps=body.inference_timesteps,
            cfg=body.cfg_value,
            max_seconds=body.max_seconds,
            adapter=body.adapter,
            tenant=tenant or body.tenant or "",
            priority=body.priority,
            timeout=self.timeout,
        )

    def _with_voice(self, request: SpeechRequest, body: SpeechBody, tenant: str) -> SpeechRequest:
        name = body.voice if isinstance(body.voice, str) else body.voice.id
        if name == DEFAULT_VOICE:
            return request
        if request.reference is not None or request.prompt is not None:
            raise BadRequest("voice: a stored voice and a clip in the body exclude each other", field="voice")
        voice = self.voices.load(tenant, name)
        return replace(request, **voice.fields(has_reference=self.info.has_reference))

    def _clip(self, text: str | None, field: str) -> bytes | None:
        if text is None:
            return None
        data = text.partition(",")[2] if text.startswith("data:") else text
        try:
            clip = base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            raise BadRequest("is not base64", field=field) from None
        if len(clip) > self.max_clip_bytes:
            raise TooLarge(f"{field}: the clip has {len(clip)} bytes, the limit is {self.max_clip_bytes}", field=field)
        return clip


def on_the_wire(error: EvervoxError) -> EvervoxError:
    """The same error, its field named as HTTP clients know it."""
    if isinstance(error, BadRequest) and error.field in WIRE_FIELDS:
        return renamed(error, WIRE_FIELDS[error.field])
    return error


def renamed(error: BadRequest, field: str) -> BadRequest:
    """The same error about a field of another name, in its message too."""
    message = str(error) if error.field is None else re.sub(rf"\b{re.escape(error.field)}\b", field, str(error), count=1)
    return type(error)(message, field=field)
