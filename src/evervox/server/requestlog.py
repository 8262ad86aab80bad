"""One line per request, for a person or for a machine. Never a text, a key or a clip: what was said is nobody's business."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Literal, TextIO

if TYPE_CHECKING:
    from starlette.types import Scope

LogFormat = Literal["text", "json"]

QUIET = ("/health", "/ready", "/metrics")


class RequestLog:
    """Writes to `out`. Probes that succeed are left out of the readable form."""

    def __init__(self, fmt: LogFormat, out: TextIO | None = None) -> None:
        self._fmt = fmt
        self._out = out or sys.stderr

    def write(self, scope: Scope, notes: dict[str, Any], seconds: float) -> None:
        """`notes` is what the request gathered on its way: id, status, and of a stream its speech and its error."""
        if self._fmt == "json":
            line = json.dumps(_facts(scope, notes, seconds))
        elif scope["path"] in QUIET and notes["status"] < 400:
            return
        else:
            line = _sentence(scope, notes, seconds)
        print(line, file=self._out, flush=True)


def _facts(scope: Scope, notes: dict[str, Any], seconds: float) -> dict[str, Any]:
    client = scope.get("client")
    return {
        "time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        "id": notes["id"],
        "client": client[0] if client else None,
        "method": scope["method"],
        "path": scope["path"],
        "status": notes["status"],
        "complete": notes["complete"],
        "seconds": round(seconds, 4),
        **notes.get("speech", {}),
        **({"error": notes["error"]} if "error" in notes else {}),
    }


def _sentence(scope: Scope, notes: dict[str, Any], seconds: float) -> str:
    clock = datetime.now().strftime("%H:%M:%S")
    path = scope["path"].encode("unicode_escape").decode()[:100]
    parts = [clock, f"{scope['method']:<6}", path, str(notes["status"] or "cut"), f"{seconds * 1000:.0f} ms"]
    if speech := notes.get("speech"):
        parts.append(_speech(speech))
    if "error" in notes:
        parts.append(f"({notes['error']})")
    return " ".join([*parts, f"[{notes['id']}]"])


def _speech(speech: dict[str, Any]) -> str:
    text = f"{speech['format']} {speech['audio_seconds']:.2f} s of audio"
    if speech["first_audio"] is not None:
        text += f", first after {speech['first_audio'] * 1000:.0f} ms"
    if speech["rtf"] is not None:
        text += f", rtf {speech['rtf']:.2f}"
    return f"{text}, {speech['outcome']}"


class PlainFormatter(logging.Formatter):
    """Warnings and errors of the server and of uvicorn, beside the request lines and in their form."""

    def __init__(self, fmt: LogFormat) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S")
        self._fmt = fmt

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if self._fmt == "text":
            return text
        when = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        trace = self.formatException(record.exc_info) if record.exc_info else None
        return json.dumps(
            {"time": when, "level": record.levelname, "logger": record.name, "message": record.getMessage(), "trace": trace}
        )


class NoCutNotice(logging.Filter):
    """A stream that is cut on purpose is no news: its request line says so."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "without completing response" not in record.getMessage()


def set_up_logging(fmt: LogFormat) -> None:
    """Send the server's and uvicorn's warnings to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(PlainFormatter(fmt))
    handler.addFilter(NoCutNotice())
    for name in ("evervox", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.WARNING)
