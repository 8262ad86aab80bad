"""The application: an open engine and settings in, an ASGI app out."""

from __future__ import annotations

import asyncio
import importlib.metadata
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.middleware.cors import CORSMiddleware

from evervox.ledger import Ledger
from evervox.server import routes, voice_routes
from evervox.server.admission import Gate, Keys
from evervox.server.context import State
from evervox.server.encoding import Threads
from evervox.server.metrics import Metrics
from evervox.server.middleware import BodyLimit, Observe, SameOrigin
from evervox.server.orders import OrderDesk
from evervox.server.problems import add_handlers
from evervox.server.requestlog import RequestLog
from evervox.server.schemas import SpeechBody
from evervox.server.tidy import keep_tidy
from evervox.server.voices import VoiceStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from evervox.config import ServerSettings
    from evervox.server.contract import SpeechEngine

HELPER_THREADS = 2
EXPOSED = ("X-Request-Id", "X-Seed", "X-Audio-Sample-Rate", "X-Audio-Channels", "Retry-After")
TITLE = "evervox"
ABOUT = "Speech from VoxCPM models, in the shape of OpenAI's API. Errors name the field and the limit."


def create_app(engine: SpeechEngine, settings: ServerSettings, *, log: RequestLog | None = None) -> FastAPI:
    """The app of one engine, which the caller opens and closes. Raises `ConfigError` for keys that cannot be read."""
    state = _state(engine, settings)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        tasks = [
            asyncio.create_task(state.metrics.watch_loop(), name="evervox loop lag"),
            asyncio.create_task(keep_tidy(state.gate, state.helpers), name="evervox tidy"),
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            state.encoders.close()
            state.helpers.close()

    app = FastAPI(
        title=TITLE,
        description=ABOUT,
        version=importlib.metadata.version("evervox"),
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.state.evervox = state
    app.include_router(routes.router, responses=routes.PROBLEMS)
    app.include_router(voice_routes.router, responses=routes.PROBLEMS)
    add_handlers(app)
    _wrap(app, state, log or RequestLog(settings.log_format))
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _state(engine: SpeechEngine, settings: ServerSettings) -> State:
    ledger = Ledger()
    helpers = Threads(HELPER_THREADS)
    info = engine.info
    voices = VoiceStore(
        settings.voices.expanduser(),
        model=f"{info.name} ({info.sample_rate} Hz, {info.patch_seconds * 1000:g} ms per patch)",
        max_voices=settings.max_voices,
        max_bytes=settings.max_voice_bytes,
    )
    inline = None if settings.keys is None else settings.keys.get_secret_value()
    desk = OrderDesk(info, settings.aliases, voices, helpers, settings.max_clip_bytes, settings.request_timeout)
    state = State(
        settings=settings,
        engine=engine,
        keys=Keys.read(settings.keys_file, inline),
        gate=Gate(settings.max_open),
        voices=voices,
        desk=desk,
        encoders=Threads(settings.encoder_threads),
        helpers=helpers,
        metrics=Metrics(engine.stats, ledger),
        ledger=ledger,
        started=int(time.time()),
    )
    _register(state)
    return state


def _register(state: State) -> None:
    """Everything of the server's that outlives a request."""
    tenants = 1 + len(state.keys.tenants)
    settings, ledger = state.settings, state.ledger
    ledger.register("open speech requests", state.gate, limit=settings.max_open, owner="server")
    ledger.register("encoder calls", lambda: state.encoders.pending, limit=settings.max_open, owner="server")
    ledger.register("helper calls", lambda: state.helpers.pending, limit=None, owner="server")
    ledger.register("stored voices", state.voices, limit=settings.max_voices * tenants, owner="server")
    voice_bytes = settings.max_voice_bytes * tenants
    ledger.register("stored voice bytes", lambda: state.voices.num_bytes, limit=voice_bytes, owner="server", unit="bytes")
    ledger.register("keys", state.keys, limit=len(state.keys), owner="server")


def _wrap(app: FastAPI, state: State, log: RequestLog) -> None:
    """Innermost first."""
    app.add_middleware(BodyLimit, max_bytes=state.settings.max_body_bytes)
    app.add_middleware(SameOrigin, allowed=state.settings.cors_origins)
    if state.settings.cors_origins:
        origins = list(state.settings.cors_origins)
        app.add_middleware(
            CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"], expose_headers=list(EXPOSED)
        )
    app.add_middleware(Observe, metrics=state.metrics, log=log)


def _without_security(schema: dict[str, Any]) -> None:
    """A server without keys asks for none."""
    schema["components"].pop("securitySchemes", None)
    for path in schema["paths"].values():
        for operation in path.values():
            operation.pop("security", None)


def _openapi(app: FastAPI) -> dict[str, Any]:
    """FastAPI's, with the speech body that we read ourselves."""
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        body = SpeechBody.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas = schema["components"]["schemas"]
        schemas.update(body.pop("$defs", {}))
        schemas["SpeechBody"] = body
        if not app.state.evervox.keys:
            _without_security(schema)
        app.openapi_schema = schema
    return app.openapi_schema
