"""Random packed batches over a paged pool, and what attention over them must give, computed densely in float64.

Needs torch alone, so that the same layouts serve under the interpreter and on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from evervox.layers.attention_metadata import AttentionMetadata

if TYPE_CHECKING:
    import random

BLOCK_SIZE = 16
EDGES = (1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49)
NAN = float("nan")


@dataclass(frozen=True)
class Shape:
    """What a model fixes."""

    heads: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype


@dataclass(frozen=True)
class Layout:
    """One step's inputs before `kv_store`, and the answers.

    `keys`, `values`: the pool; NaN wherever no live slot was written. `stored_keys`, `stored_values`: the pool afterwards,
    outside the null block. `expected` float64 `[N, heads, head_dim]`, zeros at padding.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    keys: Tensor
    values: Tensor
    stored_keys: Tensor
    stored_values: Tensor
    expected: Tensor
    metadata: AttentionMetadata

    def to(self, device: str) -> Layout:
        """A copy on `device`."""
        meta = self.metadata
        names = ("slot_mapping", "block_tables", "span_starts", "context_lens")
        moved = replace(meta, **{name: getattr(meta, name).to(device) for name in names})
        tensors = {k: v.to(device) for k, v in vars(self).items() if isinstance(v, Tensor)}
        return Layout(metadata=moved, **tensors)


def random_shape(rng: random.Random, dtypes: tuple[torch.dtype, ...], head_dims: tuple[int, ...]) -> Shape:
    kv_heads = rng.choice((1, 2, 3))
    return Shape(kv_heads * rng.choice((1, 2, 3, 8)), kv_heads, rng.choice(head_dims), rng.choice(dtypes))


def random_layout(rng: random.Random, shape: Shape, *, decode: bool, max_spans: int, longest: int) -> Layout:
    """Spans with lengths around block boundaries, sometimes sharing full blocks of a prefix, then padding of both kinds."""
    spans = rng.randint(1, max_spans)
    lengths = [1 if decode or rng.random() < 0.3 else _length(rng, longest) for _ in range(spans)]
    priors = [_length(rng, longest) if decode or rng.random() < 0.7 else 0 for _ in range(spans)]
    return build(rng, shape, lengths, priors, decode=decode, padding=rng.choice((0, 1, 7)), idle=rng.choice((0, 1, 3)))


def _length(rng: random.Random, longest: int) -> int:
    return rng.choice([n for n in EDGES if n <= longest]) if rng.random() < 0.6 else rng.randint(1, longest)


def build(
    rng: random.Random, shape: Shape, lengths: list[int], priors: list[int], *, decode: bool, padding: int, idle: int
) -> Layout:
    """Spans of `lengths` new slots after `priors` old ones; `padding` slots and `idle` spans (decode: rows) that are not live."""
    contexts = [p + n for p, n in zip(priors, lengths, strict=True)]
    tables = _tables(rng, lengths, priors)
    num_blocks = 1 + max(b for t in tables for b in t) + rng.randint(0, 3)
    history = _history(rng, shape, tables, contexts, num_blocks)
    padding = idle if decode else padding
    starts = [sum(lengths[:r]) for r in range(len(lengths) + 1)]
    total = starts[-1] + padding
    query = _noise(rng, shape.dtype, total, shape.heads, shape.head_dim)
    key, value = (torch.full((total, shape.kv_heads, shape.head_dim), NAN, dtype=shape.dtype) for _ in range(2))
    keys, values = (
        torch.full((num_blocks, BLOCK_SIZE, shape.kv_heads, shape.head_dim), NAN, dtype=shape.dtype) for _ in range(2)
    )
    expected = torch.zeros(query.shape, dtype=torch.float64)
    mapping = torch.tensor([rng.randrange(BLOCK_SIZE) for _ in range(total)])
    old_keys, old_values = keys.clone(), values.clone()
    for r, table in enumerate(tables):
        slots = torch.tensor([b * BLOCK_SIZE + i for b in table for i in range(BLOCK_SIZE)])[: contexts[r]]
        new = slice(starts[r], starts[r + 1])
        whole_key, whole_value = history[0][slots], history[1][slots]
        mapping[new], key[new], value[new] = slots[priors[r] :], whole_key[priors[r] :], whole_value[priors[r] :]
        for pool, whole, count in ((old_keys, whole_key, priors[r]), (old_values, whole_value, priors[r])):
            pool.view(-1, *pool.shape[2:])[slots[:count]] = whole[:count]
        for pool, whole in ((keys, whole_key), (values, whole_value)):
            pool.view(-1, *pool.shape[2:])[slots] = whole
        expected[new] = dense(query[new], whole_key, whole_value, priors[r])
    metadata = AttentionMetadata(
        slot_mapping=mapping,
        block_tables=_padded(rng, tables, idle, num_blocks),
        span_starts=torch.tensor(_starts(starts, idle, decode=decode), dtype=torch.int32),
        context_lens=torch.tensor(contexts + [0] * idle, dtype=torch.int32),
        max_query=1 if decode else max(2, *lengths, 2),
    )
    return Layout(query, key, value, old_keys, old_values, keys, values, expected, metadata)


