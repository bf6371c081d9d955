"""Decoding: token by token with a growing cache, held against the causal pass over all tokens at once.

Every token is a layer of its own (`Excerpt`): its queries are that one token, its cache holds the keys and values of those
before it (turned already, where rope is on), and its masks are its row of the whole layer's. The row of scores, weights and
output that comes out must be the row that the causal pass has.

The cache is what the trace of a token says: `k_all` and `v_all` are the cache of the next one. With `block_size` it lies in
the blocks of one pool, of which each sequence takes the next free one when its last is full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from typing import NamedTuple

import numpy as np

from attntrace import layer
from attntrace.compare import accumulated, difference
from attntrace.cores.ring import Ring
from attntrace.dtypes import working
from attntrace.errors import AttnTraceError
from attntrace.fit import pose
from attntrace.ledger import amount
from attntrace.memory import available, human
from attntrace.ops import MatMul, Project
from attntrace.parts import mask as masks
from attntrace.parts.alibi import Alibi
from attntrace.parts.cache import Cache
from attntrace.parts.rope import Rope
from attntrace.problem import INPUTS, Mask, Options, Part, Problem, Source, Tile, labels
from attntrace.tape import Array, Note, Step, Trace
from attntrace.verification import Row

COMPARED = ("weights", "output", "block_output")
BLOCK_SIZE = 4
TOKENS = frozenset({"token", "query", "key", "new_key", "token_position", "key_position"})  # axes that go token by token
KEYS, VALUES = ("k_all", "k_rot", "k_norm", "k"), ("v_all", "v")  # what attention reads is the first of them that there is
POSITIONS = "rope.positions"
ADDED = masks.Causal(path=("decode",))  # a token that is decoded has no later ones to hide, so only the causal pass has it

Read = Callable[[], Array]


def decode(problem: Problem, block_size: int | None = None) -> Decoding:
    """The tokens of `problem` one after the other; with a `block_size`, from a paged cache. Nothing is computed yet.

    Raises AttnTraceError when the layer cannot be decoded, and when that would not fit in memory.
    """
    refuse(problem)
    causal = with_causal(problem)
    Decoding(problem, causal, block_size).fits()
    added = sees_later(problem)
    return Decoding(problem, causal if added else problem, block_size, [*problem.remarks, *remarks(problem, added)])


def refuse(p: Problem) -> None:
    """Layers whose keys do not grow by one with each query."""
    if p.cross:
        raise AttnTraceError("x_kv: the keys of cross-attention do not grow from token to token; leave x_kv out to decode")
    if p.options.queries is not None:
        raise AttnTraceError("--queries: decode takes every token in its turn; leave it out")
    queries, keys = p.queries, p.sizes[p.new_key]
    if queries != keys:
        few = f"give the first {keys - queries} as cache: {{k: …, v: …}}" if queries < keys else "give as many of each"
        found = f"{amount(queries, 'queries')} and {amount(keys, 'keys')}"
        raise AttnTraceError(f"k: to decode, each query comes with a key of its own; found {found}: {few}")


def with_causal(p: Problem) -> Problem:
    """The same layer with a causal mask; its inputs are not read a second time, since a draw would give others."""
    sources: dict[str, Source] = {name: Late(s.shape, s.origin, reader(p, name)) for name, s in p.sources.items()}
    return replace(p, sources=sources, options=replace(p.options, masks=(*p.options.masks, ADDED)))


def sees_later(p: Problem) -> bool:
    """Whether the masks let a query attend to a key of a later token."""
    if not p.masks or p.queries == 1:
        return p.queries > 1
    new = masks.effective(p, p.whole)[..., p.sizes.get("past_key", 0) :].astype(working(p.options.dtype), copy=False)
    later = np.triu(np.ones((p.queries, p.queries), dtype=bool), 1)
    return not np.isneginf(new[..., later]).all()


def remarks(p: Problem, added: bool) -> Iterator[Note]:
    if added:
        lets = "the mask lets tokens attend to later ones" if p.masks else "there is no mask"
        message = f"{lets}; a token that is decoded has only those before it, so the pass it is held against gets a causal mask"
        yield Note("decode-causal", None, message)
    core = p.options.parts.get("core")
    if isinstance(core, Ring) and core.devices > p.sizes.get("past_key", 0) + 1:
        yield Note("decode-ring", None, "while there are fewer keys than devices, the ring has one device for each key")


# ------------------------------------------------------------------ a token as a layer of its own


@dataclass(frozen=True)
class Late:
    """An input whose shape is known, and whose numbers are fetched when they are read."""

    shape: tuple[int, ...]
    origin: str
    read: Read


def unread() -> Array:
    raise AssertionError("only the shape of this input is known")


def reader(p: Problem, name: str, at: tuple[slice, ...] = ()) -> Read:
    return lambda: p.arrays[name][at]


class Past(NamedTuple):
    """A cache, and the inputs that it names."""

    part: Cache
    sources: Mapping[str, Source]


@dataclass(frozen=True, eq=False)
class Excerpt:
    """Some new tokens of a layer, with all keys up to the last of them.

    `order`, (batch, key), says which key of the whole layer each of its keys is, where they lie in another order.
    """

    whole: Problem
    run: range
    order: Array | None = None

    @property
    def keys(self) -> int:
        return self.whole.sizes.get("past_key", 0) + self.run.stop

    def tile(self, read: Callable[[Tile], Array], at: Tile) -> Array:
        """What `read` gives of the whole layer, ([batch], …, query, key), for a tile of this excerpt."""
        rows = range(self.run.start + at.rows.start, self.run.start + at.rows.stop)
        if self.order is None:
            return read(Tile(rows, at.keys))
        return self.arranged(read(Tile(rows, range(self.keys))))[..., at.keys.start : at.keys.stop]

    def arranged(self, values: Array) -> Array:
        """(batch, …, key) in the order of the excerpt's keys."""
        if self.order is None:
            return values
        every = np.broadcast_to(values, (*values.shape[:-1], self.keys))
        return np.take_along_axis(every, self.order.reshape(len(self.order), *(1,) * (values.ndim - 2), -1), axis=-1)

    def posed(self, past: Past | None, core: bool = True) -> Problem:
        """The layer of these tokens alone, with `past` as its cache; without its `core`, with the direct one."""
        sources = {name: self._source(name) for name in self.whole.sources if not name.startswith("cache.")}
        parts = {key: self._part(part) for key, part in self.whole.options.parts.items() if key != "cache"}
        if not core:
            parts.pop("core", None)
        rope = parts.get("rope")
        if isinstance(rope, Rope) and len(self.whole.past) > 1:
            sources[POSITIONS], parts["rope"] = self._positions(rope), replace(rope, positions=POSITIONS)
        if past is not None:
            sources |= past.sources
            parts["cache"] = past.part
        found = pose(sources, self._options(parts), self.whole.config)
        if not isinstance(found, Problem):
            raise AssertionError(f"tokens {self.run} do not fit: {found}")
        return found

    def _options(self, parts: Mapping[str, Part]) -> Options:
        tokens, keys = names(self.whole)
        return replace(
            self.whole.options,
            masks=tuple(MaskRows(m, self) for m in self.whole.masks if m is not ADDED),
            parts=parts,
            tokens=tokens[self.run.start : self.run.stop],
            kv_tokens=keys[: self.keys] if self.order is None else None,
            title="",
        )

    def _source(self, name: str) -> Source:
        given, run = self.whole.sources[name], self.run
        if name == "keep":
            shape = (*given.shape[:-2], len(run), self.keys)
            return Late(shape, given.origin, lambda: self.tile(self._keep, Tile(range(len(run)), range(self.keys))))
        axes = self.whole.axes.get(name, ())
        along = next((i for i, axis in enumerate(axes) if axis in TOKENS), None)
        if along is None:
            return Late(given.shape, given.origin, reader(self.whole, name))
        shape = (*given.shape[:along], len(run), *given.shape[along + 1 :])
        read = reader(self.whole, name, (*(slice(None),) * along, slice(run.start, run.stop)))
        return Late(shape, f"row {run.start} of {INPUTS.get(name, name)}", read)

    def _keep(self, at: Tile) -> Array:
        return masks.excerpt(self.whole.arrays["keep"], at)

    def _positions(self, rope: Rope) -> Source:
        """Where the tokens stand, said in so many words where batch items have unequal pasts."""
        p, run = self.whole, self.run
        every = (p.sizes["batch"], p.queries)
        read = lambda: np.broadcast_to(rope.of_queries(p), every)[:, run.start : run.stop]  # noqa: E731 - read late
        return Late((every[0], len(run)), "after the past", read)

    def _part(self, part: Part) -> Part:
        if isinstance(part, Alibi):
            return AlibiRows(part.slopes, part.align, alibi=part, of=self)
        return Ring(min(part.devices, self.keys)) if isinstance(part, Ring) else part


