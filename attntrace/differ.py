"""Two traces side by side: which steps and rows changed, what each token attends to now, and whether one trace is the other
with its tokens reordered.

A cell stands still when it is the same number in both (NaN is the same as NaN, and a zero has no sign). Nothing is rounded
for that: a change in the last place is one. Only where tokens were reordered, so that sums are made in another order, what
rounding may do is left out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice, permutations, product

import numpy as np

from attntrace import layer
from attntrace.compare import Difference, accumulated, difference
from attntrace.dtypes import epsilon
from attntrace.errors import AttnTraceError, nearest
from attntrace.memory import available, human
from attntrace.problem import Problem, labels
from attntrace.remarks import about, look_at
from attntrace.tape import Array, Note, Step, Trace

MOST = 24  # orders that are tried, where tokens are alike
VARIED = 4  # kinds of such tokens whose order is varied
TIED = 16  # units in the last place within which two weights of a row count as alike
TILE = re.compile(r"(_\d+)+\Z")
Index = Mapping[str, int]


@dataclass(frozen=True)
class Change:
    """What became of a step that both traces have, each cell at its place, at the batch item and head that were picked.

    `shapes` are those in A and in B; where they differ there is nothing more to say. `cells` of the cells changed, most of
    all the one `at`, by `largest`, from `before` to `after`; where tokens were reordered, `rounded` more did by rounding
    alone. `rows` is true for each row with a changed cell (for each entry of a step with one axis), and `spots` for each
    (row, column) that changed in any batch item or head.
    """

    name: str
    axes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    rows: Array = field(default_factory=lambda: np.zeros(0, bool))
    spots: Array = field(default_factory=lambda: np.zeros((0, 0), bool))
    cells: int = 0
    at: tuple[int, ...] = ()
    largest: float = 0.0
    before: float = 0.0
    after: float = 0.0
    rounded: int = 0

    @property
    def comparable(self) -> bool:
        return self.shapes[0] == self.shapes[1]

    @property
    def same(self) -> bool:
        return self.comparable and not self.cells

    @property
    def row_axes(self) -> tuple[str, ...]:
        """The axes of `rows`: all but the last, unless there is only one."""
        return self.axes[:-1] or self.axes

    def moved(self, axis: str) -> list[int]:
        """The entries along one of `row_axes` in which something changed."""
        others = tuple(i for i, name in enumerate(self.row_axes) if name != axis)
        return [int(i) for i in np.flatnonzero(self.rows.any(axis=others))]


# What the entries along an axis are made from: the tokens of the queries, or those of the keys.
SIDES = {"token": "query", "all_query": "query", "query": "query", "kv_token": "key", "new_key": "key", "key": "key"}


def whole(name: str) -> str:
    """The name of a step or axis without that of the tile which it is about: key for key_1, scores for scores_0_1."""
    return TILE.sub("", name)


@dataclass(frozen=True)
class Places:
    """Where the tokens of B stand in A: query i of B is query `query[i]` of A, and new key i its new key `key[i]`.

    `past` counts the keys of a cache, which stay where they are; `rows` are the queries that are traced, in A and in B.
    """

    query: tuple[int, ...]
    key: tuple[int, ...]
    past: int
    rows: tuple[range, range]

    def order(self, axis: str) -> Sequence[int] | None:
        """The entry of A for each one of B along an axis; None where nothing moves."""
        side = SIDES.get(whole(axis))
        if side is None or self.stays(side):
            return None
        if axis == "query":
            ours, theirs = self.rows
            return [ours.index(i) if i in ours else -1 for i in (self.query[row] for row in theirs)]
        if axis == "key":
            return [*range(self.past), *(self.past + i for i in self.key)]
        return self.query if side == "query" else self.key

    def stays(self, side: str) -> bool:
        order = self.query if side == "query" else self.key
        return order == tuple(range(len(order)))

    def tellable(self, step: Step) -> bool:
        """Whether the entries of a step can be told in the other order: not those of tiles, nor rows that are not traced."""
        return all(order is None or (axis in SIDES and -1 not in order) for axis in step.axes for order in [self.order(axis)])

    def moving(self, step: Step) -> tuple[str, ...]:
        return tuple(axis for axis in step.axes if self.order(axis) is not None)

    def carry(self, step: Step) -> Array:
        """The numbers of a step of A, if they are `tellable`, in the order of B."""
        values = step.values
        for i, axis in enumerate(step.axes):
            order = self.order(axis)
            values = values if order is None else values.take(order, axis=i)
        return values


@dataclass(frozen=True)
class Attention:
    """What each query attends to in A and in B. Where tokens were reordered, A is put in the order of B: a row is a token.

    `before` and `after` are the weights, (…, query, key); `shares` what sinks take of each row, where there are any. `steady`
    is true for rows that stand still; where tokens were reordered, but for rounding.
    """

    axes: tuple[str, ...]  # of its rows
    before: Array
    after: Array
    shares: tuple[Array | None, Array | None]
    steady: Array
    near: float  # two weights are alike when they are no further apart than this, as a part of the larger
    places: Places | None = None  # the order that A was put in

    @cached_property
    def entropy(self) -> tuple[Array, Array]:
        """Of each row, in nats, before and after."""
        return entropy(self.before, self.shares[0]), entropy(self.after, self.shares[1])

    @cached_property
    def new_top(self) -> Array:
        """Which rows give most to a key that was not among their largest before."""
        top = self.after.argmax(axis=-1)[..., None]
        return np.asarray(np.take_along_axis(self.before, top, axis=-1)[..., 0] < self.least(self.before))

    @cached_property
    def idle(self) -> tuple[Array, Array]:
        """Which rows attend to nothing, before and after."""
        return np.asarray(~self.before.any(axis=-1)), np.asarray(~self.after.any(axis=-1))

    def least(self, weights: Array) -> Array:
        """From where on a weight is as large as the largest of its row."""
        return np.asarray(weights.max(axis=-1) * (1 - self.near))

    def tops(self, row: tuple[int, ...]) -> tuple[list[int], list[int]]:
        """The keys that a row gives most to, before and after; several where they are alike."""
        one, other = (np.flatnonzero(w >= self.least(w)).tolist() for w in (self.before[row], self.after[row]))
        return one, other


@dataclass(frozen=True)
class Moved:
    """A step of B held against that of A with its entries moved along `axes` (along none where no token is an axis)."""

    name: str
    axes: tuple[str, ...]
    difference: Difference


@dataclass(frozen=True)
class Reordering:
    """B has the tokens of A in another order.

    `steps` tells of each step whether it is that of A, moved and nothing else; of the `silent` ones nothing can be told, since
    other tokens meet in a tile than before, or rows are not traced.
    """

    places: Places
    steps: tuple[Moved, ...]
    silent: tuple[str, ...]

    @property
    def agrees(self) -> bool:
        return all(step.difference.agrees for step in self.steps)

    @property
    def first(self) -> Moved | None:
        """The first step that is not merely moved."""
        return next((step for step in self.steps if not step.difference.agrees), None)


@dataclass(frozen=True)
class Comparison:
    """Everything that is to be said of two traces. `notes` are those that A alone gives rise to, and those of B alone."""

    a: Trace
    b: Trace
    steps: tuple[Change, ...]
    only: tuple[tuple[str, ...], tuple[str, ...]]
    attention: Attention | None
    reordering: Reordering | None
    notes: tuple[tuple[Note, ...], tuple[Note, ...]]

    @property
    def differs(self) -> bool:
        return any(self.only) or any(step.rounded or not step.same for step in self.steps)


def diff(a: Problem, b: Problem, names: Collection[str] | None = None, index: Index | None = None) -> Comparison:
    """Hold the trace of `b` against that of `a`: the steps called `names` (all, when None), at the batch item and head in
    `index`, which both have.

    Raises AttnTraceError when neither has such a step, and when the two do not fit in memory together.
    """
    old, new = layer.trace(a), layer.trace(b)
    shared, only = matched(old, new, names)
    notes = played(old, new, names)
    picked = {axis: i % old.sizes[axis] for axis, i in (index or {}).items()}
    places = fitting(places_of(a, b), old, new)
    errors = {} if places is None else rounding_of(new, shared)
    moved = None if places is None else reordering(old, new, shared, places, errors)
    rows = attention(old, new, picked, places, errors) if "weights" in shared else None
    return Comparison(old, new, tuple(change(old[n], new[n], picked, errors.get(n)) for n in shared), only, rows, moved, notes)


def matched(a: Trace, b: Trace, names: Collection[str] | None) -> tuple[list[str], tuple[tuple[str, ...], tuple[str, ...]]]:
    """The steps that both have, in the order of the tape, and those that only one of them has."""
    known = list(dict.fromkeys([*a.names, *b.names]))
    for name in names or ():
        if name not in known:
            hint = nearest(name, known) or f"; their steps are {', '.join(known)}"
            raise AttnTraceError(f"there is no step {name!r} in either trace{hint}")
    wanted = [name for name in known if names is None or name in names]
    only = (tuple(n for n in wanted if n not in b), tuple(n for n in wanted if n not in a))
    return [name for name in wanted if name in a and name in b], only


def played(a: Trace, b: Trace, names: Collection[str] | None) -> tuple[tuple[Note, ...], tuple[Note, ...]]:
    """Compute both, if they fit in memory together; returns the notes about one that are none about the other."""
    keeps = [None if names is None else [name for name in names if name in t] for t in (a, b)]
    fits(sum(t.peak(keep) for t, keep in zip((a, b), keeps, strict=True)), "these two traces need")
    one, other = (
        about([*t.remarks, *(n for step in t.play(keep) for n in look_at(step))], keep)
        for t, keep in zip((a, b), keeps, strict=True)
    )
    return tuple(n for n in one if n not in other), tuple(n for n in other if n not in one)


def fits(need: int, what: str) -> None:
    have = available()
    if need > have:
        way = "use fewer tokens, a smaller dtype, only some queries with --queries, or only some steps with --steps"
        raise AttnTraceError(f"{what} {human(need)} of memory and {human(have)} are free: {way}")


# ------------------------------------------------------------------ cell by cell


def part(values: Array, step: Step, index: Index) -> Array:
    """What a step has at the batch item and head in `index`, in float64, which holds the numbers of every dtype. Of a step
    with one axis, a run of one."""
    picked = values[tuple(index.get(axis, slice(None)) for axis in step.axes)]
    return np.atleast_1d(picked.astype(np.float64))


def change(a: Step, b: Step, index: Index, slack: Array | None = None) -> Change:
    """What became of a step, but for changes no larger than `slack`."""
    axes, shapes = tuple(axis for axis in a.axes if axis not in index) or a.axes, (a.shape, b.shape)
    if a.shape != b.shape:
        return Change(a.name, axes, shapes)
    x, y = part(a.values, a, index), part(b.values, b, index)
    unlike = moved = unequal(x, y)
    if slack is not None:
        moved = unlike & beyond(x, y, part(slack, b, index))
    cells, rounded = int(moved.sum()), int(unlike.sum() - moved.sum())
    rows = any_along(moved, moved.ndim - 1) if moved.ndim > 1 else moved
    if not cells:
        return Change(a.name, axes, shapes, rows, rounded=rounded)
    spots = any_along(moved, *range(moved.ndim - 2)) if moved.ndim > 1 else moved[:, None]
    with np.errstate(all="ignore"):
        size = np.where(moved, np.abs(y - x), 0.0)
    at = np.unravel_index(int(np.argmax(size)), size.shape)  # NaN counts as the largest
    numbers = float(size[at]), float(x[at]), float(y[at])
    return Change(a.name, axes, shapes, rows, spots, cells, whole_index(at, a, index), *numbers, rounded)


def unequal(a: Array, b: Array) -> Array:
    return np.asarray(~((a == b) | (np.isnan(a) & np.isnan(b))))


def beyond(a: Array, b: Array, slack: Array) -> Array:
    """Where two numbers are further apart than `slack`; NaN is, and infinity."""
    with np.errstate(all="ignore"):
        return np.asarray(~(np.abs(b - a) <= slack))


def any_along(mask: Array, *axes: int) -> Array:
    return np.asarray(mask.any(axis=axes))


def whole_index(at: Sequence[int | np.intp], step: Step, index: Index) -> tuple[int, ...]:
    """A position in what was picked of a step as one in all of it."""
    free = iter(map(int, at))
    return tuple(index[axis] if axis in index else next(free) for axis in step.axes)


# ------------------------------------------------------------------ what each query attends to


def attention(a: Trace, b: Trace, index: Index, places: Places | None, errors: Mapping[str, Array]) -> Attention | None:
    """The weights of both side by side; None where they have not the same shape."""
    one, other = a["weights"], b["weights"]
    if one.shape != other.shape:
        return None
    if places is not None and not places.tellable(one):
        places = None
    old, new = part(carried(one, places), one, index), part(other.values, other, index)
    moved = unequal(old, new)
    if places is not None:
        moved &= beyond(old, new, part(errors["weights"], other, index))
    shares = share(a, index, places), share(b, index, None)
    axes = tuple(axis for axis in one.axes[:-1] if axis not in index)
    return Attention(axes, old, new, shares, ~any_along(moved, moved.ndim - 1), TIED * epsilon(other.dtype), places)


def share(t: Trace, index: Index, places: Places | None) -> Array | None:
    """What sinks take of each row."""
    if "sink_weights" not in t:
        return None
    step = t["sink_weights"]
    return part(carried(step, places), step, index)


def carried(step: Step, places: Places | None) -> Array:
    """The numbers of a step of A in the order of B."""
    return step.values if places is None else places.carry(step)


def entropy(weights: Array, share: Array | None = None) -> Array:
    """−Σ w ln w of each row, in nats, where 0 ln 0 is 0. What a sink takes of a row counts as one more of its weights."""
    total = terms(weights).sum(axis=-1) + (0.0 if share is None else terms(share))
    return np.asarray(0.0 - total)


def terms(w: Array) -> Array:
    """w ln w."""
    with np.errstate(all="ignore"):
        return np.where(w == 0, 0.0, w * np.log(w))


# ------------------------------------------------------------------ the same tokens in another order


def places_of(a: Problem, b: Problem) -> Iterator[Places]:
    """How the tokens of B are those of A in another order: in several ways, where some tokens are alike. In none, when they
    stand where they stood, are others, or when anything else that is given differs. What goes by place (a mask, positions)
    may."""
    sides = token_inputs(a)
    tokens = {name for names in sides.values() for name in names}
    if a.options.dtype != b.options.dtype or sides != token_inputs(b) or not same_inputs(a, b, tokens):
        return
    if not any(unequal(a.arrays[name], b.arrays[name]).any() for name in tokens):
        return
    queries = orders_of(a, b, "all_query", sides["query"])
    alike = sides["key"] == sides["query"]
    pairs = ((q, q) for q in queries) if alike else product(queries, orders_of(a, b, "new_key", sides["key"]))
    for query, key in islice(pairs, MOST):
        yield Places(query, key, a.sizes.get("past_key", 0), (a.rows, b.rows))


def fitting(found: Iterator[Places], a: Trace, b: Trace) -> Places | None:
    """The first order with which what goes by place has moved too; the first of all, where it never has."""
    first = next(found, None)
    ways = [] if first is None else chain([first], found)
    return next((places for places in ways if all(unbroken(step, b, places) for step in a if step.given)), first)


def unbroken(step: Step, b: Trace, places: Places) -> bool:
    """Whether an input of A has, as far as that can be told, moved with the tokens."""
    if step.name not in b or b[step.name].shape != step.shape or not places.tellable(step):
        return True
    return not unequal(places.carry(step).astype(np.float64), b[step.name].values.astype(np.float64)).any()


def token_inputs(p: Problem) -> dict[str, tuple[str, ...]]:
    """The inputs that have a row for each token, of queries and of keys."""
    if not p.projected:
        return {"query": ("q",), "key": ("k", "v")}
    return {"query": ("x",), "key": ("x_kv" if p.cross else "x",)}


def same_inputs(a: Problem, b: Problem, besides: Collection[str]) -> bool:
    """Whether both have the same inputs of equal shapes, with the same numbers in those that are not `besides`."""
    ours, theirs = ({name: p.arrays[name] for name in p.sources if fixed(name)} for p in (a, b))
    return ours.keys() == theirs.keys() and all(
        ours[name].shape == theirs[name].shape and (name in besides or not unequal(ours[name], theirs[name]).any())
        for name in ours
    )


def fixed(name: str) -> bool:
    """Whether an input goes by no token's place, as the arrays of masks and positions do."""
    return not name.startswith(("mask", "rope.positions", "rope.key_positions", "keep"))


