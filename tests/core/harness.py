"""A scheduler with the shadow runner under it, for directed traces."""

from __future__ import annotations

from typing import Any

from tests.core.shadow import Request, ShadowRunner

from evervox.core.keys import root_key, text_key
from evervox.core.plan import Ended, Outcome, StepPlan
from evervox.core.scheduler import NewSequence, Scheduler, SchedulerLimits

STEP_SECONDS = 0.02


class Harness:
    """Steps of 20 ms; every step is checked for wrong reads and for the books."""

    def __init__(self, **limits: Any) -> None:
        defaults = {"num_blocks": 64, "block_size": 4, "max_running": 8, "slots_per_step": 64, "patch_seconds": 0.16}
        self.limits = SchedulerLimits(**{**defaults, **limits})
        self.scheduler = Scheduler(self.limits, b"secret")
        self.runner = ShadowRunner(self.limits.block_size)
        self.requests: dict[int, Request] = {}
        self.plans: list[StepPlan] = []
        self.ended: list[Ended] = []
        self.now = 0.0

    def submit(self, seq: int, tokens: str, patches: int = 2, salt: bytes = b"", **more: Any) -> None:
        root = (more.get("adapter"), salt)
        keys = [text_key(ord(token)) for token in tokens]
        new = NewSequence(seq, keys, root_key(b"weights", "float32", *root), patches, **more)
        self.scheduler.submit(new, self.now)
        self.requests[seq] = Request(new, root, [("text", ord(token), 0) for token in tokens], len(self.plans) * 1000 + seq)

    def plan(self) -> StepPlan:
        plan = self.scheduler.plan(self.now)
        self.scheduler.check()
        self.plans.append(plan)
        return plan

    def compute(self, plan: StepPlan) -> None:
        self.runner.compute(plan, self.requests)
        assert self.runner.wrong == []

    def commit(self, plan: StepPlan, stops: tuple[int, ...] = ()) -> None:
        self.now += STEP_SECONDS
        self.ended += self.scheduler.commit(plan, [Outcome(span.seq, span.seq in stops) for span in plan.spans], self.now)
        self.scheduler.check()

    def step(self, *stops: int) -> StepPlan:
        plan = self.plan()
        self.compute(plan)
        self.commit(plan, stops)
        return plan

    def drain(self, max_steps: int = 2000) -> None:
        while not self.scheduler.is_idle:
            assert len(self.plans) < max_steps, self.scheduler
            self.step()
        assert self.scheduler.num_free_blocks == self.limits.num_blocks
        self.scheduler.check()

    def starts(self, seq: int) -> list[int]:
        """Where each span of `seq` began."""
        return [span.start for plan in self.plans for span in plan.spans if span.seq == seq]

    def patches(self, seq: int) -> int:
        """How many spans of `seq` made a patch."""
        return sum(span.emits for plan in self.plans for span in plan.spans if span.seq == seq)
