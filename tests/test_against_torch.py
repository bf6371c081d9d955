"""Hundreds of random layers, held by `verify`, and by calls of torch's own attention that are written out here.

The calls here begin at the inputs and end at the output, in float64 whatever the dtype of the trace; what a trace in that
dtype may be off by is worked out by `compare.accumulated`, which test_verify.py holds to be neither too wide nor too narrow.
"""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attntrace
from attntrace import compare

torch = pytest.importorskip("torch")
F = torch.nn.functional

COUNT = 360
DTYPES = ("float64", "float64", "float32", "float32", "float16", "bfloat16")
Config = dict[str, Any]


# ------------------------------------------------------------------ random configs


class Draw:
    """Random choices, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.dtype = DTYPES[seed % len(DTYPES)]

    def one(self, *choices: Any) -> Any:
        return choices[self.rng.integers(len(choices))]

    def size(self, high: int = 6) -> int:
        return int(self.rng.integers(1, high + 1))

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def array(self, *shape: int, size: float = 1.0) -> np.ndarray:
        """Numbers that the dtype of the trace holds exactly, so that all begin from the same ones."""
        kind = np.dtype(ml_dtypes.bfloat16 if self.dtype == "bfloat16" else self.dtype)
        with np.errstate(all="ignore"):
            return (size * self.rng.normal(size=shape)).astype(kind).astype(np.float64)

    def magnitude(self) -> float:
        """Of inputs: mostly 1; scores of ±1,000 for which softmax is a choice of one; next to nothing; huge."""
        huge = {"float64": 1e60, "float32": 1e12, "float16": 100.0, "bfloat16": 1e12}[self.dtype]
        return self.one(1.0, 1.0, 1.0, 30.0, 1e-30, 1e-3, huge)


def config(seed: int) -> Config:
    d = Draw(seed)
    shape = Shape(d)
    kind = d.one(projected, projected, fused, direct, direct)
    made = {"dtype": d.dtype, **kind(d, shape)}
    if shape.heads is not None and "kv_heads" not in made and shape.groups != shape.heads:
        made |= {"heads": shape.heads, "kv_heads": shape.groups}
    if d.chance(0.4):
        made["scale"] = d.one(1.0, 0.5, 2.0, 0.0, -0.7, 1e-3, 1 / 3)
    chosen = [one_mask(d, shape) for _ in range(d.one(0, 0, 1, 1, 1, 2, 3))]
    if chosen:
        made["mask"] = chosen[0] if len(chosen) == 1 and d.chance(0.5) else chosen
    if d.chance(0.1):
        made["masked_row"] = "nan"
    return made


class Shape:
    """The lengths of a random layer's axes; None for an axis that it lacks."""

    def __init__(self, d: Draw) -> None:
        self.batch, self.heads = d.one(None, 1, 2, 3), d.one(None, 1, 2, 4)
        self.groups = self.heads and d.one(*(g for g in (1, 2, 4) if self.heads % g == 0))
        self.queries, self.keys = d.size(), d.size()
        self.d_k, self.d_v, self.width, self.kv_width = (d.size(5) for _ in range(4))
        self.lead = () if self.batch is None else (self.batch,)


def output(d: Draw, merged: int, transposed: bool) -> Config:
    if d.chance(0.5):
        return {}
    width = d.size()
    made = {"w_o": d.array(*((width, merged) if transposed else (merged, width)))}
    return made | ({"b_o": d.array(width)} if d.chance(0.5) else {})


def projected(d: Draw, s: Shape) -> Config:
    cross, transposed, h, g = d.chance(0.4), d.chance(0.4), s.heads or 1, s.groups or 1
    if not cross:
        s.keys, s.kv_width = s.queries, s.width
    size = d.magnitude()
    made: Config = {"x": d.array(*s.lead, s.queries, s.width, size=size)}
    if cross:
        made["x_kv"] = d.array(*s.lead, s.keys, s.kv_width, size=size)
    for letter, rows, columns in (("q", s.width, h * s.d_k), ("k", s.kv_width, g * s.d_k), ("v", s.kv_width, g * s.d_v)):
        made[f"w_{letter}"] = d.array(*((columns, rows) if transposed else (rows, columns)))
        if d.chance(0.4):
            made[f"b_{letter}"] = d.array(columns)
    made |= output(d, h * s.d_v, transposed)
    made |= {"weight_layout": "out_in"} if transposed else {}
    return made | ({} if s.heads is None else {"heads": s.heads, "kv_heads": s.groups})


