"""One attention layer, posed: its inputs, weights and options. Shapes are checked here and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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


FUSED = 1 << 20  # columns of w_qkv


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
    source: str = ""


@dataclass
class Problem:
    """An attention layer whose shapes fit. Make one with `pose`.

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

    def columns(self, which: int) -> tuple[int, ...] | None:
        """The outputs of a fused w_qkv that make q (0), k (1) or v (2); None when each has a matrix of its own."""
        if "w_qkv" not in self.sources:
            return None
        heads, groups = self.sizes.get("head", 1), self.sizes.get("kv_head", self.sizes.get("head", 1))
        return fused_columns(self.options.qkv_layout, heads, groups, self.sizes["d_k"])[which]

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


def pose(sources: Mapping[str, Source], options: Options, config: Mapping[str, Any] | None = None) -> Problem | list[Fault]:
    """A problem out of `sources` and `options`, or everything that keeps them from fitting together."""
    problem, faults = _pose(sources, options, frozenset())
    problem.config = dict(config or {})
    return faults or problem


def clashes(sources: Mapping[str, Source], options: Options, broken: Collection[str]) -> list[Fault]:
    """What does not fit among the keys that are sound. `broken` ones are there, but nothing is known of them: whatever
    hangs on them is left alone, so that no fault is merely a consequence of another."""
    return _pose(sources, options, frozenset(broken))[1]


def _pose(sources: Mapping[str, Source], options: Options, broken: frozenset[str]) -> tuple[Problem, list[Fault]]:
    shapes = {name: s.shape for name, s in sources.items() if name in INPUTS}
    there = dict.fromkeys(name for name in INPUTS if name in shapes or name in broken)
    faults, ledger = [*_missing(there), *_heads(options, broken)], Ledger()
    problem = Problem(dict(sources), options, {}, ledger.sizes)
    if any(f.path[:1] == (n,) for n in ("q", "k", "v", "x") for f in faults) or not {"x", "q"} & there.keys():
        return problem, faults  # not even the kind of the layer is certain
    if broken & {"heads", "kv_heads"} or any(f.path == ("kv_heads",) for f in faults):
        ledger.loose, options = True, replace(options, heads=None, kv_heads=None)
    if "weight_layout" in broken:
        shapes = {name: shape for name, shape in shapes.items() if not name.startswith("w_")}
    problem.axes = (_direct if "q" in there else _projected)(ledger, shapes, options, broken)
    faults += ledger.faults
    return problem, [*faults, *_labels(problem, ledger), *_masks(problem, ledger)]


def _masks(p: Problem, ledger: Ledger) -> Iterable[Fault]:
    """What the masks have against the lengths, unless those are in doubt themselves."""
    sure = ledger.sure("query", "key") and not ledger.loose and not ledger.disputed & {"batch", "head"}
    for mask in p.options.masks if sure else ():
        for fault in mask.check(p):
            yield Clash(fault.message, fault.path, others=(*ledger.makers["query"], *ledger.makers["key"]))


def _missing(shapes: Mapping[str, Any]) -> list[Fault]:
    """Inputs that are lacking, or that exclude one another."""
    direct = [name for name in "qkv" if name in shapes]
    if direct:
        lacking = [name for name in "qkv" if name not in shapes]
        unused = [name for name in shapes if name not in (*direct, "w_o", "b_o")]
        return [
            *(Fault(f"{name}: missing: q, k and v are given directly all three, or made from x", (name,)) for name in lacking),
            *(Fault(f"{name}: not used when q, k and v are given directly; leave it out", (name,)) for name in unused),
            *_output_bias(shapes),
        ]
    if "x" not in shapes:
        return [Fault("x: missing: give x with w_q, w_k and w_v (or w_qkv), or give q, k and v directly", ("x",))]
    if "w_qkv" in shapes:
        return _beside_fused(shapes)
    return [
        *(Fault(f"{w}: missing: x needs w_q, w_k and w_v, or w_qkv", (w,)) for w in ("w_q", "w_k", "w_v") if w not in shapes),
        *(Fault("b_qkv: goes with w_qkv; here give b_q, b_k, b_v", ("b_qkv",)) for b in ("b_qkv",) if b in shapes),
        *_output_bias(shapes),
    ]