@dataclass(frozen=True, eq=False)
class MaskRows(Mask):
    """The rows of a mask that are about the tokens of an excerpt."""

    mask: Mask
    of: Excerpt

    @property
    def formula(self) -> str:
        return self.mask.formula

    def axes(self, p: Problem) -> frozenset[str]:
        return self.mask.axes(self.of.whole) | ({"batch"} if self.of.order is not None else set())

    def bias(self, p: Problem, at: Tile) -> Array:
        return self.of.tile(lambda tile: self.mask.bias(self.of.whole, tile), at)


@dataclass(frozen=True, eq=False, kw_only=True)
class AlibiRows(Alibi):
    """A linear bias whose distances are those of the whole layer."""

    alibi: Alibi
    of: Excerpt

    def distance(self, p: Problem, at: Tile) -> Array:
        return self.of.tile(lambda tile: self.alibi.distance(self.of.whole, tile), at)

    def ragged(self, p: Problem) -> bool:
        return self.alibi.ragged(self.of.whole)


def names(p: Problem) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The labels of the tokens, and those of the keys; those that say nothing are t0, t1, …"""
    found, past = labels(p), p.sizes.get("past_key", 0)
    tokens, keys = (found.get(axis) or ("",) * n for axis, n in (("query", p.queries), ("key", p.sizes["key"])))
    return (
        tuple(label if label.strip() else f"t{past + i}" for i, label in enumerate(tokens)),
        tuple(label if label.strip() else f"t{i}" for i, label in enumerate(keys)),
    )


# ------------------------------------------------------------------ what is kept from one token to the next


@dataclass(frozen=True)
class Pages:
    """Where the keys of each sequence lie when there is room for one more: in the blocks of its table, in order.

    `lengths` counts the keys before the new one; `total` the blocks of the pool.
    """

    size: int
    tables: tuple[tuple[int, ...], ...]
    lengths: tuple[int, ...]
    total: int

    def place(self, sequence: int, key: int) -> tuple[int, int]:
        """Block and slot of a key."""
        page, slot = divmod(key, self.size)
        return self.tables[sequence][page], slot

    @property
    def rectangle(self) -> Array:
        """The tables side by side, (batch, page); pages that a sequence does not have yet are block 0, and never read."""
        width = max(map(len, self.tables))
        return np.array([[*table, *(0,) * (width - len(table))] for table in self.tables], dtype=np.float64)


def allocated(lengths: Sequence[int], tokens: int, size: int) -> list[Pages]:
    """The pages at each token. A sequence takes the next free block when its last one is full."""
    tables: list[list[int]] = [[] for _ in lengths]
    free, found = count(), []
    for t in range(tokens):
        for table, length in zip(tables, lengths, strict=True):
            while len(table) * size <= length + t:
                table.append(next(free))
        found.append((tuple(map(tuple, tables)), tuple(n + t for n in lengths)))
    total = sum(map(len, tables))
    return [Pages(size, table, held, total) for table, held in found]


class Store:
    """The cache as one array of keys and one of values, ([batch], [kv_head], past, d)."""

    def __init__(self, whole: Problem) -> None:
        self.whole = whole
        self.k: Array = np.empty(0)  # both are read from the second token on
        self.v: Array = self.k

    def add(self, k: Array, v: Array) -> None:
        """Keep all keys and values of a token's trace, its own among them."""
        self.k, self.v = k, v

    def reads(self) -> tuple[Read, Read]:
        k, v = self.k, self.v
        return lambda: k, lambda: v


