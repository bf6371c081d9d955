"""Steps of the layer, and what jax.numpy and jax.nn make of the steps before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from attntrace.parts.block import Block
from attntrace.parts.rope import Rope
from attntrace.problem import Problem
from attntrace.reference.jax.local import exactly
from attntrace.reference.reading import KEYS, QUERIES, READY, TILED, VALUES, Reading, bias, head_counts, source, wide
from attntrace.tape import Array

Tensor = Any


class Arrays(Reading):
    """The arrays of a trace as JAX has them, half precision widened."""

    def __getitem__(self, name: str) -> Tensor:
        return jnp.asarray(super().__getitem__(name))


Compute = Callable[[Problem, Arrays], "Tensor | None"]  # None: the step is given, or it has no answer


def steps(p: Problem, have: Mapping[str, Array]) -> Iterator[tuple[str, str, Array]]:
    """(step, what JAX calls it, its values) for every step of the trace `have` that the table has."""
    a = Arrays(have)
    for name, values in have.items():
        if name in STEPS:
            what, compute = STEPS[name]
            with exactly():
                got = compute(p, a)
                found = None if got is None else np.asarray(got)
            if found is not None:
                with np.errstate(all="ignore"):
                    yield name, what, found.astype(values.dtype)


# ------------------------------------------------------------------ queries, keys and values


def linear(p: Problem, x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    y = jnp.einsum("...i,oi->...o" if p.options.transposed else "...i,io->...o", x, w)
    return y if b is None else y + b


def heads_first(y: Tensor, heads: int) -> Tensor:
    """(…, token, heads · d) to (…, head, token, d)."""
    return jnp.moveaxis(jnp.stack(jnp.split(y, heads, axis=-1)), 0, -3)


def project(letter: str) -> Compute:
    def compute(p: Problem, a: Arrays) -> Tensor | None:
        if not p.projected:
            return divided(p, a, letter)
        x, fused = a[source(p, a.have, letter)], "w_qkv" in p.sources
        names = "qkv" if fused else letter
        y = linear(p, x, a[f"w_{names}"], a.get(f"b_{names}"))
        y = unfused(p, y, letter) if fused else y
        return y if p.options.heads is None else heads_first(y, head_counts(p)[letter])

    return compute


def unfused(p: Problem, y: Tensor, letter: str) -> Tensor:
    heads, groups, _ = head_counts(p).values()
    n, which, d = heads // groups, "qkv".index(letter), y.shape[-1] // (heads + 2 * groups)
    if p.options.qkv_layout == "q|k|v":
        return jnp.split(y, [heads * d, (heads + groups) * d], axis=-1)[which]
    of_groups = [jnp.split(part, [n * d, (n + 1) * d], axis=-1)[which] for part in jnp.split(y, groups, axis=-1)]
    return jnp.concatenate(of_groups, axis=-1)


def divided(p: Problem, a: Arrays, letter: str) -> Tensor | None:
    if letter == "q" and "q_given" in a:
        return asking(p, a["q_given"])
    merged = a.get(f"{letter}_merged")
    return None if merged is None else heads_first(merged, head_counts(p)[letter])


def q_given(p: Problem, a: Arrays) -> Tensor | None:
    return heads_first(a["q_merged"], head_counts(p)["q"]) if "q_merged" in a else None


def asking(p: Problem, x: Tensor) -> Tensor:
    """The tokens whose queries are traced."""
    return jnp.take(x, jnp.asarray(list(p.rows)), axis=-2)


def angles(prefix: str) -> Compute:
    return lambda p, a: jnp.expand_dims(a[f"{prefix}positions"].astype(a["frequencies"].dtype), -1) * a["frequencies"]


def circular(prefix: str, which: str) -> Compute:
    def compute(p: Problem, a: Arrays) -> Tensor:
        table = a.get(f"{which}_table")
        if table is None:
            return {"cos": jnp.cos, "sin": jnp.sin}[which](a[f"{prefix}angles"])
        at = a[f"{prefix}positions"].astype(int)
        if table.ndim == 2:
            return table[at]
        return jax.vmap(lambda rows, i: rows[i])(table, jnp.broadcast_to(at, (len(table), at.shape[-1])))

    return compute


def rotated(letter: str) -> Compute:
    """Each pair times a matrix of 2 × 2."""

    def compute(p: Problem, a: Arrays) -> Tensor:
        rope = p.options.parts["rope"]
        assert isinstance(rope, Rope)
        x, prefix = a.last(letter, f"{letter}_norm"), "key_" if letter == "k" and "key_cos" in a else ""
        cos, sin = a[f"{prefix}cos"], a[f"{prefix}sin"]
        cos, sin = (jnp.expand_dims(t, 1) if t.ndim == 3 and x.ndim == 4 else t for t in (cos, sin))
        n = cos.shape[-1]
        shape = (n, 2) if rope.pairs == "interleaved" else (2, n)
        pairs = x[..., : 2 * n].reshape(*x.shape[:-1], *shape)
        pairs = pairs if rope.pairs == "interleaved" else jnp.swapaxes(pairs, -1, -2)
        turn = jnp.stack([jnp.stack([cos, -sin], -1), jnp.stack([sin, cos], -1)], -2)
        turned = jnp.einsum("...ij,...j->...i", turn, pairs)
        turned = turned if rope.pairs == "interleaved" else jnp.swapaxes(turned, -1, -2)
        flat = turned.reshape(*turned.shape[:-2], 2 * n)
        return jnp.concatenate([flat, jnp.broadcast_to(x[..., 2 * n :], (*flat.shape[:-1], x.shape[-1] - 2 * n))], axis=-1)

    return compute


def joined(letter: str) -> Compute:
    names = (letter, f"{letter}_norm", f"{letter}_rot")
    return lambda p, a: jnp.concatenate([a[f"{letter}_past"], a.last(*names)], axis=-2)


def past(letter: str) -> Compute:
    """Block after block, sequence after sequence."""

    def compute(p: Problem, a: Arrays) -> Tensor | None:
        if f"{letter}_blocks" not in a:
            return None
        blocks, table = a[f"{letter}_blocks"], a["table"].astype(int)

        def sequence(row: Tensor) -> Tensor:
            return jnp.concatenate([blocks[i] for i in row.tolist()], axis=-2)[..., : p.sizes["past_key"], :]

        return sequence(table) if table.ndim == 1 else jnp.stack([sequence(row) for row in table])

    return compute


# ------------------------------------------------------------------ from scores to the output


def scores(p: Problem, a: Arrays) -> Tensor:
    return jnp.einsum("...qd,...kd->...qk", a.last(*QUERIES), a.last(*KEYS, "k_shared"))


def scaled(p: Problem, a: Arrays) -> Tensor:
    s = a["scores"]
    if p.options.scale is not None:
        return s * p.options.scale
    return s * jax.lax.rsqrt(jnp.asarray(a.last(*QUERIES).shape[-1], s.dtype))


def capped(p: Problem, a: Arrays) -> Tensor:
    return p.options.softcap * jnp.tanh(a["scaled"] / p.options.softcap)


def biased(p: Problem, a: Arrays) -> Tensor:
    s, b = a.last(*READY[:2]), a["alibi"]
    return s + b


def mask(p: Problem, a: Arrays) -> Tensor:
    return wide_mask(p).reshape(a["mask"].shape)


def wide_mask(p: Problem) -> Tensor:
    m = bias(p, xp=jnp)
    return m.astype(jnp.float32) if m.dtype.itemsize < 4 else m


def masked(p: Problem, a: Arrays) -> Tensor:
    s = a.last(*READY[:3])
    m = wide(bias(p))  # with all four axes, of which the trace's own mask lacks some
    full = s.reshape(p.sizes.get("batch", 1), p.sizes.get("head", 1), *s.shape[-2:])
    return (full + m).reshape(s.shape)


def softmax(p: Problem, s: Tensor) -> Tensor:
    inner = p.options.softmax_dtype
    return jax.nn.softmax(s if inner is None else s.astype(inner), axis=-1)


def with_sink(p: Problem, a: Arrays) -> Tensor:
    """Softmax over the keys and one more, of the sink's logit."""
    s = a.last(*READY)
    z = a["sinks"].reshape(-1, 1, 1) if p.headed else a["sinks"].reshape(1, 1)
    return softmax(p, jnp.concatenate([s, jnp.broadcast_to(z, (*s.shape[:-1], 1))], axis=-1))


