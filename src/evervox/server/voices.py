"""Voices on disk, encoded: one safetensors file each, in a folder per tenant. An index is held, a voice is read when used.

The name is the file's, so it is checked before it comes here; what is on disk is checked against its digest when read.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from evervox.engine.voice import Voice
from evervox.errors import BadRequest, Conflict, EngineFailure, NotFound, TooLarge
from evervox.server.problems import Forbidden
from evervox.server.schemas import NAME_PATTERN

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

log = logging.getLogger("evervox.server")

SHARED = "_shared"
DEFAULT_VOICE = "default"
SUFFIX = ".safetensors"


@dataclass(frozen=True, slots=True)
class VoiceEntry:
    """A stored voice, without its latents. `digest` names them, hexadecimal; `num_bytes` are on disk; `model` made them."""

    tenant: str
    name: str
    digest: str
    transcript: str | None
    created: int
    num_bytes: int
    model: str


@dataclass(frozen=True, slots=True)
class StoredVoice:
    """A voice that has been read: the bytes of its clip, and what is said in it."""

    clip: bytes
    transcript: str | None


class VoiceStore:
    """At most `max_voices` files and `max_bytes` of them per tenant; a full store refuses. Every method blocks on the disk."""

    def __init__(self, folder: Path, *, model: str, max_voices: int, max_bytes: int) -> None:
        """`model` tells apart models whose latents do not fit each other."""
        self.max_voices, self.max_bytes = max_voices, max_bytes
        self._folder, self._model = folder, model
        self._lock = threading.Lock()
        self._index: dict[tuple[str, str], VoiceEntry] = {(e.tenant, e.name): e for e in _scan(folder)}

    def __len__(self) -> int:
        return len(self._index)

    @property
    def num_bytes(self) -> int:
        return sum(entry.num_bytes for entry in list(self._index.values()))

    def list(self, tenant: str) -> list[VoiceEntry]:
        """The tenant's own and the shared ones, by name."""
        with self._lock:
            return sorted((e for e in self._index.values() if e.tenant in (tenant, "")), key=lambda e: (e.name, e.tenant))

    def add(self, tenant: str, name: str, voice: Voice) -> VoiceEntry:
        """Raises `Conflict` for a name that the tenant can see already, `TooLarge` when the tenant's share is full."""
        path = self._path(tenant, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{secrets.token_hex(8)}")
        try:
            _write(voice, draft, self._model)
            num_bytes = draft.stat().st_size
            entry = VoiceEntry(tenant, name, voice.digest.hex(), voice.transcript, int(time.time()), num_bytes, self._model)
            with self._lock:
                self._check_room(entry)
                draft.replace(path)
                self._index[tenant, name] = entry
        finally:
            draft.unlink(missing_ok=True)
        return entry

    def load(self, tenant: str, name: str) -> Voice:
        """Raises `NotFound`; `Conflict` if another model made it; `EngineFailure` if the file is not what was stored."""
        entry = self._find(tenant, name)
        if entry.model != self._model:
            raise Conflict(f"voice: {name!r} was stored for {entry.model}; delete it and store it again", field="voice")
        try:
            return Voice.load(self._path(entry.tenant, name))
        except NotFound:
            raise NotFound(f"voice: the file of {name!r} has gone", field="voice") from None
        except BadRequest as error:
            raise EngineFailure(f"voice {name!r} is damaged on disk; delete it and store it again ({error})") from None

    def delete(self, tenant: str, name: str) -> None:
        """Raises `NotFound`, and `Forbidden` for a shared voice where the caller is a tenant."""
        entry = self._find(tenant, name)
        if entry.tenant != tenant:
            raise Forbidden(f"voice: {name!r} is shared; a key may not delete it")
        with self._lock:
            self._path(tenant, name).unlink(missing_ok=True)
            self._index.pop((tenant, name), None)

    def _find(self, tenant: str, name: str) -> VoiceEntry:
        with self._lock:
            entry = self._index.get((tenant, name)) or self._index.get(("", name))
        if entry is None:
            raise NotFound(f"voice: there is none called {name!r}; GET /v1/voices lists them", field="voice")
        return entry

    def _check_room(self, new: VoiceEntry) -> None:
        if new.name == DEFAULT_VOICE or (new.tenant, new.name) in self._index or ("", new.name) in self._index:
            raise Conflict(f"name: there is a voice called {new.name!r} already", field="name")
        own = [entry.num_bytes for entry in self._index.values() if entry.tenant == new.tenant]
        if len(own) >= self.max_voices:
            raise TooLarge(f"name: {len(own)} voices are stored, the limit is {self.max_voices}; delete one first", field="name")
        total = sum(own) + new.num_bytes
        if total > self.max_bytes:
            raise TooLarge(f"clip: with it {total} bytes would be stored, the limit is {self.max_bytes}", field="clip")

    def _path(self, tenant: str, name: str) -> Path:
        return self._folder / (tenant or SHARED) / f"{name}{SUFFIX}"


def _scan(folder: Path) -> Iterator[VoiceEntry]:
    """What earlier runs left; a file that is not a voice is named in the log and left alone."""
    for path in sorted(folder.glob(f"*/*{SUFFIX}")):
        tenant = "" if path.parent.name == SHARED else path.parent.name
        if not re.fullmatch(NAME_PATTERN, path.stem) or (tenant and not re.fullmatch(NAME_PATTERN, tenant)):
            continue
        try:
            with safe_open(path, framework="numpy") as file:
                meta = file.metadata() or {}
            stat = path.stat()
            spoken, created, model = meta.get("transcript"), int(stat.st_mtime), meta.get("model", "an unknown model")
            yield VoiceEntry(tenant, path.stem, meta["digest"], spoken, created, stat.st_size, model)
        except (SafetensorError, KeyError, OSError) as error:
            log.warning("%s is not a voice and is left out: %s", path, error)


def _write(voice: Voice, path: Path, model: str) -> None:
    """On the disk, and not only on its way there."""
    voice.save(path, model=model)
    with path.open("rb") as file:
        os.fsync(file.fileno())
