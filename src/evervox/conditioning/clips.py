"""Encoded clips kept by digest, least recently used first out, under a limit of bytes."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class ClipCache:
    """Latents `[patches, patch_size, latent_dim]` by the digest of what they were made from. Safe to share between threads.

    Arrays go out read-only and own their memory. What is larger than the whole limit is not kept. `num_bytes` <= `max_bytes`.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self.hits = 0
        self.misses = 0
        self._clips: OrderedDict[bytes, NDArray[np.floating[Any]]] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._clips)

    def get(self, digest: bytes) -> NDArray[np.floating[Any]] | None:
        """The latents, now the most recently used, or None."""
        with self._lock:
            found = self._clips.get(digest)
            if found is None:
                self.misses += 1
                return None
            self.hits += 1
            self._clips.move_to_end(digest)
            return found

    def put(self, digest: bytes, latents: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
        """Keep a copy. Gives back the read-only array that later hits see (the first one that was put)."""
        owned: NDArray[np.floating[Any]] = latents.copy()
        owned.setflags(write=False)
        if owned.nbytes > self.max_bytes:
            return owned
        with self._lock:
            kept = self._clips.setdefault(digest, owned)
            self._clips.move_to_end(digest)
            if kept is owned:
                self.num_bytes += owned.nbytes
            while self.num_bytes > self.max_bytes:
                self.num_bytes -= self._clips.popitem(last=False)[1].nbytes
        return kept
