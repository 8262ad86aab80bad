"""What must be true of a scheduler's books between two calls."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from evervox.core.blocks import BlockPool
    from evervox.core.inflight import InFlight
    from evervox.core.lanes import Lanes
    from evervox.core.limits import SchedulerLimits
    from evervox.core.sequence import Sequence


def sequence_claims(sequences: Mapping[int, Sequence], residents: Mapping[int, Sequence], lanes: Lanes) -> dict[str, bool]:
    """Who is resident, who waits, and what is planned for each."""
    running = residents.values()
    others = [sequence for sequence in sequences.values() if not sequence.is_resident]
    waiting = [sequence for sequence in others if not sequence.is_held]
    return {
        "residents are those that hold blocks": len(running) + len(others) == len(sequences)
        and all(sequence.is_resident for sequence in running),
        "who is not resident waits": len(lanes) == len(waiting) and all(s in lanes for s in waiting),
        "the lanes' counts are right": lanes.residents() == Counter(s.lane for s in running),
        "what is planned follows what is computed": all(
            [s.computed, *[span.stop for span in s.spans]] == [*[span.start for span in s.spans], s.planned]
            and s.promised == sum(span.emits for span in s.spans)
            for s in sequences.values()
        ),
    }


def block_claims(
    residents: Mapping[int, Sequence], pool: BlockPool, inflight: InFlight, limits: SchedulerLimits
) -> dict[str, bool]:
    """Which blocks hold what for whom."""
    running, size = residents.values(), limits.block_size
    return {
        "residents are bounded": len(running) <= limits.max_running,
        "references are the residents' tables": pool.held() == Counter(block for s in running for block in s.blocks),
        "what is in flight has a resident": inflight.owners() <= residents.keys(),
        "blocks cover what is computed": all(s.computed < s.length and s.computed <= len(s.blocks) * size for s in running),
        "nobody writes into a shared block": all(
            pool.refs(block) == 1 for s in running for block in s.blocks[s.computed // size :]
        ),
    }