def _beside_fused(shapes: Mapping[str, Any]) -> list[Fault]:
    others = [name for name in ("w_q", "w_k", "w_v", "b_q", "b_k", "b_v") if name in shapes]
    faults = [Fault(f"{name}: w_qkv already holds it; leave one of them out", (name,)) for name in others]
    if "x_kv" in shapes:
        faults.append(Fault("x_kv: w_qkv makes everything from x; for cross-attention give w_q, w_k and w_v", ("x_kv",)))
    return faults + _output_bias(shapes)


def _output_bias(shapes: Mapping[str, Any]) -> list[Fault]:
    if "b_o" in shapes and "w_o" not in shapes:
        return [Fault("b_o: needs w_o, the output projection that it is added to", ("b_o",))]
    return []


def _heads(options: Options, broken: frozenset[str]) -> list[Fault]:
    heads, groups = options.heads, options.kv_heads
    if broken & {"heads", "kv_heads"}:
        return []
    if groups is not None and heads is None:
        return [Fault("kv_heads: needs heads, the number of query heads that share them", ("kv_heads",))]
    if heads is not None and groups is not None and heads % groups:
        return [Clash(f"kv_heads: {groups} does not divide heads: {heads}", ("kv_heads",), others=("heads",))]
    return []


@dataclass(frozen=True)
class Clash(Fault):
    """A key that does not fit others, which set what was expected of it."""

    others: tuple[str, ...] = ()


class Ledger:
    """One length for each axis name, and who set it; whatever disagrees becomes a fault.

    A `loose` ledger does not know the heads: axes that hang on them are then a matter of each letter alone.
    """

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.reasons: dict[str, str] = {}
        self.makers: dict[str, tuple[str, ...]] = {}  # the keys that set a length
        self.faults: list[Fault] = []
        self.disputed: set[str] = set()
        self.loose = False

    def set(self, axis: str, size: int, reason: str, *makers: str) -> None:
        self.sizes[axis], self.reasons[axis], self.makers[axis] = size, reason, makers

    def fault(self, message: str, key: str, *others: str) -> None:
        self.faults.append(Clash(message, (key,), others=others))

    def sure(self, *axes: str) -> bool:
        """Whether the lengths of these axes are known, and nobody disagrees."""
        return all(axis in self.sizes and axis not in self.disputed for axis in axes)

    def enter(self, name: str, shape: Sequence[int], axes: Sequence[str]) -> tuple[str, ...]:
        """Hold the shape of an input against what is known of its axes; returns its axes."""
        if len(shape) != len(axes):
            self.fault(f"{name}: expected {_count(len(axes), 'axis', 'axes')} ({', '.join(axes)}), found {len(shape)}", name)
            self.disputed.update(axes)
            return tuple(axes)
        for position, (axis, size) in enumerate(zip(axes, shape, strict=True)):
            self._enter(name, self._own(name, axis), size, _word(axes, position))
        return tuple(axes)

    def _own(self, name: str, axis: str) -> str:
        """Which length an axis is about: in a loose ledger the outputs of w_q and the numbers of b_q are "q.d_k"."""
        return f"{name[-1]}.{axis}" if self.loose and axis.endswith(("d_k", "d_v", "head")) else axis

    def _enter(self, name: str, axis: str, size: int, word: str) -> None:
        if size == 0:
            self.fault(f"{name}: has 0 {word}; every axis needs at least one entry", name)
            self.disputed.add(axis)
        elif axis not in self.sizes:
            self.set(axis, size, f"the {word} of {name}", name)
        elif self.sizes[axis] != size:
            wanted = amount(self.sizes[axis], word)
            self.fault(f"{name}: expected {wanted} ({self.reasons[axis]}), found {size}", name, *self.makers[axis])
            self.disputed.add(axis)


