"""Every error evervox raises on purpose. The type says who erred; the message names the field and the limit."""

from __future__ import annotations


class EvervoxError(Exception):
    """Base of all. `code` is stable and machine-readable."""

    code = "error"


class BadRequest(EvervoxError):
    """The caller's input is wrong. `field` names the request's field."""

    code = "bad_request"

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message if field is None or message.startswith(field) else f"{field}: {message}")
        self.field = field

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), str(self), self.field))


class TooLarge(BadRequest):
    """A text, clip, body or length is over its limit."""

    code = "too_large"


class Unsupported(BadRequest):
    """The loaded model or this installation cannot do what was asked."""

    code = "unsupported"


class NotFound(BadRequest):
    """A named voice, adapter or file does not exist."""

    code = "not_found"


class Conflict(BadRequest):
    """The name or id is taken."""

    code = "conflict"


class Overloaded(EvervoxError):
    """The queue is full. `retry_after` is in seconds."""

    code = "overloaded"

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unavailable(EvervoxError):
    """The engine is starting, draining or gone."""

    code = "unavailable"


class DeadlineExceeded(EvervoxError):
    """The request's own timeout ran out."""

    code = "timeout"


class EngineFailure(EvervoxError):
    """The fault is ours: a step failed, or the request crashed the worker twice."""

    code = "engine_failure"


class CheckpointError(EvervoxError):
    """A checkpoint folder cannot be read: what is missing, left over or of the wrong shape."""

    code = "checkpoint"


class ConfigError(EvervoxError):
    """A setting is out of its bounds: names the setting, the bound and the value."""

    code = "config"


def _rebuild(kind: type[BadRequest], message: str, field: str | None) -> BadRequest:
    error = kind(message)
    error.field = field
    return error
