"""What the routes of one app share, and how they get at it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

if TYPE_CHECKING:
    from evervox.config import ServerSettings
    from evervox.ledger import Ledger
    from evervox.server.admission import Gate, Keys
    from evervox.server.contract import SpeechEngine
    from evervox.server.encoding import Threads
    from evervox.server.metrics import Metrics
    from evervox.server.orders import OrderDesk
    from evervox.server.voices import VoiceStore

bearer = HTTPBearer(auto_error=False, description="Only where the server was given keys.")


@dataclass(frozen=True, slots=True)
class State:
    """One app's. `encoders` run codecs; `helpers` read disks and large bodies, and may be slow."""

    settings: ServerSettings
    engine: SpeechEngine
    keys: Keys
    gate: Gate
    voices: VoiceStore
    desk: OrderDesk
    encoders: Threads
    helpers: Threads
    metrics: Metrics
    ledger: Ledger
    started: int


def state_of(request: Request) -> State:
    state: State = request.app.state.evervox
    return state


def tenant_of(request: Request, _key: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)] = None) -> str:
    """The tenant that the request's key names. Raises `Unauthorized`."""
    return state_of(request).keys.tenant(request.headers.get("authorization"))
