"""Where queries and keys stand: what causal masks, windows, linear biases and rotations count from.

Keys stand at 0, 1, 2 …, those of a cache first. Where the first query stands is told by an alignment; without one, at the
first key, or after the keys of a cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce

import numpy as np

from attntrace.errors import Fault, Path
from attntrace.ledger import amount
from attntrace.problem import Problem, Tile, called
from attntrace.tape import Array

Align = str | int | None  # "top-left", "bottom-right", or the position of the first query


def positions(p: Problem, at: Tile, align: Align) -> tuple[Array, Array]:
    """The position of each query and key of a tile, broadcastable to (batch, head, query, key)."""
    rows = np.arange(at.rows.start, at.rows.stop)
    return (first(p, align)[:, None] + rows)[:, None, :, None], key_positions(p, at)[:, None, None, :]


def first(p: Problem, align: Align) -> Array:
    """Where the first query stands, for each batch item or for all alike.

    With "bottom-right" the last query stands at the last key; at the last real one where a padding mask tells, as ONNX's
    nonpad_kv_seqlen has it. Then it may come out negative: queries before the first key may attend to nothing.
    """
    if align is None:
        return p.past
    if align == "bottom-right":
        return last(p) - p.queries
    return np.array([0 if align == "top-left" else int(align)])


def last(p: Problem) -> Array:
    """How many real keys there are."""
    padded = [np.array(m.lengths) for m in p.options.masks if m.lengths]
    return reduce(np.minimum, padded, p.past + p.sizes[p.new_key])


def key_positions(p: Problem, at: Tile) -> Array:
    """A row for each batch item, or one for all. New keys stand after those that a sequence has in the cache."""
    slots = np.arange(at.keys.start, at.keys.stop)
    new = slots - p.sizes.get("past_key", 0)
    return np.where(new >= 0, p.past[:, None] + new, slots)


def by_item(p: Problem, align: Align) -> frozenset[str]:
    """Whether batch items have positions of their own."""
    return frozenset({"batch"} if len(first(p, align)) > 1 or len(p.past) > 1 else ())


def aligned(align: Align) -> str:
    if isinstance(align, int):
        return f" (query 0 at key {align})"
    return f" ({align})" if align else ""


def unaligned(p: Problem, what: str, align: Align, cure: str, path: Path) -> Iterator[Fault]:
    """With as many queries as new keys there is one way to align them; else the config must say which."""
    queries, keys = p.queries, p.sizes[p.new_key]
    if align is None and queries != keys:
        lengths = f"{amount(queries, 'queries')} and {amount(keys, 'keys')}"
        top, bottom = cure.format("top-left"), cure.format("bottom-right")
        cures = f"say {top} (the first query stands at the first key) or {bottom} (the last at the last)"
        yield Fault(f"{called(path)}: {what} is ambiguous with {lengths}: {cures}", path)
