"""Who gives way when a waiting sequence is more urgent than a resident."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence as Items

    from evervox.core.blocks import BlockPool
    from evervox.core.draft import Draft
    from evervox.core.sequence import Sequence


def choose_victims(
    sequence: Sequence, hits: Items[int], num_running: int, pool: BlockPool, draft: Draft
) -> list[Sequence] | None:
    """Residents to park so that `sequence` finds a row and blocks; [] where it does so anyway, None where it cannot.

    Besides the sequence's own blocks, one stays free for each other resident to grow into.
    """
    limits = draft.limits
    fresh = limits.num_blocks_for(sequence.length) - len(hits)
    free = pool.num_free - pool.num_idle(hits)
    if num_running < limits.max_running and free >= fresh + num_running:
        return []
    drops: Counter[int] = Counter(dict.fromkeys(hits, -1))  # a hit stays held, by `sequence`
    victims: list[Sequence] = []
    for other in draft.less_urgent_residents(sequence):
        if not _yields(other, sequence, victims, draft):
            continue
        victims.append(other)
        drops.update(other.blocks)
        free += sum(1 for block in other.blocks if drops[block] == pool.refs(block))
        num_left = num_running - len(victims)
        if num_left < limits.max_running and free >= fresh + num_left:
            return victims
    return None


def _yields(other: Sequence, sequence: Sequence, victims: list[Sequence], draft: Draft) -> bool:
    """Whether resident `other` gives way to waiting `sequence`, after `victims` have.

    A held one does. Any other does if it is much less urgent, unless that would take a tenant below its share for one that has
    its own; and a tenant above its share gives way to one below however urgent it is.
    """
    if other.is_held:
        return True
    mine = draft.excess[sequence.lane]
    theirs = draft.excess[other.lane] - sum(1 for victim in victims if victim.lane == other.lane)
    if mine < 0 < theirs:
        return True
    if mine >= 0 >= theirs and other.lane != sequence.lane:
        return False
    return draft.rank(other) > max(draft.rank(sequence), draft.now) + draft.limits.preempt_slack
