"""Stored voices over HTTP: list, add by upload, delete. `/v1/audio/voices` is the same for the OpenAI SDK."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request
from pydantic import StringConstraints
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException

from evervox.engine.voice import Voice
from evervox.errors import BadRequest, DeadlineExceeded, TooLarge, Unsupported
from evervox.server.context import State, state_of, tenant_of
from evervox.server.orders import renamed
from evervox.server.problems import WrongMedia
from evervox.server.schemas import MAX_INPUT, NAME_PATTERN, VoiceCard, VoiceDeleted, VoiceList
from evervox.server.voices import DEFAULT_VOICE, VoiceEntry

CLIP_FIELDS = ("clip", "audio_sample")
TEXT_FIELDS = ("name", "transcript", "consent")
MAX_PARTS = len(CLIP_FIELDS) + len(TEXT_FIELDS)
_CLIP = {"type": "string", "format": "binary"}
UPLOAD = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name", "clip"],
    "properties": {
        "name": {"type": "string", "pattern": NAME_PATTERN, "description": "How requests will call it.", "example": "ada"},
        "clip": {
            **_CLIP,
            "description": "An audio file of the voice, 3 to 30 seconds. OpenAI's name, `audio_sample`, works too.",
        },
        "transcript": {
            "type": "string",
            "maxLength": MAX_INPUT,
            "description": "What is said in it; some models need it.",
        },
        "consent": {"type": "string", "maxLength": 256, "description": "OpenAI's field: taken, not needed, not kept."},
    },
}
BODY = {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": UPLOAD}}}}

router = APIRouter(tags=["voices"])
StateOf = Annotated[State, Depends(state_of)]
Tenant = Annotated[str, Depends(tenant_of)]
VoiceName = Annotated[str, StringConstraints(pattern=NAME_PATTERN), Path(description="The voice's name.", examples=["ada"])]


@router.get("/v1/voices", summary="List voices")
@router.get("/v1/audio/voices", include_in_schema=False)
async def list_voices(state: StateOf, tenant: Tenant) -> VoiceList:
    """The model's own voice, the shared ones, and those stored with your key."""
    stored = await state.helpers.run(state.voices.list, tenant)
    own = VoiceCard(id=DEFAULT_VOICE, name=DEFAULT_VOICE, type="builtin", created_at=0, digest="", bytes=0, shared=True)
    return VoiceList(data=[own, *map(_card, stored)])


@router.post("/v1/voices", summary="Store a voice", status_code=201, openapi_extra=BODY)
@router.post("/v1/audio/voices", include_in_schema=False)
async def add_voice(request: Request, state: StateOf, tenant: Tenant) -> VoiceCard:
    """Upload a clip under a name, with what is said in it where the model needs that. Its latents are kept, not the clip."""
    name, voice = await _read_upload(request, state)
    with state.gate.enter():
        encoded = await _encode(state, voice)
    return _card(await state.helpers.run(state.voices.add, tenant, name, encoded))


@router.delete("/v1/voices/{name}", summary="Delete a voice")
@router.delete("/v1/audio/voices/{name}", include_in_schema=False)
async def delete_voice(name: VoiceName, state: StateOf, tenant: Tenant) -> VoiceDeleted:
    """Running requests that use it go on."""
    await state.helpers.run(state.voices.delete, tenant, name)
    return VoiceDeleted(id=name)


async def _read_upload(request: Request, state: State) -> tuple[str, Voice]:
    """Its name and the voice, all fields checked."""
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise WrongMedia("content-type: must be multipart/form-data")
    try:
        async with request.form(max_files=1, max_fields=MAX_PARTS) as form:
            for field, value in form.multi_items():
                _check_part(field, value)
            clip = await _clip(form, state.settings.max_clip_bytes)
            name, transcript = str(form.get("name", "")), str(form.get("transcript", "")).strip() or None
    except HTTPException as error:
        raise BadRequest(f"body: {error.detail}", field="body") from None
    if not re.fullmatch(NAME_PATTERN, name):
        raise BadRequest(f"name: must match {NAME_PATTERN}", field="name")
    if transcript is not None and len(transcript) > MAX_INPUT:
        raise TooLarge(f"transcript: has {len(transcript)} characters, the limit is {MAX_INPUT}", field="transcript")
    return name, Voice.from_clip(clip, transcript)


async def _encode(state: State, voice: Voice) -> Voice:
    """The voice as latents. Raises what is wrong with its clip."""
    info, seconds = state.engine.info, state.settings.request_timeout
    if voice.transcript is None and not info.has_reference:
        raise Unsupported(f"transcript: {info.name} speaks in a clip's voice only with its transcript", field="transcript")
    try:
        return await asyncio.wait_for(state.engine.encode(voice), seconds)
    except asyncio.TimeoutError:
        raise DeadlineExceeded(f"timeout: the clip was not encoded after {seconds:g} seconds") from None
    except BadRequest as error:
        raise renamed(error, "transcript" if error.field == "prompt_text" else "clip") from None


def _check_part(field: str, value: object) -> None:
    if field not in (*CLIP_FIELDS, *TEXT_FIELDS):
        raise BadRequest(f"{field[:80]!r}: there is no such field", field=field[:80])
    if isinstance(value, UploadFile) != (field in CLIP_FIELDS):
        raise BadRequest("must be a file" if field in CLIP_FIELDS else "must be text, not a file", field=field)


async def _clip(form: FormData, max_bytes: int) -> bytes:
    upload = next((form[field] for field in CLIP_FIELDS if field in form), None)
    if not isinstance(upload, UploadFile):
        raise BadRequest("an audio file is needed", field="clip")
    data = await upload.read(max_bytes + 1)
    if not data:
        raise BadRequest("the file is empty", field="clip")
    if len(data) > max_bytes:
        raise TooLarge(f"clip: the file has more than {max_bytes} bytes", field="clip")
    return data


def _card(entry: VoiceEntry) -> VoiceCard:
    return VoiceCard(
        id=entry.name,
        name=entry.name,
        created_at=entry.created,
        digest=entry.digest,
        transcript=entry.transcript,
        bytes=entry.num_bytes,
        shared=entry.tenant == "",
    )
