"""The other routes: speech, models, statistics, probes, metrics and the page."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import FileResponse, JSONResponse

from evervox.audio.encoders import MEDIA_TYPES
from evervox.errors import NotFound
from evervox.server.context import State, state_of, tenant_of
from evervox.server.metrics import TEXT_FORMAT, counters
from evervox.server.schemas import Alive, LedgerLine, ModelCard, ModelList, ProblemBody, Readiness, Stats
from evervox.server.speech import SpeechResponse

STATIC = Path(__file__).parent / "static"
PAGE_FILES = {"playground.js": "text/javascript", "playground.css": "text/css"}

router = APIRouter()
StateOf = Annotated[State, Depends(state_of)]
Tenant = Annotated[str, Depends(tenant_of)]

_BINARY = {"schema": {"type": "string", "format": "binary"}}
EVENT = {
    "type": "object",
    "required": ["event", "data"],
    "properties": {
        "event": {"enum": ["speech.audio.delta", "speech.audio.done", "error"]},
        "data": {"type": "string", "description": "JSON: `audio` in base64; or `usage`, `finish_reason`, `seed`; or `error`."},
    },
}
SPEECH: dict[str, Any] = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/SpeechBody"}}}}
}
SPOKEN: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Audio as it is made. `X-Audio-Sample-Rate`, `X-Audio-Channels` and `X-Seed` describe it.",
        "content": dict.fromkeys(MEDIA_TYPES.values(), _BINARY) | {"text/event-stream": {"schema": EVENT}},
    }
}


@router.post(
    "/v1/audio/speech", tags=["speech"], summary="Speak", openapi_extra=SPEECH, responses=SPOKEN, response_class=Response
)
async def speak(request: Request, state: StateOf, tenant: Tenant) -> Response:
    """Text in, audio out, chunk by chunk as it is made. A cut connection means that the audio is not complete."""
    return SpeechResponse(request, tenant, state)


@router.get("/v1/models", tags=["speech"], summary="List models")
async def list_models(state: StateOf, _tenant: Tenant) -> ModelList:
    """The loaded model, and the aliases it answers to."""
    info = state.engine.info
    return ModelList(
        data=[
            ModelCard(
                id=name,
                created=state.started,
                sample_rate=info.sample_rate,
                patch_seconds=info.patch_seconds,
                has_reference=info.has_reference,
                inference_timesteps=info.timesteps,
            )
            for name in (info.name, *state.settings.aliases)
        ]
    )


@router.get("/v1/stats", tags=["operation"], summary="Statistics")
async def stats(state: StateOf, _tenant: Tenant) -> Stats:
    """What is held, with its limits, and the engine's counters."""
    now = state.engine.stats()
    ledger = [LedgerLine(**asdict(line)) for line in (*state.ledger.read(), *now.ledger)]
    return Stats(ready=state.engine.ready().is_ready, draining=state.gate.is_draining, ledger=ledger, engine=counters(now))


@router.get("/health", tags=["operation"], summary="Is the process alive?")
async def health() -> Alive:
    """Answers as long as the HTTP process does."""
    return Alive()


@router.get("/ready", tags=["operation"], summary="Would a request be worked on?", responses={503: {"model": Readiness}})
async def ready(state: StateOf) -> JSONResponse:
    """200 while the worker is alive, makes progress and takes requests; else 503 and why."""
    now = Readiness(ready=False, reason="the server is shutting down") if state.gate.is_draining else _readiness(state)
    return JSONResponse(now.model_dump(), 200 if now.ready else 503)


def _readiness(state: State) -> Readiness:
    now = state.engine.ready()
    return Readiness(ready=now.is_ready, reason=now.reason)


@router.get("/metrics", tags=["operation"], summary="Prometheus metrics", response_class=Response)
async def metrics(state: StateOf) -> Response:
    """Prometheus's text format."""
    state.metrics.ready.set(state.engine.ready().is_ready)
    return Response(state.metrics.render(), headers={"Content-Type": TEXT_FORMAT})


@router.get("/", include_in_schema=False)
async def page() -> FileResponse:
    return FileResponse(STATIC / "index.html", media_type="text/html")


@router.get("/static/{name}", include_in_schema=False)
async def page_file(name: str) -> Response:
    """The page's two files, by name and no others."""
    if name not in PAGE_FILES:
        raise NotFound("path: there is nothing here")
    return FileResponse(STATIC / name, media_type=PAGE_FILES[name], headers={"Cache-Control": "no-cache"})


PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": ProblemBody} for status in (401, 403, 404, 409, 413, 415, 422, 429, 500, 503, 504)
}