class Pool(Store):
    """The cache in blocks, (block, [kv_head], slot, d); slots that hold nothing are 0."""

    def __init__(self, whole: Problem, full: Trace, pages: Sequence[Pages]) -> None:
        super().__init__(whole)
        self.pages, self.token = pages, 0
        self.k, self.v = (np.zeros(shape, whole.options.dtype) for shape in block_shapes(whole, pages[0]))
        if "k_past" in full:  # what the config says was there before is put into the blocks first
            for b, length in enumerate(pages[0].lengths):
                for i in range(length):
                    self._write(b, i, full["k_past"].values, full["v_past"].values, i)

    def add(self, k: Array, v: Array) -> None:
        """Write the last key and value of a token's trace into their slots; in a copy, since that trace reads the blocks."""
        self.k, self.v = self.k.copy(), self.v.copy()
        for b, length in enumerate(self.pages[self.token].lengths):
            self._write(b, length, k, v, -1)
        self.token += 1

    def _write(self, b: int, key: int, k: Array, v: Array, row: int) -> None:
        block, slot = self.pages[self.token].place(b, key)
        for blocks, values in ((self.k, k), (self.v, v)):
            blocks[block, ..., slot, :] = (values[b] if self.whole.batched else values)[..., row, :]


def block_shapes(p: Problem, pages: Pages) -> list[tuple[int, ...]]:
    head = [p.sizes[axis] for axis in p.kv_lead if axis != "batch"]
    return [(pages.total, *head, pages.size, p.sizes[width]) for width in ("d_k", "d_v")]


