"""Steps of the layer, and the ONNX operators that give them from the steps before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise

import numpy as np

from attntrace.parts.block import Block
from attntrace.parts.qk_norm import QKNorm
from attntrace.parts.rope import Rope
from attntrace.problem import Problem
from attntrace.reference.onnx.evaluator import concat, cut, gather, number, op, reshape, transpose
from attntrace.reference.reading import KEYS, QUERIES, READY, TILED, VALUES, Reading, head_counts, source, wide
from attntrace.tape import Array


class Arrays(Reading):
    """The arrays of a trace, widened to what the evaluator works in."""


Compute = Callable[[Problem, Arrays], "Array | None"]  # None: the step is given, or it has no answer


def steps(p: Problem, have: Mapping[str, Array]) -> Iterator[tuple[str, str, Array]]:
    """(step, the operators, its values) for every step of the trace `have` that the table has."""
    a = Arrays(have)
    for name, values in have.items():
        if name in STEPS:
            what, compute = STEPS[name]
            got = compute(p, a)
            if got is not None:
                with np.errstate(all="ignore"):
                    yield name, what, got.astype(values.dtype)


# ------------------------------------------------------------------ projections


def linear(p: Problem, x: Array, w: Array, b: Array | None) -> Array:
    """Gemm where x is a matrix; with a batch axis MatMul and Add."""
    if x.ndim == 2:
        return op("Gemm", x, w, b, transB=int(p.options.transposed))
    y = op("MatMul", x, transpose(w, 1, 0) if p.options.transposed else w)
    return y if b is None else op("Add", y, b)


def heads_first(y: Array, heads: int) -> Array:
    """(…, token, heads · d) to (…, head, token, d)."""
    return transpose(reshape(y, *y.shape[:-1], heads, -1), -3 + y.ndim + 1, -2 + y.ndim + 1)


def project(letter: str) -> Compute:
    def compute(p: Problem, a: Arrays) -> Array | None:
        if not p.projected:
            return divided(p, a, letter)
        x, fused = a[source(p, a.have, letter)], "w_qkv" in p.sources
        names = "qkv" if fused else letter
        y = linear(p, x, a[f"w_{names}"], a.get(f"b_{names}"))
        y = unfused(p, y, letter) if fused else y
        return y if p.options.heads is None else heads_first(y, head_counts(p)[letter])

    return compute


def unfused(p: Problem, y: Array, letter: str) -> Array:
    """The part of a fused projection that makes q, k or v, by Split; by group, after each group has an axis of its own."""
    heads, groups, _ = head_counts(p).values()
    n, which = heads // groups, "qkv".index(letter)
    d = y.shape[-1] // (heads + 2 * groups)
    if p.options.qkv_layout == "q|k|v":
        return split(y, (heads * d, groups * d, groups * d), -1)[which]
    part = split(reshape(y, *y.shape[:-1], groups, n + 2, d), (n, 1, 1), -2)[which]
    return reshape(part, *y.shape[:-1], -1)


def split(a: Array, sizes: tuple[int, ...], axis: int) -> list[Array]:
    ends = np.cumsum([0, *sizes]).tolist()
    return [cut(a, start, stop, axis) for start, stop in pairwise(ends)]


def divided(p: Problem, a: Arrays, letter: str) -> Array | None:
    """Queries, keys and values that were given: the queries that are traced, or heads that lay side by side."""
    if letter == "q" and "q_given" in a:
        return rows_of(p, a["q_given"])
    merged = a.get(f"{letter}_merged")
    return None if merged is None else heads_first(merged, head_counts(p)[letter])


def q_given(p: Problem, a: Arrays) -> Array | None:
    return heads_first(a["q_merged"], head_counts(p)["q"]) if "q_merged" in a else None


def rows_of(p: Problem, x: Array) -> Array:
    return gather(x, np.array(p.rows), -2)


# ------------------------------------------------------------------ norms


def normed(kind: str, x: Array, eps: float, w: Array | None, b: Array | None = None) -> Array:
    """LayerNormalization or RMSNormalization where their float32 attribute holds epsilon; else the operators that they are
    made of."""
    if kind != "l2" and (x.dtype == np.float32 or float(np.float32(eps)) == eps):
        scale = np.ones(x.shape[-1], x.dtype) if w is None else w
        name, extra = ("LayerNormalization", (b,)) if kind == "layernorm" else ("RMSNormalization", ())
        return op(name, x, scale, *extra, axis=-1, epsilon=eps)
    last = np.array([-1])
    x = op("Sub", x, op("ReduceMean", x, last)) if kind == "layernorm" else x
    if kind == "l2":
        size = op("Max", op("ReduceL2", x, last), number(eps, x))
    else:
        size = op("Sqrt", op("Add", op("ReduceMean", op("Mul", x, x), last), number(eps, x)))
    y = op("Div", x, size)
    y = y if w is None else op("Mul", y, w)
    return y if b is None else op("Add", y, b)


def qk_norm(letter: str) -> Compute:
    def compute(p: Problem, a: Arrays) -> Array:
        part = p.options.parts["qk_norm"]
        assert isinstance(part, QKNorm)
        return normed(part.norm, a[letter], part.eps, a.get(f"{letter}_norm_weight"))

    return compute


# ------------------------------------------------------------------ rotations


def frequencies(p: Problem, a: Arrays) -> Array | None:
    """base^(−2i/d); scaled ones are left to others."""
    rope = p.options.parts["rope"]
    assert isinstance(rope, Rope)
    if rope.scaling is not None:
        return None
    pairs = p.sizes["pair"] if "pair" in p.sizes else a["frequencies"].shape[-1]
    exponent = op("Div", op("Range", *(np.array(n, np.float64) for n in (0, 2 * pairs, 2))), np.array(2.0 * pairs))
    return op("Reciprocal", op("Pow", np.array(rope.base, np.float64), exponent))


def angles(prefix: str) -> Compute:
    def compute(p: Problem, a: Arrays) -> Array:
        theta = a["frequencies"]
        at = a[f"{prefix}positions"].astype(theta.dtype)
        return op("Mul", op("Unsqueeze", at, np.array([-1])), theta)

    return compute


def circular(prefix: str, which: str) -> Compute:
    def compute(p: Problem, a: Arrays) -> Array | None:
        table = a.get(f"{which}_table")
        if table is None:
            return op(which.capitalize(), a[f"{prefix}angles"])
        return gather(table, a[f"{prefix}positions"], 0) if table.ndim == 2 else None

    return compute


def rotated(letter: str) -> Compute:
    """RotaryEmbedding, with the cosines and sines of the trace as its caches, a row for each token."""

    def compute(p: Problem, a: Arrays) -> Array:
        rope = p.options.parts["rope"]
        assert isinstance(rope, Rope)
        x = a.last(letter, f"{letter}_norm")
        prefix = "key_" if letter == "k" and "key_cos" in a else ""
        cos, sin = a[f"{prefix}cos"], a[f"{prefix}sin"]
        full = x if p.headed else x[..., None, :, :]
        full = full if p.batched else full[None]
        cos, sin = (np.broadcast_to(t, (len(full), *t.shape[-2:])) for t in (cos, sin))
        dims = {"rotary_embedding_dim": 2 * cos.shape[-1], "interleaved": int(rope.pairs == "interleaved")}
        return reshape(op("RotaryEmbedding", full, cos, sin, **dims), *x.shape)

    return compute


# ------------------------------------------------------------------ caches and groups


def past(letter: str) -> Compute:
    """The blocks of each sequence, by Gather, side by side by Reshape; as many of their slots as are held."""

    def compute(p: Problem, a: Arrays) -> Array | None:
        if f"{letter}_blocks" not in a:
            return None
        table = a["table"]
        found = gather(a[f"{letter}_blocks"], table, 0)  # ([batch], page, [head], slot, d)
        page = table.ndim - 1
        order = [i for i in range(found.ndim) if i != page]
        found = transpose(found, *order[:-2], page, *order[-2:])
        found = reshape(found, *found.shape[:-3], -1, found.shape[-1])
        return cut(found, 0, p.sizes["past_key"], -2)

    return compute


def joined(letter: str) -> Compute:
    names = (letter, f"{letter}_norm", f"{letter}_rot")
    return lambda p, a: concat(a[f"{letter}_past"], a.last(*names), axis=-2)


def shared(names: tuple[str, ...]) -> Compute:
    """Every group as often as it has heads: an axis of its own, expanded, and folded into the heads."""

    def compute(p: Problem, a: Arrays) -> Array:
        x = a.last(*names)
        each = op("Unsqueeze", x, np.array([-3]))
        times = np.array([*each.shape[:-3], p.group, *each.shape[-2:]])
        return reshape(op("Expand", each, times), *x.shape[:-3], -1, *x.shape[-2:])

    return compute


# ------------------------------------------------------------------ from scores to the output


def scores(p: Problem, a: Arrays) -> Array:
    k = a.last(*KEYS, "k_shared")
    return op("MatMul", a.last(*QUERIES), transpose(k, k.ndim - 2, k.ndim - 1))


def scaled(p: Problem, a: Arrays) -> Array:
    s, d = a["scores"], a.last(*QUERIES).shape[-1]
    if p.options.scale is not None:
        return op("Mul", s, number(p.options.scale, s))
    return op("Div", s, op("Sqrt", number(d, s)))


def capped(p: Problem, a: Arrays) -> Array:
    s = a["scaled"]
    c = number(p.options.softcap or 0, s)
    return op("Mul", op("Tanh", op("Div", s, c)), c)


def biased(p: Problem, a: Arrays) -> Array:
    return plus(a.last(*READY[:2]), a["alibi"], has_heads=p.headed)


def masked(p: Problem, a: Arrays) -> Array:
    s, m = a.last(*READY[:3]), a["mask"]
    return plus(s, m, has_heads=m.ndim == s.ndim or (m.ndim == 3 and len(m) == s.shape[-3] and "batch" not in mask_axes(p)))


def plus(s: Array, m: Array, has_heads: bool) -> Array:
    """What is added for each batch item alone gets an axis of one head."""
    lifted = op("Unsqueeze", m, np.array([1])) if m.ndim == 3 and s.ndim == 4 and not has_heads else m
    return op("Add", s, lifted)


def mask_axes(p: Problem) -> tuple[str, ...]:
    """Which of batch and head the mask of the trace tells apart."""
    return tuple(axis for axis in p.lead if any(axis in m.axes(p) for m in p.masks))


def with_sink(p: Problem, a: Arrays) -> Array:
    """Softmax over the keys and one more, of the sink's logit."""
    s = a.last(*READY)
    sinks = a["sinks"]
    z = reshape(sinks, *((-1, 1, 1) if p.headed else (1, 1)))
    return softmax(p, concat(s, op("Expand", z, np.array([*s.shape[:-1], 1])), axis=-1))