def weights(p: Problem, a: Arrays) -> Tensor:
    if "sinks" in a:
        return with_sink(p, a)[..., :-1]
    s = a.last(*READY)
    w = softmax(p, s)
    return w if p.options.masked_row == "nan" else jnp.where(jnp.isneginf(s).all(axis=-1, keepdims=True), 0, w)


def attended(p: Problem, a: Arrays) -> Tensor | None:
    if "weights" not in a:
        return None
    return jnp.einsum("...qk,...kd->...qd", a.last("weights", "dropped"), a.last(*VALUES, "v_shared"))


def merged(p: Problem, a: Arrays) -> Tensor:
    c = a["context"]
    return jnp.concatenate(list(jnp.moveaxis(c, -3, 0)), axis=-1) if p.headed else c


def output(p: Problem, a: Arrays) -> Tensor | None:
    if "concat" not in a:
        return attended(p, a)
    return linear(p, a["concat"], a["w_o"], a.get("b_o")) if "w_o" in a else a["concat"]


# ------------------------------------------------------------------ the block


def block(p: Problem) -> Block:
    part = p.options.parts["block"]
    assert isinstance(part, Block)
    return part


def wide_layer(name: str) -> Compute:
    return lambda p, a: linear(p, a.last("normed1", "normed1_rows", "normed2"), a[f"w_{name}"], a.get(f"b_{name}"))


