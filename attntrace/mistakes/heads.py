"""Mistakes in how heads are split, shared, merged and counted."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attntrace.mistakes.base import Compute, Mistake, computing, every, with_options, wrapping
from attntrace.ops import Split
from attntrace.ops.moves import merged
from attntrace.problem import Problem
from attntrace.tape import Array, Trace

NUMBERS = (1, 2, 3, 4, 6, 8, 12, 16)  # of heads that are tried
PER_HEAD = {"keep", "sinks", "alibi.slopes"}  # inputs that there are for each head


def heads(p: Problem) -> Iterator[Mistake]:
    if p.sizes.get("head", 1) > 1:
        yield Mistake(
            "split-without-transpose",
            "heads split by a reshape without a transpose",
            "(token, heads · d) reshaped to (heads, token, d)",
            "(token, heads · d) reshaped to (token, heads, d), then transposed to (heads, token, d)",
            "The shape is right and the numbers of several tokens are mixed: each head must see d columns of every token.",
            edit=split_wrongly,
        )
        yield Mistake(
            "merge-without-transpose",
            "heads merged by a reshape without a transpose",
            "(heads, token, d) reshaped to (token, heads · d)",
            "(heads, token, d) transposed to (token, heads, d), then reshaped to (token, heads · d)",
            "The shape is right and row i holds numbers of other tokens: put the heads of one token side by side.",
            edit=computing("concat", by_reshape),
        )
        yield from averages(p)
    yield from other_numbers(p)
    if p.group > 1:
        yield Mistake(
            "groups-tiled",
            "key/value heads tiled (head h reads h mod groups) instead of repeated",
            "K′ = [K; K; …], head h reads h mod groups",
            "head h reads h // (heads / groups)",
            "repeat_interleave and not repeat: neighbouring query heads share a key/value head.",
            edit=every(computing("k_shared", tiled(p.group)), computing("v_shared", tiled(p.group))),
        )
    if "w_o" in p.sources:
        yield from without_w_o(p)


def split_wrongly(t: Trace, p: Problem) -> bool:
    """Every one of q, k and v that is split into heads, by a reshape alone."""
    splitting = [name for name in "qkv" if p.projected or isinstance(t[name].operation, Split)]
    edits = [wrapping(name, lambda split, *operands: reshaped(split(*operands))) for name in splitting]
    return bool(edits) and every(*edits)(t, p)


def reshaped(heads: Array) -> Array:
    """What a reshape alone would have made of heads that were split as they should."""
    return merged(heads).reshape(heads.shape)


def by_reshape(c: Array) -> Array:
    return c.reshape(*c.shape[:-3], c.shape[-2], -1)


def tiled(times: int) -> Compute:
    return lambda k: np.concatenate([k] * times, axis=-3)


# ------------------------------------------------------------------ averaged


def averages(p: Problem) -> Iterator[Mistake]:
    """What is left of several heads when they are averaged, in the shape of the right thing."""
    teach = "Each head keeps its own d_v columns of the output; averaging them loses what they differ in."
    yield Mistake(
        "heads-averaged",
        "the heads averaged instead of put side by side",
        "mean over heads of C",
        "heads of C side by side",
        teach,
        edit=computing("concat", lambda c: np.concatenate([c.mean(axis=-3)] * c.shape[-3], axis=-1)),
    )
    if "w_o" in p.sources:
        n = p.sizes["head"]
        yield Mistake(
            "heads-averaged-outputs",
            "the outputs of the heads averaged instead of added",
            "mean over heads of C_h W_O[rows of h]",
            "Σ over heads of C_h W_O[rows of h]",
            "Side by side and times W_O is the sum of what each head does with its rows of W_O, not their mean.",
            edit=wrapping("output", lambda project, h, w, *b: project(h / n, w, *b)),
        )


# ------------------------------------------------------------------ another number of them


def other_numbers(p: Problem) -> Iterator[Mistake]:
    """As many columns, cut into other heads; the scale goes along with d_k."""
    if not p.projected or PER_HEAD & p.sources.keys():
        return
    right, groups = p.sizes.get("head", 1), p.sizes.get("kv_head", p.sizes.get("head", 1))
    for n in NUMBERS if p.headed else NUMBERS[1:]:
        widths = (p.sizes["d_k"] * right, p.sizes["d_v"] * right)
        if n != right and not any(w % n for w in widths) and groups * n % right == 0 and groups * n // right > 0:
            yield cut(n, right, groups * n // right)


def cut(n: int, right: int, groups: int) -> Mistake:
    return Mistake(
        f"heads-{n}",
        f"{n} {'head' if n == 1 else 'heads'} instead of {right}",
        f"heads: {n}",
        f"heads: {right}",
        "The output has the same shape for every number of heads; d_k, and with it the scale, has not.",
        pose=lambda p: with_options(p, heads=n, kv_heads=groups),
    )


# ------------------------------------------------------------------ the way out


def without_w_o(p: Problem) -> Iterator[Mistake]:
    if p.sizes["d_v"] * p.sizes.get("head", 1) != p.sizes["d_out"]:
        return
    teach = "The heads side by side go through one more matrix, which lets them mix."
    yield Mistake(
        "without-w_o",
        "the output projection forgotten",
        "Y = H",
        "Y = H W_O",
        teach,
        edit=computing("output", np.asarray, "concat"),
    )
    if "b_o" in p.sources:
        yield Mistake(
            "without-w_o-alone",
            "the output projection forgotten, its bias added",
            "Y = H + b_O",
            "Y = H W_O + b_O",
            "The bias b_O comes after the product with W_O, not instead of it.",
            edit=computing("output", lambda h, b: h + b, "concat", "b_o"),
        )