def softmax(p: Problem, s: Array) -> Array:
    """Softmax in a dtype of its own where the problem names one: there half precision is not widened."""
    inner = p.options.softmax_dtype
    with np.errstate(all="ignore"):
        w = op("Softmax", s if inner is None else s.astype(inner), axis=-1)
    return wide(w)


def weights(p: Problem, a: Arrays) -> Array:
    if "sinks" in a:
        w = with_sink(p, a)
        return cut(w, 0, w.shape[-1] - 1, -1)
    s = a.last(*READY)
    w = softmax(p, s)
    if p.options.masked_row == "nan":
        return w
    top = op("ReduceMax", s, np.array([-1]))
    return op("Where", op("IsInf", top, detect_positive=0), number(0, w), w)


def sink_weights(p: Problem, a: Arrays) -> Array:
    w = with_sink(p, a)
    return op("Squeeze", cut(w, w.shape[-1] - 1, w.shape[-1], -1), np.array([-1]))


def dropped(p: Problem, a: Arrays) -> Array:
    w = a["weights"]
    return op("Div", op("Mul", w, a["keep"]), number(1 - (p.options.dropout or 0), w))


def attended(p: Problem, a: Arrays) -> Array | None:
    if "weights" not in a:
        return None
    return op("MatMul", a.last("weights", "dropped"), a.last(*VALUES, "v_shared"))


