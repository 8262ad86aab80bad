"""One request inside the core: what it asked for, how far it is, and what it holds. The scheduler is its only writer."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Literal, TypeAlias

from evervox.core.errors import Refused
from evervox.core.keys import KeyChain, SlotKey, generated_key

if TYPE_CHECKING:
    from collections.abc import Sequence as Keys

    from evervox.core.limits import SchedulerLimits
    from evervox.core.plan import Span

Priority: TypeAlias = Literal["live", "batch"]
Kind: TypeAlias = Literal["newcomer", "listener", "batch"]


@dataclass(frozen=True, slots=True)
class NewSequence:
    """A request for the scheduler. `keys` are its prompt's slot keys, `root` comes from `keys.root_key`.

    `done_patches` were made before (a stream that is resumed): their slots are prefilled again after the prompt's, and
    they count against `max_patches`.
    """

    seq: int
    keys: Keys[SlotKey]
    root: bytes
    max_patches: int
    priority: Priority = "live"
    tenant: str = ""
    adapter: int | None = None
    done_patches: int = 0

    @property
    def kind(self) -> Kind:
        """A newcomer becomes a listener with its first patch; one that is resumed is a listener at once."""
        if self.priority == "batch":
            return "batch"
        return "listener" if self.done_patches else "newcomer"

    def require_fits(self, limits: SchedulerLimits) -> None:
        """Raise `Refused` where even an empty engine could not serve it."""
        if not self.keys:
            raise Refused("keys", "a prompt has at least one slot")
        if not 0 <= self.done_patches < self.max_patches:
            raise Refused("max_patches", f"{self.max_patches} leaves nothing to make after {self.done_patches}")
        slots = len(self.keys) + self.max_patches - 1  # the slot of the last patch is never computed
        if limits.num_blocks_for(slots) > limits.num_blocks:
            room = limits.num_blocks * limits.block_size
            raise Refused("num_blocks", f"prompt and patches may take {slots} slots, the whole pool has {room}")
        if self.adapter is not None and limits.max_adapters == 0:
            raise Refused("max_adapters", "adapters are switched off")


class Sequence:
    """A live request. It is resident while it holds blocks, and waits otherwise.

    `urgency` orders those of one kind: (deadline, order of arrival); a held one comes after all others. `serial` is never
    given out twice, whatever ids callers choose, so that generated keys are private for good.

    `spans` are planned and not yet committed, in order. With them `planned` slots will be computed, and `promised` more patches
    made, so that the content of `known` slots will be there.
    """

    __slots__ = (
        "_deadline",
        "adapter",
        "blocks",
        "chain",
        "computed",
        "generated",
        "is_held",
        "kind",
        "lane",
        "length",
        "max_patches",
        "planned",
        "promised",
        "prompt_blocks",
        "prompt_slots",
        "seq",
        "serial",
        "spans",
    )

    def __init__(self, new: NewSequence, serial: int, chain: KeyChain, lane: str, deadline: float) -> None:
        self.seq = new.seq
        self.serial = serial
        self.lane = lane
        self.adapter = new.adapter
        self.kind = new.kind
        self.max_patches = new.max_patches
        self.chain = chain
        chain.extend(new.keys)
        self.prompt_slots = len(new.keys)
        self.prompt_blocks = len(chain.digests)  # whole blocks of prompt slots: what others may share
        self.generated = new.done_patches
        self.length = self.prompt_slots + self.generated  # slots whose content is known
        self.blocks: tuple[int, ...] = ()
        self.computed = 0  # slots whose KV is in `blocks`
        self.spans: tuple[Span, ...] = ()
        self.planned = self.promised = 0
        self.is_held = False
        self._deadline = deadline

    @property
    def deadline(self) -> float:
        return inf if self.is_held else self._deadline

    @property
    def urgency(self) -> tuple[float, int]:
        return self.deadline, self.serial

    @property
    def is_resident(self) -> bool:
        return bool(self.blocks)

    @property
    def known(self) -> int:
        return self.length + self.promised

    @property
    def is_complete(self) -> bool:
        """Whether all patches that it may have are made or promised."""
        return self.generated + self.promised == self.max_patches

    @property
    def is_decode(self) -> bool:
        """Whether all that it lacks for its next patch is the slot of its last one."""
        return bool(self.blocks) and self.known - self.planned == 1 and not self.is_held

    def settle(self, blocks: tuple[int, ...], computed: int) -> None:
        """Become resident with `blocks`, of which the first hold `computed` slots; or nothing any more."""
        self.blocks, self.computed = blocks, computed
        self.void()

    def promise(self, span: Span) -> None:
        self.spans += (span,)
        self.planned = span.stop
        self.promised += span.emits

    def keep(self) -> None:
        """The first span that was planned has been computed."""
        span = self.spans[0]
        self.spans = self.spans[1:]
        self.computed = span.stop
        self.promised -= span.emits

    def void(self) -> None:
        """What is planned will not be computed."""
        self.spans, self.planned, self.promised = (), self.computed, 0

    def findable(self, block_size: int) -> list[bytes]:
        """Keys of the blocks that it need not compute itself if they are held: never the one with its last slot."""
        return self.chain.digests[: (self.length - 1) // block_size]

    def emit(self, now: float, patch_seconds: float) -> None:
        """One more patch is made. The listener's buffer now runs dry later by its length, and not before `now`."""
        self.generated += 1
        self.length += 1
        if self.kind != "batch":
            dry = max(now, self._deadline) if self.kind == "listener" else now
            self._deadline = dry + patch_seconds
            self.kind = "listener"

    def seal(self) -> None:
        """Bring the key chain up to the last computed slot, generated ones included."""
        first = len(self.chain) - self.prompt_slots
        steps = range(first, self.computed - self.prompt_slots)
        self.chain.extend([generated_key(self.serial, step) for step in steps])

    def __repr__(self) -> str:
        return (
            f"Sequence({self.seq}, slots {self.computed} of {self.length}, patches {self.generated} of "
            f"{self.max_patches}, blocks {self.blocks}, deadline {self.deadline:.3f})"
        )