def _count(n: int, one: str, many: str) -> str:
    return f"{n} {one if n == 1 else many}"


def amount(n: int, things: str) -> str:
    """`1 row`, `2 rows`; `things` are many."""
    return _count(n, {"queries": "query"}.get(things, things.removesuffix("s")), things)


def _word(axes: Sequence[str], position: int) -> str:
    """What the entries along an axis are called in a sentence."""
    named = {"batch": "batch items", "head": "heads", "kv_head": "key/value heads", "token": "tokens", "kv_token": "tokens"}
    if axes[position] in named:
        return named[axes[position]]
    if axes[position] in ("query", "key"):
        return "queries" if axes[position] == "query" else "keys"
    if len(axes) == 1:
        return "numbers"
    return "rows" if position == len(axes) - 2 else "columns"


Shapes = Mapping[str, tuple[int, ...]]
Axes = dict[str, tuple[str, ...]]


def _projected(ledger: Ledger, shapes: Shapes, o: Options, broken: frozenset[str]) -> Axes:
    """Enter x and the weights; the lengths of d_k, d_v and the heads follow from them."""
    _enter_heads(ledger, o)
    axes: Axes = {}
    _tokens(ledger, shapes, axes, "x", ("token", "d_model"))
    cross = "x_kv" in shapes or "x_kv" in broken
    if cross:
        _tokens(ledger, shapes, axes, "x_kv", ("kv_token", "d_kv"))
    kv_in = "d_kv" if cross else "d_model"
    if "w_qkv" in shapes:
        axes |= _fused(ledger, shapes, o)
    for letter, width, source in (("q", "d_k", "d_model"), ("k", "d_k", kv_in), ("v", "d_v", kv_in)):
        axes |= _projection(ledger, shapes, o, letter, width, source)
    axes |= _output(ledger, shapes, o)
    _alias(ledger, "query", "token")
    _alias(ledger, "key", "kv_token" if cross else "token")
    return axes


def _tokens(ledger: Ledger, shapes: Shapes, axes: Axes, name: str, names: tuple[str, str]) -> None:
    """Enter x or x_kv; without a batch in x there is none in x_kv."""
    if name not in shapes:
        return
    shape, lead = shapes[name], axes["x"][:-2] if "x" in axes else None
    if lead is None and len(shape) not in (2, 3):
        ledger.fault(f"{name}: expected 2 axes ({', '.join(names)}) or 3 (batch, {', '.join(names)}), found {len(shape)}", name)
        return
    axes[name] = ledger.enter(name, shape, _batched(shape, *names) if lead is None else (*lead, *names))
    ledger.reasons[names[1]] = f"the width of {name}"


def _alias(ledger: Ledger, axis: str, of: str) -> None:
    if of in ledger.sizes:
        ledger.set(axis, ledger.sizes[of], ledger.reasons[of], *ledger.makers[of])
    if of in ledger.disputed:
        ledger.disputed.add(axis)


def _enter_heads(ledger: Ledger, o: Options) -> None:
    if o.heads is not None:
        ledger.set("head", o.heads, "heads", "heads")
        if o.kv_heads not in (None, o.heads):
            ledger.set("kv_head", o.kv_heads or 1, "kv_heads", "kv_heads")


def _batched(shape: Sequence[int], *axes: str) -> tuple[str, ...]:
    return ("batch", *axes) if len(shape) == len(axes) + 1 else axes


