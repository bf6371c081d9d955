"""Where queries and keys stand, and what hangs on it alone: tiles, masks, distances, positions of rotations.

Positions are worked out for all queries and slots that there are, and those of a tile are picked from them.
"""

from __future__ import annotations

from typing import Any

import torch

from attntrace.cores.ring import Ring
from attntrace.cores.tiled import Tiled
from attntrace.parts import mask as masks
from attntrace.parts.alibi import Alibi
from attntrace.parts.cache import Cache
from attntrace.parts.rope import Rope
from attntrace.problem import Problem
from attntrace.reference.torch.tensors import Arrays, Tensor, kind, tensor

# ------------------------------------------------------------------ tiles


def pieces(p: Problem, t: Tensor, along: str, dim: int = 0) -> tuple[Tensor, ...]:
    """The tiles of queries or of keys that the core works on."""
    core = p.options.parts["core"]
    if isinstance(core, Ring):
        return tuple(t.tensor_split(core.devices, dim))
    assert isinstance(core, Tiled)
    return tuple(t.split(core.queries if along == "queries" else core.keys, dim))


def shard(p: Problem, a: Arrays) -> int:
    """Which keys a tile is about. In a ring, those of device d have come to device d + 1 after a hop."""
    core = p.options.parts["core"]
    return (a.tile[0] - a.tile[1]) % core.devices if isinstance(core, Ring) else a.tile[1]


def rows(p: Problem, a: Arrays) -> Tensor:
    """The numbers of the queries of a tile, or of all that are traced."""
    every = torch.arange(p.queries)[p.options.queries or slice(None)]
    return pieces(p, every, "queries")[a.tile[0]] if a.tile else every


def slots(p: Problem, a: Arrays) -> Tensor:
    """The numbers of the keys of a tile, or of all, those of the cache first."""
    every = torch.arange(p.sizes["key"])
    return pieces(p, every, "keys")[shard(p, a)] if a.tile else every


# ------------------------------------------------------------------ positions


def held(p: Problem) -> Tensor:
    """How many keys the cache holds, for each batch item or for all alike."""
    cache = p.options.parts.get("cache")
    lengths = cache.lengths if isinstance(cache, Cache) else ()
    return torch.tensor(lengths or (p.sizes.get("past_key", 0),))


def of_queries(p: Problem, align: str | int | None) -> Tensor:
    """The positions of all queries as a mask with this alignment counts them: (item, query)."""
    start = held(p)
    if align == "bottom-right":
        ends = [start + p.sizes[p.new_key], *(torch.tensor(m.lengths) for m in paddings(p))]
        start = torch.stack(torch.broadcast_tensors(*ends)).amin(dim=0) - p.queries
    elif align is not None:
        start = torch.tensor([align if isinstance(align, int) else 0])
    return torch.stack([torch.arange(n, n + p.queries) for n in start.tolist()])


def of_keys(p: Problem) -> Tensor:
    """The positions of all slots: new keys come after those that the cache really holds: (item, slot)."""
    past, new = torch.arange(p.sizes.get("past_key", 0)), p.sizes[p.new_key]
    return torch.stack([torch.cat([past, torch.arange(n, n + new)]) for n in held(p).tolist()])


def ahead(p: Problem, a: Arrays, align: str | int | None) -> Tensor:
    """How far each query of a tile stands behind each of its keys, negative where it stands before: (item, query, key)."""
    query, key = of_queries(p, align).index_select(-1, rows(p, a)), of_keys(p).index_select(-1, slots(p, a))
    return query.unsqueeze(-1) - key.unsqueeze(-2)


# ------------------------------------------------------------------ masks


def paddings(p: Problem) -> list[masks.Padding]:
    return [m for m in p.options.masks if isinstance(m, masks.Padding)]


def allowed(p: Problem, m: Any, a: Arrays) -> Tensor:
    """Which keys a mask allows, as booleans that broadcast to (batch, head, query, key)."""
    if isinstance(m, masks.Causal | masks.Window):
        gap = ahead(p, a, m.align).unsqueeze(1)
        left, right = (None, 0) if isinstance(m, masks.Causal) else (m.left, m.right)
        within = torch.ones_like(gap, dtype=torch.bool) if left is None else gap.le(left)
        return within if right is None else within & gap.ge(-right)
    if isinstance(m, masks.Padding):
        at = of_keys(p).index_select(-1, slots(p, a))
        return at.lt(torch.tensor(m.lengths).unsqueeze(-1))[:, None, None]
    if isinstance(m, masks.Filled):
        return filled(p, m.lengths)[:, None, None, slots(p, a)]
    numbers = given(p, m, a)
    return numbers.ne(0) if m.sense == "keep" else numbers.eq(0)


