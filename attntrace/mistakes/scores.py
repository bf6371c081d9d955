"""Mistakes in the scores and their scale."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from attntrace.mistakes.base import Mistake, first_of, instead
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
            edit=lambda t, p: "scores" in t and instead(t, "scores", lambda q, k: np.matmul(k, q.swapaxes(-1, -2))),
        )
    yield Mistake(
        "cosine",
        "cosine of query and key instead of their dot product",
        "S = Q Kᵀ / (‖Q‖ ‖K‖)",
        "S = Q Kᵀ",
        "The length of queries and keys counts in attention: a long key is attended to more.",
        edit=lambda t, p: "scores" in t and instead(t, "scores", cosine),
    )


def cosine(q: Array, k: Array) -> Array:
    def unit(a: Array) -> Array:
        return np.asarray(a / np.linalg.norm(a, axis=-1, keepdims=True))

    return np.asarray(np.matmul(unit(q), unit(k).swapaxes(-1, -2)))


# ------------------------------------------------------------------ scale


def scales(p: Problem) -> Iterator[Mistake]:
    """Another number than the scores are to be multiplied by."""
    right = 1 / p.divisor if p.options.scale is None else p.options.scale
    meant = "S / √d_k" if p.options.scale is None else f"S × {p.options.scale!r}"
    told = [right]
    for key, says, used, factor in factors(p):
        if not any(math.isclose(factor, other, rel_tol=1e-12) for other in told):
            told.append(factor)
            yield scaled(key, says, used, meant, factor)


def scaled(key: str, says: str, used: str, meant: str, factor: float) -> Mistake:
    return Mistake(
        f"scale-{key}",
        says,
        used,
        meant,
        "Scores of d_k products grow like √d_k; dividing by it keeps softmax from saturating. d_k is the width of one head.",
        edit=lambda t, p: rescale(t, factor),
    )


def rescale(t: Trace, factor: float) -> bool:
    if "scaled" in t:
        return instead(t, "scaled", lambda s: s * s.dtype.type(factor))
    found = False
    for name in [n for n in t.names if n.startswith("scaled_")]:
        found = instead(t, name, lambda s: s * s.dtype.type(factor))
    return found


def factors(p: Problem) -> Iterator[tuple[str, str, str, float]]:
    """Key, sentence, formula and factor of every plausible scale."""
    d, h, root = p.sizes["d_k"], p.sizes.get("head", 1), p.divisor
    width = p.sizes.get("d_model", h * d)
    yield "none", "no scale: the scores are not divided by √d_k", "S", 1.0
    yield "d_model", "scaled by √d_model instead of √d_k", f"S / √{width}", 1 / math.sqrt(width)
    yield "heads-d_k", "scaled by √(heads · d_k) instead of √d_k", f"S / √{h * d}", 1 / math.sqrt(h * d)
    yield "no-root", "scaled by d_k without the root", f"S / {d}", 1 / d
    yield "multiplied", "multiplied by √d_k instead of divided", f"S × √{d}", root
    yield "twice", "scaled twice", f"S / √{d} / √{d}", 1 / d if p.options.scale is None else p.options.scale**2
    yield "auto", "scaled by √d_k, though the scale is given", f"S / √{d}", 1 / root
    for key, n in (("d_v", p.sizes["d_v"]), ("keys", p.sizes["key"]), ("heads", h), ("2d_k", 2 * d)):
        yield key, f"scaled by √{n} ({SAID[key]}) instead of √d_k", f"S / √{n}", 1 / math.sqrt(n)


SAID = {"d_v": "d_v", "keys": "the number of keys", "heads": "the number of heads", "2d_k": "2 d_k"}


# ------------------------------------------------------------------ values


def values(p: Problem) -> Iterator[Mistake]:
    """Something else than the values averaged."""
    for what, name in (("queries", "q"), ("keys", "k"), ("tokens", "x")):
        yield Mistake(
            f"average-{name}",
            f"the {what} averaged instead of the values",
            f"A {name.upper()}",
            "A V",
            "Queries and keys only decide where to look; what is taken from there is the value.",
            edit=lambda t, p, name=name: average(t, name),  # type: ignore[misc]
        )
    if p.sizes["query"] == p.sizes["key"]:
        yield Mistake(
            "weights-transposed",
            "Aᵀ V instead of A V",
            "Aᵀ V",
            "A V",
            "Row i of A holds the weights of query i over the keys; transposed, it holds what all queries give key i.",
            edit=lambda t, p: turned(t),
        )


def context_of(t: Trace) -> str:
    return "context" if "context" in t else "output"


def average(t: Trace, name: str) -> bool:
    """A times the operand `name` (its last form: rotated, cached, shared), where the shapes allow it."""
    wanted = first_of(t, f"{name}_shared", f"{name}_all", f"{name}_rot", f"{name}_norm", name)
    step = t[context_of(t)]
    if wanted is None or not step.operands or wanted.shape != step.operands[1].shape:
        return False
    return instead(t, step.name, np.matmul, step.operands[0].name, wanted.name)


def turned(t: Trace) -> bool:
    step = t[context_of(t)]
    return (
        bool(step.operands) and len(step.operands) == 2 and instead(t, step.name, lambda a, v: np.matmul(a.swapaxes(-1, -2), v))
    )
