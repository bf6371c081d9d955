"""Mistakes in rotary positions and linear biases, and in the other variants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from attntrace.mistakes.base import Mistake, first_of, instead, instead_all, skip, with_options
from attntrace.ops import LinearBias, Rotate, Softcap, Softmax
from attntrace.parts.alibi import Alibi
from attntrace.parts.rope import Rope
from attntrace.problem import Part, Problem
from attntrace.tape import Array, Trace

BASES = (100.0, 1000.0, 10000.0, 100000.0, 500000.0, 1000000.0)


def positions(p: Problem) -> Iterator[Mistake]:
    rope, alibi = p.options.parts.get("rope"), p.options.parts.get("alibi")
    if isinstance(rope, Rope):
        yield from ropes(rope)
    if isinstance(alibi, Alibi):
        yield from alibis()


def with_part(p: Problem, key: str, part: Part | None) -> Problem | None:
    """The problem with another part under a key, or without one."""
    parts: Mapping[str, Part] = {k: v for k, v in p.options.parts.items() if k != key}
    order = list(p.options.parts)
    if part is not None:
        parts = {k: part if k == key else p.options.parts[k] for k in order}
    return with_options(p, parts=parts)


def ropes(rope: Rope) -> Iterator[Mistake]:
    other = {"half": "interleaved", "interleaved": "half"}[rope.pairs]
    yield Mistake(
        "rope-pairs",
        f"RoPE with pairs {other} instead of {rope.pairs}",
        f"pairs: {other}",
        f"pairs: {rope.pairs}",
        "GPT-NeoX and Llama turn entry i with i + d/2, GPT-J and RoFormer neighbours. All shapes fit either way.",
        pose=lambda p: with_part(p, "rope", replace(rope, pairs=other)),
    )
    yield Mistake(
        "rope-none",
        "RoPE left out",
        "S = Q Kᵀ",
        "S = Q̃ K̃ᵀ, both turned by their positions",
        "Without it attention does not know in which order the tokens stand.",
        edit=lambda t, p: all([skip(t, "q_rot"), skip(t, "k_rot")]),
    )
    for side in "qk":
        yield Mistake(
            f"rope-only-{'k' if side == 'q' else 'q'}",
            f"RoPE not applied to the {'queries' if side == 'q' else 'keys'}",
            f"{side.upper()} as it is",
            "both queries and keys turned",
            "Scores depend on the distance only when both are turned.",
            edit=lambda t, p, side=side: skip(t, f"{side}_rot"),  # type: ignore[misc]
        )
    for by in (1, -1):
        yield shifted(by)
    yield Mistake(
        "rope-backwards",
        "RoPE turned the other way",
        "(a cos φ + b sin φ, b cos φ − a sin φ)",
        "(a cos φ − b sin φ, a sin φ + b cos φ)",
        "A sign: −sin belongs to the first of the pair. Turned alike, queries and keys give the same scores; see q_rot.",
        edit=backwards,
    )
    for base in BASES:
        if base != rope.base and not rope.cos:
            yield Mistake(
                f"rope-base-{base:g}",
                f"RoPE with the base {base:g} instead of {rope.base:g}",
                f"θ = {base:g}^(−2i/d)",
                f"θ = {rope.base:g}^(−2i/d)",
                "Models differ in the base: 10000 in RoFormer and Llama 2, 500000 in Llama 3, 1000000 in others.",
                pose=lambda p, base=base: with_part(p, "rope", replace(rope, base=base)),  # type: ignore[misc]
            )
    yield Mistake(
        "rope-on-values",
        "RoPE applied to the values too",
        "V turned by its positions",
        "only queries and keys are turned",
        "What is taken from a token does not depend on where it stands.",
        edit=on_values,
    )


def shifted(by: int) -> Mistake:
    """Queries one position off against the keys: if both are off alike, no score changes."""

    def edit(t: Trace, p: Problem) -> bool:
        step = first_of(t, "q_rot")
        if step is None or "angles" not in t or "frequencies" not in t or not isinstance(step.operation, Rotate):
            return False
        turn = step.operation

        def late(q: Array, angles: Array, theta: Array) -> Array:
            return turn.forward(q, np.cos(angles + by * theta), np.sin(angles + by * theta))

        return instead(t, "q_rot", late, step.operands[0].name, "angles", "frequencies")

    return Mistake(
        f"rope-off-{'later' if by > 0 else 'earlier'}",
        f"the positions of the queries off by one ({'one later' if by > 0 else 'one earlier'} than the keys')",
        f"p {'+' if by > 0 else '−'} 1",
        "p",
        "Print the position of each row: with a cache, a new token stands after all that are in it, counted from 0.",
        edit=edit,
    )


def backwards(t: Trace, p: Problem) -> bool:
    def turn(name: str) -> bool:
        op = t[name].operation if name in t else None
        return isinstance(op, Rotate) and instead(t, name, lambda x, cos, sin: op.forward(x, cos, -sin))

    return all([turn("q_rot"), turn("k_rot")])


def on_values(t: Trace, p: Problem) -> bool:
    step = first_of(t, "k_rot")
    if step is None or not isinstance(step.operation, Rotate) or t["v"].shape[-1] != t["k"].shape[-1] or t["v"].given:
        return False
    turn, compute = step.operation, t["v"].operation
    assert compute is not None
    cos, sin, operands = step.operands[1], step.operands[2], [o.name for o in t["v"].operands]
    n = len(operands)
    names = (*operands, cos.name, sin.name)
    if any(t.names.index(o) > t.names.index("q_rot") for o in names):
        return False
    return instead(t, "v", lambda *all_: turn.forward(compute.forward(*all_[:n]), all_[n], all_[n + 1]), *names)


def alibis() -> Iterator[Mistake]:
    yield Mistake(
        "alibi-none",
        "ALiBi left out",
        "S′",
        "S′ − m |i − j|",
        "Without it attention does not know how far apart tokens stand.",
        edit=lambda t, p: skip(t, "biased"),
    )
    yield Mistake(
        "alibi-sign",
        "ALiBi with the other sign: far keys favoured",
        "S′ + m |i − j|",
        "S′ − m |i − j|",
        "The bias is a penalty: it grows with the distance, and is subtracted.",
        edit=lambda t, p: instead(t, "alibi", lambda m, d: -LinearBias(p.headed).forward(m, d)),
    )
    for key, says, slopes in (
        ("halves", "slopes 1/2, 1/4, 1/8, … whatever the number of heads", lambda n: 2.0 ** -np.arange(1, n + 1)),
        ("from-one", "slopes that begin at 1", lambda n: 2.0 ** (-8.0 * np.arange(n) / n)),
        (
            "closest-power",
            "slopes of the formula for powers of two, with the heads as they are",
            lambda n: 2.0 ** (-8.0 * np.arange(1, n + 1) / n),
        ),
        ("reversed", "slopes in the reverse order of the heads", None),
    ):
        yield Mistake(
            f"alibi-slopes-{key}",
            f"ALiBi with {says}",
            f"m: {says}",
            "m = 2^(−8h/n), and for other numbers of heads those of the two nearest powers of two",
            "Print the slopes: head 1 of 8 has 1/2, head 1 of 4 has 1/4.",
            edit=lambda t, p, slopes=slopes: other_slopes(t, p, slopes),  # type: ignore[misc]
        )


def other_slopes(t: Trace, p: Problem, slopes) -> bool:  # type: ignore[no-untyped-def]
    n, bias = p.sizes.get("head", 1), LinearBias(p.headed)
    return instead(t, "alibi", lambda m, d: bias.forward((m[::-1] if slopes is None else slopes(n)).astype(m.dtype), d))


# ------------------------------------------------------------------ softcap, sinks, caches


def variants(p: Problem) -> Iterator[Mistake]:
    c = p.options.softcap
    if c is not None:
        yield from softcaps(c)
    if "sinks" in p.sources:
        yield Mistake(
            "sink-none",
            "the sink left out",
            "exp S / Σ exp S",
            "exp S / (Σ exp S + exp z)",
            "The sink takes its share of the sum: row sum + sink weight = 1.",
            edit=lambda t, p: "weights" in t and instead(t, "weights", lambda s, z: Softmax(p.options.masked_row).forward(s)),
        )
    if "cache" in p.options.parts:
        yield from caches()


def softcaps(c: float) -> Iterator[Mistake]:
    teach = "Scale, cap, mask, softmax: in this order. A cap after the mask turns −∞ into −c, and hidden keys leak."
    right = f"{c:g} tanh(S / √d_k / {c:g}), then the mask"
    yield Mistake("softcap-none", "softcap left out", "S / √d_k", right, teach, edit=lambda t, p: skip(t, "capped"))

    def after(t: Trace, p: Problem) -> bool:
        if "masked" not in t or "capped" not in t:
            return False
        missing = t["masked"].operation.missing  # type: ignore[union-attr]
        cap = Softcap(c)
        return skip(t, "capped") and instead(t, "masked", lambda s, m: cap.forward(s + np.expand_dims(m, missing)))

    yield Mistake(
        "softcap-after-mask", "softcap after the mask", f"{c:g} tanh((S / √d_k + M) / {c:g})", right, teach, edit=after
    )

    def before(t: Trace, p: Problem) -> bool:
        if "scaled" not in t or "capped" not in t:
            return False
        scale, cap = t["scaled"].operation, Softcap(c)
        assert scale is not None
        return instead(t, "scaled", lambda s: scale.forward(cap.forward(s))) and skip(t, "capped")

    yield Mistake(
        "softcap-before-scale", "softcap before the scale", f"{c:g} tanh(S / {c:g}) / √d_k", right, teach, edit=before
    )


def caches() -> Iterator[Mistake]:
    def other_order(t: Trace, p: Problem) -> bool:
        def turned(past: Array, new: Array) -> Array:
            return np.concatenate([new, past], axis=-2)

        return instead_all(t, ("k_all", "v_all"), turned)

    def without_new(t: Trace, p: Problem) -> bool:
        def stale(past: Array, new: Array) -> Array:
            return np.concatenate([past, np.full(new.shape, 0, new.dtype)], axis=-2)

        return instead_all(t, ("k_all", "v_all"), stale) and hide_new(t, p)

    yield Mistake(
        "cache-order",
        "the new key put before the cached ones",
        "[K; K_past]",
        "[K_past; K]",
        "The cache holds earlier tokens: they come first, and positions and masks count on it.",
        edit=other_order,
    )
    yield Mistake(
        "cache-without-new",
        "the new key left out of the cache",
        "K_past",
        "[K_past; K]",
        "A token attends to itself: its key and value are appended before the scores are taken.",
        edit=without_new,
    )


def hide_new(t: Trace, p: Problem) -> bool:
    """Scores of the new keys as if they were not there."""
    past = p.sizes.get("past_key", 0)
    name = next((n for n in ("masked", "biased", "capped", "scaled") if n in t), "")
    if not name:
        return False
    op = t[name].operation
    assert op is not None

    def compute(*operands: Array) -> Array:
        s = np.array(op.forward(*operands))
        s[..., past:] = -np.inf
        return s

    return instead(t, name, compute)