def fused(d: Draw, s: Shape) -> Config:
    transposed, h, g = d.chance(0.4), s.heads or 1, s.groups or 1
    s.keys, s.d_v = s.queries, s.d_k
    columns = (h + 2 * g) * s.d_k
    made = {
        "x": d.array(*s.lead, s.queries, s.width, size=d.magnitude()),
        "w_qkv": d.array(*((columns, s.width) if transposed else (s.width, columns))),
        "qkv_layout": d.one("q|k|v", "per-head" if h == g else "per-group", "per-group"),
    }
    if d.chance(0.5):
        made["b_qkv"] = d.array(columns)
    made |= output(d, h * s.d_v, transposed)
    made |= {"weight_layout": "out_in"} if transposed else {}
    return made | ({} if s.heads is None else {"heads": s.heads, "kv_heads": s.groups})


def direct(d: Draw, s: Shape) -> Config:
    """q, k and v as (token, d), (token, heads · d), (head, token, d) or (batch, head, token, d)."""
    rank = d.one(2, 2, 3, 4)
    if rank == 2:
        s.batch, s.lead = None, ()
    else:
        s.heads, s.groups = s.heads or 2, s.groups or 2
        s.batch = (s.batch or 2) if rank == 4 else None
    h, g = s.heads or 1, s.groups or 1
    size = d.magnitude()
    made = {}
    for name, tokens, heads, width in (("q", s.queries, h, s.d_k), ("k", s.keys, g, s.d_k), ("v", s.keys, g, s.d_v)):
        shape = (tokens, heads * width) if rank == 2 else (heads, tokens, width)
        made[name] = d.array(*((s.batch,) if rank == 4 else ()), *shape, size=1.0 if name == "v" else size)
    made |= output(d, h * s.d_v, transposed=False)
    return made | ({} if s.heads is None else {"heads": s.heads, "kv_heads": s.groups})


def one_mask(d: Draw, s: Shape) -> Any:
    align = d.one("top-left", "bottom-right")
    kind = d.one("causal", "keep", "ignore", "add", "padding", "window")
    if kind == "causal":
        return "causal" if s.queries == s.keys and d.chance(0.5) else {"causal": align}
    if kind == "padding":
        return {"padding": [int(d.rng.integers(0, s.keys + 1)) for _ in range(s.batch or 1)]}
    if kind == "window":
        sides = {side: int(d.rng.integers(0, 3)) for side in ("left", "right") if d.chance(0.7)}
        return {"window": {**sides, "align": align}}
    full = tuple(n for n in (s.batch, s.heads) if n is not None)
    kept = full[d.rng.integers(0, len(full) + 1) :]  # leading axes may be left out, or be 1
    shape = tuple(d.one(n, 1) for n in (*kept, s.queries, s.keys))
    if kind == "add":
        numbers = d.array(*shape)
        return {"add": np.where(d.rng.random(shape) < 0.2, -np.inf, numbers)}
    return {kind: (d.rng.random(shape) < d.one(0.3, 0.7)).astype(int)}


# ------------------------------------------------------------------ the same layer by torch, written out


def tensor(array: Any) -> Any:
    return torch.tensor(np.asarray(array), dtype=torch.float64)


def four(t: Any, c: Config) -> Any:
    """(…, token, heads · d) or with heads of its own, as (batch, head, token, d)."""
    return t.reshape(*(1,) * (4 - t.dim()), *t.shape)


def projection(c: Config, letter: str) -> Any:
    """Q, K or V as (batch, head, token, d)."""
    heads = c.get("heads", 1) if letter == "q" else c.get("kv_heads", c.get("heads", 1))
    if "q" in c:
        given = tensor(c[letter])
        if given.dim() > 2:
            return four(given, c)
        return given.unflatten(-1, (heads, -1)).movedim(-2, 0)[None]
    x = tensor(c["x_kv"] if letter != "q" and "x_kv" in c else c["x"])
    w, b = weight(c, letter)
    y = F.linear(x, w, b).unflatten(-1, (heads, -1)).movedim(-2, -3)
    return y if y.dim() == 4 else y[None]


