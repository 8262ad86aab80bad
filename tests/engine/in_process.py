"""The worker's loop without a process around it: messages are put in and taken out by hand."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from tests.engine.fake_runner import FakeRunner

from evervox.conditioning.clips import ClipCache
from evervox.conditioning.layout import Prompt, PromptClip, lay_out
from evervox.core.limits import SchedulerLimits
from evervox.core.scheduler import Scheduler
from evervox.engine import messages
from evervox.engine.blackbox import Blackbox
from evervox.engine.intake import Intake
from evervox.engine.jobs import Job
from evervox.engine.loop import Loop
from evervox.ledger import Ledger
from evervox.models.voxcpm.config import VoxConfig
from evervox.request import Sampling

if TYPE_CHECKING:
    from pathlib import Path


class HandPort:
    """A port whose ends are lists."""

    def __init__(self) -> None:
        self.incoming: list[messages.ToWorker] = []
        self.outgoing: list[messages.ToClient] = []

    def wake(self) -> None:
        pass

    def receive(self, timeout: float) -> list[messages.ToWorker]:
        taken, self.incoming = self.incoming, []
        return taken

    def send(self, batch: list[messages.ToClient]) -> None:
        self.outgoing += batch


class Bench:
    """A loop over the fake runner."""

    def __init__(self, checkpoint: Path, folder: Path, fake: dict[str, float] | None = None, **limits: Any) -> None:
        config = VoxConfig.from_checkpoint(checkpoint)
        self.config = config
        self.runner = FakeRunner(config, None, fake or {})
        defaults = {"num_blocks": self.runner.num_blocks, "max_running": 16, "slots_per_step": 256}
        self.scheduler = Scheduler(
            SchedulerLimits(patch_seconds=config.patch_seconds, **{**defaults, **limits}), secrets.token_bytes(32)
        )
        self.port = HandPort()
        self.blackbox = Blackbox(folder / "box", 17)
        self.ledger = Ledger()
        cache = ClipCache(1 << 20)
        self.intake = Intake(self.runner, self.blackbox, cache=cache, max_queued=64, wake=self.port.wake)
        self.intake.register(self.ledger)
        self.loop = Loop(self.runner, self.scheduler, self.intake, port=self.port, blackbox=self.blackbox, ledger=self.ledger)

    def prompt(self, clip: int | None = None) -> Prompt:
        reference = None
        if clip is not None:
            samples = np.full(10 * self.config.encoder_samples_per_patch, clip, np.float32)
            reference = PromptClip(bytes([clip]), 10, samples)
        return lay_out([1, 2, 3], 3, reference=reference)

    def submit(
        self, seq: int, patches: int, *, credit: int = 10_000, clip: int | None = None, cfg: float = 2.0, stops: bool = False
    ) -> None:
        """`stops`: the model says so after `patches`; else their number does."""
        most = 10 * patches if stops else patches
        sampling = Sampling(seed=seq, timesteps=10, cfg=cfg, temperature=1.0, min_patches=patches, max_patches=most)
        job = Job(self.prompt(clip), sampling, wake=lambda: None)
        job.id = seq
        self.port.incoming.append(job.submit(credit))

    def tick(self, count: int = 1) -> None:
        for _ in range(count):
            self.loop.tick()
            self.scheduler.check()

    def chunks(self, seq: int) -> list[messages.Chunk]:
        return [message for message in self.port.outgoing if isinstance(message, messages.Chunk) and message.id == seq]

    def until_encoded(self, count: int) -> None:
        """Wait for the encoder's thread."""
        deadline = time.monotonic() + 10
        while self.intake._ready.qsize() < count:
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def close(self) -> None:
        self.intake.close()
        self.blackbox.close()
