"""Mistakes in softmax and dropout."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from attntrace.mistakes.base import Edit, Mistake, computing, every, instead, skipping, wrapping
from attntrace.problem import Problem
from attntrace.tape import Array, Trace

Weigh = Callable[[Array], Array]


def stable(s: Array, axis: int | tuple[int, ...]) -> Array:
    """Softmax along any axes; where all is −∞ it gives zeros."""
    top = s.max(axis=axis, keepdims=True)
    e = np.exp(s - np.where(np.isneginf(top), 0, top))
    total = e.sum(axis=axis, keepdims=True)
    return np.asarray(e / np.where(total == 0, 1, total))


def along(axis: int | tuple[int, ...]) -> Weigh:
    return lambda s: stable(s, axis)


def twice(s: Array) -> Array:
    return stable(stable(s, -1), -1)


def shifted(s: Array) -> Array:
    top = s.max(axis=-1, keepdims=True)
    return np.asarray(np.exp(s - np.where(np.isneginf(top), 0, top)))


def divided(s: Array) -> Array:
    finite = np.where(np.isneginf(s), 0, s)
    return np.asarray(finite / finite.sum(axis=-1, keepdims=True))


def base_two(s: Array) -> Array:
    return stable(s * s.dtype.type(np.log(2)), -1)


def underflowing(axes: tuple[int, ...] | None, kind: type[np.floating]) -> Weigh:
    """The largest score of a whole matrix, or of all, subtracted: rows far below it come out as 0 / 0."""

    def weigh(s: Array) -> Array:
        e = np.exp((s - s.max(axis=axes, keepdims=True)).astype(kind))
        return np.asarray(e / e.sum(axis=-1, keepdims=True)).astype(s.dtype)

    return weigh


ROW = "softmax over the keys of each query"
UNDERFLOW = (
    "Subtract the largest score of each row: another row's may be so much larger that all exponentials of this one are 0"
)
WAYS: tuple[tuple[str, str, str, str, Weigh], ...] = (
    (
        "over-queries",
        "softmax over the queries instead of the keys",
        "columns of A sum to 1",
        "Each row is what one query gives to the keys, and sums to 1: take the softmax along the last axis.",
        along(-2),
    ),
    (
        "over-everything",
        "softmax over all scores of a matrix at once",
        "all of A sums to 1",
        "Each query has a sum of its own: the softmax runs along the keys alone.",
        along((-2, -1)),
    ),
    (
        "twice",
        "softmax taken twice",
        "softmax(softmax(S))",
        "Weights that have been through softmax again are nearly even.",
        twice,
    ),
    (
        "not-divided",
        "exponentials not divided by their sum",
        "exp(S)",
        "Weights sum to 1; exponentials alone do not.",
        lambda s: np.asarray(np.exp(s)),
    ),
    (
        "not-divided-shifted",
        "exponentials, the largest score subtracted, not divided by their sum",
        "exp(S − row max)",
        "The largest entry of every row is 1: the division by the row's sum is missing.",
        shifted,
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
        f"{UNDERFLOW}.",
        underflowing((-2, -1), np.float64),
    ),
    (
        "matrix-max-float32",
        "the largest score of the whole matrix subtracted, so that rows underflow in float32",
        "exp(S − max of the matrix), in float32",
        f"{UNDERFLOW}. In float32 that happens 104 below.",
        underflowing((-2, -1), np.float32),
    ),
    (
        "global-max",
        "the largest score of all matrices subtracted, so that rows underflow",
        "exp(S − max of all)",
        f"{UNDERFLOW}. A maximum over all heads and batch items is larger still.",
        underflowing(None, np.float64),
    ),
)


def softmaxes(p: Problem) -> Iterator[Mistake]:
    for key, says, used, teach, weigh in WAYS:
        yield Mistake(f"softmax-{key}", says, used, ROW, teach, edit=weighing(weigh))
    if p.sizes.get("head", 1) > 1:
        yield Mistake(
            "softmax-over-heads",
            "softmax over the heads instead of the keys",
            "A sums to 1 over the heads",
            ROW,
            "With an axis of heads in front, dim=1 is no longer the keys: say dim=-1.",
            edit=weighing(along(-3)),
        )
    if p.sizes.get("batch", 1) > 1:
        yield Mistake(
            "softmax-over-batch",
            "softmax over the batch instead of the keys",
            "A sums to 1 over the batch",
            ROW,
            "dim=0 is the batch, whose items have nothing to do with one another: say dim=-1.",
            edit=weighing(along(0)),
        )
    if "sinks" in p.sources:
        yield Mistake(
            "sink-none",
            "the sink left out",
            "exp S / Σ exp S",
            "exp S / (Σ exp S + exp z)",
            "The sink takes its share of the sum: row sum + sink weight = 1.",
            edit=wrapping("weights", lambda softmax, s, z: softmax(s)),
        )
    if p.masks:
        yield Mistake(
            "mask-after-softmax",
            "the mask applied after softmax, without dividing by the new sum",
            "softmax(S′) ∘ mask",
            "softmax(S′ + M)",
            "Weights of hidden keys are set to 0, but have taken their share of the sum: rows no longer sum to 1.",
            edit=mask_after,
        )


def weighing(weigh: Weigh) -> Edit:
    """Weights computed in another way. A sink is one more column, which is cut off in the end."""

    def compute(s: Array, z: Array | None = None) -> Array:
        if z is None:
            return weigh(s)
        column = np.broadcast_to(z.reshape(-1, 1, 1) if s.ndim > 2 else z.reshape(1, 1), (*s.shape[:-1], 1))
        return weigh(np.concatenate([s, column], axis=-1))[..., :-1]

    return computing("weights", compute)


def mask_after(t: Trace, p: Problem) -> bool:
    if "masked" not in t or "weights" not in t:
        return False
    before, m = t["masked"].operands
    softmax, (_, *sink) = t["weights"].operation, t["weights"].operands
    assert softmax is not None
    missing = tuple(i for i, axis in enumerate(before.axes) if axis not in m.axes)

    def compute(s: Array, m: Array, *z: Array) -> Array:
        return np.asarray(softmax.forward(s, *z) * ~np.isneginf(np.expand_dims(m, missing)))

    return instead(t, "weights", compute, before.name, m.name, *(z.name for z in sink))


# ------------------------------------------------------------------ dropout


def dropouts(p: Problem) -> Iterator[Mistake]:
    rate = p.options.dropout
    if not rate:
        return
    more = "What stays is divided by 1 − rate"
    for key, says, used, teach, compute in (
        (
            "not-rescaled",
            "weights that stay not divided by 1 − rate",
            "A ∘ D",
            f"{more}, so that the sum is 1 on average and nothing changes when dropout is off.",
            lambda a, d: a * d,
        ),
        (
            "rescaled-by-rate",
            "weights that stay divided by the rate",
            f"A ∘ D / {rate:g}",
            f"{more}, the share that stays; the rate is the share that goes.",
            lambda a, d: a * d / rate,
        ),
        (
            "multiplied",
            "weights that stay multiplied by 1 − rate",
            f"A ∘ D × (1 − {rate:g})",
            f"{more} in training. To multiply by it is what old code does when dropout is off.",
            lambda a, d: a * d * (1 - rate),
        ),
        (
            "inverted",
            "the weights that should stay dropped, and the others kept",
            "A ∘ (1 − D) / (1 − rate)",
            "D is 1 for what stays. A generator that is asked for what goes gives the opposite.",
            lambda a, d: a * (1 - d) / (1 - rate),
        ),
    ):
        yield Mistake(f"dropout-{key}", says, used, "A ∘ D / (1 − rate)", teach, edit=computing("dropped", compute))
    yield Mistake(
        "dropout-off",
        "dropout left out",
        "A",
        "A ∘ D / (1 − rate)",
        "In training mode dropout is on; model.eval() switches it off.",
        edit=skipping("dropped"),
    )
    yield Mistake(
        "dropout-before-softmax",
        "dropout before softmax",
        "softmax(S ∘ D / (1 − rate))",
        "softmax(S) ∘ D / (1 − rate)",
        "A dropped score is 0, which is not a dropped weight: exp(0) = 1.",
        edit=every(before_softmax(rate), skipping("dropped")),
    )


def before_softmax(rate: float) -> Edit:
    def edit(t: Trace, p: Problem) -> bool:
        if "keep" not in t or "weights" not in t:
            return False
        softmax, (s, *sink) = t["weights"].operation, t["weights"].operands
        assert softmax is not None

        def compute(s: Array, d: Array, *z: Array) -> Array:
            dropped = np.where(np.isneginf(s), s, s * d / (1 - rate))
            return np.asarray(softmax.forward(dropped, *z))

        return instead(t, "weights", compute, s.name, "keep", *(z.name for z in sink))

    return edit