def orders_of(a: Problem, b: Problem, axis: str, names: Sequence[str]) -> Iterator[tuple[int, ...]]:
    """For each token of B the token of A that it is. Of tokens that are alike first the one with the same label, or the
    first that is left; then any other."""
    ours, theirs = (list(map(bytes, rows(p, names))) for p in (a, b))
    order = [-1] * len(theirs)
    match(labelled(a, axis, ours), labelled(b, axis, theirs), order)
    match(ours, theirs, order)
    if -1 in order:
        return
    alike: dict[bytes, list[int]] = {}
    for i, token in enumerate(theirs):
        alike.setdefault(token, []).append(i)
    groups = [group for group in alike.values() if len(group) > 1][:VARIED]
    for ways in product(*(list(islice(permutations(group), MOST)) for group in groups)):
        found = list(order)
        for group, way in zip(groups, ways, strict=True):
            for i, j in zip(group, way, strict=True):
                found[i] = order[j]
        yield tuple(found)


def labelled(p: Problem, axis: str, tokens: Sequence[bytes]) -> list[tuple[str, bytes]]:
    names = labels(p).get(axis) or [f"t{i}" for i in range(len(tokens))]
    return list(zip(names, tokens, strict=True))


def match(old: Sequence[object], new: Sequence[object], order: list[int]) -> None:
    """Fill in what is missing of an order: each entry of `new` with the first of `old` that equals it and is left."""
    taken, left = set(order), dict[object, list[int]]()
    for i in reversed(range(len(old))):
        if i not in taken:
            left.setdefault(old[i], []).append(i)
    for i, item in enumerate(new):
        if order[i] < 0 and left.get(item):
            order[i] = left[item].pop()


