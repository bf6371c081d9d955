"""One attention layer, posed: its inputs, weights and options."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from attntrace.dtypes import DType
from attntrace.errors import Fault, Path
from attntrace.tape import Array, Note

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
    "q": "Q",
    "k": "K",
    "v": "V",
}


class Source(Protocol):
    """Where the numbers of an input come from. The shape is known before anything is read."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def origin(self) -> str: ...

    def read(self) -> Array: ...


class Mask(Protocol):
    """One condition on which keys a query may attend to (see `parts.mask`)."""

    @property
    def formula(self) -> str: ...

    def axes(self, p: Problem) -> frozenset[str]: ...

    def check(self, p: Problem) -> Iterable[Fault]: ...

    def bias(self, p: Problem) -> Array: ...


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

    @cached_property
    def arrays(self) -> dict[str, Array]:
        """Every input as an array in the dtype of the trace, read once and in the order of the file."""
        with np.errstate(all="ignore"):
            return {name: s.read().astype(self.options.dtype, copy=False) for name, s in self.sources.items()}

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
    def kv_lead(self) -> tuple[str, ...]:
        return self.lead if self.group == 1 else (*self.lead[:-1], "kv_head")

    @property
    def cross(self) -> bool:
        return "x_kv" in self.sources

    @property
    def projected(self) -> bool:
        """Whether queries, keys and values are made from x, and not given directly."""
        return "x" in self.sources

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
    """The labels of the entries along each axis that has some."""
    tokens, kv_tokens = p.options.tokens, p.options.kv_tokens
    if kv_tokens is None and tokens is not None and not p.cross and len(tokens) == p.sizes["key"]:
        kv_tokens = tokens
    by_axis = {"token": tokens, "query": tokens, "key": kv_tokens, "kv_token": kv_tokens}
    return {axis: found for axis, found in by_axis.items() if found is not None}


def called(path: Path) -> str:
    """A config path as a person writes it: mask[1].window.left."""
    return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path).removeprefix(".")
