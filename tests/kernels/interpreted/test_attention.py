"""Paged attention and the scatter against a dense float64 oracle, over random layouts full of poison."""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from tests.kernels.layouts import BLOCK_SIZE, Layout, Shape, build, random_layout, random_shape

from evervox.kernels.kv_store import kv_store
from evervox.kernels.paged_attention import paged_attention, supports
from evervox.kernels.paged_decode import attend_rows
from evervox.kernels.paged_packed import attend_packed
from evervox.kernels.tiling import tiling
from evervox.layers.attention_metadata import AttentionMetadata
from evervox.layers.paged import PagedCache, SdpaAttend

DTYPES = (torch.float32, torch.float16)


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the wrappers allocate holds NaN: no part of it may be taken for written."""
    empty = torch.empty

    def poison(*args: Any, **kwargs: Any) -> torch.Tensor:
        made = empty(*args, **kwargs)
        return made.fill_(float("nan")) if made.is_floating_point() and made.device.type != "meta" else made

    monkeypatch.setattr(torch, "empty", poison)


def run(layout: Layout) -> torch.Tensor:
    """What a step does: store, then attend. Returns the largest error, against the oracle and the plain form alike, over the
    largest expected value."""
    keys, values = layout.keys.clone(), layout.values.clone()
    kv_store(layout.key, layout.value, keys, values, layout.metadata.slot_mapping)
    torch.testing.assert_close(keys[1:], layout.stored_keys[1:], rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(values[1:], layout.stored_values[1:], rtol=0, atol=0, equal_nan=True)
    out = paged_attention(layout.query, keys, values, layout.metadata)
    assert out.dtype == layout.query.dtype
    pools = PagedCache(layout.keys.clone()[None], layout.values.clone()[None])
    plain = SdpaAttend(layout.metadata, BLOCK_SIZE).over(pools)(0, layout.query, layout.key, layout.value)
    errors = [(out.double() - other.double()).abs().max() for other in (layout.expected, plain)]
    return torch.stack(errors).max() / layout.expected.abs().max()


@pytest.mark.parametrize("seed", range(20))
def test_random_layouts(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(10):
        shape = random_shape(rng, DTYPES, (16, 32))
        layout = random_layout(rng, shape, decode=rng.random() < 0.5, max_spans=3, longest=33 if rng.random() < 0.7 else 70)
        assert run(layout) < 1e-3, (shape, layout.metadata)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(16, 2, 64), (16, 2, 128), (12, 2, 128)])
def test_the_real_heads(heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
    rng, shape = random.Random(1), Shape(heads, kv_heads, head_dim, dtype)
    assert run(build(rng, shape, [5, 1, 17], [0, 40, 16], decode=False, padding=3, idle=1)) < 1e-3
    assert run(build(rng, shape, [1, 1], [15, 70], decode=True, padding=0, idle=1)) < 1e-3


@pytest.mark.parametrize("context", [1, 127, 128, 129, 1049])
def test_long_contexts_are_split(context: int) -> None:
    rng, shape = random.Random(context), Shape(4, 2, 16, torch.float32)
    layout = build(rng, shape, [1, 1], [context - 1, 1099], decode=True, padding=0, idle=1)
    assert tiling(layout.query, layout.keys, layout.metadata).splits == 8
    assert run(layout) < 1e-3


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("lengths", "priors"),
    [
        ([1, 20, 1], [1049, 0, 130]),
        ([1, 1, 33, 1], [15, 700, 40, 0]),
        ([7, 1], [300, 511]),
        ([1, 1], [64, 400]),
    ],
)
def test_long_decodes_beside_prefill(lengths: list[int], priors: list[int], dtype: torch.dtype) -> None:
    """Spans of one slot, at slots that are not their numbers, split their contexts; the last case has nothing else."""
    rng, shape = random.Random(len(lengths)), Shape(4, 2, 16, dtype)
    for padding, idle in ((0, 0), (1, 0), (9, 3)):
        layout = build(rng, shape, lengths, priors, decode=False, padding=padding, idle=idle)
        assert tiling(layout.query, layout.keys, layout.metadata).splits > 1
        assert run(layout) < 1e-3, (padding, idle)


@pytest.mark.parametrize(("blocks", "longest"), [(5, 70), (40, 630)])
def test_each_slot_is_served_by_one_kernel(blocks: int, longest: int) -> None:
    """Spans of one slot by the one that splits; the others, and what belongs to no span, by the other."""
    rng, shape = random.Random(blocks), Shape(4, 2, 16, torch.float32)
    layout = build(rng, shape, [1, 5, 1, 2], [longest, 3, 0, 20], decode=False, padding=1, idle=1)
    plan = tiling(layout.query, layout.stored_keys, layout.metadata)
    assert (plan.splits > 1) == (blocks > 8)
    served = []
    for attend in (attend_packed, attend_rows):
        out = torch.full_like(layout.query, float("nan"))
        attend(out, layout.query, layout.stored_keys, layout.stored_values, layout.metadata, plan)
        served.append(out.isfinite().flatten(1).all(1))
        assert torch.equal(served[-1], out.isfinite().flatten(1).any(1))
    single = torch.tensor([True, *[False] * 5, True, False, False, False])
    assert torch.equal(served[0], ~single)
    assert torch.equal(served[1], single)


@pytest.mark.parametrize("dtype", DTYPES)
def test_short_decodes_beside_prefill_are_one_part(dtype: torch.dtype) -> None:
    layout = build(random.Random(7), Shape(4, 2, 16, dtype), [1, 9, 1], [20, 0, 60], decode=False, padding=1, idle=2)
    assert tiling(layout.query, layout.keys, layout.metadata).splits == 1
    assert run(layout) < 1e-3


def test_many_spans_are_split_less() -> None:
    """Of a step with prefill too: the number of parts follows from the number of spans and the width of the tables."""

    def splits(spans: int, blocks: int, longest: int) -> int:
        numbers = [torch.zeros(shape, dtype=torch.int32, device="meta") for shape in ((spans, blocks), (spans + 1,), (spans,))]
        slots = torch.zeros(64, dtype=torch.int64, device="meta")
        query, keys = torch.empty(64, 16, 128, device="meta").half(), torch.empty(9, BLOCK_SIZE, 2, 128, device="meta").half()
        return tiling(query, keys, AttentionMetadata(slots, *numbers, longest)).splits

    assert [splits(spans, 512, 64) for spans in (1, 8, 64, 200, 600)] == [32, 32, 8, 2, 1]
    assert [splits(spans, 512, 1) for spans in (1, 8, 64, 200)] == [32, 16, 2, 1]
    assert [splits(8, blocks, 64) for blocks in (1, 8, 64)] == [1, 1, 8]


def test_a_pool_slice_and_a_packed_projection_are_taken_as_they_are() -> None:
    """Queries, keys and values of a fused projection are views with a longer stride."""
    layout = build(random.Random(3), Shape(4, 2, 16, torch.float32), [5, 9], [0, 20], decode=False, padding=2, idle=0)
    fused = torch.cat((layout.query, layout.key, layout.value), 1)
    query, key, value = fused.split((4, 2, 2), 1)
    keys, values = torch.stack((layout.keys, layout.values)).unbind(0)
    kv_store(key, value, keys, values, layout.metadata.slot_mapping)
    out = paged_attention(query, keys, values, layout.metadata)
    torch.testing.assert_close(out.double(), layout.expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("decode", [True, False])
def test_launches_do_not_look_at_lengths(decode: bool) -> None:
    """Equal shapes launch equal grids whatever the lengths say, so one recording serves them all."""
    layout = build(random.Random(5), Shape(4, 2, 16, torch.float32), [1, 1], [3, 200], decode=decode, padding=0, idle=0)
    emptied = replace(layout.metadata, context_lens=torch.zeros_like(layout.metadata.context_lens))
    assert tiling(layout.query, layout.keys, layout.metadata) == tiling(layout.query, layout.keys, emptied)
    out = paged_attention(layout.query, layout.keys, layout.values, emptied)
    assert torch.equal(out, torch.zeros_like(out))


def test_what_has_no_kernel_is_refused() -> None:
    layout = build(random.Random(4), Shape(2, 1, 16, torch.float32), [2], [0], decode=False, padding=0, idle=0)
    assert not supports(torch.float64, 64)
    assert not supports(torch.bfloat16, 96)
    with pytest.raises(ValueError, match="float64"):
        paged_attention(layout.query.double(), layout.keys, layout.values, layout.metadata)
    with pytest.raises(ValueError, match="contiguous"):
        paged_attention(layout.query, layout.keys.transpose(0, 1), layout.values, layout.metadata)
    with pytest.raises(ValueError, match="contiguous"):
        kv_store(layout.key, layout.value, layout.keys.transpose(0, 1), layout.values, layout.metadata.slot_mapping)
