"""Who may come in, and how many at once."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from evervox.errors import ConfigError, Overloaded, Unavailable
from evervox.server.problems import Unauthorized
from evervox.server.schemas import NAME_PATTERN

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MIN_KEY = 16
MAX_KEYS = 10_000


class Keys:
    """Bearer keys and the tenants they name. Kept as digests; a look-up compares with every one, in constant time."""

    def __init__(self, tenants: dict[bytes, str]) -> None:
        self._tenants = tenants

    def __len__(self) -> int:
        return len(self._tenants)

    @classmethod
    def read(cls, file: Path | None, inline: str | None) -> Keys:
        """Lines `tenant:key`, from a file and from a comma-separated setting; `#` starts a comment line."""
        try:
            lines = [] if file is None else file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"keys_file: {file} cannot be read ({error})") from None
        lines += (inline or "").split(",")
        entries = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
        if (file is not None or inline) and not entries:
            raise ConfigError("keys: none were found; a server that was to be closed stays off")
        if len(entries) > MAX_KEYS:
            raise ConfigError(f"keys: at most {MAX_KEYS}, not {len(entries)}")
        return cls(dict(_parse_key(entry, number) for number, entry in enumerate(entries, 1)))

    @property
    def tenants(self) -> set[str]:
        return set(self._tenants.values())

    def tenant(self, authorization: str | None) -> str:
        """The tenant that the `Authorization` header's key names, or "" where keys are off."""
        if not self._tenants:
            return ""
        scheme, _, key = (authorization or "").partition(" ")
        given = _digest(key.strip()) if scheme.lower() == "bearer" else b""
        found = [tenant for digest, tenant in self._tenants.items() if hmac.compare_digest(digest, given)]
        if not found:
            raise Unauthorized("this server needs a key: Authorization: Bearer KEY")
        return found[0]


def _parse_key(entry: str, number: int) -> tuple[bytes, str]:
    tenant, _, key = entry.partition(":")
    if not re.fullmatch(NAME_PATTERN, tenant) or len(key) < MIN_KEY:
        raise ConfigError(f"keys: entry {number} must read tenant:key, the key of at least {MIN_KEY} characters")
    return _digest(key), tenant


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


class Gate:
    """Counts open speech requests. Full means 429; closing means 503 for new ones while the open ones finish."""

    def __init__(self, max_open: int) -> None:
        self.max_open = max_open
        self.is_draining = False
        self.num_entered = 0
        self._open = 0
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return self._open

    @contextmanager
    def enter(self) -> Iterator[None]:
        """One open request, until the block ends."""
        if self.is_draining:
            raise Unavailable("the server is shutting down")
        if self._open >= self.max_open:
            raise Overloaded(f"{self._open} requests are open, the limit is {self.max_open}", retry_after=2.0)
        self._open += 1
        self.num_entered += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._open -= 1
            if not self._open:
                self._empty.set()

    async def drain(self, seconds: float) -> bool:
        """Let nobody in; wait until all have left. False if `seconds` was not enough."""
        self.is_draining = True
        try:
            await asyncio.wait_for(self._empty.wait(), seconds)
        except asyncio.TimeoutError:
            return False
        return True