def weight(c: Config, letter: str) -> tuple[Any, Any]:
    """Weight (out, in) and bias, cut out of a fused one head by head."""
    transposed = c.get("weight_layout") == "out_in"
    w = tensor(c[f"w_{letter}"] if "w_qkv" not in c else c["w_qkv"])
    w = w if transposed else w.T
    b = c.get(f"b_{letter}" if "w_qkv" not in c else "b_qkv")
    b = None if b is None else tensor(b)
    if "w_qkv" not in c:
        return w, b
    rows = fused_rows(c, letter, len(w))
    return w[rows], None if b is None else b[rows]


def fused_rows(c: Config, letter: str, total: int) -> list[int]:
    h, g = c.get("heads", 1), c.get("kv_heads", c.get("heads", 1))
    d, n = total // (h + 2 * g), h // g
    if c["qkv_layout"] == "q|k|v":
        start, count = {"q": (0, h), "k": (h, g), "v": (h + g, g)}[letter]
        return list(range(start * d, (start + count) * d))
    rows = []
    for group in range(g):
        first = group * (n + 2) * d
        start, count = {"q": (0, n), "k": (n, 1), "v": (n + 1, 1)}[letter]
        rows += range(first + start * d, first + (start + count) * d)
    return rows


def bias_of(c: Config, headed: bool, queries: int, keys: int) -> Any:
    """All masks as one to be added, over (batch, head, query, key)."""
    given = c.get("mask", [])
    total = torch.zeros(1, 1, queries, keys, dtype=torch.float64)
    for mask in given if isinstance(given, list) else [given]:
        kind, detail = ("causal", "top-left") if mask == "causal" else next(iter(mask.items()))
        if kind in ("keep", "ignore", "add"):
            array = tensor(detail)
            array = array[:, None] if array.dim() == 3 and not headed else array
            total = total + (array if kind == "add" else hide(array != (1 if kind == "keep" else 0)))
        elif kind == "padding":
            total = total + hide(torch.stack([torch.arange(keys) >= n for n in detail])[:, None, None, :])
        else:
            total = total + hide(torch.tensor(beyond(kind, detail, queries, keys)))
    return total


def hide(where: Any) -> Any:
    return torch.zeros(where.shape, dtype=torch.float64).masked_fill(where, -torch.inf)


def beyond(kind: str, detail: Any, queries: int, keys: int) -> list[list[bool]]:
    """Which keys a causal mask or a window hides, cell by cell."""
    align = detail if kind == "causal" else detail["align"]
    left, right = (None, 0) if kind == "causal" else (detail.get("left"), detail.get("right"))
    offset = keys - queries if align == "bottom-right" else 0
    return [
        [(left is not None and j < i + offset - left) or (right is not None and j > i + offset + right) for j in range(keys)]
        for i in range(queries)
    ]


def by_torch(c: Config) -> np.ndarray:
    """The output of the layer, by torch's scaled_dot_product_attention in float64."""
    q, k, v = (projection(c, letter) for letter in "qkv")
    headed = "heads" in c or np.ndim(c.get("q", 0)) > 2
    bias = bias_of(c, headed, q.shape[-2], k.shape[-2])
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=c.get("scale"), enable_gqa=q.shape[1] != k.shape[1])
    if c.get("masked_row") == "nan":
        out = out.masked_fill(bias.isneginf().all(-1, keepdim=True), torch.nan)
    merged = out.movedim(-3, -2).flatten(-2)
    if "w_o" in c:
        w = tensor(c["w_o"])
        merged = F.linear(merged, w if c.get("weight_layout") == "out_in" else w.T, tensor(c["b_o"]) if "b_o" in c else None)
    return merged.numpy()


