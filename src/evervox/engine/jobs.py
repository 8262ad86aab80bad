"""One sequence in the worker's care, with all that another worker needs to go on with it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from evervox.engine.messages import Array, Chunk, Submit, pack_clip
from evervox.errors import EngineFailure, EvervoxError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from evervox.conditioning.layout import Prompt
    from evervox.request import Priority, Sampling


class Job:
    """A sequence as the client holds it: prompt, numbers, the patches made so far, and the chunks not yet taken.

    `crashes` counts the worker's deaths while it worked on this sequence, since its last patch. `wake` is called whenever
    `chunks`, `error` or `is_done` change; `done` is set with `is_done`. The supervisor writes it; its utterance takes chunks.
    """

    def __init__(
        self,
        prompt: Prompt,
        sampling: Sampling,
        *,
        wake: Callable[[], object],
        adapter: str | None = None,
        tenant: str = "",
        priority: Priority = "live",
        is_clip_only: bool = False,
    ) -> None:
        self.id = 0
        self.prompt = prompt
        self.sampling = sampling
        self.adapter = adapter
        self.tenant = tenant
        self.priority: Priority = priority
        self.is_clip_only = is_clip_only
        self.patches: list[NDArray[Any]] = []
        self.chunks: deque[Chunk] = deque()
        self.crashes = 0
        self.taken = 0
        self.error: EvervoxError | None = None
        self.is_sent = self.is_done = self.is_cancelled = False
        self.done = asyncio.Event()
        self._wake = wake

    def take(self, chunk: Chunk) -> None:
        """One more patch. A gap or a repeat would be heard, so it is an error."""
        if chunk.index != len(self.patches):
            self.fail(EngineFailure(f"patch {chunk.index} arrived where {len(self.patches)} was due"))
            return
        self.crashes = 0
        self.patches.append(chunk.latents.numpy())
        self.chunks.append(chunk)
        self._ended(chunk.finish is not None)

    def fail(self, error: EvervoxError) -> None:
        """End it with an error, unless it has ended."""
        if not self.is_done:
            self.error = error
            self._ended(True)

    def _ended(self, is_done: bool) -> None:
        self.is_done = is_done
        if is_done:
            self.done.set()
        self._wake()

    def submit(self, stream_buffer: int) -> Submit:
        """The message that starts it, or goes on with it in another worker."""
        self.taken = 0
        return Submit(
            id=self.id,
            tokens=Array.of(self.prompt.tokens),
            is_audio=Array.of(self.prompt.is_audio),
            clips=[pack_clip(clip) for clip in self.prompt.clips],
            target_tokens=self.prompt.target_tokens,
            context_patches=self.prompt.context_patches,
            sampling=self.sampling,
            adapter=self.adapter,
            tenant=self.tenant,
            priority=self.priority,
            patches=Array.of(np.stack(self.patches)) if self.patches else None,
            credit=max(0, stream_buffer - len(self.chunks)),
            is_clip_only=self.is_clip_only,
        )
