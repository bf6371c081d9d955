"""Mistakes in softmax and dropout."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from attntrace.mistakes.base import Mistake, instead, skip
from attntrace.ops import Softmax
from attntrace.problem import Problem
from attntrace.tape import Array


def stable(s: Array, axis: int | tuple[int, ...]) -> Array:
    """Softmax along any axes."""
    top = s.max(axis=axis, keepdims=True)
    e = np.exp(s - np.where(np.isneginf(top), 0, top))
    total = e.sum(axis=axis, keepdims=True)
    return np.asarray(e / np.where(total == 0, 1, total))


def softmax_twice(s: Array) -> Array:
    return Softmax().forward(Softmax().forward(s))


def exponential(s: Array) -> Array:
    return np.exp(s)


def divided(s: Array) -> Array:
    finite = np.where(np.isneginf(s), 0, s)
    return np.asarray(finite / finite.sum(axis=-1, keepdims=True))


def base_two(s: Array) -> Array:
    return stable(s * s.dtype.type(np.log(2)), -1)


def underflowing(s: Array) -> Array:
    """The largest score of the whole matrix subtracted: rows far below it come out as 0 / 0."""
    e = np.exp((s - s.max(axis=(-2, -1), keepdims=True)).astype(np.float32))
    return np.asarray(e / e.sum(axis=-1, keepdims=True)).astype(s.dtype)


WAYS: tuple[tuple[str, str, str, str, Callable[[Array], Array]], ...] = (
    (
        "over-queries",
        "softmax over the queries instead of the keys",
        "columns of A sum to 1",
        "Each row is what one query gives to the keys, and sums to 1: take the softmax along the last axis.",
        lambda s: stable(s, -2),
    ),
    (
        "over-everything",
        "softmax over all scores of a matrix at once",
        "all of A sums to 1",
        "Each query has a sum of its own: the softmax runs along the keys alone.",
        lambda s: stable(s, (-2, -1)),
    ),
    (
        "twice",
        "softmax taken twice",
        "softmax(softmax(S))",
        "Weights that have been through softmax again are nearly even.",
        softmax_twice,
    ),
    (
        "not-divided",
        "exponentials not divided by their sum",
        "exp(S)",
        "Weights sum to 1; exponentials alone do not.",
        exponential,
    ),
    (
        "no-exp",
        "scores divided by their sum, without exp",
        "S / Σ S",
        "Without exp negative scores make negative weights.",
        divided,
    ),
    (
        "base-2",
        "powers of 2 instead of e",
        "2^S / Σ 2^S",
        "Kernels use exp2 with scores multiplied by log₂ e beforehand; without that factor the weights are too even.",
        base_two,
    ),
    (
        "matrix-max",
        "the largest score of the whole matrix subtracted, so that rows underflow",
        "exp(S − max of the matrix)",
        "Subtract the largest score of each row: another row's may be so much larger that all its exponentials are 0.",
        underflowing,
    ),
)


def softmaxes(p: Problem) -> Iterator[Mistake]:
    for key, says, used, teach, compute in WAYS:
        yield Mistake(
            f"softmax-{key}",
            says,
            used,
            "softmax over the keys of each query",
            teach,
            edit=lambda t, p, compute=compute: "weights" in t and instead(t, "weights", lambda s, *z: compute(s)),  # type: ignore[misc]
        )
    if p.sizes.get("head", 1) > 1:
        yield Mistake(
            "softmax-over-heads",
            "softmax over the heads instead of the keys",
            "A sums to 1 over the heads",
            "softmax over the keys of each query",
            "With an axis of heads in front, dim=1 is no longer the keys: say dim=-1.",
            edit=lambda t, p: "weights" in t and instead(t, "weights", lambda s, *z: stable(s, -3)),
        )


# ------------------------------------------------------------------ dropout


def dropouts(p: Problem) -> Iterator[Mistake]:
    rate = p.options.dropout
    if not rate:
        return
    yield dropped("not-rescaled", "weights that stay not divided by 1 − rate", "A ∘ D", lambda a, d: a * d)
    yield dropped("rescaled-by-rate", "weights that stay divided by the rate", f"A ∘ D / {rate:g}", lambda a, d: a * d / rate)
    yield dropped(
        "multiplied", "weights that stay multiplied by 1 − rate", f"A ∘ D × (1 − {rate:g})", lambda a, d: a * d * (1 - rate)
    )
    yield dropped(
        "inverted",
        "the weights that should stay dropped, and the others kept",
        "A ∘ (1 − D) / (1 − rate)",
        lambda a, d: a * (1 - d) / (1 - rate),
    )
    yield Mistake(
        "dropout-off",
        "dropout left out",
        "A",
        "A ∘ D / (1 − rate)",
        "In training mode dropout is on; model.eval() switches it off.",
        edit=lambda t, p: skip(t, "dropped"),
    )
    yield Mistake(
        "dropout-before-softmax",
        "dropout before softmax",
        "softmax(S ∘ D / (1 − rate))",
        "softmax(S) ∘ D / (1 − rate)",
        "A dropped score is 0, which is not a dropped weight: exp(0) = 1.",
        edit=before_softmax,
    )


def dropped(key: str, says: str, used: str, compute: Callable[[Array, Array], Array]) -> Mistake:
    return Mistake(
        f"dropout-{key}",
        says,
        used,
        "A ∘ D / (1 − rate)",
        "What stays is divided by 1 − rate, so that the sum is 1 on average and nothing changes when dropout is off.",
        edit=lambda t, p: instead(t, "dropped", compute),
    )


def before_softmax(t, p) -> bool:  # type: ignore[no-untyped-def]
    if "dropped" not in t or "weights" not in t:
        return False
    scores, keep, rate = t["weights"].operands[0], t["keep"], p.options.dropout
    t["weights"].operands = (scores, keep)
    return instead(t, "weights", lambda s, d: Softmax().forward(s * d / (1 - rate))) and skip(t, "dropped")
