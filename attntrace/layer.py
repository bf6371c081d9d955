"""The attention layer, from top to bottom. Read this first.

Every line that records a step reads: its name, its formula, its axes, the operation, and the steps it is computed from. A
part that is switched off records nothing.
"""

from __future__ import annotations

from attntrace.ops import Divide, MatMul, Merge, Project, Same, Scale, Softmax, Split
from attntrace.parts import mask as masks
from attntrace.parts.dropout import drop
from attntrace.parts.gqa import share
from attntrace.parts.mask import mask
from attntrace.problem import INPUTS, Problem, labels
from attntrace.tape import Step, Trace


def trace(p: Problem) -> Trace:
    """The tape of the layer that `p` poses. Nothing is computed until it is read."""
    t = Trace(p.sizes, p.options.dtype, labels(p), p.options.title, p.config, [*p.remarks, *masks.remarks(p)], p.changes)
    attention(t, p)
    return t


def attention(t: Trace, p: Problem) -> Step:
    """Record the attention layer of `p` in `t`; returns the output."""
    given = inputs(t, p)
    q, k, v = project(t, p, given)
    k, v = share(t, p, k, v)
    s = t("scores", f"S = {q.symbol} {k.symbol}ᵀ", (*p.lead, "query", "key"), MatMul(transpose=True), q, k)
    s = scale(t, p, s)
    s = mask(t, p, s)
    a = t("weights", f"A = softmax({s.symbol})", s.axes, Softmax(p.options.masked_row), s)
    a = drop(t, p, a)
    return merge(t, p, given, a, v)


def inputs(t: Trace, p: Problem) -> dict[str, Step]:
    """Record what is given, in the order in which it is used; q, k and v given whole are recorded by `project`."""

    def give(name: str) -> Step:
        return t.given(name, INPUTS[name], p.axes[name], lambda: p.arrays[name], p.sources[name].origin)

    return {name: give(name) for name in INPUTS if name in p.sources and name not in "qkv"}


def project(t: Trace, p: Problem, given: dict[str, Step]) -> tuple[Step, Step, Step]:
    """Queries, keys and values, split into heads."""
    return (
        projection(t, p, given, 0, "x", (*p.lead, "query", "d_k")),
        projection(t, p, given, 1, "x_kv", (*p.kv_lead, "key", "d_k")),
        projection(t, p, given, 2, "x_kv", (*p.kv_lead, "key", "d_v")),
    )


def projection(t: Trace, p: Problem, given: dict[str, Step], which: int, source: str, axes: tuple[str, ...]) -> Step:
    """One of Q, K and V: given, or a projection of `source` (of x, where there is no x_kv)."""
    name = "qkv"[which]
    if not p.projected:
        return direct(t, p, name, axes)
    columns = p.columns(which)
    letters = name if columns is None else "qkv"
    x, w = given.get(source, given["x"]), given[f"w_{letters}"]
    bias = [given[f"b_{letters}"]] if f"b_{letters}" in given else []
    heads = p.sizes.get(axes[-3]) if p.headed else None
    formula = f"{name.upper()} = {x.symbol} {product(p, which, w, bias)}{into(heads, p.sizes[axes[-1]])}"
    return t(name, formula, axes, Project(heads, columns, p.options.transposed), x, w, *bias)


def product(p: Problem, which: int, w: Step, bias: list[Step]) -> str:
    """`W_Q + b_Q`, or the part of a fused projection that makes q, k or v: `W_QKV[:, 0:16] + b_QKV[0:16]`."""
    part = picked(p, which)
    transpose = "ᵀ" * p.options.transposed
    if not part:
        return " + ".join([f"{w.symbol}{transpose}", *(b.symbol for b in bias)])
    matrix = f"{w.symbol}[{part}, :]" if p.options.transposed else f"{w.symbol}[:, {part}]"
    return " + ".join([f"{matrix}{transpose}", *(f"{b.symbol}[{part}]" for b in bias)])


def picked(p: Problem, which: int) -> str:
    """How a formula says which outputs of a fused projection are read."""
    columns = p.columns(which)
    if columns is None:
        return ""
    if columns == tuple(range(columns[0], columns[-1] + 1)):
        return f"{columns[0]}:{columns[-1] + 1}"
    return f"{'qkv'[which]} of each {'group' if p.group > 1 else 'head'}"


def into(heads: int | None, width: int) -> str:
    """How the outputs are split: head h is columns h · width to (h + 1) · width − 1."""
    return "" if heads is None else f", {heads} {'head' if heads == 1 else 'heads'} of {width}"


def direct(t: Trace, p: Problem, name: str, axes: tuple[str, ...]) -> Step:
    """Q, K or V as given; heads lying side by side in its columns are split."""

    def give(name_: str, symbol: str) -> Step:
        return t.given(name_, symbol, p.axes[name], lambda: p.arrays[name], p.sources[name].origin)

    if p.axes[name] == axes:
        return give(name, INPUTS[name])
    whole, heads = give(f"{name}_merged", f"{INPUTS[name]}₀"), p.sizes[axes[-3]]
    return t(name, f"{INPUTS[name]} = {whole.symbol}{into(heads, p.sizes[axes[-1]])}", axes, Split(heads), whole)


def scale(t: Trace, p: Problem, s: Step) -> Step:
    """Divide by √d_k, or multiply by the number that the config gives."""
    if p.options.scale is None:
        return t("scaled", f"S′ = {s.symbol} / √d_k", s.axes, Divide(p.divisor), s)
    return t("scaled", f"S′ = {s.symbol} × {p.options.scale!r}", s.axes, Scale(p.options.scale), s)


def merge(t: Trace, p: Problem, given: dict[str, Step], a: Step, v: Step) -> Step:
    """Average the values by the weights; put heads side by side; project. Without heads and w_o the average is the output."""
    product, axes = f"{a.symbol} {v.symbol}", (*p.lead, "query", "d_v")
    if not p.headed and "w_o" not in given:
        return t("output", f"Y = {product}", axes, MatMul(), a, v)
    c = t("context", f"C = {product}", axes, MatMul(), a, v)
    lead, merged = axes[: p.batched], "head*d_v" if p.headed else "d_v"
    beside = "heads of C side by side" if p.headed else "C"
    h = t("concat", f"H = {beside}", (*lead, "query", merged), Merge() if p.headed else Same(), c)
    if "w_o" not in given:
        return t("output", f"Y = {h.symbol}", h.axes, Same(), h)
    bias = [given["b_o"]] if "b_o" in given else []
    formula = f"Y = H W_O{'ᵀ' * p.options.transposed}" + " + b_O" * len(bias)
    return t("output", formula, (*lead, "query", "d_out"), Project(None, None, p.options.transposed), h, given["w_o"], *bias)