def merged(p: Problem, a: Arrays) -> Array:
    c = a["context"]
    if not p.headed:
        return op("Identity", c)
    c = transpose(c, c.ndim - 3, c.ndim - 2)
    return reshape(c, *c.shape[:-2], -1)


def output(p: Problem, a: Arrays) -> Array | None:
    if "concat" not in a:
        return attended(p, a)
    h = a["concat"]
    return linear(p, h, a["w_o"], a.get("b_o")) if "w_o" in a else op("Identity", h)


# ------------------------------------------------------------------ the block


def block(p: Problem) -> Block:
    part = p.options.parts["block"]
    assert isinstance(part, Block)
    return part


def block_norm(p: Problem, a: Arrays, which: str, *names: str) -> Array:
    return normed(block(p).norm, a.last(*names), block(p).eps, a.get(f"w_norm{which}"), a.get(f"b_norm{which}"))


def first_norm(p: Problem, a: Arrays) -> Array:
    return block_norm(p, a, "1", "residual" if block(p).order == "post" else "x")


def asking(name: str) -> Compute:
    return lambda p, a: rows_of(p, a[name])


def wide_layer(name: str) -> Compute:
    """The first layers of the MLP, which read the last norm that there is."""
    return lambda p, a: linear(p, a.last("normed1", "normed1_rows", "normed2"), a[f"w_{name}"], a.get(f"b_{name}"))