def activated(p: Problem, a: Arrays) -> Tensor:
    x, kind = a.last("up", "gate"), block(p).mlp
    if kind in ("silu", "gated"):
        return jax.nn.silu(x)
    return jax.nn.relu(x) if kind == "relu" else jax.nn.gelu(x, approximate=kind in ("gelu_tanh", "gated_gelu"))


def block_output(p: Problem, a: Arrays) -> Tensor | None:
    if block(p).order == "post":
        return None
    if block(p).order == "parallel":
        return a.last("x", "x_rows") + a["output"] + a["mlp"]
    return a["residual"] + a["mlp"]


STEPS: dict[str, tuple[str, Compute]] = {
    "normed1_rows": ("take", lambda p, a: asking(p, a["normed1"])),
    "x_rows": ("take", lambda p, a: asking(p, a["x"])),
    "q_given": ("split, stack", q_given),
    "q": ("einsum", project("q")),
    "k": ("einsum", project("k")),
    "v": ("einsum", project("v")),
    "angles": ("multiply", angles("")),
    "key_angles": ("multiply", angles("key_")),
    "cos": ("cos, index", circular("", "cos")),
    "sin": ("sin, index", circular("", "sin")),
    "key_cos": ("cos, index", circular("key_", "cos")),
    "key_sin": ("sin, index", circular("key_", "sin")),
    "q_rot": ("einsum", rotated("q")),
    "k_rot": ("einsum", rotated("k")),
    "k_past": ("concatenate", past("k")),
    "v_past": ("concatenate", past("v")),
    "k_all": ("concatenate", joined("k")),
    "v_all": ("concatenate", joined("v")),
    "k_shared": ("repeat", lambda p, a: jnp.repeat(a.last(*KEYS), p.group, axis=-3)),
    "v_shared": ("repeat", lambda p, a: jnp.repeat(a.last(*VALUES), p.group, axis=-3)),
    "scores": ("einsum", scores),
    "scaled": ("rsqrt, multiply", scaled),
    "capped": ("tanh", capped),
    "biased": ("add", biased),
    "mask": ("where", mask),
    "masked": ("add", masked),
    "weights": ("nn.softmax", weights),
    "sink_weights": ("nn.softmax", lambda p, a: with_sink(p, a)[..., -1]),
    "dropped": ("multiply", lambda p, a: a["weights"] * a["keep"] / (1 - (p.options.dropout or 0))),
    "context": ("einsum", attended),
    "concat": ("concatenate", merged),
    "output": ("einsum", output),
    "residual": ("add", lambda p, a: a.last("x", "x_rows") + a["output"]),
    "up": ("einsum", wide_layer("up")),
    "gate": ("einsum", wide_layer("gate")),
    "activated": ("nn.gelu, nn.silu, nn.relu", activated),
    "gated": ("multiply", lambda p, a: a["activated"] * a["up"]),
    "mlp": ("einsum", lambda p, a: linear(p, a.last("activated", "gated"), a["w_down"], a.get("b_down"))),
    "residual2": ("add", lambda p, a: a["normed1"] + a["mlp"]),
    "block_output": ("add", block_output),
}
NORMS = "it has no layers that normalise"
REASONS: dict[str, str] = {  # why there is no answer for a step; tiles have one for all of them
    **dict.fromkeys(("normed1", "normed2", "q_norm", "k_norm", "block_output"), NORMS),
    **dict.fromkeys(("slopes", "alibi"), "it has no linear biases: they are handed over as bias"),
    "frequencies": "it has no rotations",
    "": TILED,
}
