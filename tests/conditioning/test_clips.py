"""The cache of encoded clips: least recently used first out, never over its bytes, never changed from outside."""

from threading import Thread

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evervox.conditioning.clips import ClipCache


def latents(patches: int, value: float = 0.0) -> np.ndarray:
    return np.full((patches, 2, 4), value, np.float32)  # 32 bytes a patch


def test_a_hit_is_what_was_put_and_cannot_be_changed() -> None:
    cache = ClipCache(1000)
    mine = latents(2, 1.0)
    kept = cache.put(b"a", mine)
    mine[:] = 9  # the cache has its own copy
    found = cache.get(b"a")
    assert found is kept
    assert (found == 1).all()
    assert found.base is None  # owns its memory: no view pins a larger array
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 2


def test_least_recently_used_goes_first() -> None:
    cache = ClipCache(64)
    cache.put(b"a", latents(1))
    cache.put(b"b", latents(1))
    cache.get(b"a")
    cache.put(b"c", latents(1))
    assert [cache.get(key) is not None for key in (b"a", b"b", b"c")] == [True, False, True]
    assert (cache.hits, cache.misses, len(cache), cache.num_bytes) == (3, 1, 2, 64)


def test_the_first_one_put_is_kept() -> None:
    cache = ClipCache(64)
    first = cache.put(b"a", latents(1, 1.0))
    assert cache.put(b"a", latents(1, 2.0)) is first
    assert cache.num_bytes == 32


def test_what_is_larger_than_the_cache_does_not_empty_it() -> None:
    cache = ClipCache(64)
    cache.put(b"a", latents(2))
    assert len(cache.put(b"b", latents(3))) == 3
    assert cache.get(b"b") is None
    assert cache.get(b"a") is not None


def test_a_cache_of_nothing_keeps_nothing() -> None:
    cache = ClipCache(0)
    cache.put(b"a", latents(1))
    assert (len(cache), cache.num_bytes) == (0, 0)


@given(st.integers(0, 300), st.lists(st.tuples(st.integers(0, 8), st.integers(1, 4), st.booleans()), max_size=60))
def test_bytes_are_counted_and_bounded(limit: int, steps: list[tuple[int, int, bool]]) -> None:
    cache = ClipCache(limit)
    for key, patches, reads in steps:
        if reads:
            cache.get(b"%d" % key)
        else:
            cache.put(b"%d" % key, latents(patches))
        assert cache.num_bytes == sum(array.nbytes for array in cache._clips.values()) <= limit


def test_threads_share_it() -> None:
    cache = ClipCache(320)

    def work(start: int) -> None:
        for step in range(300):
            key = b"%d" % ((start + step) % 20)
            if cache.get(key) is None:
                cache.put(key, latents(1 + step % 3))

    threads = [Thread(target=work, args=(start,)) for start in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.num_bytes == sum(array.nbytes for array in cache._clips.values()) <= 320
    assert cache.hits + cache.misses == 8 * 300