def activated(p: Problem, a: Arrays) -> Array | None:
    """The exact Gelu is made of Erf, which the evaluator computes in float32 only."""
    x = a.last("up", "gate")
    kind = {"gated": "silu", "gated_gelu": "gelu_tanh"}.get(block(p).mlp, block(p).mlp)
    if kind == "gelu" and x.dtype != np.float32:
        return None
    if kind == "silu":
        return op("Mul", x, op("Sigmoid", x))
    return op("Relu", x) if kind == "relu" else op("Gelu", x, approximate="tanh" if kind == "gelu_tanh" else "none")


def mlp(p: Problem, a: Arrays) -> Array:
    return linear(p, a.last("activated", "gated"), a["w_down"], a.get("b_down"))


def block_output(p: Problem, a: Arrays) -> Array:
    order = block(p).order
    if order == "post":
        return block_norm(p, a, "2", "residual2")
    if order == "parallel":
        return op("Sum", a.last("x", "x_rows"), a["output"], a["mlp"])
    return op("Add", a["residual"], a["mlp"])


LINEAR = "Gemm, MatMul, Add"
NORM = "LayerNormalization, RMSNormalization"
STEPS: dict[str, tuple[str, Compute]] = {
    "normed1": (NORM, first_norm),
    "normed1_rows": ("Gather", asking("normed1")),
    "x_rows": ("Gather", asking("x")),
    "q_given": ("Reshape, Transpose", q_given),
    "q": (LINEAR, project("q")),
    "k": (LINEAR, project("k")),
    "v": (LINEAR, project("v")),
    "q_norm": (NORM, qk_norm("q")),
    "k_norm": (NORM, qk_norm("k")),
    "frequencies": ("Pow, Reciprocal", frequencies),
    "angles": ("Mul", angles("")),
    "key_angles": ("Mul", angles("key_")),
    "cos": ("Cos, Gather", circular("", "cos")),
    "sin": ("Sin, Gather", circular("", "sin")),
    "key_cos": ("Cos, Gather", circular("key_", "cos")),
    "key_sin": ("Sin, Gather", circular("key_", "sin")),
    "q_rot": ("RotaryEmbedding", rotated("q")),
    "k_rot": ("RotaryEmbedding", rotated("k")),
    "k_past": ("Gather, Reshape", past("k")),
    "v_past": ("Gather, Reshape", past("v")),
    "k_all": ("Concat", joined("k")),
    "v_all": ("Concat", joined("v")),
    "k_shared": ("Expand", shared(KEYS)),
    "v_shared": ("Expand", shared(VALUES)),
    "scores": ("MatMul", scores),
    "scaled": ("Div, Mul", scaled),
    "capped": ("Tanh", capped),
    "biased": ("Add", biased),
    "masked": ("Add", masked),
    "weights": ("Softmax", weights),
    "sink_weights": ("Softmax", sink_weights),
    "dropped": ("Mul, Div", dropped),
    "context": ("MatMul", attended),
    "concat": ("Transpose, Reshape", merged),
    "output": ("Gemm, MatMul", output),
    "residual": ("Add", lambda p, a: op("Add", a.last("x", "x_rows"), a["output"])),
    "normed2": (NORM, lambda p, a: block_norm(p, a, "2", "x", "x_rows", "residual")),
    "up": (LINEAR, wide_layer("up")),
    "gate": (LINEAR, wide_layer("gate")),
    "activated": ("Gelu, Sigmoid, Relu", activated),
    "gated": ("Mul", lambda p, a: op("Mul", a["activated"], a["up"])),
    "mlp": (LINEAR, mlp),
    "residual2": ("Add", lambda p, a: op("Add", a["normed1"], a["mlp"])),
    "block_output": ("Add, Sum", block_output),
}
ALIBI = "it has no linear biases: they are handed over as attn_mask"
REASONS: dict[str, str] = {  # why there is no answer for a step; tiles have one for all of them
    "slopes": ALIBI,
    "alibi": ALIBI,
    "frequencies": "it has no scaling of rotations",
    "activated": "it has Erf in float32 only",
    **dict.fromkeys(("cos", "sin", "key_cos", "key_sin"), "Gather takes one table for all batch items"),
    "": TILED,
}