@pytest.mark.parametrize("seed", range(COUNT))
def test_a_random_layer(seed: int) -> None:
    c = config(seed)
    problem = attntrace.load(c)
    found = attntrace.verify(problem)
    assert found.agrees, f"{found.verdict}: {found.first}"
    step = attntrace.trace(problem)["output"]
    expected = by_torch(c).reshape(step.shape)
    off = compare.difference(step.values, expected, compare.accumulated(step, {}), step)
    assert off.agrees or not np.isfinite(step.values[off.worst]), off  # in half precision scores may overflow


def test_the_random_layers_have_everything() -> None:
    """What the parametrised test is there for does come up in it."""
    configs = [config(seed) for seed in range(COUNT)]
    masks = [m if isinstance(m, list) else [m] for m in (c.get("mask", []) for c in configs)]
    kinds = {"causal" if m == "causal" else next(iter(m)) for several in masks for m in several}
    assert kinds == {"causal", "keep", "ignore", "add", "padding", "window"}
    assert {c["dtype"] for c in configs} == set(DTYPES)
    assert {c.get("qkv_layout") for c in configs} == {None, "q|k|v", "per-head", "per-group"}
    assert {len(several) for several in masks} == {0, 1, 2, 3}
    for key in ("x_kv", "w_o", "b_o", "b_q", "b_qkv", "scale", "q", "weight_layout"):
        assert sum(key in c for c in configs) > 20, key
    assert sum(c.get("kv_heads", 1) != c.get("heads", 1) for c in configs) > 40
    traces = [attntrace.trace(c) for c in configs]
    empty = [t for t in traces if "masked" in t and np.isneginf(t["masked"].values.astype(float)).all(axis=-1).any()]
    assert len(empty) > 40
    saturated = [t for t in traces if (t["weights"].values > 0.9999).any() and t.sizes["key"] > 1 and "mask" not in t]
    assert len(saturated) > 20
    finite = [t for t in traces if np.isfinite(t["output"].values.astype(float)).all()]
    assert len(finite) > 0.9 * COUNT


# ------------------------------------------------------------------ chosen ones


@pytest.mark.parametrize("size", [1e-30, 1e-3, 1.0, 1e3, 1e30, 1e100])
def test_scores_of_every_size(size: float) -> None:
    rng = np.random.default_rng(0)
    c = {"q": rng.normal(size=(5, 4)) * size, "k": rng.normal(size=(6, 4)), "v": rng.normal(size=(6, 3)), "scale": 1.0}
    assert attntrace.verify(c).agrees
    step = attntrace.trace(c)["output"]
    off = compare.difference(step.values, by_torch(c)[0], compare.accumulated(step, {}), step)
    assert off.agrees
    if size <= 1:
        assert off.tolerance < 1e-13


@pytest.mark.parametrize("name", ["float64", "float32", "bfloat16"])
def test_values_near_the_largest(name: str) -> None:
    c = {"q": np.eye(2), "k": np.eye(2), "v": np.full((2, 1), 1e38), "dtype": name}
    assert attntrace.verify(c).agrees


def test_long_sums() -> None:
    rng = np.random.default_rng(1)
    for name in ("float32", "float16", "bfloat16"):
        c = {"q": rng.normal(size=(8, 512)), "k": rng.normal(size=(700, 512)), "v": rng.normal(size=(700, 16)), "dtype": name}
        assert attntrace.verify(c).agrees


def module(width: int, heads: int, **options: Any) -> Any:
    """A module of torch's, with weights of its own making, in float64."""
    torch.manual_seed(width * heads)
    made = torch.nn.MultiheadAttention(width, heads, batch_first=True, dtype=torch.float64, **options)
    if made.in_proj_bias is not None:
        torch.nn.init.normal_(made.in_proj_bias)
        torch.nn.init.normal_(made.out_proj.bias)
    return made.eval()


def numbers(t: Any) -> np.ndarray:
    return t.detach().numpy()


def of_module(made: Any, heads: int) -> Config:
    """The config of a module, as its state dict has it: weights stored (out, in), q, k and v in one."""
    c = {"weight_layout": "out_in", "heads": heads, "w_o": numbers(made.out_proj.weight)}
    if made.in_proj_weight is not None:
        c["w_qkv"] = numbers(made.in_proj_weight)
    else:
        c |= {f"w_{letter}": numbers(getattr(made, f"{letter}_proj_weight")) for letter in "qkv"}
    if made.in_proj_bias is not None and made.in_proj_weight is not None:
        c |= {"b_qkv": numbers(made.in_proj_bias), "b_o": numbers(made.out_proj.bias)}
    return c


