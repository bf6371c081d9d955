"""Mistakes in masks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from attntrace.mistakes.base import Mistake, instead, skip, with_options
from attntrace.ops import Softmax
from attntrace.parts import mask as masks
from attntrace.problem import Mask, Problem
from attntrace.tape import Array, Trace

FILLS = (-1.0, -10.0, -100.0, -1e3, -1e4, -1e9)


def masking(p: Problem) -> Iterator[Mistake]:
    if not p.masks:
        return
    yield Mistake(
        "mask-none",
        "the mask left out",
        "softmax(S′)",
        "softmax(S′ + M)",
        "Without its mask every query sees every key.",
        edit=lambda t, p: skip(t, "masked"),
    )
    yield from senses(p)
    yield from fills(p)
    yield from shifted(p)
    yield from aligned(p)
    yield from windows(p)
    yield from paddings(p)


def hidden(m: Array) -> Array:
    return np.isneginf(m)


def on_scores(key: str, says: str, used: str, teach: str, compute: Callable[[Array, Array], Array]) -> Mistake:
    """A mistake in how the mask meets the scores. `compute` gets the scores and the mask, broadcast to them."""

    def edit(t: Trace, p: Problem) -> bool:
        if "masked" not in t:
            return False
        missing = t["masked"].operation.missing  # type: ignore[union-attr]
        return instead(t, "masked", lambda s, m: compute(s, np.broadcast_to(np.expand_dims(m, missing), s.shape)))

    return Mistake(f"mask-{key}", says, used, "S′ + M, M is −∞ where a key is hidden and 0 elsewhere", teach, edit=edit)


def inverted(s: Array, m: Array) -> Array:
    return np.where(hidden(m), s, -np.inf)


def zeroed(s: Array, m: Array) -> Array:
    return np.where(hidden(m), 0, s)


def added(s: Array, m: Array) -> Array:
    return np.asarray(s + ~hidden(m))


def senses(p: Problem) -> Iterator[Mistake]:
    yield on_scores(
        "inverted",
        "the mask inverted: hidden keys are seen, and the others hidden",
        "M is −∞ where a key may be seen",
        "Half of the field writes 1 for what may be seen (scaled_dot_product_attention), half for what may not "
        "(nn.MultiheadAttention): say which.",
        inverted,
    )
    yield on_scores(
        "zero",
        "hidden scores set to 0 instead of −∞",
        "softmax of 0 where a key is hidden",
        "exp(0) = 1: a score of 0 still takes part. Only −∞ hides a key.",
        zeroed,
    )
    yield on_scores(
        "added-01",
        "a mask of 0 and 1 added to the scores",
        "S′ + 1 where a key may be seen",
        "Adding 1 hides nothing; a mask that is added holds 0 and −∞.",
        added,
    )
    if p.sizes["query"] == p.sizes["key"]:
        yield on_scores(
            "transposed",
            "the mask transposed: queries see later keys instead of earlier ones",
            "S′ + Mᵀ",
            "Rows are queries and columns are keys: tril and not triu hides the future.",
            lambda s, m: s + m.swapaxes(-1, -2),
        )
        yield on_scores(
            "on-queries",
            "the mask applied to whole rows (queries) instead of keys",
            "row i is hidden where key i should be",
            "Padding hides keys; the rows of padded queries are simply not used.",
            by_queries,
        )
    yield after_softmax()


def by_queries(s: Array, m: Array) -> Array:
    """Rows whose own key is hidden from all become −∞ as a whole (with the column seen)."""
    never = np.asarray(hidden(m).all(axis=-2))
    return np.where(never[..., :, None], -np.inf, np.where(never[..., None, :], s, s + m))


def after_softmax() -> Mistake:
    def edit(t: Trace, p: Problem) -> bool:
        if "masked" not in t or "weights" not in t:
            return False
        missing = t["masked"].operation.missing  # type: ignore[union-attr]
        before, m = t["masked"].operands
        t["weights"].operands = (before, m)
        return instead(t, "weights", lambda s, m: Softmax().forward(s) * ~hidden(np.expand_dims(m, missing)))

    return Mistake(
        "mask-after-softmax",
        "the mask applied after softmax, without dividing by the new sum",
        "softmax(S′) ∘ mask",
        "softmax(S′ + M)",
        "Weights of hidden keys are set to 0, but have taken their share of the sum: rows no longer sum to 1.",
        edit=edit,
    )


def fills(p: Problem) -> Iterator[Mistake]:
    for fill in FILLS:
        yield on_scores(
            f"fill-{fill:g}",
            f"hidden scores filled with {fill:g} instead of −∞",
            f"softmax of {fill:g} where a key is hidden",
            "A finite number leaks when true scores come near it, and a row without keys becomes even instead of zeros.",
            lambda s, m, fill=fill: np.where(hidden(m), s.dtype.type(fill), s),  # type: ignore[misc]
        )


# ------------------------------------------------------------------ another mask of the same kind


def rewritten(p: Problem, key: str, says: str, used: str, right: str, teach: str, change: Callable[[Mask], Mask]) -> Mistake:
    return Mistake(
        f"mask-{key}",
        says,
        used,
        right,
        teach,
        pose=lambda p: with_options(p, masks=tuple(map(change, p.options.masks))),
    )


def shifted(p: Problem) -> Iterator[Mistake]:
    if not any(isinstance(m, masks.Causal) for m in p.options.masks):
        return
    for key, says, by in (
        ("early", "key < query: a token does not see itself", -1),
        ("late", "key ≤ query + 1: a token sees the next one", 1),
    ):
        yield rewritten(
            p,
            f"causal-{key}",
            f"the causal mask off by one, {says}",
            says.partition(":")[0],
            "key ≤ query",
            "The diagonal is seen: torch.triu needs diagonal=1 for what is hidden.",
            lambda m, by=by: masks.Window(None, by, m.align, m.path) if isinstance(m, masks.Causal) else m,  # type: ignore[misc]
        )


def aligned(p: Problem) -> Iterator[Mistake]:
    if p.sizes["query"] == p.sizes["key"] or not any(getattr(m, "align", None) for m in p.options.masks):
        return
    for align in ("top-left", "bottom-right"):
        yield rewritten(
            p,
            f"causal-{align}",
            f"the causal mask aligned {align}",
            f"causal: {align}",
            "the other alignment",
            "With fewer queries than keys, the last query usually stands at the last key (bottom-right); is_causal in torch "
            "aligns the first with the first.",
            lambda m, align=align: replace(m, align=align) if hasattr(m, "align") else m,  # type: ignore[misc]
        )


def windows(p: Problem) -> Iterator[Mistake]:
    if not any(isinstance(m, masks.Window) for m in p.options.masks):
        return
    for key, says, left, right in (
        ("left-wider", "one key wider to the left", 1, 0),
        ("left-narrower", "one key narrower to the left", -1, 0),
        ("right-wider", "one key wider to the right", 0, 1),
        ("right-narrower", "one key narrower to the right", 0, -1),
    ):
        yield rewritten(
            p,
            f"window-{key}",
            f"the window {says}",
            says,
            "both ends of the window count",
            "A window of w is said in three ways: w keys with the query, w before it, w on either side. Count them.",
            lambda m, left=left, right=right: widened(m, left, right),  # type: ignore[misc]
        )


def widened(m: Mask, left: int, right: int) -> Mask:
    if not isinstance(m, masks.Window):
        return m
    return replace(
        m,
        left=None if m.left is None else max(0, m.left + left),
        right=None if m.right is None else max(-1, m.right + right),
    )


def paddings(p: Problem) -> Iterator[Mistake]:
    if not any(isinstance(m, masks.Padding) for m in p.options.masks):
        return
    if len(p.options.masks) > 1:
        yield dropped_mask("padding", masks.Padding)
        yield dropped_mask("causal", masks.Causal)


def dropped_mask(key: str, kind: type) -> Mistake:
    return Mistake(
        f"mask-without-{key}",
        f"the {key} mask left out, the others applied",
        "M without it",
        "a key must pass all masks",
        "Several masks are combined: what one of them hides stays hidden.",
        pose=lambda p: with_options(p, masks=tuple(m for m in p.options.masks if not isinstance(m, kind))),
    )
