"""Keys: what a slot is, and what a block of slots follows.

A slot key says what the position is, never what it holds: a text token, one patch of a clip, or one step of a request's
own output. Every part is length-prefixed and kind-tagged, so no two different inputs share a byte stream. A block key
is a 128-bit keyed BLAKE2b digest over the parent's key and the block's slot keys; the first parent is the root, which
covers whatever else the KV depends on.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SlotKey: TypeAlias = bytes

DIGEST_BYTES = 16
MAX_SECRET_BYTES = 64  # BLAKE2b's own limit

_TOKEN = Struct(">cQ").pack
_STEP = Struct(">cQQ").pack
_PATCH = Struct(">cI").pack
_INDEX = Struct(">I").pack


def _frame(part: bytes) -> bytes:
    return len(part).to_bytes(4, "big") + part


def text_key(token: int) -> SlotKey:
    """The slot of one text (or special) token id, `0 <= token < 2**64`."""
    return _TOKEN(b"t", token)


def clip_key(digest: bytes, patch: int) -> SlotKey:
    """The slot of patch number `patch` of the clip whose prepared samples have this digest."""
    return _PATCH(b"c", len(digest)) + digest + _INDEX(patch)


def generated_key(seq: int, step: int) -> SlotKey:
    """The slot of the patch that `seq` made at `step`: private to it, as long as `seq` is never given out twice."""
    return _STEP(b"g", seq, step)


def root_key(weights: bytes, dtype: str, adapter_load: int | None, tenant_salt: bytes) -> bytes:
    """The root of every chain computed with these weights in this dtype under this adapter load for this tenant.

    `adapter_load` numbers the act of loading, not the name: a re-loaded adapter is another one. None is no adapter.
    """
    adapter = b"" if adapter_load is None else adapter_load.to_bytes(8, "big")
    parts = (b"w" + weights, b"d" + dtype.encode(), b"a" + adapter, b"s" + tenant_salt)
    return b"r" + b"".join(map(_frame, parts))


def root_digest(secret: bytes, root: bytes) -> bytes:
    """The parent key of a chain's first block; no block digest equals it but by a 128-bit collision."""
    return blake2b(root, digest_size=DIGEST_BYTES, key=secret, person=b"evervox.root").digest()


def block_digest(secret: bytes, parent: bytes, keys: Iterable[SlotKey]) -> bytes:
    """The key of the block that holds `keys` after everything that `parent` stands for."""
    stream = [_frame(parent)]
    stream += [len(key).to_bytes(4, "big") + key for key in keys]
    return blake2b(b"".join(stream), digest_size=DIGEST_BYTES, key=secret, person=b"evervox.block").digest()


class KeyChain:
    """The block keys of one growing sequence: `digests[i]` stands for slots [0, (i + 1) * block_size)."""

    __slots__ = ("_block_size", "_parent", "_secret", "_tail", "digests")

    def __init__(self, secret: bytes, root: bytes, block_size: int) -> None:
        self._secret = secret
        self._block_size = block_size
        self._parent = root_digest(secret, root)
        self._tail: list[SlotKey] = []
        self.digests: list[bytes] = []

    def __len__(self) -> int:
        """Slots taken in so far."""
        return len(self.digests) * self._block_size + len(self._tail)

    def extend(self, keys: Sequence[SlotKey]) -> None:
        """Take in the keys of the next slots; every block that they complete gets its digest."""
        pending = [*self._tail, *keys]
        size = self._block_size
        whole = len(pending) - len(pending) % size
        for start in range(0, whole, size):
            self._parent = block_digest(self._secret, self._parent, pending[start : start + size])
            self.digests.append(self._parent)
        self._tail = pending[whole:]