def given_past(p: Problem) -> Past | None:
    """The cache that the config gives."""
    cache = p.options.parts.get("cache")
    if not isinstance(cache, Cache):
        return None
    held = [name for name in p.sources if name.startswith("cache.")]
    return Past(cache, {name: Late(p.sources[name].shape, p.sources[name].origin, reader(p, name)) for name in held})


def plain_past(p: Problem, t: int, k: Read, v: Read) -> Past | None:
    """The cache before token `t`, as arrays; before the first one, that of the config."""
    if t == 0:
        return given_past(p)
    lead, held = [p.sizes[axis] for axis in p.kv_lead], p.sizes.get("past_key", 0) + t
    pairs = {"cache.k": (k, "d_k"), "cache.v": (v, "d_v")}
    sources = {name: Late((*lead, held, p.sizes[d]), "kept from the token before", read) for name, (read, d) in pairs.items()}
    return Past(Cache("cache.k", "cache.v"), sources)


def paged_past(p: Problem, pages: Pages, k: Read, v: Read) -> Past | None:
    """The cache before a token, in blocks; nothing, while no slot is filled."""
    if not any(pages.lengths):
        return None
    table = pages.rectangle if p.batched else pages.rectangle[0]
    reads = zip(("cache.blocks.k", "cache.blocks.v"), block_shapes(p, pages), (k, v), strict=True)
    sources: dict[str, Source] = {name: Late(shape, "written by the tokens before", read) for name, shape, read in reads}
    sources["cache.table"] = Late(table.shape, "", lambda: table)
    return Past(Cache("cache.blocks.k", "cache.blocks.v", "cache.table", pages.lengths), sources)


# ------------------------------------------------------------------ all tokens


