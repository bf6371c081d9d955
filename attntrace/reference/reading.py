"""What every framework wants to know of a problem: which step comes before which, where tokens stand, who may see whom.

Worked out here once more, apart from the layer, for frameworks that take a mask as an array. `xp` is the library that does the
work: NumPy, or one that looks like it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attntrace.dtypes import epsilon, working
from attntrace.parts import mask as masks
from attntrace.parts.alibi import Alibi
from attntrace.parts.block import Block
from attntrace.parts.cache import Cache
from attntrace.problem import Mask, Problem
from attntrace.tape import Array

Have = Mapping[str, Array]

# What queries, keys, values and scores become one after the other; keys and values before they are shared by groups.
QUERIES = ("q", "q_norm", "q_rot")
KEYS = ("k", "k_norm", "k_rot", "k_all")
VALUES = ("v", "v_all")
READY = ("scaled", "capped", "biased", "masked")
TILED = "it has no tiles"


class Reading:
    """The arrays of a trace as a framework has them: `a["q"]`; `a.get` gives None for a step that is not there."""

    def __init__(self, have: Have) -> None:
        self.have = have

    def __contains__(self, name: str) -> bool:
        return name in self.have

    def __getitem__(self, name: str) -> Any:
        return wide(self.have[name])

    def get(self, name: str) -> Any:
        return self[name] if name in self.have else None

    def last(self, *names: str) -> Any:
        """The last one of `names` that the trace has."""
        return self[latest(self.have, *names)]


def latest(have: Have, *names: str) -> str:
    """The last one of `names` that the trace has."""
    return [name for name in names if name in have][-1]


def source(p: Problem, have: Have, letter: str) -> str:
    """The step that queries, or keys and values, are projected from."""
    if letter != "q" and p.cross:
        return "x_kv"
    block = p.options.parts.get("block")
    x = "normed1" if isinstance(block, Block) and block.order != "post" else "x"
    return latest(have, x, f"{x}_rows") if letter == "q" else x


def head_counts(p: Problem) -> dict[str, int]:
    """How many heads there are of queries, keys and values."""
    heads = p.options.heads or 1
    groups = p.options.kv_heads or heads
    return {"q": heads, "k": groups, "v": groups}


def wide(a: Array) -> Array:
    """Half precision as float32, which is exact: frameworks work in it, and their results are rounded once."""
    return a.astype(working(a.dtype), copy=False)


def four(p: Problem, a: Array) -> Array:
    """([batch], [head], token, d) as (batch, head, token, d)."""
    a = a if p.headed else a[..., None, :, :]
    return a if p.batched else a[None]


def fewer(p: Problem, a: Array) -> Array:
    """(batch, head, …) without the axes that the problem does not have."""
    a = a if p.headed else a[:, 0]
    return a if p.batched else a[0]


# ------------------------------------------------------------------ where tokens stand


def held(p: Problem) -> list[int]:
    """How many keys the cache holds: a number for each batch item, or one for all."""
    cache = p.options.parts.get("cache")
    lengths = cache.lengths if isinstance(cache, Cache) else ()
    return list(lengths) or [p.sizes.get("past_key", 0)]


def starts(p: Problem, align: str | int | None) -> list[int]:
    """The position of the first query, for each batch item or for all alike.

    "bottom-right" puts the last query beside the last key that is real.
    """
    past, new = held(p), p.sizes[p.new_key]
    if align == "bottom-right":
        lengths = [list(m.lengths) for m in p.options.masks if isinstance(m, masks.Padding)]
        every = [[n + new for n in past], *lengths]
        items = max(map(len, every))
        return [min(row[i % len(row)] for row in every) - p.queries for i in range(items)]
    return past if align is None else [align if isinstance(align, int) else 0]


def gaps(p: Problem, align: str | int | None, xp: Any = np) -> Any:
    """How far each query stands behind each key: (item, 1, query, key), negative where it stands before."""
    past, new = p.sizes.get("past_key", 0), p.sizes[p.new_key]
    queries = xp.asarray(starts(p, align))[:, None] + xp.asarray(list(p.rows))
    keys = xp.asarray([[*range(past), *range(n, n + new)] for n in held(p)])
    return (queries[:, :, None] - keys[:, None, :])[:, None]


# ------------------------------------------------------------------ what is added to the scores


def bias(p: Problem, some: Sequence[Mask] | None = None, xp: Any = np) -> Any:
    """Masks added up in the dtype of the trace, 0 and −∞ for those that only hide: (batch, head, query, key), where the
    first two may be 1. All masks, or `some` of them."""
    total = xp.zeros((1, 1, len(p.rows), p.sizes["key"]), p.options.dtype)
    for m in p.masks if some is None else some:
        if isinstance(m, masks.Array) and m.sense == "add":
            total = total + xp.asarray(given(p, m))
        else:
            total = total + xp.where(allowed(p, m, xp), 0.0, -xp.inf).astype(total.dtype)
    return total


def allowed(p: Problem, m: Mask, xp: Any = np) -> Any:
    """Which keys a mask lets a query see, broadcastable to (batch, head, query, key)."""
    if isinstance(m, masks.Causal | masks.Window):
        left, right = (None, 0) if isinstance(m, masks.Causal) else (m.left, m.right)
        gap = gaps(p, m.align, xp)
        near = gap == gap if left is None else gap <= left
        return near if right is None else near & (-gap <= right)
    slot = xp.arange(p.sizes["key"])
    if isinstance(m, masks.Padding):
        return slot < xp.asarray(m.lengths)[:, None, None, None]
    if isinstance(m, masks.Filled):
        return (slot < xp.asarray(m.lengths)[:, None, None, None]) | (slot >= p.sizes["past_key"])
    assert isinstance(m, masks.Array)
    return xp.asarray(given(p, m)) == (1 if m.sense == "keep" else 0)


def given(p: Problem, m: masks.Array) -> Array:
    """The numbers of a mask for the queries that are traced, with four axes."""
    a = p.arrays[m.name]
    if a.ndim == 3 and not p.headed:
        a = a[:, None]
    a = a.reshape((1,) * (4 - a.ndim) + a.shape)
    return a if a.shape[2] == 1 else a[:, :, list(p.rows)]


def linear(p: Problem, have: Have) -> Array | None:
    """ALiBi: −slope × distance, (batch or 1, head, query, key), rounded to the dtype of the trace."""
    alibi = p.options.parts.get("alibi")
    if not isinstance(alibi, Alibi):
        return None
    aligns = [alibi.align, *(m.align for m in p.options.masks if isinstance(m, masks.Causal | masks.Window))]
    align = next((a for a in aligns if a is not None), None)
    slopes = wide(have["slopes"]).reshape(1, -1, 1, 1)
    return np.asarray(-(slopes * np.abs(gaps(p, align)))).astype(p.options.dtype)


def added(p: Problem, have: Have, some: Sequence[Mask] | None = None) -> Array | None:
    """Masks and linear biases in one; None where there are none."""
    m = wide(bias(p, some)) if (p.masks if some is None else some) else None
    b = linear(p, have)
    if b is None or m is None:
        return m if b is None else wide(b)
    return wide(b) + m


def keyless(p: Problem) -> Array:
    """Queries that may attend to nothing: (batch, head, query), where the first two may be 1."""
    return np.asarray(np.isneginf(wide(bias(p))).all(axis=-1))


# ------------------------------------------------------------------ a call of the framework's own attention


def start(p: Problem, have: Have) -> tuple[str, ...]:
    """The steps that a call begins from: queries, keys and values once they are ready, and what scores are changed by."""
    ready = (latest(have, *names) for names in (QUERIES, KEYS, VALUES))
    return (*ready, *(name for name in ("slopes", "sinks") if name in have))


def result(p: Problem) -> str:
    return "context" if p.merges else "output"


def ready_scores(have: Have) -> list[str]:
    """The step in which scores are ready for softmax; of tiles, that of each."""
    ends = dict.fromkeys(name[len(base) :] for base in READY for name in have if name == base or name.startswith(f"{base}_"))
    return [latest(have, *(f"{base}{end}" for base in READY)) for end in ends]


def sink_column(p: Problem, have: Have, extra: Array | None) -> Array:
    """What is added to the scores when the sink is one key more: nothing to the others, its logit to that one."""
    queries, keys = len(p.rows), p.sizes["key"]
    z = wide(have["sinks"]).reshape(1, -1, 1, 1)
    m = np.zeros((1, 1, queries, keys), z.dtype) if extra is None else extra
    batch, heads = m.shape[0], max(m.shape[1], z.shape[1])
    full = (np.broadcast_to(part, (batch, heads, queries, n)) for part, n in ((m, keys), (z, 1)))
    return np.concatenate(list(full), axis=-1)


def one_more(a: Array) -> Array:
    """Keys or values with one of zeros at the end, for the sink."""
    return np.concatenate([a, np.zeros_like(a[..., :1, :])], axis=-2)


def summed_first(p: Problem, have: Have) -> dict[str, float]:
    """How far scores may be off because mask and linear bias are added to one another first, and then to them."""
    b = linear(p, have)
    if b is None or not p.masks:
        return {}
    total = wide(b) + wide(bias(p))
    size = float(np.abs(total[np.isfinite(total)]).max(initial=0))
    return {name: epsilon(total.dtype) * size for name in ready_scores(have)}