def filled(p: Problem, lengths: tuple[int, ...]) -> Tensor:
    """Which slots hold a key: of the past the first ones of each sequence, and all new ones: (batch, slot)."""
    past, new = p.sizes["past_key"], p.sizes[p.new_key]
    return torch.tensor([[True] * n + [False] * (past - n) + [True] * new for n in lengths])


def given(p: Problem, m: masks.Array, a: Arrays) -> Tensor:
    """The numbers of a mask for a tile; an axis of 1 serves all."""
    full = four_axes(p, tensor(p.arrays[m.name]))
    for dim, wanted in ((-2, rows(p, a)), (-1, slots(p, a))):
        full = full if full.shape[dim] == 1 else full.index_select(dim, wanted)
    return full


def four_axes(p: Problem, t: Tensor) -> Tensor:
    if t.dim() == 3 and not p.headed:
        return t.unsqueeze(1)
    return t.view(*(1,) * (4 - t.dim()), *t.shape)


def bias(p: Problem, a: Arrays) -> Tensor:
    """The masks added up one after the other; boolean ones are 0 and −∞: (batch, head, query, key), the first two may be 1."""
    total = torch.zeros(1, 1, len(rows(p, a)), len(slots(p, a)), dtype=kind(p.options.dtype))
    for m in p.masks:
        if isinstance(m, masks.Array) and m.sense == "add":
            total = total + given(p, m, a)
        else:
            keep = allowed(p, m, a)
            total = total + torch.zeros(keep.shape, dtype=total.dtype).masked_fill(~keep, -torch.inf)
    return total


def mask(p: Problem, a: Arrays) -> Tensor:
    return bias(p, a).reshape(a["mask"].shape)


def aligned(p: Problem, m: Tensor, scores: Tensor) -> Tensor:
    """A mask over (batch, query, key) beside scores that have heads gets an axis of one head."""
    return m.unsqueeze(1) if m.dim() == 3 and scores.dim() == 4 and not per_head(p) else m


def per_head(p: Problem) -> bool:
    """Whether a mask tells heads apart."""
    arrays = [four_axes(p, tensor(p.arrays[m.name])) for m in p.options.masks if isinstance(m, masks.Array)]
    return any(m.shape[1] > 1 for m in arrays)


# ------------------------------------------------------------------ ALiBi


def distance(p: Problem, a: Arrays) -> Tensor:
    """How far apart query and key stand, counted from where a mask counts, unless alibi has an alignment of its own."""
    alibi = p.options.parts["alibi"]
    assert isinstance(alibi, Alibi)
    aligns = [alibi.align, *(m.align for m in p.options.masks if isinstance(m, masks.Causal | masks.Window))]
    said = [align for align in aligns if align is not None]
    return ahead(p, a, said[0] if said else None).abs().squeeze(0)


def slopes(p: Problem, a: Arrays) -> Tensor | None:
    """ALiBi's slopes: a geometric sequence that ends in 2^−8. For heads that are no power of two, the sequence of the power
    below them, and then what it lacks of the one of twice as many."""
    alibi = p.options.parts["alibi"]
    assert isinstance(alibi, Alibi)
    if alibi.slopes:
        return None
    heads = p.options.heads or p.sizes.get("head", 1)
    n = 2 ** (len(bin(heads)) - 3)
    return torch.cat([geometric(n), geometric(2 * n)[0::2]])[:heads]


def geometric(n: int) -> Tensor:
    return torch.logspace(-8 / n, -8, n, base=2, dtype=torch.float64)


def alibi(p: Problem, a: Arrays) -> Tensor:
    """(head) and ([batch], query, key) to ([batch], [head], query, key)."""
    slope, far = a["slopes"], a["distance"].unsqueeze(-3)
    b = far.to(slope.dtype).mul(slope.neg().view(-1, 1, 1))
    return b if p.headed else b.squeeze(-3)


# ------------------------------------------------------------------ positions of rotations


def positions(p: Problem, a: Arrays) -> Tensor:
    """Where the queries stand that are traced: as given, or in a row after the keys of the cache."""
    rope = p.options.parts["rope"]
    assert isinstance(rope, Rope)
    every = tensor(p.arrays[rope.positions]) if rope.positions else in_a_row(p, rope, p.queries)
    return every.index_select(-1, rows(p, a))


def key_positions(p: Problem, a: Arrays) -> Tensor:
    """Where the new keys stand: as given, as the queries stand if there are as many, or in a row."""
    rope = p.options.parts["rope"]
    assert isinstance(rope, Rope)
    new = p.sizes[p.new_key]
    if rope.key_positions:
        return tensor(p.arrays[rope.key_positions])
    return tensor(p.arrays[rope.positions]) if rope.positions and p.queries == new else in_a_row(p, rope, new)


def in_a_row(p: Problem, rope: Rope, count: int) -> Tensor:
    starts = held(p).add(rope.offset).tolist()
    return torch.stack([torch.arange(n, n + count) for n in starts]).squeeze(0)