@dataclass(frozen=True)
class Token:
    """One token decoded: its trace, and how its row of each of COMPARED differs from that of the causal pass.

    `positions` has its place in each sequence, counted from 0 with the first token of the past.
    """

    number: int
    label: str
    positions: tuple[int, ...]
    trace: Trace
    compared: tuple[Row, ...]
    pages: Pages | None

    @property
    def agrees(self) -> bool:
        return all(row.difference.agrees for row in self.compared)

    @property
    def cache(self) -> tuple[Step, Step]:
        """All keys and values, its own the last: the cache that the next token finds."""
        return keys_and_values(self.trace)

    @property
    def worst(self) -> Row:
        """The comparison that differs, or of several the one with the largest error."""
        return max(self.compared, key=severity)


@dataclass
class Decoding:
    """A layer to be decoded. `whole` is that layer with a causal mask; `play` goes through its tokens."""

    problem: Problem
    whole: Problem
    block_size: int | None = None
    notes: list[Note] = field(default_factory=list)
    found: list[tuple[str, Row]] = field(default_factory=list)  # of each token played: its label, and its worst row

    @cached_property
    def full(self) -> Trace:
        """The causal pass over all tokens."""
        return layer.trace(self.whole)

    @property
    def tokens(self) -> int:
        return self.whole.queries

    @cached_property
    def pages(self) -> list[Pages] | None:
        """Where the keys lie at each token, with a paged cache."""
        return None if self.block_size is None else allocated(self.past, self.tokens, self.block_size)

    @property
    def past(self) -> tuple[int, ...]:
        """How many keys each sequence has before the first token."""
        items = self.whole.sizes.get("batch", 1)
        return tuple(int(n) for n in np.broadcast_to(self.whole.past, (items,)))

    def excerpt(self, t: int) -> Excerpt:
        return Excerpt(self.whole, range(t, t + 1), self._order(t))

    def _order(self, t: int) -> Array | None:
        """Pages of sequences with unequal pasts: each has its new keys right after its own past, and empty slots behind."""
        if self.block_size is None or len(set(self.past)) == 1:
            return None
        past = self.whole.sizes["past_key"]
        new = range(past, past + t)
        return np.array([[*range(n), *new, *range(n, past), past + t] for n in self.past])

    def cache(self, t: int, k: Read, v: Read) -> Past | None:
        return plain_past(self.whole, t, k, v) if self.pages is None else paged_past(self.whole, self.pages[t], k, v)

    def outline(self, t: int, core: bool = True) -> Trace:
        """The tape of token `t`, of which nothing but the shapes can be read."""
        return layer.trace(self.excerpt(t).posed(self.cache(t, unread, unread), core))

    def play(self) -> Iterator[Token]:
        """Decode and yield one token after the other; their traces are computed."""
        self.found.clear()
        for step in self.full:
            step.values  # noqa: B018 - reading computes
        store = Store(self.whole) if self.pages is None else Pool(self.whole, self.full, self.pages)
        for t in range(self.tokens):
            token = self._token(t, layer.trace(self.excerpt(t).posed(self.cache(t, *store.reads()))))
            self.found.append((token.label, token.worst))
            yield token
            k, v = token.cache
            store.add(k.values, v.values)
        self.notes += [note for note in self._poisoned() if note not in self.notes]

    def _poisoned(self) -> Iterator[Note]:
        """Why rows may differ though nothing is wrong: what is masked stays out of a sum only while it is finite."""
        label, row = self.worst
        if not row.difference.agrees and not all(np.isfinite(s.values).all() for s in self.full if s.name in ("q", "k", "v")):
            message = (
                "NaN or infinities in q, k or v: in the causal pass they reach the rows of earlier tokens, since NaN − ∞ and "
                f"0 · ∞ are NaN; decoding {label}, nothing is known of later tokens"
            )
            yield Note("decode-nan", row.step, message)

    def _token(self, t: int, tape: Trace) -> Token:
        for step in tape:
            step.values  # noqa: B018 - reading computes
        rows = tuple(self._compared(t, name, tape) for name in self.compared_names)
        pages = None if self.pages is None else self.pages[t]
        return Token(t, names(self.whole)[0][t], tuple(n + t for n in self.past), tape, rows, pages)

    @property
    def compared_names(self) -> list[str]:
        return [name for name in COMPARED if name in self.full]

    def _compared(self, t: int, name: str, tape: Trace) -> Row:
        theirs, allowed = (self._row(t, name, a) for a in (self.full[name].values, self._allowed[name]))
        return Row(name, "the causal pass", difference(tape[name].values, theirs, allowed, self.full[name]))

    def _row(self, t: int, name: str, values: Array) -> Array:
        row = values[..., t : t + 1, :]
        excerpt = self.excerpt(t)
        return excerpt.arranged(row[..., : excerpt.keys]) if name == "weights" else row

    @cached_property
    def _allowed(self) -> dict[str, Array]:
        """How far two right ways to the steps that are compared may be apart."""
        errors: dict[str, Array] = {}
        for step in self.full.needed(self.compared_names):
            errors[step.name] = accumulated(step, errors)
        return {name: errors[name] for name in self.compared_names}

    # -------------------------------------------------------------- what came out

    def finish(self) -> None:
        """Decode all tokens, unless that is done."""
        if len(self.found) < self.tokens:
            for _ in self.play():
                pass

    @property
    def agrees(self) -> bool:
        self.finish()
        return all(row.difference.agrees for _, row in self.found)

    @property
    def worst(self) -> tuple[str, Row]:
        """The label of the token that differs most, or where none differs of the one with the largest error, and its row."""
        self.finish()
        return max(self.found, key=lambda entry: severity(entry[1]))

    @property
    def verdict(self) -> str:
        """`5 of 5 rows equal the causal pass`, and which differs most, where one does."""
        self.finish()
        verdict = f"{sum(row.difference.agrees for _, row in self.found)} of {self.tokens} rows equal the causal pass"
        label, row = self.worst
        if row.difference.agrees:
            return verdict
        return f"{verdict}; {label} differs most, at {row.step}[{', '.join(map(str, row.difference.worst))}] of its trace"

    @cached_property
    def multiplications(self) -> Multiplications:
        """Counted from shapes; a core changes the order of the products, and not how many there are."""
        outlines = (self.outline(t, core=False) for t in range(self.tokens))
        prefixes = (Excerpt(self.whole, range(t + 1)).posed(given_past(self.whole), core=False) for t in range(self.tokens))
        return Multiplications(sum(map(products, outlines)), sum(products(layer.trace(p)) for p in prefixes))

    def fits(self) -> None:
        """Raise AttnTraceError when the causal pass, its tolerances and a token's trace need more memory than there is."""
        need = sum(s.nbytes + 8 * size(s) for s in self.full) + 2 * sum(s.nbytes for s in self.outline(self.tokens - 1))
        have = available()
        if need > have:
            message = f"decoding needs {human(need)} of memory and {human(have)} are free: it is held against the causal pass"
            raise AttnTraceError(f"{message} over all {amount(self.tokens, 'tokens')}; use fewer of them, or a smaller dtype")


def severity(row: Row) -> tuple[bool, float]:
    """What differs is worse than what does not; then the larger error is."""
    return not row.difference.agrees, row.difference.error


class Multiplications(NamedTuple):
    """Those of the matrix products: with the cache, and when each token makes the pass over its whole prefix anew."""

    with_cache: int
    without_cache: int

    @property
    def ratio(self) -> float:
        return self.without_cache / self.with_cache


def products(t: Trace) -> int:
    """The multiplications of a trace's matrix products. Reads nothing but shapes."""
    return sum(size(s) * s.operands[0].shape[-1] for s in t if isinstance(s.operation, MatMul | Project))


def size(s: Step) -> int:
    return s.nbytes // s.dtype.itemsize


def keys_and_values(t: Trace) -> tuple[Step, Step]:
    """The keys and values that attention reads, before groups are shared out."""
    k, v = (next(name for name in names if name in t) for names in (KEYS, VALUES))
    return t[k], t[v]