def agree(trace: Any, weights: Any, out: Any) -> None:
    np.testing.assert_allclose(trace["weights"].values, numbers(weights), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(trace["output"].values, numbers(out), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("width", "heads"), [(8, 1), (8, 2), (12, 4), (6, 6)])
def test_multihead_attention_as_it_is(width: int, heads: int, bias: bool) -> None:
    made = module(width, heads, bias=bias)
    x = torch.randn(3, 5, width, dtype=torch.float64)
    out, weights = made(x, x, x, average_attn_weights=False)
    c = {"x": numbers(x), **of_module(made, heads)}
    agree(attntrace.trace(c), weights, out)
    assert "nn.MultiheadAttention" in attntrace.verify(c).verdict


def test_multihead_attention_with_an_ignore_mask_and_padding() -> None:
    """In torch.nn.MultiheadAttention's masks True means ignore."""
    made = module(8, 2)
    x = torch.randn(2, 4, 8, dtype=torch.float64)
    ignore = torch.tensor([[0, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 1], [0, 1, 0, 0]], dtype=torch.bool)
    padded = torch.tensor([[0, 0, 0, 0], [0, 0, 0, 1]], dtype=torch.bool)
    out, weights = made(x, x, x, attn_mask=ignore, key_padding_mask=padded, average_attn_weights=False)
    c = {"x": numbers(x), **of_module(made, 2), "mask": [{"ignore": ignore.numpy()}, {"padding": [4, 3]}]}
    agree(attntrace.trace(c), weights, out)
    assert "nn.MultiheadAttention" in attntrace.verify(c).verdict


def test_multihead_attention_with_an_additive_mask_for_each_head() -> None:
    made = module(6, 3)
    x = torch.randn(2, 4, 6, dtype=torch.float64)
    add = torch.randn(2 * 3, 4, 4, dtype=torch.float64)
    out, weights = made(x, x, x, attn_mask=add, average_attn_weights=False)
    c = {"x": numbers(x), **of_module(made, 3), "mask": {"add": numbers(add).reshape(2, 3, 4, 4)}}
    agree(attntrace.trace(c), weights, out)
    assert "nn.MultiheadAttention" in attntrace.verify(c).verdict


def test_multihead_attention_across() -> None:
    """Keys and values of another width."""
    made = module(6, 2, kdim=5, vdim=5, bias=False)
    x, x_kv = torch.randn(2, 3, 6, dtype=torch.float64), torch.randn(2, 4, 5, dtype=torch.float64)
    out, weights = made(x, x_kv, x_kv, average_attn_weights=False)
    c = {"x": numbers(x), "x_kv": numbers(x_kv), **of_module(made, 2)}
    agree(attntrace.trace(c), weights, out)
    assert "nn.MultiheadAttention" in attntrace.verify(c).verdict


def test_torchs_is_causal_aligns_top_left() -> None:
    q, k, v = (torch.randn(1, 2, n, 4, dtype=torch.float64) for n in (3, 5, 5))
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    c = {"q": numbers(q), "k": numbers(k), "v": numbers(v), "mask": {"causal": "top-left"}}
    ours = attntrace.trace(c)["context"].values
    np.testing.assert_allclose(ours, numbers(expected), rtol=1e-12, atol=1e-14)


def test_dropout_is_torchs() -> None:
    """The same seed drops the same weights as torch's own dropout."""
    x = np.random.default_rng(0).normal(size=(5, 4))
    c = {"x": x, **{w: np.eye(4) for w in ("w_q", "w_k", "w_v")}, "dropout": {"rate": 0.3, "seed": 11, "generator": "torch"}}
    trace = attntrace.trace(c)
    torch.manual_seed(11)
    expected = F.dropout(torch.tensor(trace["weights"].values), 0.3)
    np.testing.assert_allclose(trace["dropped"].values, numbers(expected), rtol=1e-15)
    assert 0 < (trace["dropped"].values == 0).sum() < 25
