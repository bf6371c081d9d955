"""One attention layer, posed: its inputs, weights and options."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from attntrace.dtypes import DType
from attntrace.errors import Fault, Path
from attntrace.ledger import Ledger
from attntrace.tape import NAMED, Array, Note

INPUTS = {  # every input and the symbol it has in the formulas, in the order in which they are shown
    "x": "X",
    "x_kv": "X_kv",
    "w_q": "W_Q",
    "w_k": "W_K",
    "w_v": "W_V",
    "w_qkv": "W_QKV",
    "b_q": "b_Q",
    "b_k": "b_K",
    "b_v": "b_V",
    "b_qkv": "b_QKV",
    "w_o": "W_O",
    "b_o": "b_O",
    "sinks": "z",
    "w_norm1": "g₁",
    "b_norm1": "β₁",
    "w_norm2": "g₂",
    "b_norm2": "β₂",
    "w_gate": "W_gate",
    "b_gate": "b_gate",
    "w_up": "W_up",
    "b_up": "b_up",
    "w_down": "W_down",
    "b_down": "b_down",
    "q": "Q",
    "k": "K",
    "v": "V",
}


COUNTS = ("rope.positions", "rope.key_positions", "cache.table")  # too fine for half precision


class Source(Protocol):
    """Where the numbers of an input come from. The shape is known before anything is read."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def origin(self) -> str: ...

    def read(self) -> Array: ...


# Makes an input out of a value of the config, at a path below the key of its part; returns its name.
Place = Callable[..., str]


class Mask:
    """One condition on which keys a query may attend to (see `parts.mask`). What it does not need, it leaves as here."""

    lengths: tuple[int, ...] = ()  # how many real keys each batch item has, where the mask tells

    @property
    def formula(self) -> str:
        """Which keys it leaves; nothing for numbers to be added."""
        return ""

    def axes(self, p: Problem) -> frozenset[str]:
        """Those of batch and head along which it differs."""
        return frozenset()

    def check(self, p: Problem) -> Iterable[Fault]:
        return ()

    def bias(self, p: Problem, at: Tile) -> Array:
        """What it adds to the scores of a tile, broadcastable to (batch, head, query, key)."""
        raise NotImplementedError


@dataclass(frozen=True)
class Tile:
    """Which queries and keys a matrix of scores is about: all that are traced, or a tile of them.

    `rows` and `keys` are their numbers among all; `query` and `key` name the axes; `suffix` ends the names of its steps.
    """

    rows: range
    keys: range
    query: str = "query"
    key: str = "key"
    suffix: str = ""


class Part:
    """A part of the layer that is off unless the config names it; see `parts`. What it does not need, it leaves as here."""

    lengths: tuple[int, ...] = ()  # keys that a cache holds, where batch items have unequal numbers of them

    def enter(self, ledger: Ledger, p: Problem) -> dict[str, tuple[str, ...]]:
        """Hold the shapes of its own inputs against those of the layer; returns their axes."""
        return {}

    def check(self, p: Problem) -> Iterable[Fault]:
        """What it has against a layer whose shapes fit."""
        return ()

    def masks(self, p: Problem) -> Iterable[Mask]:
        """The masks that it brings along."""
        return ()

    def remarks(self, p: Problem) -> Iterable[Note]:
        """What a careful reader should know of it."""
        return ()


@dataclass
class Options:
    """What a config says beside its tensors; the defaults are those of the config."""

    dtype: DType = field(default_factory=lambda: np.dtype(np.float64))
    heads: int | None = None
    kv_heads: int | None = None
    scale: float | None = None  # None: 1/√d_k
    masks: tuple[Mask, ...] = ()
    masked_row: str = "zero"
    dropout: float | None = None
    softcap: float | None = None
    softmax_dtype: DType | None = None
    parts: Mapping[str, Part] = field(default_factory=dict)  # the rest of the layer's parts, by config key
    queries: slice | None = None  # trace only these
    transposed: bool = False  # weight_layout: out_in
    qkv_layout: str = "q|k|v"
    tokens: tuple[str, ...] | None = None
    kv_tokens: tuple[str, ...] | None = None
    title: str = ""