def _projection(ledger: Ledger, shapes: Shapes, o: Options, letter: str, width: str, source: str) -> Axes:
    """Enter w_q, w_k or w_v and its bias; w's outputs are `heads` times `width`."""
    name, bias = f"w_{letter}", f"b_{letter}"
    head = "kv_head" if letter != "q" and "kv_head" in ledger.sizes else "head"
    outputs = width if o.heads is None else f"{head}*{width}"
    if width in ledger.sizes and outputs not in ledger.sizes:  # w_q told d_k; grouped keys have as many for each head
        size = ledger.sizes[width] * ledger.sizes[head]
        reason = f"{head}s {ledger.sizes[head]} × {width} {ledger.sizes[width]}"
        ledger.set(outputs, size, reason, *ledger.makers[head], *ledger.makers[width])
    axes = {}
    if name in shapes:
        axes[name] = ledger.enter(name, shapes[name], _stored(o, source, outputs))
    if o.heads is not None and outputs in ledger.sizes and width not in ledger.sizes:
        _divide(ledger, o, name, head, outputs, width)
    if bias in shapes:
        axes[bias] = ledger.enter(bias, shapes[bias], (outputs,))
    return axes


def _divide(ledger: Ledger, o: Options, name: str, head: str, outputs: str, width: str) -> None:
    """The width of one head, from the outputs of all."""
    total, heads, key = ledger.sizes[outputs], ledger.sizes[head], f"{head}s"
    if total % heads == 0:
        ledger.set(width, total // heads, f"{outputs} over {head}s", key, *ledger.makers[outputs])
    elif not any(f.path == (key,) for f in ledger.faults):  # once, and not for each of w_q, w_k and w_v
        whole = amount(total, "rows" if o.transposed else "columns")
        ledger.fault(f"{key}: {heads} does not divide the {whole} of {name}", key, name)


def _stored(o: Options, inputs: str, outputs: str) -> tuple[str, str]:
    return (outputs, inputs) if o.transposed else (inputs, outputs)


def _fused(ledger: Ledger, shapes: Shapes, o: Options) -> Axes:
    axes: Axes = {"w_qkv": ledger.enter("w_qkv", shapes["w_qkv"], _stored(o, "d_model", "qkv"))}
    if "b_qkv" in shapes:
        axes["b_qkv"] = ledger.enter("b_qkv", shapes["b_qkv"], ("qkv",))
    total = ledger.sizes.get("qkv")
    if total is not None and not ledger.loose:
        _divide_fused(ledger, o, total, "rows" if o.transposed else "columns")
    return axes


def _divide_fused(ledger: Ledger, o: Options, total: int, side: str) -> None:
    """The width of one head of q, k and v, from all outputs of w_qkv."""
    heads = o.heads or 1
    parts = heads + 2 * (o.kv_heads or heads)
    if total > FUSED:  # each is listed by number, before anybody asks what the trace takes
        ledger.fault(f"w_qkv: expected at most {FUSED} {side}, found {total}", "w_qkv")
    elif total % parts:
        what = "q, k and v of equal width" + (f" for heads: {heads}" if heads > 1 else "")
        message = f"w_qkv: expected {side} that divide into {parts} parts ({what}), found {total}"
        ledger.fault(message, "w_qkv", "heads", "kv_heads")
    else:
        _set_fused(ledger, o, total // parts, f"the {side} of w_qkv over {parts} parts")


def _set_fused(ledger: Ledger, o: Options, size: int, reason: str) -> None:
    for width in ("d_k", "d_v"):
        ledger.set(width, size, reason, "w_qkv", "heads")
        if o.heads is not None:
            ledger.set(f"head*{width}", o.heads * size, f"heads {o.heads} × {width} {size}", "w_qkv", "heads")


def _output(ledger: Ledger, shapes: Shapes, o: Options) -> Axes:
    """Enter w_o and b_o, and the width of the heads side by side."""
    axes: Axes = {}
    merged = "d_v" if "head" not in ledger.sizes else "head*d_v"
    if merged not in ledger.sizes and "d_v" in ledger.sizes:
        heads = ledger.sizes["head"]
        reason = f"{amount(heads, 'heads')} × d_v {ledger.sizes['d_v']}"
        ledger.set(merged, heads * ledger.sizes["d_v"], reason, "heads", *ledger.makers["d_v"])
    if "w_o" in shapes:
        axes["w_o"] = ledger.enter("w_o", shapes["w_o"], _stored(o, merged, "d_out"))
    if "b_o" in shapes:
        axes["b_o"] = ledger.enter("b_o", shapes["b_o"], ("d_out",))
    return axes


def _direct(ledger: Ledger, shapes: Shapes, o: Options, broken: frozenset[str]) -> Axes:
    """Enter q, k and v given directly: (token, d), (head, token, d) or (batch, head, token, d), all three alike."""
    first = next((name for name in "qkv" if name in shapes), None)
    if first is None:
        return {}
    rank = len(shapes[first])
    if rank not in (2, 3, 4):
        forms = "2 axes (token, d), 3 (head, token, d) or 4 (batch, head, token, d)"
        ledger.fault(f"{first}: expected {forms}, found {rank}", first)
        return {}
    _enter_heads(ledger, o)
    groups = "kv_head" if "kv_head" in ledger.sizes else "head"
    axes = {}
    for name, head, token, width in (("q", "head", "query", "d_k"), ("k", groups, "key", "d_k"), ("v", groups, "key", "d_v")):
        names = (token, width) if o.heads is None or rank > 2 else (token, f"{head}*{width}")
        if name in shapes:
            axes[name] = ledger.enter(name, shapes[name], (*("batch", head)[4 - rank :], *names))
    if groups == "head" and rank > 2 and {"q", "k"} <= shapes.keys():
        _hint_groups(ledger, shapes)
    if rank == 2 and o.heads is not None and not ledger.faults and {"q", "k", "v"} <= shapes.keys():
        _divide_heads(ledger, groups)
    return axes | _output(ledger, shapes, o)


def _hint_groups(ledger: Ledger, shapes: Shapes) -> None:
    """Fewer heads in k than in q is what grouped heads look like: say how to ask for them."""
    q, k = shapes["q"][-3], shapes["k"][-3] if len(shapes["k"]) > 2 else 0
    if k and k < q and q % k == 0:
        hint = f"; for grouped heads say heads: {q} and kv_heads: {k}"
        ledger.faults = [replace(f, message=f.message + hint) if " heads (" in f.message else f for f in ledger.faults]


def _divide_heads(ledger: Ledger, groups: str) -> None:
    for name, head, width in (("q", "head", "d_k"), ("k", groups, "d_k"), ("v", groups, "d_v")):
        total, heads = ledger.sizes[f"{head}*{width}"], ledger.sizes[head]
        if total % heads:
            ledger.fault(f"{name}: expected columns that divide into {heads} heads, found {total}", name, f"{head}s")
        elif width not in ledger.sizes:
            ledger.set(width, total // heads, f"the columns of {name} over {heads} heads", name, f"{head}s")
        elif ledger.sizes[width] != total // heads:
            wanted = amount(ledger.sizes[width], "columns")
            ledger.fault(f"{name}: expected heads of {wanted} (as q has), found {total // heads}", name, *ledger.makers[width])


def _labels(p: Problem, ledger: Ledger) -> Iterable[Fault]:
    for key, labels, axis in (("tokens", p.options.tokens, "query"), ("kv_tokens", p.options.kv_tokens, "key")):
        if labels is not None and ledger.sure(axis) and len(labels) != p.sizes[axis]:
            what = {"tokens": "tokens of x" if p.projected else "queries", "kv_tokens": "keys"}[key]
            wanted = amount(p.sizes[axis], "labels")
            message = f"{key}: expected {wanted} (one for each of the {what}), found {len(labels)}"
            yield Clash(message, (key,), others=ledger.makers[axis])


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
