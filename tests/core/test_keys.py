"""Keys: different inputs never share a byte stream, and a chain stands for its whole prefix."""

from __future__ import annotations

from itertools import pairwise, product

from hypothesis import given
from hypothesis import strategies as st

from evervox.core.keys import KeyChain, block_digest, clip_key, generated_key, root_digest, root_key, text_key

SLOTS = st.one_of(
    st.tuples(st.just(text_key), st.tuples(st.integers(0, 2**64 - 1))),
    st.tuples(st.just(clip_key), st.tuples(st.binary(max_size=20), st.integers(0, 2**32 - 1))),
    st.tuples(st.just(generated_key), st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))),
)
ROOTS = st.tuples(
    st.binary(max_size=3), st.text("ab", max_size=2), st.one_of(st.none(), st.integers(0, 3)), st.binary(max_size=3)
)


@given(SLOTS, SLOTS)
def test_slot_keys_differ_where_the_slots_do(one: tuple, other: tuple) -> None:  # type: ignore[type-arg]
    assert (one[0](*one[1]) == other[0](*other[1])) == (one == other)


@given(ROOTS, ROOTS)
def test_root_keys_differ_where_any_part_does(one: tuple, other: tuple) -> None:  # type: ignore[type-arg]
    assert (root_key(*one) == root_key(*other)) == (one == other)


def test_parts_do_not_run_into_each_other() -> None:
    assert root_key(b"ab", "c", None, b"") != root_key(b"a", "bc", None, b"")
    assert block_digest(b"s", b"p", [b"ab", b"c"]) != block_digest(b"s", b"p", [b"a", b"bc"])
    assert block_digest(b"s", b"pa", [b"b"]) != block_digest(b"s", b"p", [b"ab"])
    assert clip_key(b"ab", 1) != clip_key(b"a", 1)
    assert root_digest(b"s", b"r") != block_digest(b"s", b"r", [])


def test_digests_are_128_bits_and_depend_on_the_secret() -> None:
    digests = [block_digest(secret, b"p", [b"k"]) for secret in (b"", b"one", b"two")]
    assert len(set(digests)) == 3
    assert {len(digest) for digest in digests} == {16}


@given(st.lists(st.integers(0, 3), max_size=20), st.lists(st.integers(0, 20), max_size=4), st.integers(1, 5))
def test_a_chain_grown_in_pieces_is_the_chain_grown_at_once(tokens: list[int], cuts: list[int], size: int) -> None:
    slots = [text_key(token) for token in tokens]
    whole, pieces = KeyChain(b"s", b"r", size), KeyChain(b"s", b"r", size)
    whole.extend(slots)
    edges = sorted({0, len(slots), *(min(cut, len(slots)) for cut in cuts)})
    for start, stop in pairwise(edges):
        pieces.extend(slots[start:stop])
    assert pieces.digests == whole.digests
    assert len(pieces) == len(whole) == len(slots)
    assert len(whole.digests) == len(slots) // size


def test_chains_agree_exactly_as_far_as_their_prefixes_do() -> None:
    chains = {}
    for tokens in product(range(2), repeat=6):
        chains[tokens] = KeyChain(b"s", b"r", 2)
        chains[tokens].extend([text_key(token) for token in tokens])
    for (one, its), (other, others) in product(chains.items(), repeat=2):
        for place in range(3):
            stop = 2 * (place + 1)
            assert (its.digests[place] == others.digests[place]) == (one[:stop] == other[:stop])
