"""From what went wrong to what the client reads: the one table of statuses, and OpenAI's shape of an error."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from evervox import errors
from evervox.server.schemas import Problem, ProblemBody

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastapi import FastAPI
    from starlette.requests import Request

log = logging.getLogger("evervox.server")

MAX_ECHO = 60
TEXTS = ("input", "instructions", "prompt_text", "reference_audio", "prompt_audio")
"""Never repeated: messages go into logs too."""
MAX_DETAILS = 5


class Unauthorized(errors.EvervoxError):
    """No key, or one that nobody was given."""

    code = "unauthorized"


class Forbidden(errors.EvervoxError):
    """Another site's page asked, and no setting allows that."""

    code = "forbidden"


class WrongMedia(errors.BadRequest):
    """The body is not of the type that the route reads."""

    code = "unsupported_media_type"


STATUS: dict[type[errors.EvervoxError], int] = {
    Unauthorized: 401,
    Forbidden: 403,
    WrongMedia: 415,
    errors.NotFound: 404,
    errors.Conflict: 409,
    errors.TooLarge: 413,
    errors.Unsupported: 422,
    errors.BadRequest: 422,
    errors.Overloaded: 429,
    errors.Unavailable: 503,
    errors.DeadlineExceeded: 504,
    errors.EngineFailure: 500,
    errors.CheckpointError: 500,
    errors.ConfigError: 500,
    errors.EvervoxError: 500,
}
KINDS = {
    401: "authentication_error",
    403: "permission_error",
    429: "overloaded_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def status_of(error: errors.EvervoxError) -> int:
    """The status of the nearest class in the table."""
    return next(STATUS[cls] for cls in type(error).__mro__ if cls in STATUS)


def problem(status: int, message: str, code: str, param: str | None = None) -> ProblemBody:
    kind = KINDS.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return ProblemBody(error=Problem(message=message, type=kind, param=param, code=code))


def problem_of(error: BaseException) -> tuple[int, ProblemBody]:
    """Status and body. What is not ours on purpose is a 500 that says nothing of our insides."""
    if not isinstance(error, errors.EvervoxError):
        return 500, problem(500, "the server failed; its log says more", "internal")
    status = status_of(error)
    return status, problem(status, str(error), error.code, getattr(error, "field", None))


def validation_error(details: Sequence[Any]) -> errors.BadRequest:
    """Pydantic's findings as one error that names each field, what it may be and what it was."""
    lines = [_explain(detail) for detail in details[:MAX_DETAILS]]
    error = errors.BadRequest("; ".join(lines))
    error.field = _field(details[0]) if details else None
    return error


def _field(detail: Any) -> str:
    loc = [str(part) for part in detail["loc"] if part not in ("body", "query", "path", "header")]
    return loc[0] if loc else "body"


def _explain(detail: Any) -> str:
    if detail["type"] == "extra_forbidden":
        return f"{_field(detail)}: there is no such field"
    if detail["type"] in ("json_invalid", "json_type"):
        return f"body: {detail['msg'][:1].lower()}{detail['msg'][1:]}"
    given = detail.get("input")
    is_private = detail["type"] == "missing" or isinstance(given, (dict, list)) or _field(detail) in TEXTS
    echo = "" if is_private else f", not {_short(given)}"
    return f"{_field(detail)}: {detail['msg'][:1].lower()}{detail['msg'][1:]}{echo}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_ECHO else f"{text[:MAX_ECHO]}… ({len(text)} characters)"


def problem_response(error: BaseException) -> JSONResponse:
    """The whole answer to an error that comes before the first byte."""
    status, body = problem_of(error)
    headers = {}
    if isinstance(error, errors.Overloaded):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    elif isinstance(error, errors.Unavailable):
        headers["Retry-After"] = "5"
    elif isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(body.model_dump(), status, headers)


async def _on_error(request: Request, error: Exception) -> JSONResponse:
    request.scope.setdefault("evervox", {})["error"] = str(error)
    return problem_response(error)


async def _on_validation(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return await _on_error(request, validation_error(error.errors()))


async def _on_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http")
    body = problem(error.status_code, str(error.detail), code)
    return JSONResponse(body.model_dump(), error.status_code, error.headers)


async def _on_crash(request: Request, error: Exception) -> JSONResponse:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return problem_response(error)


def add_handlers(app: FastAPI) -> None:
    """Every way to fail before the first byte ends here."""
    app.add_exception_handler(errors.EvervoxError, _on_error)
    app.add_exception_handler(RequestValidationError, _on_validation)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(Exception, _on_crash)
