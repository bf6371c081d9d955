"""Mistakes in the scores, in their scale, and in what is averaged in the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from attntrace.mistakes.base import Edit, Mistake, instead, last_of, wrapping
from attntrace.ops import MatMul
from attntrace.ops.moves import split
from attntrace.problem import Problem
from attntrace.tape import Array, Trace


def scores(p: Problem) -> Iterator[Mistake]:
    """Scores of the wrong way round, or of another measure."""
    if p.sizes["query"] == p.sizes["key"]:
        yield Mistake(
            "scores-transposed",
            "K Qᵀ instead of Q Kᵀ",
            "S = K Qᵀ",
            "S = Q Kᵀ",
            "Rows are queries and columns are keys: row i says what token i looks at.",
            edit=wrapping("scores", lambda dot, q, k: dot(k, q)),
        )
    yield Mistake(
        "cosine",
        "cosine of query and key instead of their dot product",
        "S = Q Kᵀ / (‖Q‖ ‖K‖)",
        "S = Q Kᵀ",
        "The length of queries and keys counts in attention: a long key is attended to more.",
        edit=wrapping("scores", lambda dot, q, k: dot(unit(q), unit(k))),
    )


def unit(a: Array) -> Array:
    return np.asarray(a / np.linalg.norm(a, axis=-1, keepdims=True))


# ------------------------------------------------------------------ scale


GROW = "Scores of d_k products grow like √d_k, and large ones saturate softmax"
Factor = Callable[[Problem], float]
# Key, sentence, formula, lesson, and the factor as a function of the layer.
SCALES: tuple[tuple[str, str, str, str, Factor], ...] = (
    ("none", "no scale: the scores are not divided by √d_k", "S", f"{GROW}: divide them by √d_k.", lambda p: 1.0),
    (
        "d_model",
        "scaled by √d_model instead of √d_k",
        "S / √d_model",
        "A score is a sum of d_k products, the width of one head, however wide the model is.",
        lambda p: width(p) ** -0.5,
    ),
    (
        "heads-d_k",
        "scaled by √(heads · d_k) instead of √d_k",
        "S / √(heads · d_k)",
        "Each head takes its own dot product of d_k terms: the other heads' widths do not count.",
        lambda p: (p.sizes.get("head", 1) * p.sizes["d_k"]) ** -0.5,
    ),
    (
        "no-root",
        "scaled by d_k without the root",
        "S / d_k",
        "The variance of a score grows like d_k, its size like √d_k: it is the root that is divided by.",
        lambda p: 1 / p.sizes["d_k"],
    ),
    (
        "no-root-d_model",
        "scaled by d_model without the root",
        "S / d_model",
        "Neither the width of the model nor a width without its root: √d_k.",
        lambda p: 1 / width(p),
    ),
    (
        "multiplied",
        "multiplied by √d_k instead of divided",
        "S × √d_k",
        "The scale is 1/√d_k: code that names a factor `scale` multiplies by it, code that names √d_k so divides.",
        lambda p: p.divisor,
    ),
    (
        "multiplied-no-root",
        "multiplied by d_k instead of divided by its root",
        "S × d_k",
        f"{GROW} all the more when they are multiplied.",
        lambda p: float(p.sizes["d_k"]),
    ),
    (
        "twice",
        "scaled twice",
        "S × scale × scale",
        "Either q or the scores are scaled, once: look for a scale inside a fused kernel.",
        lambda p: scale_of(p) ** 2,
    ),
    (
        "auto",
        "scaled by √d_k, though the scale is given",
        "S / √d_k",
        "This layer says its own scale, and √d_k does not come on top of it or in its place.",
        lambda p: 1 / p.divisor,
    ),
    (
        "d_v",
        "scaled by √d_v instead of √d_k",
        "S / √d_v",
        "Scores never see the values, so their width has no say.",
        lambda p: p.sizes["d_v"] ** -0.5,
    ),
    (
        "keys",
        "scaled by the root of the number of keys instead of √d_k",
        "S / √n",
        "However many keys there are, softmax makes their weights sum to 1; a score grows with d_k alone.",
        lambda p: p.sizes["key"] ** -0.5,
    ),
    (
        "heads",
        "scaled by the root of the number of heads instead of √d_k",
        "S / √heads",
        "Heads take their dot products apart: how many there are has no say.",
        lambda p: p.sizes.get("head", 1) ** -0.5,
    ),
    (
        "2d_k",
        "scaled by √(2 d_k) instead of √d_k",
        "S / √(2 d_k)",
        "Query and key have d_k entries each, but they meet in pairs: d_k products.",
        lambda p: (2 * p.sizes["d_k"]) ** -0.5,
    ),
)


def width(p: Problem) -> int:
    return p.sizes.get("d_model", p.sizes.get("head", 1) * p.sizes["d_k"])


def scale_of(p: Problem) -> float:
    return 1 / p.divisor if p.options.scale is None else p.options.scale


def scales(p: Problem) -> Iterator[Mistake]:
    """Every other number than the right one that scores are plausibly multiplied by."""
    meant = "S / √d_k" if p.options.scale is None else f"S × {p.options.scale!r}"
    for key, says, used, teach, factor in SCALES:
        if not math.isclose(factor(p), scale_of(p), rel_tol=1e-12):
            yield Mistake(f"scale-{key}", says, f"{used}: S × {factor(p):.4g}", meant, teach, edit=by(factor))


def by(factor: Factor) -> Edit:
    return lambda t, p: instead(t, "scaled", lambda s: s * s.dtype.type(factor(p)))


# ------------------------------------------------------------------ values


AVERAGED = {
    "q": ("queries", "What a query finds is the value of a key; the query itself only asks."),
    "k": ("keys", "Keys only decide where to look; what is taken from there is the value."),
    "x": ("tokens", "Values are a projection of the tokens: X W_V, not X."),
}


def values(p: Problem) -> Iterator[Mistake]:
    """Something else than the values averaged, or by the weights of the wrong side."""
    for letter, (what, teach) in AVERAGED.items():
        yield Mistake(
            f"average-{letter}",
            f"the {what} averaged instead of the values",
            f"A {letter.upper()}",
            "A V",
            teach,
            edit=average(letter),
        )
    if {"rope", "qk_norm"} & p.options.parts.keys():
        for letter, (what, teach) in list(AVERAGED.items())[:2]:
            yield Mistake(
                f"average-plain-{letter}",
                f"the {what} averaged instead of the values, as they are before their positions or norms",
                f"A {letter.upper()}",
                "A V",
                teach,
                edit=average(letter, last=False),
            )
    if p.sizes["query"] == p.sizes["key"]:
        yield Mistake(
            "average-by-columns",
            "Aᵀ V instead of A V",
            "Aᵀ V",
            "A V",
            "Row i of A holds the weights of query i over the keys; transposed, it holds what all queries give key i.",
            edit=by_columns,
        )


def context_of(t: Trace) -> str:
    return "context" if "context" in t else "output"


def average(letter: str, last: bool = True) -> Edit:
    """A times queries, keys (in their last form: rotated, cached, shared) or tokens, where the shapes allow it."""

    def edit(t: Trace, p: Problem) -> bool:
        names = [f"{letter}{suffix}" for suffix in ("", "_norm", "_rot", "_all", "_shared")]
        name = last_of(t, *names) if last else letter
        if letter == "x" and "x_kv" in t:
            name = "x_kv"
        step = t[context_of(t)]
        if not name or len(step.operands) != 2:
            return False
        wanted, found = step.operands[1].shape, t[name].shape
        a = step.operands[0].name
        if found == wanted:
            return instead(t, step.name, MatMul().forward, a, name)
        if letter == "x" and p.headed and (*found[:-2], p.sizes["head"], found[-2]) == wanted[:-1]:
            h = p.sizes["head"]
            return found[-1] == h * wanted[-1] and instead(t, step.name, lambda a, x: np.matmul(a, split(x, h)), a, name)
        return False

    return edit


def by_columns(t: Trace, p: Problem) -> bool:
    return wrapping(context_of(t), lambda dot, a, v: dot(a.swapaxes(-1, -2), v))(t, p)