@dataclass
class Problem:
    """An attention layer whose shapes fit, as `fit.pose` makes sure.

    `sources` are in the order of the file, in which random ones draw from their streams; `axes` names the axes of each
    input; `sizes` has the length of every axis.
    """

    sources: dict[str, Source]
    options: Options
    axes: dict[str, tuple[str, ...]]
    sizes: dict[str, int]
    config: Mapping[str, Any] = field(default_factory=dict)
    remarks: list[Note] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)  # the options that changed the config, as they were typed
    unsure: Collection[str] = frozenset()  # keys that are there, but of which nothing is known while faults are collected

    @cached_property
    def arrays(self) -> dict[str, Array]:
        """Every input as an array in the dtype of the trace, read once and in the order of the file."""
        with np.errstate(all="ignore"):
            return {name: s.read().astype(self.kind(name), copy=False) for name, s in self.sources.items()}

    def kind(self, name: str) -> DType:
        """The dtype of an input: that of the trace, unless it counts something."""
        return np.dtype(np.float64) if name in COUNTS else self.options.dtype

    @property
    def batched(self) -> bool:
        return "batch" in self.sizes

    @property
    def headed(self) -> bool:
        return "head" in self.sizes

    @property
    def lead(self) -> tuple[str, ...]:
        """The axes before query and key: those of batch and head that exist."""
        return tuple(axis for axis in ("batch", "head") if axis in self.sizes)

    @property
    def group(self) -> int:
        """How many query heads share a key/value head."""
        return self.sizes.get("head", 1) // self.sizes.get("kv_head", self.sizes.get("head", 1))

    @property
    def per_head(self) -> str:
        """The axis of what there is one of for each head, or one alone where there are no heads."""
        return "head" if self.headed else "one"

    @property
    def kv_lead(self) -> tuple[str, ...]:
        return self.lead if self.group == 1 else (*self.lead[:-1], "kv_head")

    @property
    def masks(self) -> tuple[Mask, ...]:
        """Every mask: those of the config, then what its parts bring along."""
        return (*self.options.masks, *(m for part in self.options.parts.values() for m in part.masks(self)))

    @property
    def new_key(self) -> str:
        """The axis of the keys that are made here; with a cache they are not all keys."""
        return "new_key" if "cache" in self.options.parts else "key"

    @property
    def past(self) -> Array:
        """How many keys the cache holds: a number for each batch item, or one for all."""
        cache = self.options.parts.get("cache")
        return np.array((cache and cache.lengths) or [self.sizes.get("past_key", 0)])

    @property
    def queries(self) -> int:
        """How many queries there are, traced or not."""
        return self.sizes["token"] if self.projected else self.sizes.get("all_query", self.sizes["query"])

    @property
    def rows(self) -> range:
        """The queries that are traced."""
        return range(self.queries)[self.options.queries or slice(None)]

    @property
    def whole(self) -> Tile:
        return Tile(self.rows, range(self.sizes["key"]))

    @property
    def cross(self) -> bool:
        return "x_kv" in self.sources

    @property
    def projected(self) -> bool:
        """Whether queries, keys and values are made from x, and not given directly."""
        return "x" in self.sources

    def has(self, name: str) -> bool:
        """Whether there is an input of that name, be it a faulty one."""
        return name in self.sources or name in self.unsure

    @property
    def merges(self) -> bool:
        """Whether something comes after the average of the values: heads to put side by side, or an output projection."""
        return self.headed or "w_o" in self.sources

    def columns(self, name: str) -> tuple[int, ...] | None:
        """The outputs of a fused w_qkv that make q, k or v; None when each has a matrix of its own."""
        if "w_qkv" not in self.sources:
            return None
        heads, groups = self.sizes.get("head", 1), self.sizes.get("kv_head", self.sizes.get("head", 1))
        return fused_columns(self.options.qkv_layout, heads, groups, self.sizes["d_k"])["qkv".index(name)]

    @property
    def divisor(self) -> float:
        """√d_k."""
        return math.sqrt(self.sizes["d_k"])


def fused_columns(layout: str, heads: int, groups: int, d: int) -> tuple[tuple[int, ...], ...]:
    """Which columns of a fused projection are q, k and v.

    "q|k|v": all queries, then all keys, then all values. "per-head" and "per-group": for each key/value head in turn, the
    queries that read it, its keys, its values.
    """
    n = heads // groups
    blocks = np.arange((heads + 2 * groups) * d).reshape(-1, d)
    if layout == "q|k|v":
        parts = blocks[:heads], blocks[heads : heads + groups], blocks[heads + groups :]
    else:
        of_groups = blocks.reshape(groups, n + 2, d)
        parts = of_groups[:, :n], of_groups[:, n : n + 1], of_groups[:, n + 1 :]
    return tuple(tuple(int(c) for c in part.ravel()) for part in parts)


def labels(p: Problem) -> dict[str, tuple[str, ...]]:
    """The labels of the entries along each axis that has some; where there are none, t0, t1, … are right.

    Of very many tokens nobody reads the labels, which would fill the memory before anything is checked.
    """
    if max(p.queries, p.sizes["key"]) > NAMED:
        return {}
    tokens, keys = p.options.tokens or numbers(p), p.options.kv_tokens
    past, new = p.sizes.get("past_key", 0), p.sizes[p.new_key]
    if keys is None and tokens is not None and not p.cross and len(tokens) == new:
        keys = tokens
    if keys is not None and len(keys) == new:
        keys = (*(f"{'slot' if ragged(p) else 't'}{i}" for i in range(past)), *keys)
    queries = None if tokens is None else tuple(tokens[i] for i in p.rows)
    new_keys = None if keys is None else keys[past:]
    by_axis = {"token": tokens, "all_query": tokens, "query": queries, "key": keys, "kv_token": new_keys, "new_key": new_keys}
    return {axis: found for axis, found in by_axis.items() if found is not None}


def numbers(p: Problem) -> tuple[str, ...] | None:
    """Names of tokens that do not begin at t0: after a cache, or when only some queries are traced."""
    if ragged(p):
        return tuple(f"new{i}" for i in range(p.queries))
    past = 0 if p.cross else p.sizes.get("past_key", 0)
    return tuple(f"t{past + i}" for i in range(p.queries)) if past or p.options.queries is not None else None


def ragged(p: Problem) -> bool:
    """Whether batch items have caches of unequal lengths, so that a token's place differs between them."""
    return len(set(p.past.tolist())) > 1


def called(path: Path) -> str:
    """A config path as a person writes it: mask[1].window.left."""
    return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path).removeprefix(".")
