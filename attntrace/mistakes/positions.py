"""Mistakes in rotary positions and linear biases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attntrace.mistakes.base import Edit, Mistake, Pose, every, instead, skipping, with_part, wrapping
from attntrace.ops import Rotate
from attntrace.ops.position import Slopes
from attntrace.parts.alibi import Alibi
from attntrace.parts.place import positions as standing
from attntrace.parts.rope import Rope
from attntrace.problem import Problem
from attntrace.tape import Array, Trace

BASES = (10.0, 100.0, 500.0, 1000.0, 5000.0, 10000.0, 20000.0, 50000.0, 100000.0, 500000.0, 1e6, 1e7)
OTHER = {"half": "interleaved", "interleaved": "half"}


def positions(p: Problem) -> Iterator[Mistake]:
    rope, alibi = p.options.parts.get("rope"), p.options.parts.get("alibi")
    if isinstance(rope, Rope):
        yield from ropes(p, rope)
    if isinstance(alibi, Alibi):
        yield from alibis(p, alibi)


# ------------------------------------------------------------------ RoPE


def ropes(p: Problem, rope: Rope) -> Iterator[Mistake]:
    other = OTHER[rope.pairs]
    yield Mistake(
        "rope-pairs",
        f"RoPE with pairs {other} instead of {rope.pairs}",
        f"pairs: {other}",
        f"pairs: {rope.pairs}",
        "GPT-NeoX and Llama turn entry i with i + d/2, GPT-J and RoFormer neighbours. All shapes fit either way.",
        pose=refitted(lambda rope: replace(rope, pairs=other)),
    )
    yield Mistake(
        "rope-none",
        "RoPE left out",
        "S = Q Kᵀ",
        "S = Q̃ K̃ᵀ, both turned by their positions",
        "Without it attention does not know in which order the tokens stand.",
        edit=skipping("q_rot", "k_rot"),
    )
    for side, name in (("q", "queries"), ("k", "keys")):
        yield Mistake(
            f"rope-not-on-{side}",
            f"RoPE not applied to the {name}",
            f"{side.upper()} as it is",
            "both queries and keys turned",
            f"Scores depend on the distance only when both are turned: compare {side} and {side}_rot.",
            edit=skipping(f"{side}_rot"),
        )
    yield Mistake(
        "rope-backwards",
        "RoPE turned the other way",
        "(a cos φ + b sin φ, b cos φ − a sin φ)",
        "(a cos φ − b sin φ, a sin φ + b cos φ)",
        "A sign: −sin belongs to the first of the pair. Turned alike, queries and keys give the same scores; see q_rot.",
        edit=every(backwards("q_rot"), backwards("k_rot")),
    )
    yield from off_by_one(p, rope)
    yield from bases(rope)
    yield Mistake(
        "rope-on-values",
        "RoPE applied to the values too",
        "V turned by its positions",
        "only queries and keys are turned",
        "What is taken from a token does not depend on where it stands.",
        edit=on_values,
    )


def backwards(name: str) -> Edit:
    return wrapping(name, lambda turn, x, cos, sin: turn(x, cos, -sin))


def refitted(change: Callable[[Rope], Rope]) -> Pose:
    """The problem with a changed RoPE."""

    def pose(p: Problem) -> Problem | None:
        rope = p.options.parts.get("rope")
        return with_part(p, "rope", change(rope)) if isinstance(rope, Rope) else None

    return pose


@dataclass(frozen=True)
class Moved(Rope):
    """Queries and keys that stand elsewhere than they should: all by as many positions."""

    by: int = 0

    def of_queries(self, p: Problem) -> Array:
        return super().of_queries(p) + self.by

    def of_keys(self, p: Problem) -> Array:
        return super().of_keys(p) + self.by


@dataclass(frozen=True)
class FromZero(Rope):
    """Positions that do not count the cache."""

    def standing(self, p: Problem, count: int) -> Array:
        return np.arange(count) + self.offset


def moved(by: int) -> Pose:
    return refitted(lambda rope: Moved(**fields(rope), by=by))


def fields(rope: Rope) -> dict[str, Any]:
    return {name: getattr(rope, name) for name in Rope.__dataclass_fields__}


def off_by_one(p: Problem, rope: Rope) -> Iterator[Mistake]:
    """All positions off alike, which no score tells unless there is a cache, or those of one side."""
    if rope.cos:
        return  # a table has no row for every position
    right, teach = "p", "Print the position of each row: counted from 0, and with a cache after all that are in it."
    for by, sign, word in ((1, "+", "later"), (-1, "−", "earlier")):
        yield Mistake(
            f"rope-all-{word}",
            f"all positions off by one ({word})",
            f"p {sign} 1",
            right,
            f"Where all are off alike, only the cached keys, which are not, tell. {teach}",
            pose=moved(by),
        )
        yield Mistake(
            f"rope-queries-{word}",
            f"the positions of the queries off by one (one {word} than the keys')",
            f"p {sign} 1 for the queries",
            right,
            f"A query and its own key stand at the same place. {teach}",
            edit=turned_by("q_rot", by),
        )
        yield Mistake(
            f"rope-keys-{word}",
            f"the positions of the keys off by one (one {word} than the queries')",
            f"p {sign} 1 for the keys",
            right,
            f"A key and its own query stand at the same place. {teach}",
            edit=turned_by("k_rot", by),
        )
    past = set(p.past.tolist())
    if past != {0} and not rope.positions:
        yield Mistake(
            "rope-from-zero",
            "new tokens counted from 0, as if nothing were in the cache",
            "p from 0 on",
            f"p from {' or '.join(map(str, sorted(past)))} on",
            "A token that is decoded stands after all that are in the cache, not at the beginning.",
            pose=refitted(lambda rope: FromZero(**fields(rope))),
        )


def turned_by(name: str, by: int) -> Edit:
    """A rotation, and then one by as many positions more."""

    def edit(t: Trace, p: Problem) -> bool:
        op = t[name].operation if name in t else None
        if not isinstance(op, Rotate) or "frequencies" not in t:
            return False
        x, cos, sin = t[name].operands

        def compute(x: Array, cos: Array, sin: Array, theta: Array) -> Array:
            more, less = np.cos(by * theta), np.sin(by * theta)
            return op.forward(x, cos * more - sin * less, sin * more + cos * less)

        return instead(t, name, compute, x.name, cos.name, sin.name, "frequencies")

    return edit


def bases(rope: Rope) -> Iterator[Mistake]:
    for base in BASES:
        if base != rope.base and not rope.cos:
            yield Mistake(
                f"rope-base-{base:g}",
                f"RoPE with the base {base:g} instead of {rope.base:g}",
                f"θ = {base:g}^(−2i/d)",
                f"θ = {rope.base:g}^(−2i/d)",
                "Models differ in the base: 10000 in RoFormer and Llama 2, 500000 in Llama 3, 1000000 in others.",
                pose=based(base),
            )


def based(base: float) -> Pose:
    return refitted(lambda rope: replace(rope, base=base))


def on_values(t: Trace, p: Problem) -> bool:
    """The values turned as the keys are; only where they are made here, in the same width and as many."""
    turn, make = t["k_rot"].operation if "k_rot" in t else None, t["v"].operation
    if not isinstance(turn, Rotate) or make is None or t["v"].shape != t["k"].shape:
        return False
    (_, cos, sin), n = t["k_rot"].operands, len(t["v"].operands)

    def compute(*operands: Array) -> Array:
        return turn.forward(make.forward(*operands[:n]), *operands[n:])

    return instead(t, "v", compute, *(o.name for o in t["v"].operands), cos.name, sin.name)


# ------------------------------------------------------------------ ALiBi


def alibis(p: Problem, alibi: Alibi) -> Iterator[Mistake]:
    right = "S′ − m |i − j|"
    yield Mistake(
        "alibi-none",
        "ALiBi left out",
        "S′",
        right,
        "Without it attention does not know how far apart tokens stand.",
        edit=skipping("biased"),
    )
    yield Mistake(
        "alibi-sign",
        "ALiBi with the other sign: far keys favoured",
        "S′ + m |i − j|",
        right,
        "The bias is a penalty: it grows with the distance, and is subtracted.",
        edit=wrapping("alibi", lambda bias, m, d: -bias(m, d)),
    )
    yield Mistake(
        "alibi-signed",
        "ALiBi with the signed distance: keys after the query favoured",
        "S′ − m (i − j)",
        right,
        "Under a causal mask i − j is never negative; without one the distance needs its bars.",
        edit=signed(alibi),
    )
    yield from slopes(p)


def signed(alibi: Alibi) -> Edit:
    def edit(t: Trace, p: Problem) -> bool:
        query, key = standing(p, p.whole, alibi.standing(p))
        apart = (query - key)[:, 0]
        apart = apart if alibi.ragged(p) else apart[0]
        return wrapping("alibi", lambda bias, m, d: bias(m, apart.astype(d.dtype)))(t, p)

    return edit


Formula = Callable[[Array], Array]


def powers(n: int) -> Array:
    """The slopes of n heads by the formula for powers of two, whatever n is."""
    return 2.0 ** (-8.0 * np.arange(1, n + 1) / n)


def above(n: int) -> int:
    return 1 << (n - 1).bit_length()


SLOPES: tuple[tuple[str, str, Formula], ...] = (
    ("halves", "slopes 1/2, 1/4, 1/8, … whatever the number of heads", lambda m: 2.0 ** -np.arange(1, len(m) + 1)),
    ("from-one", "slopes that begin at 1", lambda m: powers(len(m)) * 2.0 ** (8.0 / len(m))),
    ("formula", "slopes 2^(−8h/n), though the number of heads is no power of two", lambda m: powers(len(m))),
    ("next-power", "the first slopes of the next power of two", lambda m: powers(above(len(m)))[: len(m)]),
    ("paper", "the paper's slopes, though others are given", lambda m: Slopes(len(m)).forward()),
    ("reversed", "slopes in the reverse order of the heads", lambda m: m[::-1]),
    ("alike", "the slope of the first head in all heads", lambda m: np.full_like(m, m[0])),
    ("one", "a slope of 1 in all heads", np.ones_like),
)


def slopes(p: Problem) -> Iterator[Mistake]:
    for key, says, formula in SLOPES:
        yield Mistake(
            f"alibi-slopes-{key}",
            f"ALiBi with {says}",
            f"m: {says}",
            "m = 2^(−8h/n), and for other numbers of heads those of the two nearest powers of two",
            "Print the slopes: head 1 of 8 has 1/2, head 1 of 4 has 1/4.",
            edit=with_slopes(formula),
        )


def with_slopes(formula: Formula) -> Edit:
    return wrapping("alibi", lambda bias, m, d: bias(formula(m.ravel()).astype(m.dtype).reshape(m.shape), d))
