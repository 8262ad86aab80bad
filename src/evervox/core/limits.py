"""The scheduler's settings, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """What one scheduler may use and promise. Times are seconds.

    `slots_per_step` is the budget of one step, decode and prefill together. `max_running` bounds the residents.
    A listener with less than `listener_lead` of audio in hand comes before any newcomer. A resident gives up its row or
    blocks to one that waits only if it is `preempt_slack` less urgent. `tenant_weights` shares the rows between tenants (an
    unlisted tenant weighs 1); None lets them compete by deadline alone. `max_adapters` bounds the adapter loads in use at
    once; None leaves adapters to the caller.
    """

    num_blocks: int
    max_running: int
    slots_per_step: int
    patch_seconds: float
    block_size: int = 16
    first_audio_target: float = 0.3
    batch_horizon: float = 60.0
    listener_lead: float = 1.0
    preempt_slack: float = 2.0
    tenant_weights: Mapping[str, float] | None = None
    max_adapters: int | None = None

    def __post_init__(self) -> None:
        for name in ("num_blocks", "max_running", "slots_per_step", "block_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("patch_seconds", "first_audio_target", "batch_horizon", "listener_lead", "preempt_slack"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        if self.max_adapters is not None and self.max_adapters < 0:
            raise ValueError(f"max_adapters must be at least 0, not {self.max_adapters}")
        for tenant, weight in (self.tenant_weights or {}).items():
            if not weight > 0:
                raise ValueError(f"tenant_weights[{tenant!r}] must be above 0, not {weight}")

    def num_blocks_for(self, slots: int) -> int:
        return -(-slots // self.block_size)

    @property
    def background_seconds(self) -> float:
        """How far ahead of now batch work stands while it is not due: far enough to give way to any newcomer."""
        return self.first_audio_target + self.listener_lead + self.preempt_slack + self.batch_horizon
