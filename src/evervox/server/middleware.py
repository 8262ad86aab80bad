"""What every request passes on its way in: it is named and timed, its body is bounded, and foreign pages are turned away."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders

from evervox.errors import TooLarge
from evervox.server.problems import Forbidden, problem_response

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from evervox.server.metrics import Metrics
    from evervox.server.requestlog import RequestLog

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
UNMATCHED = "unmatched"
SECURITY = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; media-src 'self' blob:; frame-ancestors 'none'",
}


class Observe:
    """Outermost: gives the request an id, and counts and logs it when it has ended, in whatever way."""

    def __init__(self, app: ASGIApp, metrics: Metrics, log: RequestLog) -> None:
        self._app, self._metrics, self._log = app, metrics, log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        notes = scope["evervox"] = {"id": secrets.token_hex(6), "started": started, "status": 0, "complete": False}
        try:
            await self._app(scope, receive, _noting(send, notes))
        finally:
            self._ended(scope, notes, time.perf_counter() - started)

    def _ended(self, scope: Scope, notes: dict[str, Any], seconds: float) -> None:
        route = route_of(scope)
        self._metrics.requests.labels(_method(scope), route, str(notes["status"])).inc()
        self._metrics.seconds.labels(route).observe(seconds)
        self._log.write(scope, notes, seconds)


def route_of(scope: Scope) -> str:
    """The route's template, never the path that was asked for."""
    return getattr(scope.get("route"), "path", None) or UNMATCHED


def _method(scope: Scope) -> str:
    return scope["method"] if scope["method"] in (*SAFE_METHODS, "POST", "DELETE", "PUT", "PATCH") else "other"


def _noting(send: Send, notes: dict[str, Any]) -> Send:
    async def noted(message: Message) -> None:
        if message["type"] == "http.response.start":
            notes["status"] = message["status"]
            headers = MutableHeaders(scope=message)
            headers["X-Request-Id"] = notes["id"]
            for name, value in SECURITY.items():
                headers[name] = value
        elif message["type"] == "http.response.body":
            notes["complete"] = not message.get("more_body", False)
        await send(message)

    return noted


class BodyLimit:
    """Refuses a body over `max_bytes`, by its stated length or as soon as it has come to more."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app, self._max_bytes = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        stated = Headers(scope=scope).get("content-length", "0")
        if stated.isdigit() and int(stated) > self._max_bytes:
            await problem_response(self._error())(scope, receive, send)
            return
        await self._app(scope, self._counted(receive), send)

    def _counted(self, receive: Receive) -> Receive:
        taken = 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._max_bytes:
                raise self._error()
            return message

        return counted

    def _error(self) -> TooLarge:
        return TooLarge(f"body: the limit is {self._max_bytes} bytes")


class SameOrigin:
    """A page of another site may change nothing here, unless its origin is allowed: a local server has no other guard."""

    def __init__(self, app: ASGIApp, allowed: Sequence[str]) -> None:
        self._app, self._allowed = app, frozenset(allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] not in SAFE_METHODS:
            headers = Headers(scope=scope)
            origin = headers.get("origin")
            if origin is not None and not self._is_allowed(origin, headers.get("host", "")):
                await problem_response(Forbidden("origin: pages of other sites are not allowed here"))(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _is_allowed(self, origin: str, host: str) -> bool:
        return "*" in self._allowed or origin in self._allowed or urlsplit(origin).netloc == host
