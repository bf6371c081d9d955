"""Mistakes on the way from x to queries, keys and values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from attntrace.mistakes.base import Edit, Mistake, changed, every, instead, with_options, with_sources
from attntrace.ops import Project
from attntrace.problem import Problem, Source, fused_columns
from attntrace.tape import Trace

WEIGHTS = ("w_q", "w_k", "w_v", "w_o", "w_qkv")
LAYOUTS = {
    "q|k|v": "all queries, then all keys, then all values",
    "per-head": "q, k and v of head 0, then of head 1, …",
    "per-group": "for each group its queries, its keys, its values",
}


def projections(p: Problem) -> Iterator[Mistake]:
    """A weight read in the wrong layout, two of them swapped, a bias forgotten."""
    yield from transposed(p)
    yield from swapped(p)
    yield from swapped_parts(p)
    yield from biasless(p)
    yield from layouts(p)


def together(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


# ------------------------------------------------------------------ transposed


def transposed(p: Problem) -> Iterator[Mistake]:
    """Each square weight, those of q, k and v, and all."""
    square = tuple(w for w in WEIGHTS if w in p.sources and len(set(p.sources[w].shape)) == 1)
    inner = tuple(w for w in square if w != "w_o")
    for names in dict.fromkeys((*((w,) for w in square), inner, square)):
        if names:
            yield transpose(names)


def transpose(names: tuple[str, ...]) -> Mistake:
    return Mistake(
        f"transposed-{'-'.join(names)}",
        f"{together(names)} used transposed",
        together(tuple(f"x @ {name}.T" for name in names)),
        together(tuple(f"x @ {name}" for name in names)),
        "torch.nn.Linear stores its weight (out, in) and computes x @ W.T; a matrix of a paper is mostly meant as x @ W. With "
        "a square matrix no shape complains.",
        pose=lambda p: with_sources(p, {name: changed(p, name, np.transpose) for name in names}),
    )


# ------------------------------------------------------------------ swapped


@dataclass(frozen=True)
class Swap:
    """One input in the place of another, and the reverse."""

    pairs: tuple[tuple[str, str], ...]

    def __call__(self, p: Problem) -> Problem | None:
        changes: dict[str, Source | None] = {}
        for a, b in self.pairs:
            changes |= {a: changed(p, b, np.asarray), b: changed(p, a, np.asarray)}
        return with_sources(p, changes)

    def fits(self, p: Problem) -> bool:
        there = p.sources
        return all(a in there and b in there and there[a].shape == there[b].shape for a, b in self.pairs)


def swapped(p: Problem) -> Iterator[Mistake]:
    """Two weights, without their biases or with them; k and v, where they are given; the two sequences."""
    for a, b in ("qk", "kv", "qv"):
        weights, biases = (f"w_{a}", f"w_{b}"), (f"b_{a}", f"b_{b}")
        used, right = f"{a.upper()} = X W_{b.upper()}, {b.upper()} = X W_{a.upper()}", f"{a.upper()} = X W_{a.upper()}"
        teach = f"w_{a} and w_{b} have the same shape and are easily taken for one another: compare {a} and {b} by themselves."
        yield from swap(p, (weights,), used, right, teach)
        yield from swap(p, (weights, biases), used, right, teach)
    yield from swap(p, (("k", "v"),), "softmax(Q Vᵀ) K", "softmax(Q Kᵀ) V", "Keys are compared with, values are averaged.")
    yield from swap(p, (("q", "k"),), "softmax(K Qᵀ) V", "softmax(Q Kᵀ) V", "Rows belong to queries, which do the asking.")
    yield from swap(
        p,
        (("x", "x_kv"),),
        "Q from x_kv, K and V from x",
        "Q from x, K and V from x_kv",
        "In cross-attention the sequence that is written asks, and the one that is read answers.",
    )


def swap(p: Problem, pairs: tuple[tuple[str, str], ...], used: str, right: str, teach: str) -> Iterator[Mistake]:
    change = Swap(pairs)
    if change.fits(p):
        said = ", ".join(f"{a} and {b}" for a, b in pairs)
        yield Mistake(f"swapped-{'-'.join(n for pair in pairs for n in pair)}", f"{said} swapped", used, right, teach, change)


def swapped_parts(p: Problem) -> Iterator[Mistake]:
    """Two parts of a fused projection."""
    if "w_qkv" not in p.sources or p.group > 1:
        return
    for a, b in ("qk", "kv", "qv"):
        yield Mistake(
            f"swapped-parts-{a}-{b}",
            f"the {a} part and the {b} part of w_qkv swapped",
            f"{a.upper()} from the columns of {b}",
            f"{a.upper()} from the columns of {a}",
            f"Nothing but their place tells the parts of a fused projection: {a} and {b} have the same shape.",
            edit=every(reading(a, b), reading(b, a)),
        )


def reading(name: str, other: str) -> Edit:
    """The step `name` from the columns of another part."""

    def edit(t: Trace, p: Problem) -> bool:
        heads = p.sizes["head"] if p.headed else None
        return instead(t, name, Project(heads, p.columns(other), p.options.transposed).forward)

    return edit


# ------------------------------------------------------------------ biases and layouts


def biasless(p: Problem) -> Iterator[Mistake]:
    """Each bias forgotten, those of q, k and v, and all."""
    there = tuple(b for b in ("b_q", "b_k", "b_v", "b_qkv", "b_o") if b in p.sources)
    inner = tuple(b for b in there if b != "b_o")
    for names in dict.fromkeys((*((b,) for b in there), inner, there)):
        if names:
            yield forget(names)


def forget(names: tuple[str, ...]) -> Mistake:
    return Mistake(
        f"without-{'-'.join(names)}",
        f"{together(names)} forgotten",
        "X W",
        "X W + b",
        "A bias is added to every token after the product: a row of zeros in x comes out as the bias itself.",
        pose=lambda p: with_sources(p, dict.fromkeys(names)),
    )


def layouts(p: Problem) -> Iterator[Mistake]:
    """The other layouts of a fused projection, where they pick other columns."""
    if "w_qkv" not in p.sources:
        return
    heads, groups = p.sizes.get("head", 1), p.sizes.get("kv_head", p.sizes.get("head", 1))
    seen = [fused_columns(p.options.qkv_layout, heads, groups, p.sizes["d_k"])]
    for layout in LAYOUTS if groups == heads else ("q|k|v", "per-group"):
        columns = fused_columns(layout, heads, groups, p.sizes["d_k"])
        if columns not in seen:
            seen.append(columns)
            yield lay_out(layout, p.options.qkv_layout)


def lay_out(layout: str, right: str) -> Mistake:
    return Mistake(
        f"layout-{layout}",
        f"the fused w_qkv read as {layout}: {LAYOUTS[layout]}",
        f"qkv_layout: {layout}",
        f"qkv_layout: {right} ({LAYOUTS[right]})",
        "Fused projections are stored in several layouts, of the same shape; a checkpoint's code tells which.",
        pose=lambda p: with_options(p, qkv_layout=layout),
    )