def rows(p: Problem, names: Sequence[str]) -> Iterator[Array]:
    """All numbers of each token, whatever batch items and heads they are in."""
    arrays = [np.moveaxis(p.arrays[name].astype(np.float64), -2, 0) for name in names]
    for token in zip(*arrays, strict=True):
        yield np.concatenate([np.ravel(row) for row in token]) + 0.0  # a zero has no sign


def rounding_of(t: Trace, names: Collection[str]) -> dict[str, Array]:
    """How far two right implementations of each step may be apart when both begin at the inputs: sums are made in another
    order when tokens are in another."""
    errors: dict[str, Array] = {}
    wide = np.dtype(np.float64).itemsize
    fits(
        sum(step.nbytes // step.dtype.itemsize * wide for step in t.needed(names)),
        "to hold these tokens in another order needs",
    )
    for step in t.needed(names):
        errors[step.name] = accumulated(step, errors)
    return errors


def reordering(a: Trace, b: Trace, names: Sequence[str], places: Places, errors: Mapping[str, Array]) -> Reordering:
    told, silent = [], []
    for name in names:
        old, new = a[name], b[name]
        if old.shape == new.shape and places.tellable(old):
            told.append(Moved(name, places.moving(old), difference(new.values, places.carry(old), errors[name], new)))
        else:
            silent.append(name)
    return Reordering(places, tuple(told), tuple(silent))