def _tables(rng: random.Random, lengths: list[int], priors: list[int]) -> list[list[int]]:
    """Distinct shuffled blocks from 1 on; a span may share the full old blocks of the one before it."""
    counts = [-(-(p + n) // BLOCK_SIZE) for p, n in zip(priors, lengths, strict=True)]
    free = list(range(1, 2 + sum(counts)))
    rng.shuffle(free)
    tables: list[list[int]] = []
    for r, count in enumerate(counts):
        shared = min(priors[r], priors[r - 1]) // BLOCK_SIZE if r and rng.random() < 0.5 else 0
        tables.append([*(tables[-1][:shared] if shared else []), *(free.pop() for _ in range(count - shared))])
    return tables


def _history(
    rng: random.Random, shape: Shape, tables: list[list[int]], contexts: list[int], num_blocks: int
) -> tuple[Tensor, Tensor]:
    """Keys and values by flat position. Blocks in no table hold NaN; what a live block holds past its context is never taken."""
    used = sorted({b for t in tables for b in t})
    pools = []
    for _ in range(2):
        pool = torch.full((num_blocks, BLOCK_SIZE, shape.kv_heads, shape.head_dim), NAN, dtype=shape.dtype)
        pool[used] = _noise(rng, shape.dtype, len(used), BLOCK_SIZE, shape.kv_heads, shape.head_dim)
        pools.append(pool.flatten(0, 1))
    return pools[0], pools[1]


def _starts(starts: list[int], idle: int, *, decode: bool) -> list[int]:
    """Idle rows of a decode still hold one slot each; idle spans of a packed batch hold none."""
    return starts + [starts[-1] + (i + 1 if decode else 0) for i in range(idle)]


def _padded(rng: random.Random, tables: list[list[int]], idle: int, num_blocks: int) -> Tensor:
    """Tables of one width; what lies past a context must not be read, so it names real blocks at random."""
    width = max(map(len, tables)) + rng.randint(0, 2)
    rows = [t + [rng.randrange(num_blocks) for _ in range(width - len(t))] for t in [*tables, *([[]] * idle)]]
    return torch.tensor(rows, dtype=torch.int32)


def dense(query: Tensor, key: Tensor, value: Tensor, prior: int) -> Tensor:
    """Causal attention of one span, `[n, heads, dim]` over all `[context, kv_heads, dim]`, head by head in float64."""
    query, key, value = query.double(), key.double(), value.double()
    group = query.shape[1] // key.shape[1]
    seen = torch.arange(len(key)) <= prior + torch.arange(len(query))[:, None]
    heads = []
    for head in range(query.shape[1]):
        scores = query[:, head] @ key[:, head // group].T / query.shape[2] ** 0.5
        heads.append(scores.masked_fill(~seen, -torch.inf).softmax(-1) @ value[:, head // group])
    return torch.stack(heads, 1)


def _noise(rng: random.Random, dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(rng.getrandbits(32))).to(dtype)
