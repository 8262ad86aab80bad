"""Adapter residency: pins hold, the least recently used goes, and every slot has one load."""

from __future__ import annotations

import random

import pytest

from evervox.core.adapters import AdapterResidency
from evervox.core.errors import BrokenBooks
from evervox.core.plan import Placement


def test_a_load_is_brought_in_once_and_stays_until_its_slot_is_needed() -> None:
    residency = AdapterResidency(2)
    assert residency.acquire(7) == Placement(7, 0, True, None)
    assert residency.acquire(7) == Placement(7, 0, False, None)
    assert residency.acquire(8) == Placement(8, 1, True, None)
    assert residency.acquire(9) is None  # both are in use
    residency.release(7)
    assert residency.acquire(9) is None
    residency.release(7)
    assert residency.resident == {8: 1, 7: 0}
    assert residency.acquire(9) == Placement(9, 0, True, 7)


def test_the_least_recently_used_goes_first() -> None:
    residency = AdapterResidency(2)
    for load in (1, 2):
        residency.acquire(load)
    residency.release(2)
    residency.release(1)
    assert residency.acquire(3) == Placement(3, 1, True, 2)


def test_release_without_acquire_raises() -> None:
    with pytest.raises(BrokenBooks):
        AdapterResidency(1).release(1)


def test_an_unloaded_adapter_is_dropped_unless_in_use() -> None:
    residency = AdapterResidency(1)
    residency.acquire(1)
    assert not residency.drop(1)
    residency.release(1)
    assert residency.drop(1)
    assert residency.resident == {}
    assert residency.acquire(1) == Placement(1, 0, True, None)


@pytest.mark.parametrize("seed", range(20))
def test_random_use_keeps_the_books(seed: int) -> None:
    rng = random.Random(seed)
    residency = AdapterResidency(rng.randint(0, 4))
    held: list[int] = []
    for _ in range(300):
        if held and rng.random() < 0.5:
            residency.release(held.pop(rng.randrange(len(held))))
        else:
            load = rng.randrange(6)
            has_room = load in held or len(set(held)) < residency.max_resident
            assert residency.has_room(load) == has_room
            if residency.acquire(load) is not None:
                held.append(load)
            assert (load in held) or not has_room
        residency.check(held)
        assert set(held) <= residency.resident.keys()
        assert len(residency.resident) <= residency.max_resident
