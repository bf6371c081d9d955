"""Mistakes in masks.

Where a mistake hides all keys of a query, its author sees 0 / 0, or even weights if hidden scores are filled with a large
finite number; so each of those comes in three forms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from attntrace.mistakes.base import Edit, Mistake, Pose, every, finishing, instead, skipping, with_options
from attntrace.parts import mask as masks
from attntrace.parts.place import Align, first
from attntrace.problem import Mask, Problem, Tile
from attntrace.tape import Array, Trace

FILLS = (-1.0, -10.0, -100.0, -1e3, -1e4, -1e5, -1e9, -1e-9)
LARGE = -1e9
RIGHT = "S′ + M, M is −∞ where a key is hidden and 0 elsewhere"
Meet = Callable[[Array, Array], Array]


def masking(p: Problem) -> Iterator[Mistake]:
    if not p.masks:
        return
    yield Mistake(
        "mask-none",
        "the mask left out",
        "softmax(S′)",
        "softmax(S′ + M)",
        "Without its mask every query sees every key.",
        edit=skipping("masked"),
    )
    yield from senses(p)
    yield from hiding(p)
    yield from fills()
    yield from left_out(p)


def hidden(m: Array) -> Array:
    return np.isneginf(m)


def meeting(compute: Meet) -> Edit:
    """Another way in which the mask meets the scores. `compute` gets the scores and the mask, broadcast to them."""

    def edit(t: Trace, p: Problem) -> bool:
        if "masked" not in t:
            return False
        s, m = t["masked"].operands
        missing = tuple(i for i, axis in enumerate(s.axes) if axis not in m.axes)
        return instead(t, "masked", lambda s, m: compute(s, np.broadcast_to(np.expand_dims(m, missing), s.shape)))

    return edit


# ------------------------------------------------------------------ how the mask meets the scores


def senses(p: Problem) -> Iterator[Mistake]:
    for key, says, used, teach, compute in (
        (
            "zero",
            "hidden scores set to 0 instead of −∞",
            "softmax of 0 where a key is hidden",
            "exp(0) = 1: a score of 0 still takes part. Only −∞ hides a key.",
            lambda s, m: np.where(hidden(m), 0, s + m),
        ),
        (
            "added-01",
            "a mask of 0 and 1 added to the scores",
            "S′ + 1 where a key may be seen",
            "Adding 1 hides nothing; a mask that is added holds 0 and −∞.",
            lambda s, m: s + ~hidden(m),
        ),
        (
            "added-10",
            "a mask of 1 and 0 added to the scores",
            "S′ + 1 where a key is hidden",
            "Adding 1 to what should be hidden makes it stand out; a mask that is added holds 0 and −∞.",
            lambda s, m: s + hidden(m),
        ),
    ):
        yield Mistake(f"mask-{key}", says, used, RIGHT, teach, edit=meeting(compute))
    if p.options.masked_row == "zero":
        yield Mistake(
            "mask-row-nan",
            "a query that may attend to nothing given 0 / 0 instead of zeros",
            "softmax of −∞ alone: NaN",
            "weights of 0, as scaled_dot_product_attention and ONNX have it",
            "exp(−∞) / Σ exp(−∞) is 0 / 0: a row without keys needs a rule of its own.",
            edit=zero_by_zero,
        )


def fills() -> Iterator[Mistake]:
    for fill in FILLS:
        yield Mistake(
            f"mask-fill{fill:g}",
            f"hidden scores filled with {fill:g} instead of −∞",
            f"softmax of {fill:g} where a key is hidden",
            RIGHT,
            "A finite number leaks when true scores come near it, and a row without keys becomes even instead of zeros.",
            edit=meeting(filling(fill)),
        )
        yield Mistake(
            f"mask-plus{fill:g}",
            f"{fill:g} added to hidden scores instead of −∞",
            f"S′ + {fill:g} where a key is hidden",
            RIGHT,
            "What is added hides a key only if it is far below all scores; in a row without keys it changes nothing at all.",
            edit=meeting(adding(fill)),
        )


def filling(fill: float) -> Meet:
    return lambda s, m: np.where(hidden(m), s.dtype.type(fill), s + m)


def adding(fill: float) -> Meet:
    return lambda s, m: s + np.where(hidden(m), s.dtype.type(fill), m)


# ------------------------------------------------------------------ what is hidden


@dataclass(frozen=True)
class Hiding:
    """A mask that hides other keys: rewritten in the problem, or where it meets the scores."""

    key: str
    says: str
    used: str
    right: str
    teach: str
    pose: Pose | None = None
    edit: Edit | None = None

    def forms(self) -> Iterator[Mistake]:
        """As it is, and as it looks where a query is left without keys."""
        edits = () if self.edit is None else (self.edit,)
        for suffix, what, more in (
            ("", "", ()),
            ("-nan", "; a row without keys is 0 / 0", (zero_by_zero,)),
            ("-even", f"; hidden scores are {LARGE:g}", (finite(),)),
        ):
            says, edit = f"{self.says}{what}", every(*edits, *more)
            yield Mistake(f"mask-{self.key}{suffix}", says, self.used, self.right, self.teach, self.pose, edit)


def zero_by_zero(t: Trace, p: Problem) -> bool:
    """NaN in the rows of a query that may attend to nothing; where there is a sink, nothing is divided by 0."""
    return "sinks" not in t and finishing("weights", emptied)(t, p)


def emptied(weights: Array, s: Array, *others: Array) -> Array:
    return np.where(np.isneginf(s).all(axis=-1, keepdims=True), np.nan, weights)


def finite() -> Edit:
    """Whatever is hidden by now, filled with a finite number."""

    def edit(t: Trace, p: Problem) -> bool:
        op = t["masked"].operation if "masked" in t else None

        def compute(*operands: Array) -> Array:
            assert op is not None
            s = op.forward(*operands)
            return np.asarray(np.where(np.isneginf(s), s.dtype.type(LARGE), s))

        return op is not None and instead(t, "masked", compute)

    return edit


def hiding(p: Problem) -> Iterator[Mistake]:
    """Masks of another sense, side or width."""
    for each in (*turned(p), *shifted(p), *aligned(p), *windows(p), *padded_queries(p)):
        yield from each.forms()


def turned(p: Problem) -> Iterator[Hiding]:
    yield Hiding(
        "inverted",
        "the mask inverted: hidden keys are seen, and the others hidden",
        "M is −∞ where a key may be seen",
        RIGHT,
        "Half of the field writes 1 for what may be seen (scaled_dot_product_attention), half for what may not "
        "(nn.MultiheadAttention): say which.",
        edit=meeting(lambda s, m: np.where(hidden(m), s, -np.inf)),
    )
    if p.sizes["query"] == p.sizes["key"]:
        yield Hiding(
            "transposed",
            "the mask transposed: queries see later keys instead of earlier ones",
            "S′ + Mᵀ",
            RIGHT,
            "Rows are queries and columns are keys: tril and not triu hides the future.",
            edit=meeting(lambda s, m: s + m.swapaxes(-1, -2)),
        )


def shifted(p: Problem) -> Iterator[Hiding]:
    """A causal mask off by one; of a mask that is given as an array nobody knows that it is causal."""
    causal = any(isinstance(m, masks.Causal) for m in p.options.masks)
    if not causal and not any(isinstance(m, masks.Array) for m in p.options.masks):
        return
    for key, says, by in (
        ("early", "key < query: a token does not see itself", -1),
        ("late", "key ≤ query + 1: a token sees the next one", 1),
    ):
        yield Hiding(
            f"off-by-one-{key}",
            f"the causal mask off by one, {says}",
            says.partition(":")[0],
            "key ≤ query",
            "The diagonal is seen: torch.triu needs diagonal=1 for what is hidden, torch.tril diagonal=0 for what is seen.",
            pose=as_window(by) if causal else None,
            edit=None if causal else meeting(moved(by)),
        )


def as_window(by: int) -> Pose:
    return rewriting(lambda m: masks.Window(None, by, m.align, m.path) if isinstance(m, masks.Causal) else m)


def rewriting(change: Callable[[Mask], Mask]) -> Pose:
    """Every mask of the config changed."""
    return lambda p: with_options(p, masks=tuple(map(change, p.options.masks)))


def moved(by: int) -> Meet:
    """The mask one key further to the right, where its first column stays, or to the left, where its last one is hidden."""

    def compute(s: Array, m: Array) -> Array:
        edge = m[..., :1] if by > 0 else np.full_like(m[..., :1], -np.inf)
        return np.asarray(s + (np.concatenate([edge, m[..., :-1]], -1) if by > 0 else np.concatenate([m[..., 1:], edge], -1)))

    return compute


def aligned(p: Problem) -> Iterator[Hiding]:
    """The other alignments of a causal mask or window. By the last key there are two, where some keys are padding."""
    placed = [m for m in p.options.masks if isinstance(m, masks.Causal | masks.Window)]
    for key, align, says in (
        ("top-left", "top-left", "top-left: the first query at the first key"),
        ("bottom-right", "bottom-right", "bottom-right: the last query at the last key"),
        ("bottom-right-padded", p.sizes["key"] - p.queries, "bottom-right, padding counted as keys"),
    ):
        padded = any(m.lengths for m in p.options.masks)
        if any(not np.array_equal(first(p, m.align), first(p, align)) for m in placed) and (padded or isinstance(align, str)):
            yield Hiding(
                key,
                f"the causal mask or window aligned {says}",
                says.partition(":")[0],
                "the other alignment",
                "With fewer queries than keys, the last query usually stands at the last key (bottom-right); is_causal in "
                "torch aligns the first with the first.",
                pose=rewriting(realigned(align)),
            )


def realigned(align: Align) -> Callable[[Mask], Mask]:
    return lambda m: replace(m, align=align) if isinstance(m, masks.Causal | masks.Window) else m


def windows(p: Problem) -> Iterator[Hiding]:
    if not any(isinstance(m, masks.Window) for m in p.options.masks):
        return
    for key, says, left, right in (
        ("left-wider", "one key wider to the left", 1, 0),
        ("left-narrower", "one key narrower to the left", -1, 0),
        ("right-wider", "one key wider to the right", 0, 1),
        ("right-narrower", "one key narrower to the right", 0, -1),
        ("wider", "one key wider on either side", 1, 1),
        ("narrower", "one key narrower on either side", -1, -1),
    ):
        yield Hiding(
            f"window-{key}",
            f"the window {says}",
            says,
            "both ends of the window count",
            "A window of w is said in three ways: w keys with the query, w before it, w on either side. Count them.",
            pose=rewriting(widened(left, right)),
        )


def widened(left: int, right: int) -> Callable[[Mask], Mask]:
    def change(m: Mask) -> Mask:
        if not isinstance(m, masks.Window):
            return m
        wide = None if m.left is None else max(0, m.left + left)
        return replace(m, left=wide, right=None if m.right is None else max(-1, m.right + right))

    return change


# ------------------------------------------------------------------ padding, and one mask of several


@dataclass(frozen=True)
class PaddedQueries(Mask):
    """Padding that hides whole rows, those of queries that are no tokens."""

    lengths: tuple[int, ...]

    @property
    def formula(self) -> str:
        return f"query < length {list(self.lengths)}"

    def axes(self, p: Problem) -> frozenset[str]:
        return frozenset({"batch"}) & set(p.sizes)

    def bias(self, p: Problem, at: Tile) -> Array:
        rows = np.arange(at.rows.start, at.rows.stop)[:, None]
        seen = rows < np.array(self.lengths)[:, None, None, None]
        return masks.blocked(np.broadcast_to(seen, (*seen.shape[:-1], len(at.keys))))


def padded_queries(p: Problem) -> Iterator[Hiding]:
    padding = any(isinstance(m, masks.Padding) for m in p.options.masks)
    arrays = any(isinstance(m, masks.Array) for m in p.options.masks) and p.sizes["query"] == p.sizes["key"]
    if not padding and not arrays:
        return
    yield Hiding(
        "on-queries",
        "the padding applied to queries (whole rows) instead of keys",
        "row i is hidden where key i should be",
        "key i is hidden from every query",
        "Padding hides keys; the rows of padded queries are simply not used.",
        pose=rewriting(lambda m: PaddedQueries(m.lengths) if isinstance(m, masks.Padding) else m) if padding else None,
        edit=None if padding else meeting(by_queries),
    )


def by_queries(s: Array, m: Array) -> Array:
    """Rows whose own key is hidden from all become −∞ as a whole, and the key is seen."""
    never = np.asarray(hidden(m).all(axis=-2))
    return np.where(never[..., :, None], -np.inf, np.where(never[..., None, :], s, s + m))


NAMES = {masks.Causal: "causal", masks.Window: "window", masks.Padding: "padding", masks.Array: "given"}


def left_out(p: Problem) -> Iterator[Mistake]:
    """One mask of several."""
    if len(p.options.masks) < 2:
        return
    for i, m in enumerate(p.options.masks):
        name = NAMES.get(type(m), "other")
        yield Mistake(
            f"mask-without-{i}-{name}",
            f"the {name} mask (number {i + 1} of {len(p.options.masks)}) left out, the others applied",
            "M without it",
            "a key must pass all masks",
            "Several masks are combined: what one of them hides stays hidden.",
            pose=without(i),
        )


def without(i: int) -> Pose:
    return lambda p: with_options(p, masks=(*p.options.masks[:i], *p.options.masks[i + 1 :]))
