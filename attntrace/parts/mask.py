"""Masks: which keys a query may attend to. Each says its convention; together they make one effective mask.

The effective mask M is what is added to the scaled scores: 0 where a query may attend, −∞ where it may not, and the numbers
of additive masks. A key must pass all masks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from attntrace.errors import Fault, Path
from attntrace.ledger import amount
from attntrace.ops import AddMask
from attntrace.parts.place import Align, aligned, by_item, key_positions, positions, unaligned
from attntrace.problem import Mask, Problem, Tile, called
from attntrace.tape import Array as Values
from attntrace.tape import Note, Step, Trace

FULL = ("batch", "head", "query", "key")


def mask(t: Trace, p: Problem, s: Step, at: Tile) -> Step:
    """Add the effective mask to the scores, if there is any."""
    if not p.masks:
        return s
    axes = mask_axes(p)
    missing = tuple(i for i, axis in enumerate(s.axes[:-2]) if axis not in axes)
    m = t.given(f"mask{at.suffix}", "M", (*axes, at.query, at.key), lambda: effective(p, at), origin(p))
    return t(f"masked{at.suffix}", f"S″ = {s.symbol} + M", s.axes, AddMask(missing), s, m)


def origin(p: Problem) -> str:
    """What the mask says in words: which keys it leaves, and whether it adds numbers."""
    hiding = [m.formula for m in p.masks if m.formula]
    words = [f"0 where {' and '.join(hiding)}, −∞ elsewhere"] if hiding else []
    return "; ".join([*words, *("the numbers to add, as given" for m in p.masks if not m.formula)])


def mask_axes(p: Problem) -> tuple[str, ...]:
    """The axes of batch and head along which the effective mask differs."""
    differs = frozenset().union(*(m.axes(p) for m in p.masks))
    return tuple(axis for axis in p.lead if axis in differs)


def effective(p: Problem, at: Tile) -> Values:
    """All masks added up, for the queries and keys of a tile, in the dtype of the trace."""
    lead = mask_axes(p)
    full = tuple(p.sizes[axis] if axis in lead else 1 for axis in FULL[:2])
    total = np.zeros((*full, len(at.rows), len(at.keys)), dtype=p.options.dtype)
    for m in p.masks:
        total += m.bias(p, at).astype(total.dtype, copy=False)
    return total.reshape([*(p.sizes[axis] for axis in lead), len(at.rows), len(at.keys)])


def blocked(allowed: Values) -> Values:
    """0 where `allowed`, −∞ where not; 4 axes."""
    bias = np.zeros(allowed.shape, dtype=np.float32)
    bias[~allowed] = -np.inf
    return bias[(None,) * (4 - bias.ndim)]


@dataclass(frozen=True)
class Causal(Mask):
    """A query may attend to keys at its own position and before."""

    align: Align = None
    path: Path = ("mask",)

    @property
    def formula(self) -> str:
        return "key ≤ query" + aligned(self.align)

    def axes(self, p: Problem) -> frozenset[str]:
        return by_item(p, self.align)

    def check(self, p: Problem) -> Iterator[Fault]:
        return unaligned(p, "causal", self.align, "{{causal: {}}}", self.path)

    def bias(self, p: Problem, at: Tile) -> Values:
        query, key = positions(p, at, self.align)
        return blocked(key <= query)


@dataclass(frozen=True)
class Window(Mask):
    """A query may attend from `left` keys before its position to `right` keys after, both included; None is no limit."""

    left: int | None = None
    right: int | None = None
    align: Align = None
    path: Path = ("mask",)

    @property
    def formula(self) -> str:
        left = "" if self.left is None else f"query − {self.left} ≤ "
        right = "" if self.right is None else f" ≤ query + {self.right}"
        return f"{left}key{right}{aligned(self.align)}"

    def axes(self, p: Problem) -> frozenset[str]:
        return by_item(p, self.align)

    def check(self, p: Problem) -> Iterator[Fault]:
        return unaligned(p, "a window", self.align, "align: {}", self.path)

    def bias(self, p: Problem, at: Tile) -> Values:
        query, key = positions(p, at, self.align)
        allowed = np.ones(np.broadcast_shapes(query.shape, key.shape), dtype=bool)
        if self.left is not None:
            allowed &= key >= query - self.left
        if self.right is not None:
            allowed &= key <= query + self.right
        return blocked(allowed)


@dataclass(frozen=True)
class Padding(Mask):
    """The first lengths[b] keys of batch item b are real, by their positions; no query may attend to the others."""

    lengths: tuple[int, ...]
    path: Path = ("mask",)

    @property
    def formula(self) -> str:
        return f"key < length {list(self.lengths)}"

    def axes(self, p: Problem) -> frozenset[str]:
        return frozenset({"batch"}) & set(p.sizes)

    def check(self, p: Problem) -> Iterator[Fault]:
        items, keys = p.sizes.get("batch", 1), p.sizes["key"]
        if len(self.lengths) != items:
            what = "one for each batch item" if p.batched else "there is no batch axis"
            yield Fault(
                f"{called(self.path)}: expected {amount(items, 'lengths')} ({what}), found {len(self.lengths)}", self.path
            )
        for i, n in enumerate(self.lengths):
            if not 0 <= n <= keys:
                path = (*self.path, i)
                yield Fault(f"{called(path)}: expected a length from 0 to {keys} (the keys), found {clipped(n)}", path)

    def bias(self, p: Problem, at: Tile) -> Values:
        key = key_positions(p, at)[:, None, None, :]
        return blocked(key < np.array(self.lengths)[:, None, None, None])


@dataclass(frozen=True)
class Array(Mask):
    """A mask given as an array: `sense` "keep" (1 = may attend), "ignore" (1 = may not) or "add" (added to the scores).

    `name` is its name among the problem's sources. Its axes are the last ones of (batch, head, query, key), as NumPy has
    it; an axis of 1 serves all.
    """

    sense: str
    name: str
    path: Path = ("mask",)

    @property
    def formula(self) -> str:
        """The keys it leaves; nothing for numbers to be added."""
        return {"keep": "keep is 1", "ignore": "ignore is 0", "add": ""}[self.sense]

    def shape(self, p: Problem) -> tuple[int, ...]:
        """The shape with leading axes of 1, up to four axes; (batch, query, key) where there are no heads."""
        shape = tuple(p.sources[self.name].shape)
        if len(shape) == 3 and not p.headed:
            shape = (shape[0], 1, *shape[1:])
        return (1,) * (4 - len(shape)) + shape

    def axes(self, p: Problem) -> frozenset[str]:
        return frozenset(axis for axis, size in zip(FULL, self.shape(p), strict=True) if size > 1 and axis in p.lead)

    def check(self, p: Problem) -> Iterator[Fault]:
        shape, axes = p.sources[self.name].shape, (*p.lead, "query", "key")
        sizes = p.sizes | {"query": p.queries}
        fits = all(n in (1, sizes[axis]) for n, axis in zip(reversed(shape), reversed(axes), strict=False))
        if not 1 <= len(shape) <= len(axes) or not fits:
            wanted = " × ".join(f"{axis} {sizes[axis]}" for axis in axes) + " (any of them may be 1, leading ones left out)"
            found = by(shape) or "a single number"
            yield Fault(f"{called(self.path)}: expected {wanted}, found {found}", self.path)

    def bias(self, p: Problem, at: Tile) -> Values:
        array = excerpt(p.arrays[self.name].reshape(self.shape(p)), at)
        return array if self.sense == "add" else blocked((array == 1) == (self.sense == "keep"))


def excerpt(array: Values, at: Tile) -> Values:
    """The rows and columns of a tile; an axis of 1 serves all."""
    rows, keys = (
        slice(None) if size == 1 else slice(run.start, run.stop)
        for size, run in zip(array.shape[-2:], (at.rows, at.keys), strict=True)
    )
    return array[..., rows, keys]


def not_binary(path: Path, found: float) -> str:
    return f"{called(path)}: expected 0 or 1 (or false or true), found {found:g}; to add numbers to the scores say add"


def clipped(n: int) -> str:
    return str(n) if abs(n) < 10**30 else "a huge number"


def remarks(p: Problem) -> Iterator[Note]:
    """What the shapes of the masks should make a careful reader look at."""
    for m in p.options.masks:
        if isinstance(m, Array):
            yield from _shape_remarks(m, tuple(p.sources[m.name].shape), p)


def _shape_remarks(m: Array, shape: tuple[int, ...], p: Problem) -> Iterator[Note]:
    stretched = _stretched(shape, p)
    if stretched:
        yield Note("mask-broadcast", "mask", f"the {m.sense} mask of shape {by(shape)} {stretched}")
    if len(shape) == 3 and p.batched and p.headed and p.sizes["batch"] == p.sizes["head"]:
        yield Note(
            "mask-ambiguous",
            "mask",
            f"the {m.sense} mask has 3 axes, read as (head, query, key); batch and heads are both {p.sizes['head']}, so if "
            "it was meant as (batch, query, key) give it 4 axes: (batch, 1, query, key)",
        )


def _stretched(shape: Sequence[int], p: Problem) -> str:
    axes = (*p.lead, "query", "key")[-len(shape) :]
    once = [axis for axis, n in zip(axes, shape, strict=True) if n == 1 < p.sizes[axis]]
    return f"is used alike for all {' and '.join(f'{p.sizes[axis]} of {axis}' for axis in once)}" if once else ""


def by(shape: Sequence[int]) -> str:
    return " × ".join(map(str, shape))


@dataclass(frozen=True)
class Filled(Mask):
    """A ragged cache: slots from lengths[b] to the end of the past hold no key of sequence b."""

    lengths: tuple[int, ...]

    @property
    def formula(self) -> str:
        return f"the slot is filled (past lengths {list(self.lengths)})"

    def axes(self, p: Problem) -> frozenset[str]:
        return frozenset({"batch"}) & set(p.sizes)

    def bias(self, p: Problem, at: Tile) -> Values:
        key = np.arange(at.keys.start, at.keys.stop)
        held = key < np.array(self.lengths)[:, None, None, None]
        return blocked(held | (key >= p.sizes["past_key"]))
