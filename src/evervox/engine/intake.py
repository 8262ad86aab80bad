"""Turns a submitted prompt into the runner's inputs. Clips are encoded on a thread of their own, so that no stream waits."""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from evervox.conditioning.prepare import slot_keys
from evervox.engine import messages
from evervox.runner.inputs import Inputs

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from evervox.conditioning.clips import ClipCache
    from evervox.conditioning.layout import Prompt, PromptClip
    from evervox.engine.blackbox import Blackbox
    from evervox.ledger import Ledger
    from evervox.runner.inputs import Runner

ENCODER_LANE = 1


@dataclass(frozen=True, slots=True)
class Admitted:
    """A sequence that is ready for the scheduler: its inputs and slot keys, or the error that its clips gave."""

    submit: messages.Submit
    inputs: Inputs | None
    keys: tuple[bytes, ...]
    error: Exception | None = None


class Intake:
    """Prompts in, `Admitted` out. Text goes straight through; clips pass the encoder thread, one after another.

    `wake` is called from that thread when something has become ready.
    """

    def __init__(
        self, runner: Runner, blackbox: Blackbox, *, cache: ClipCache, max_queued: int, wake: Callable[[], None]
    ) -> None:
        self.cache = cache
        self._runner = runner
        self._blackbox = blackbox
        self._wake = wake
        self._waiting: queue.Queue[messages.Submit | None] = queue.Queue(max_queued)
        self._ready: queue.SimpleQueue[Admitted] = queue.SimpleQueue()
        self._began: float | None = None
        self._max_queued = max_queued
        self._thread = threading.Thread(target=self._encode_all, name="evervox-encoder", daemon=True)
        self._thread.start()

    def register(self, ledger: Ledger) -> None:
        ledger.register("encoded clips", lambda: self.cache.num_bytes, limit=self.cache.max_bytes, owner="intake", unit="bytes")
        ledger.register("clips to encode", self._waiting.qsize, limit=self._max_queued, owner="intake")
        ledger.register("encoded prompts", self._ready.qsize, limit=self._max_queued, owner="intake")

    def offer(self, submit: messages.Submit) -> Admitted | None:
        """The sequence at once where it has no clip to encode; None where it comes through `ready` later."""
        if all(clip.latents is not None for clip in submit.clips):
            return self._admit(submit)
        self._waiting.put_nowait(submit)
        return None

    def ready(self) -> list[Admitted]:
        """What the encoder has finished since the last call."""
        return [self._ready.get_nowait() for _ in range(self._ready.qsize())]

    @property
    def encode_seconds(self) -> float:
        """How long the encode under way has taken so far."""
        began = self._began
        return 0.0 if began is None else time.monotonic() - began

    def close(self) -> None:
        """Stop the thread once its present encode is done."""
        self._waiting.put(None)
        self._thread.join()

    def _encode_all(self) -> None:
        while (submit := self._waiting.get()) is not None:
            self._began = time.monotonic()
            self._blackbox.hold(ENCODER_LANE, [submit.id])
            self._ready.put(self._admit(submit))
            self._blackbox.hold(ENCODER_LANE, [])
            self._began = None
            self._wake()

    def _admit(self, submit: messages.Submit) -> Admitted:
        try:
            prompt = messages.unpack_prompt(submit)
            inputs = self._inputs(prompt, submit)
            return Admitted(submit, inputs, tuple(slot_keys(prompt)))
        except Exception as error:
            return Admitted(submit, None, (), error)

    def _inputs(self, prompt: Prompt, submit: messages.Submit) -> Inputs:
        features = [self._latents(clip) for clip in prompt.clips]
        return Inputs(
            tokens=prompt.tokens,
            is_audio=prompt.is_audio,
            features=np.concatenate(features) if features else np.zeros((0, *self._runner.patch_shape), np.float32),
            context_patches=prompt.context_patches,
            sampling=submit.sampling,
            patches=None if submit.patches is None else submit.patches.numpy(),
        )

    def _latents(self, clip: PromptClip) -> NDArray[Any]:
        if clip.latents is not None:
            return clip.latents
        latents = self.cache.get(clip.digest)
        if latents is None:
            assert clip.samples is not None
            latents = self.cache.put(clip.digest, self._runner.encode(clip.samples))
        return latents
