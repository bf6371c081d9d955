"""Mistakes in softcap and caches."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from attntrace.mistakes.base import Compute, Edit, Mistake, computing, every, last_of, skipping, wrapping
from attntrace.ops import Softcap
from attntrace.problem import Problem
from attntrace.tape import Array, Trace


def variants(p: Problem) -> Iterator[Mistake]:
    if p.options.softcap is not None:
        yield from softcaps(p, p.options.softcap)
    if "cache" in p.options.parts:
        yield from caches(p)


def softcaps(p: Problem, c: float) -> Iterator[Mistake]:
    cap, right = Softcap(c), f"{c:g} tanh(S / √d_k / {c:g}), then the mask"
    yield Mistake(
        "softcap-none",
        "softcap left out",
        "S / √d_k",
        right,
        f"No capped score is beyond {c:g}: look for one that is.",
        edit=skipping("capped"),
    )
    yield Mistake(
        "softcap-after-mask",
        "softcap after the mask",
        f"{c:g} tanh((S / √d_k + M) / {c:g})",
        right,
        f"A cap after the mask turns −∞ into −{c:g}, and hidden keys leak: scale, cap, mask, softmax.",
        edit=every(skipping("capped"), wrapping("masked", lambda add, s, m: cap.forward(add(s, m)))),
    )
    yield Mistake(
        "softcap-before-scale",
        "softcap before the scale",
        f"{c:g} tanh(S / {c:g}) / √d_k",
        right,
        f"Capped scores go up to {c:g}, and up to {c:g} / √d_k if they are scaled afterwards: scale, cap, mask, softmax.",
        edit=every(wrapping("scaled", lambda scale, s: scale(cap.forward(s))), skipping("capped")),
    )


def caches(p: Problem) -> Iterator[Mistake]:
    yield Mistake(
        "cache-order",
        "the new key put before the cached ones",
        "[K; K_past]",
        "[K_past; K]",
        "The cache holds earlier tokens: they come first, and positions and masks count on it.",
        edit=every(computing("k_all", new_first), computing("v_all", new_first)),
    )
    yield Mistake(
        "cache-without-new",
        "the new key left out of the cache",
        "K_past",
        "[K_past; K]",
        "A token attends to itself: its key and value are appended before the scores are taken.",
        edit=hidden_keys(lambda past, keys: slice(past, keys)),
    )
    yield Mistake(
        "cache-unused",
        "the cache left out",
        "K",
        "[K_past; K]",
        "Without its past a token that is decoded sees itself alone: the keys are [K_past; K].",
        edit=hidden_keys(lambda past, keys: slice(0, past)),
    )


def new_first(past: Array, new: Array) -> Array:
    return np.concatenate([new, past], axis=-2)


def hidden_keys(which: Callable[[int, int], slice]) -> Edit:
    """Scores of some keys as if they were not there."""

    def edit(t: Trace, p: Problem) -> bool:
        keys = which(p.sizes["past_key"], p.sizes["key"])

        def compute(op: Compute, *operands: Array) -> Array:
            s = np.array(op(*operands))
            s[..., keys] = -np.inf
            return s

        return wrapping(last_of(t, "scaled", "capped", "biased", "masked"), compute)(t, p)

    return edit
