"""From the inputs to queries, keys and values, split into heads."""

from __future__ import annotations

from attntrace.dtypes import DType
from attntrace.ops import Project, Split, Take
from attntrace.problem import INPUTS, Problem
from attntrace.tape import Step, Trace


def inputs(t: Trace, p: Problem) -> dict[str, Step]:
    """Record what is given, in the order in which it is used; q, k and v given whole are recorded by `project`."""
    names = [name for name in INPUTS if name in p.sources and name not in "qkv"]
    return {name: give(t, p, name, name, INPUTS[name]) for name in names}


def give(t: Trace, p: Problem, source: str, name: str, symbol: str, dtype: DType | None = None) -> Step:
    """Record the input `source` as the step `name`."""
    return t.given(name, symbol, p.axes[source], lambda: p.arrays[source], p.sources[source].origin, dtype)


def project(t: Trace, p: Problem, given: dict[str, Step]) -> tuple[Step, Step, Step]:
    """Queries, keys and values, split into heads. x and x_kv are what `given` has under these names."""
    if p.projected:
        given = {**given, "x_kv": given.get("x_kv", given["x"]), "x": asking(t, p, given["x"])}
    return (
        projection(t, p, given, "q", "x", (*p.lead, "query", "d_k")),
        projection(t, p, given, "k", "x_kv", (*p.kv_lead, p.new_key, "d_k")),
        projection(t, p, given, "v", "x_kv", (*p.kv_lead, p.new_key, "d_v")),
    )


def asking(t: Trace, p: Problem, x: Step) -> Step:
    """The tokens whose queries are traced."""
    if p.options.queries is None:
        return x
    rows, axes = p.rows, (*x.axes[:-2], "query", x.axes[-1])
    return t(f"{x.name}_rows", f"X_q = {x.symbol}[{rows.start}:{rows.stop}]", axes, Take(rows.start, rows.stop), x)


def projection(t: Trace, p: Problem, given: dict[str, Step], name: str, source: str, axes: tuple[str, ...]) -> Step:
    """One of Q, K and V: given, or a projection of `source`."""
    if not p.projected:
        return direct(t, p, name, axes)
    columns = p.columns(name)
    letters = name if columns is None else "qkv"
    x, w = given[source], given[f"w_{letters}"]
    bias = [given[f"b_{letters}"]] if f"b_{letters}" in given else []
    heads = p.sizes.get(axes[-3]) if p.headed else None
    formula = f"{name.upper()} = {x.symbol} {product(p, name, w, bias)}{into(heads, p.sizes[axes[-1]])}"
    return t(name, formula, axes, Project(heads, columns, p.options.transposed), x, w, *bias)


def product(p: Problem, name: str, w: Step, bias: list[Step]) -> str:
    """`W_Q + b_Q`, or the part of a fused projection that makes q, k or v: `W_QKV[:, 0:16] + b_QKV[0:16]`."""
    part = picked(p, name)
    transpose = "ᵀ" * p.options.transposed
    if not part:
        return " + ".join([f"{w.symbol}{transpose}", *(b.symbol for b in bias)])
    matrix = f"{w.symbol}[{part}, :]" if p.options.transposed else f"{w.symbol}[:, {part}]"
    return " + ".join([f"{matrix}{transpose}", *(f"{b.symbol}[{part}]" for b in bias)])


def picked(p: Problem, name: str) -> str:
    """How a formula says which outputs of a fused projection are read."""
    columns = p.columns(name)
    if columns is None:
        return ""
    if columns == tuple(range(columns[0], columns[-1] + 1)):
        return f"{columns[0]}:{columns[-1] + 1}"
    return f"{name} of each {'group' if p.group > 1 else 'head'}"


def into(heads: int | None, width: int) -> str:
    """How the outputs are split: head h is columns h · width to (h + 1) · width − 1."""
    return "" if heads is None else f", {heads} {'head' if heads == 1 else 'heads'} of {width}"


def direct(t: Trace, p: Problem, name: str, axes: tuple[str, ...]) -> Step:
    """Q, K or V as given; heads lying side by side in its columns are split, and the queries that are traced picked out."""
    if name == "q" and p.options.queries is not None:
        return picked_queries(t, p, axes)
    if p.axes[name] == axes:
        return give(t, p, name, name, INPUTS[name])
    return divided(t, p, name, name, axes)


def divided(t: Trace, p: Problem, source: str, name: str, axes: tuple[str, ...]) -> Step:
    whole, heads = give(t, p, source, f"{source}_merged", f"{INPUTS[source]}₀"), p.sizes[axes[-3]]
    symbol = INPUTS[source] + ("_all" if name.endswith("_given") else "")
    return t(name, f"{symbol} = {whole.symbol}{into(heads, p.sizes[axes[-1]])}", axes, Split(heads), whole)


def picked_queries(t: Trace, p: Problem, axes: tuple[str, ...]) -> Step:
    every = (*axes[:-2], "all_query", axes[-1])
    q = give(t, p, "q", "q_given", "Q_all") if p.axes["q"] == every else divided(t, p, "q", "q_given", every)
    return t("q", f"Q = Q_all[{p.rows.start}:{p.rows.stop}]", axes, Take(p.rows.start, p.rows.stop), q)
