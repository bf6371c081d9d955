"""Mistakes on the way from x to queries, keys and values, and in the heads."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np

from attntrace.mistakes.base import Mistake, changed, instead, instead_all, with_options, with_sources
from attntrace.ops import Project
from attntrace.problem import Problem
from attntrace.tape import Array, Trace

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
    yield from biasless(p)
    yield from layouts(p)


def transposed(p: Problem) -> Iterator[Mistake]:
    square = [w for w in WEIGHTS if w in p.sources and len(set(p.sources[w].shape)) == 1]
    for n in range(1, len(square) + 1):
        for names in combinations(square, n):
            if n in (1, len(square)):
                yield transpose(p, names)


def transpose(p: Problem, names: tuple[str, ...]) -> Mistake:
    said = " and ".join(names)
    return Mistake(
        f"transposed-{'-'.join(names)}",
        f"{said} used transposed",
        " and ".join(f"x @ {name}.T" for name in names),
        " and ".join(f"x @ {name}" for name in names),
        "torch.nn.Linear stores its weight (out, in) and computes x @ W.T; a matrix of a paper is mostly meant as x @ W. With "
        "a square matrix no shape complains.",
        pose=lambda p: with_sources(p, **{name: changed(p, name, np.transpose) for name in names}),
    )


def swapped(p: Problem) -> Iterator[Mistake]:
    for a, b in (("w_q", "w_k"), ("w_k", "w_v"), ("w_q", "w_v")):
        if {a, b} <= p.sources.keys() and p.sources[a].shape == p.sources[b].shape:
            yield Mistake(
                f"swapped-{a}-{b}",
                f"{a} and {b} swapped",
                f"{a[-1].upper()} = X W_{b[-1].upper()}",
                f"{a[-1].upper()} = X W_{a[-1].upper()}",
                "Two weights of the same shape are easily taken for one another: compare each projection by itself.",
                pose=lambda p, a=a, b=b: with_sources(p, **{a: changed(p, b, np.asarray), b: changed(p, a, np.asarray)}),  # type: ignore[misc]
            )
    if {"q", "k", "v"} <= p.sources.keys() and p.sources["k"].shape == p.sources["v"].shape:
        yield Mistake(
            "swapped-k-v",
            "k and v swapped",
            "softmax(Q Vᵀ) K",
            "softmax(Q Kᵀ) V",
            "Keys are compared with, values are averaged.",
            pose=lambda p: with_sources(p, k=changed(p, "v", np.asarray), v=changed(p, "k", np.asarray)),
        )


def biasless(p: Problem) -> Iterator[Mistake]:
    names = [b for b in ("b_q", "b_k", "b_v", "b_qkv", "b_o") if b in p.sources]
    for chosen in [*((b,) for b in names), *([tuple(names)] if len(names) > 1 else [])]:
        yield Mistake(
            f"without-{'-'.join(chosen)}",
            f"{' and '.join(chosen)} forgotten",
            "X W",
            "X W + b",
            "A bias is added to every token after the product.",
            pose=lambda p, chosen=chosen: with_sources(p, **dict.fromkeys(chosen)),  # type: ignore[misc]
        )


def layouts(p: Problem) -> Iterator[Mistake]:
    if "w_qkv" not in p.sources:
        return
    for layout, meaning in LAYOUTS.items():
        if layout != p.options.qkv_layout:
            yield Mistake(
                f"layout-{layout}",
                f"the fused w_qkv read as {layout}: {meaning}",
                f"qkv_layout: {layout}",
                f"qkv_layout: {p.options.qkv_layout} ({LAYOUTS[p.options.qkv_layout]})",
                "Fused projections are stored in several layouts, of the same shape; a checkpoint's code tells which.",
                pose=lambda p, layout=layout: with_options(p, qkv_layout=layout),  # type: ignore[misc]
            )


# ------------------------------------------------------------------ heads


def heads(p: Problem) -> Iterator[Mistake]:
    """Heads split, merged or shared in the wrong way."""
    if p.headed and p.sizes["head"] > 1:
        if p.projected:
            yield reshaped()
        yield merged_wrongly()
        yield averaged(p)
    if p.projected and p.headed and not {"keep", "sinks", "alibi.slopes"} & p.sources.keys():  # which there are for each head
        yield from other_numbers(p)
    if p.group > 1:
        yield tiled()
    if "w_o" in p.sources:
        yield without_w_o()


def reshaped() -> Mistake:
    return Mistake(
        "split-without-transpose",
        "heads split by a reshape without a transpose",
        "(token, heads · d) reshaped to (heads, token, d)",
        "(token, heads · d) reshaped to (token, heads, d), then transposed to (heads, token, d)",
        "The shape is right and the numbers of several tokens are mixed: each head must see d columns of every token.",
        edit=split_wrongly,
    )


def split_wrongly(t: Trace, p: Problem) -> bool:
    """Every projection that is split into heads, by a reshape alone."""
    found = False
    for name in "qkv":
        op = t[name].operation if name in t else None
        if isinstance(op, Project) and op.heads is not None:
            found = instead(t, name, by_reshape(op, t[name].shape))
    return found


def by_reshape(op: Project, shape: tuple[int, ...]):  # type: ignore[no-untyped-def]
    whole = Project(None, op.columns, op.transposed)
    return lambda *operands: whole.forward(*operands).reshape(shape)


def merged_wrongly() -> Mistake:
    return Mistake(
        "merge-without-transpose",
        "heads merged by a reshape without a transpose",
        "(heads, token, d) reshaped to (token, heads · d)",
        "(heads, token, d) transposed to (token, heads, d), then reshaped to (token, heads · d)",
        "The shape is right and row i holds numbers of other tokens: put the heads of one token side by side.",
        edit=lambda t, p: "concat" in t and instead(t, "concat", lambda c: c.reshape(t["concat"].shape)),
    )


def averaged(p: Problem) -> Mistake:
    def mean(c: Array) -> Array:
        return np.concatenate([c.mean(axis=-3)] * c.shape[-3], axis=-1)

    return Mistake(
        "heads-averaged",
        "the heads averaged instead of put side by side",
        "mean over heads of C",
        "heads of C side by side",
        "Each head keeps its own d_v columns of the output; averaging them loses what they differ in.",
        edit=lambda t, p: "concat" in t and instead(t, "concat", mean),
    )


def other_numbers(p: Problem) -> Iterator[Mistake]:
    right, width = p.sizes["head"], p.sizes["head"] * p.sizes["d_k"]
    for n in (1, 2, 3, 4, 6, 8, 12, 16):
        if n != right and width % n == 0 and p.group == 1:
            yield Mistake(
                f"heads-{n}",
                f"{n} {'head' if n == 1 else 'heads'} instead of {right}",
                f"heads: {n}",
                f"heads: {right}",
                "The output has the same shape for every number of heads; d_k, and with it the scale, has not.",
                pose=lambda p, n=n: with_options(p, heads=n, kv_heads=None),  # type: ignore[misc]
            )


def tiled() -> Mistake:
    def tile(t: Trace, p: Problem) -> bool:
        def repeat(k: Array) -> Array:
            return np.concatenate([k] * p.group, axis=-3)

        return instead_all(t, ("k_shared", "v_shared"), repeat)

    return Mistake(
        "groups-tiled",
        "key/value heads tiled (head h reads h mod groups) instead of repeated",
        "K′ = [K; K; …], head h reads h mod groups",
        "head h reads h // (heads / groups)",
        "repeat_interleave and not repeat: neighbouring query heads share a key/value head.",
        edit=tile,
    )


def without_w_o() -> Mistake:
    return Mistake(
        "without-w_o",
        "the output projection forgotten",
        "Y = H",
        "Y = H W_O",
        "The heads side by side go through one more matrix, which lets them mix.",
        edit=lambda t, p: t["concat"].shape == t["output"].shape and instead(t, "output", np.asarray, "concat"),
    )
