"""What the scheduler asks of one step, and what comes back. All frozen; a slot interval is half-open."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True, slots=True)
class Span:
    """Compute slots [start, stop) of a sequence.

    `blocks` is its block table covering [0, stop). `emits` is True where `stop` is the sequence's present length, so
    that this step makes its next patch. `adapter` is the adapter load that it runs under.
    """

    seq: int
    start: int
    stop: int
    blocks: tuple[int, ...]
    emits: bool
    adapter: int | None


@dataclass(frozen=True, slots=True)
class Placement:
    """Adapter load `load` belongs in device slot `slot`.

    `is_new` says that it has yet to be brought in; `evicted` is the load that it replaces there, if any.
    """

    load: int
    slot: int
    is_new: bool
    evicted: int | None


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step. An empty plan is a normal value: there was nothing to do, or no room to do it.

    `parked` are the sequences preempted by this plan: their rows are to be parked before anything is computed.
    `loads` are the adapters to bring in before anything is computed (empty unless `max_adapters` is set).
    `is_short`: somebody needs what only a sequence in a step that is still being computed could give up. Nobody gets it
    until everything is committed before the next plan.
    """

    step: int
    spans: tuple[Span, ...]
    parked: tuple[int, ...] = ()
    loads: tuple[Placement, ...] = ()
    is_short: bool = False

    def only(self, seq: int) -> StepPlan:
        """The same step with the one span of `seq`: how a step that failed is retried one by one.

        Parking and loading have been done by then, so the plan carries neither. KeyError where `seq` has no span.
        """
        spans = tuple(span for span in self.spans if span.seq == seq)
        if not spans:
            raise KeyError(seq)
        return replace(self, spans=spans, parked=(), loads=())

    def __bool__(self) -> bool:
        """Whether there is anything to compute."""
        return bool(self.spans)


@dataclass(frozen=True, slots=True)
class Outcome:
    """`seq`'s span was computed. `stop` says that the patch it made is its last; it means nothing where none was made.

    One for every span that was computed, those that made no patch included. A span without one was not computed.
    """

    seq: int
    stop: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """A sequence that has made its last patch: the model said stop, or the patch count reached `max_patches`."""

    seq: int
    reason: Literal["stop", "length"]
