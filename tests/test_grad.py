"""Gradients: against autograd of plain torch that is written out here, finite differences, laws and published numbers."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import attntrace
from attntrace import gradcheck, ops
from attntrace.backward import Backward, Squared, Weighted, last, moving
from attntrace.cli import commands  # noqa: F401 - registers the commands
from attntrace.cli.app import app
from attntrace.config.bundled import names
from attntrace.ops.pointwise import Subtract
from attntrace.upstream import gradients, upstream_of

torch = pytest.importorskip("torch")
F = torch.nn.functional

COUNT = 300
Config = dict[str, Any]
Tensor = Any


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors of a few numbers: threads would only wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def grad(*args: str) -> Any:
    return CliRunner().invoke(app, ["grad", *args])


def values(c: Any, upstream: Any = None, target: Any = None, **options: Any) -> dict[str, np.ndarray]:
    return {name: step.values for name, step in gradients(attntrace.trace(c, **options), upstream, target).items()}


# ------------------------------------------------------------------ random layers of every variant


class Draw:
    """Random choices, the same for the same seed. `arrays` has what a gradient is asked for, under the name of its step."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.arrays: dict[str, np.ndarray] = {}
        self.batch = self.one(None, 1, 2)
        self.heads = self.one(None, 2, 4)
        self.groups = self.heads and self.one(*(g for g in (1, 2, 4) if self.heads % g == 0))
        self.tokens, self.d = self.one(2, 3, 4, 5), self.one(2, 4)
        self.lead = () if self.batch is None else (self.batch,)

    def one(self, *choices: Any) -> Any:
        return choices[self.rng.integers(len(choices))]

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def array(self, name: str, *shape: int) -> np.ndarray:
        return self.arrays.setdefault(name, self.rng.normal(size=shape))

    @property
    def kv_shape(self) -> tuple[int, ...]:
        return (*self.lead, *(() if self.heads is None else (self.groups,)))


def layer(seed: int) -> tuple[Config, Draw]:
    """A random layer: projected, fused or given directly, with any of the parts there are."""
    d = Draw(seed)
    d.past, d.keys = 0, d.tokens
    kind = d.one(projected, projected, projected, fused, direct)
    c = kind(d)
    if d.heads is not None:
        c |= {"heads": d.heads, "kv_heads": d.groups}
    for part, chance in (
        (cached, 0.3),
        (normed, 0.3),
        (turned, 0.4),
        (biased, 0.3),
        (masked, 0.6),
        (others, 1.0),
        (cored, 0.5),
    ):
        if d.chance(chance):
            c |= part(d, c)
    if kind is projected and "x_kv" not in c and d.chance(0.3):
        c |= block(d, c)
    return c, d


def weight(d: Draw, name: str, rows: int, columns: int, c: Config) -> np.ndarray:
    return d.array(name, *((columns, rows) if c.get("weight_layout") == "out_in" else (rows, columns)))


def projected(d: Draw) -> Config:
    h, g, width = d.heads or 1, d.groups or 1, d.one(3, 6)
    c: Config = {"weight_layout": d.one("in_out", "out_in"), "x": d.array("x", *d.lead, d.tokens, width)}
    kv_width = width
    if d.chance(0.25):
        d.keys, kv_width = d.one(2, 3, 6), d.one(2, 5)
        c["x_kv"] = d.array("x_kv", *d.lead, d.keys, kv_width)
    for letter, rows, n in (("q", width, h), ("k", kv_width, g), ("v", kv_width, g)):
        c[f"w_{letter}"] = weight(d, f"w_{letter}", rows, n * d.d, c)
        if d.chance(0.5):
            c[f"b_{letter}"] = d.array(f"b_{letter}", n * d.d)
    if d.chance(0.6):
        c["w_o"] = weight(d, "w_o", h * d.d, width, c)
        c |= {"b_o": d.array("b_o", width)} if d.chance(0.5) else {}
    return c


def fused(d: Draw) -> Config:
    h, g, width = d.heads or 1, d.groups or 1, d.one(3, 6)
    c: Config = {"weight_layout": d.one("in_out", "out_in"), "x": d.array("x", *d.lead, d.tokens, width)}
    columns = (h + 2 * g) * d.d
    c["qkv_layout"] = d.one("q|k|v", "per-group")
    return c | {"w_qkv": weight(d, "w_qkv", width, columns, c), "b_qkv": d.array("b_qkv", columns)}


def direct(d: Draw) -> Config:
    d.keys = d.one(2, 3, 6)
    if d.heads is None:  # three axes are (head, token, d)
        d.batch, d.lead = None, ()
    heads = () if d.heads is None else (d.heads,)
    c = {"q": d.array("q", *d.lead, *heads, d.tokens, d.d)}
    return c | {letter: d.array(letter, *d.kv_shape, d.keys, d.d) for letter in "kv"}


def cached(d: Draw, c: Config) -> Config:
    if d.chance(0.5):
        d.past = d.one(1, 3)
        return {"cache": {letter: d.array(f"{letter}_past", *d.kv_shape, d.past, d.d) for letter in "kv"}}
    d.past = 4
    head = () if d.heads is None else (d.groups,)
    blocks = {letter: d.array(f"{letter}_blocks", 3, *head, 2, d.d) for letter in "kv"}
    return {"cache": {"blocks": blocks, "table": d.rng.integers(3, size=(*d.lead, 2))}}


def normed(d: Draw, c: Config) -> Config:
    part = {"norm": d.one("rmsnorm", "layernorm", "l2")}
    for letter in "qk" if d.chance(0.5) else "":
        part[letter] = d.array(f"{letter}_norm_weight", d.d)
    return {"qk_norm": part}


def turned(d: Draw, c: Config) -> Config:
    part = {"pairs": d.one("half", "interleaved"), "base": 100.0, "dims": d.one(2, d.d)}
    if d.tokens == d.keys:
        return {"rope": {**part, "offset": d.one(0, 3)}}
    return {"rope": {**part, "positions": list(range(1, d.tokens + 1)), "key_positions": list(range(3, d.keys + 3))}}


def biased(d: Draw, c: Config) -> Config:
    slopes = d.array("slopes", d.heads or 1) if d.chance(0.7) else None
    return {"alibi": {"align": "top-left"} | ({} if slopes is None else {"slopes": slopes})}


def masked(d: Draw, c: Config) -> Config:
    """Rows without keys among them."""
    keys = d.past + d.keys
    keep = (d.rng.random((d.tokens, keys)) < d.one(0.4, 0.8)).astype(int)
    add = np.where(d.rng.random((d.tokens, keys)) < 0.3, -np.inf, d.rng.normal(size=(d.tokens, keys)))
    return {"mask": d.one({"causal": "top-left"}, {"keep": keep}, {"add": add}, {"window": {"left": 1, "align": 0}})}


def others(d: Draw, c: Config) -> Config:
    c = {"scale": d.one("auto", "auto", 0.3, -1.5)}
    c |= {"softcap": d.one(0.5, 3.0)} if d.chance(0.3) else {}
    c |= {"sinks": d.array("sinks", d.heads or 1)} if d.chance(0.3) else {}
    return c | ({"dropout": {"rate": 0.3, "seed": 7}} if d.chance(0.3) else {})


def cored(d: Draw, c: Config) -> Config:
    return {"core": d.one({"tiled": {"queries": d.one(1, 2, 3), "keys": d.one(1, 2, 3)}}, {"ring": {"devices": 2}})}


def block(d: Draw, c: Config) -> Config:
    width, wide = c["x"].shape[-1], 5
    if "w_o" not in c:
        c["w_o"] = weight(d, "w_o", (d.heads or 1) * d.d, width, c)
    part = {
        "norm": d.one("rmsnorm", "layernorm"),
        "mlp": d.one("gelu", "gelu_tanh", "silu", "relu", "gated", "gated_gelu"),
        "order": d.one("pre", "post", "parallel"),
    }
    made = {name: weight(d, name, *shape, c) for name, shape in (("w_up", (width, wide)), ("w_down", (wide, width)))}
    made["b_up"] = d.array("b_up", wide)
    made |= {"w_gate": weight(d, "w_gate", width, wide, c)} if part["mlp"].startswith("gated") else {}
    made |= {"w_norm1": d.array("w_norm1", width)}
    made |= {"w_norm2": d.array("w_norm2", width)} if d.chance(0.5) else {}
    made |= {"b_norm1": d.array("b_norm1", width)} if part["norm"] == "layernorm" else {}
    return {"block": part, **made}


# ------------------------------------------------------------------ the same in plain torch: (batch, head, token, d) throughout


def forward(c: Config, a: dict[str, Tensor], d: Draw) -> Tensor:
    if "q" in c:
        q, k, v = (heads_of(a[letter], letter, d) for letter in "qkv")
        return finished(c, a, d, attention(c, a, d, q, k, v))
    x = a["x"] if d.batch else a["x"].unsqueeze(0)
    if "block" not in c:
        return finished(c, a, d, attended(c, a, d, x))
    part = c["block"]
    norm1, norm2 = (lambda t, i=i: normalised(part["norm"], t, a.get(f"w_norm{i}"), a.get(f"b_norm{i}")) for i in (1, 2))
    if part["order"] == "post":
        h = norm1(x + attended(c, a, d, x))
        y = norm2(h + mlp(c, a, h))
    elif part["order"] == "pre":
        h = x + attended(c, a, d, norm1(x))
        y = h + mlp(c, a, norm2(h))
    else:
        second = norm2(x) if "w_norm2" in c else norm1(x)
        y = x + attended(c, a, d, norm1(x)) + mlp(c, a, second)
    return finished(c, a, d, y)


def finished(c: Config, a: dict[str, Tensor], d: Draw, y: Tensor) -> Tensor:
    return y if d.batch else y.squeeze(0)


def heads_of(t: Tensor, letter: str, d: Draw) -> Tensor:
    return t.reshape(d.batch or 1, (d.heads if letter == "q" else d.groups) or 1, -1, t.shape[-1])


def linear(c: Config, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    y = x @ (w.T if c["weight_layout"] == "out_in" else w)
    return y if b is None else y + b


def mlp(c: Config, a: dict[str, Tensor], x: Tensor) -> Tensor:
    kind, up = c["block"]["mlp"], linear(c, x, a["w_up"], a["b_up"])
    tanh_gelu = lambda t: F.gelu(t, approximate="tanh")  # noqa: E731
    acts = {"gelu": F.gelu, "gelu_tanh": tanh_gelu, "silu": F.silu, "relu": F.relu, "gated": F.silu, "gated_gelu": tanh_gelu}
    inner = acts[kind](linear(c, x, a["w_gate"])) * up if kind.startswith("gated") else acts[kind](up)
    return linear(c, inner, a["w_down"])


def normalised(kind: str, x: Tensor, w: Tensor | None, b: Tensor | None = None) -> Tensor:
    if kind == "layernorm":
        return F.layer_norm(x, x.shape[-1:], w, b, 1e-5)
    y = F.normalize(x, dim=-1) if kind == "l2" else x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + 1e-6)
    return y if w is None else y * w


def attended(c: Config, a: dict[str, Tensor], d: Draw, x: Tensor) -> Tensor:
    h, g = d.heads or 1, d.groups or 1
    other = (a["x_kv"] if d.batch else a["x_kv"].unsqueeze(0)) if "x_kv" in c else x
    if "w_qkv" in c:
        y = linear(c, x, a["w_qkv"], a["b_qkv"])
        if c["qkv_layout"] == "q|k|v":
            parts = y.split([h * d.d, g * d.d, g * d.d], dim=-1)
        else:  # of each group: its queries, its key, its value
            each = y.unflatten(-1, (g, h // g + 2, d.d))
            parts = each[..., :-2, :].flatten(-3), each[..., -2, :].flatten(-2), each[..., -1, :].flatten(-2)
    else:
        parts = tuple(linear(c, s, a[f"w_{n}"], a.get(f"b_{n}")) for n, s in (("q", x), ("k", other), ("v", other)))
    q, k, v = (part.unflatten(-1, (n, -1)).transpose(1, 2) for part, n in zip(parts, (h, g, g), strict=True))
    return attention(c, a, d, q, k, v)


def attention(c: Config, a: dict[str, Tensor], d: Draw, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if "qk_norm" in c:
        q, k = (normalised(c["qk_norm"]["norm"], t, a.get(f"{n}_norm_weight")) for t, n in ((q, "q"), (k, "k")))
    if "rope" in c:
        standing = list(range(d.past, d.past + d.tokens)), list(range(d.past, d.past + d.keys))
        given = c["rope"].get("positions", standing[0]), c["rope"].get("key_positions", standing[1])
        q, k = (rotated(t, torch.tensor(at), c["rope"]) for t, at in zip((q, k), given, strict=True))
    if "cache" in c:
        k, v = (torch.cat([past(c, a, d, n), t], dim=2) for t, n in ((k, "k"), (v, "v")))
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
    s = q @ k.mT * (d.d**-0.5 if c.get("scale", "auto") == "auto" else c["scale"])
    s = c["softcap"] * torch.tanh(s / c["softcap"]) if "softcap" in c else s
    query, key = torch.arange(s.shape[-2])[:, None], torch.arange(s.shape[-1])
    if "alibi" in c:
        m = a["slopes"] if "slopes" in a else paper_slopes(d.heads or 1)
        s = s - m[:, None, None] * (query - key).abs()
    hidden = hidden_keys(c, query, key)
    if "add" in c.get("mask", {}):
        s = s + torch.tensor(c["mask"]["add"]).nan_to_num(neginf=0)
    w = softmax(s, hidden, a.get("sinks"))
    if "dropout" in c:
        shape = (*d.lead, *(() if d.heads is None else (d.heads,)), *s.shape[-2:])
        keep = np.random.default_rng(7).random(shape) > 0.3
        w = w * torch.tensor(keep).reshape(w.shape) / (1 - 0.3)
    y = w @ v
    if d.heads is None and "w_o" not in c:
        return y.squeeze(1)
    y = y.transpose(1, 2).flatten(-2)
    return linear(c, y, a["w_o"], a.get("b_o")) if "w_o" in c else y


def past(c: Config, a: dict[str, Tensor], d: Draw, letter: str) -> Tensor:
    if "table" not in c["cache"]:
        return heads_of(a[f"{letter}_past"], "k", d)
    blocks, table = a[f"{letter}_blocks"], np.reshape(c["cache"]["table"], (d.batch or 1, 2))
    blocks = blocks if d.heads else blocks.unsqueeze(1)
    return torch.stack([torch.cat([blocks[n] for n in row], dim=1) for row in table.tolist()])


def rotated(t: Tensor, positions: Tensor, part: Config) -> Tensor:
    pairs, dims = part["pairs"], part["dims"]
    theta = part["base"] ** (-torch.arange(0, dims, 2, dtype=torch.float64) / dims)
    phi = (positions + part.get("offset", 0))[:, None] * theta
    neighbours = pairs == "interleaved"
    first, second = (slice(0, dims, 2), slice(1, dims, 2)) if neighbours else (slice(dims // 2), slice(dims // 2, dims))
    x, y = t[..., first], t[..., second]
    turned = [x * phi.cos() - y * phi.sin(), x * phi.sin() + y * phi.cos()]
    joined = torch.stack(turned, dim=-1).flatten(-2) if neighbours else torch.cat(turned, dim=-1)
    return torch.cat([joined, t[..., dims:]], dim=-1)


def paper_slopes(heads: int) -> Tensor:
    assert heads in (1, 2, 4)
    return torch.tensor([2.0 ** (-8 * (h + 1) / heads) for h in range(heads)], dtype=torch.float64)


def hidden_keys(c: Config, query: Tensor, key: Tensor) -> Tensor:
    mask = c.get("mask", {})
    if "causal" in mask:
        return key > query
    if "window" in mask:
        return key < query - 1
    if "keep" in mask:
        return torch.tensor(mask["keep"]) == 0
    return torch.tensor(mask["add"]).isneginf() if "add" in mask else torch.zeros(len(query), len(key), dtype=torch.bool)


def softmax(s: Tensor, hidden: Tensor, sinks: Tensor | None) -> Tensor:
    """exp over its sum, over the keys that are not hidden; zeros where there are none."""
    top = s.masked_fill(hidden, -1e9).amax(dim=-1, keepdim=True).detach()
    e = torch.exp((s - top).masked_fill(hidden, 0)) * ~hidden
    total = e.sum(dim=-1, keepdim=True)
    if sinks is not None:
        z = sinks[:, None, None]
        empty = hidden.all(dim=-1, keepdim=True)
        total = torch.where(empty, 1.0, total + torch.exp((z - top).masked_fill(empty, 0)))
    return e / torch.where(total == 0, 1.0, total)


def autograd(c: Config, d: Draw, loss: Callable[[Tensor], Tensor], rows: slice = slice(None)) -> dict[str, np.ndarray]:
    leaves = {name: torch.tensor(array).requires_grad_() for name, array in d.arrays.items()}
    out = forward(c, leaves, d)[..., rows, :]
    found = torch.autograd.grad(loss(out), list(leaves.values()), allow_unused=True)
    pairs = zip(leaves.items(), found, strict=True)
    return {f"d_{name}": np.zeros(leaf.shape) if g is None else g.numpy() for (name, leaf), g in pairs}


def alike(ours: np.ndarray, theirs: np.ndarray, name: str) -> None:
    """To 1e-10 of the largest entry; what cancels to nothing, as the gradient of b_k, is off by what it is made of."""
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-10 * np.abs(theirs).max() + 1e-12, err_msg=name)


@pytest.mark.parametrize("seed", range(COUNT))
def test_gradients_of_a_random_layer_equal_autograd(seed: int) -> None:
    c, d = layer(seed)
    rows = "1:3" if seed % 4 == 0 and d.tokens > 2 and "dropout" not in c else None
    t = attntrace.trace(c, queries=rows)
    picked = slice(None) if rows is None else slice(1, 3)
    np.testing.assert_allclose(
        last(t).values,
        forward(c, {n: torch.tensor(a) for n, a in d.arrays.items()}, d)[..., picked, :].numpy(),
        atol=1e-11,
        rtol=1e-11,
    )
    weights = np.random.default_rng(seed).normal(size=last(t).shape)
    ours = {name: step.values for name, step in gradients(t, weights).items()}
    theirs = autograd(c, d, lambda y: (torch.tensor(weights) * y).sum(), picked)
    names = {f"d_{step.name}" for step in moving(t) if step.given}
    assert {name.replace("d_q_given", "d_q") for name in names} == theirs.keys()
    for name in names:
        alike(ours[name], theirs[name.replace("d_q_given", "d_q")], name)


def test_the_random_layers_have_everything() -> None:
    configs = [layer(seed)[0] for seed in range(COUNT)]
    for key in (
        "x_kv",
        "w_qkv",
        "q",
        "cache",
        "qk_norm",
        "rope",
        "alibi",
        "mask",
        "sinks",
        "softcap",
        "dropout",
        "core",
        "block",
    ):
        assert sum(key in c for c in configs) >= 15, key
    assert sum({"cache", "rope", "softcap", "mask"} <= c.keys() and c.get("kv_heads") in (1, 2) for c in configs) >= 2
    empty = [c for c in configs if "keep" in c.get("mask", {}) and not c["mask"]["keep"].any(axis=-1).all()]
    assert len(empty) >= 5


@pytest.mark.parametrize("seed", range(0, COUNT, 10))
def test_the_check_agrees_on_random_layers(seed: int) -> None:
    c, _ = layer(seed)
    problem = attntrace.load(c)
    y = last(attntrace.trace(problem))
    found = gradcheck.check(problem, upstream_of(y, "draw"))
    assert found.agrees, [row for row in found.rows if not row.agrees]
    assert not found.silent
    assert len({row.against for row in found.rows}) == 2


# ------------------------------------------------------------------ each operation by itself


def n(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([*shape, seed]).normal(size=shape)


HIDING = np.array([[0.5, -np.inf, 1.0], [-np.inf, -np.inf, -np.inf], [2.0, 0.1, -1.0]])
TABLE, ROWS = np.array([[2, 0], [0, 0]]), np.array([2, 0, 2])


def sunk(s: Tensor, z: Tensor) -> Tensor:
    return torch.cat([s, z.view(-1, 1, 1).expand(*s.shape[:-1], 1)], dim=-1).softmax(dim=-1)


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    whole = torch.complex(x[..., 0:4:2], x[..., 1:4:2]) * torch.complex(cos, sin)
    return torch.cat([torch.view_as_real(whole).flatten(-2), x[..., 4:]], dim=-1)


def turn_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    whole = torch.complex(*x.chunk(2, dim=-1)) * torch.complex(cos[:, None], sin[:, None])
    return torch.cat([whole.real, whole.imag], dim=-1)


def safe(s: Tensor) -> Tensor:
    """Rows of −∞ made zeros before and after, so that autograd meets no NaN."""
    empty = s.isneginf().all(dim=-1, keepdim=True)
    return s.masked_fill(empty, 0).softmax(dim=-1).masked_fill(empty, 0)


# The operation, its operands, the same in torch, and which operands have no gradient.
Case = tuple[ops.Operation, list[np.ndarray], Callable[..., Tensor], tuple[int, ...]]
CASES: dict[str, Case] = {
    "MatMul": (ops.MatMul(), [n(2, 3, 4), n(2, 4, 5)], torch.matmul, ()),
    "MatMul transposed": (ops.MatMul(transpose=True), [n(2, 3, 4), n(2, 5, 4)], lambda a, b: a @ b.mT, ()),
    "Project": (ops.Project(), [n(2, 3, 4), n(4, 5)], torch.matmul, ()),
    "Project Linear": (ops.Project(transposed=True), [n(2, 3, 4), n(5, 4), n(5)], F.linear, ()),
    "Project heads": (
        ops.Project(heads=2),
        [n(3, 4), n(4, 6), n(6)],
        lambda x, w, b: (x @ w + b).unflatten(-1, (2, 3)).transpose(0, 1),
        (),
    ),
    "Project fused": (
        ops.Project(heads=2, columns=(1, 2, 5, 6)),
        [n(2, 3, 4), n(4, 8), n(8)],
        lambda x, w, b: (x @ w + b)[..., [1, 2, 5, 6]].unflatten(-1, (2, 2)).transpose(1, 2),
        (),
    ),
    "Project fused Linear": (
        ops.Project(columns=(0, 3), transposed=True),
        [n(3, 4), n(8, 4), n(8)],
        lambda x, w, b: F.linear(x, w, b)[..., [0, 3]],
        (),
    ),
    "Scale": (ops.Scale(-0.7), [n(2, 3)], lambda s: s * -0.7, ()),
    "Divide": (ops.Divide(1.7), [n(2, 3)], lambda s: s / 1.7, ()),
    "AddMask": (ops.AddMask((1,)), [n(2, 4, 3, 3), n(2, 3, 3)], lambda s, m: s + m[:, None], ()),
    "Dropout": (ops.Dropout(0.4), [n(3, 4), (n(3, 4) > 0).astype(float)], lambda a, k: a * k / 0.6, (1,)),
    "Add": (ops.Add(), [n(2, 3), n(2, 3, seed=1), n(2, 3, seed=2)], lambda a, b, c: a + b + c, ()),
    "Subtract": (Subtract(), [n(2, 3), n(2, 3, seed=1)], torch.sub, ()),
    "Multiply": (ops.Multiply(), [n(2, 3), n(2, 3, seed=1)], torch.mul, ()),
    "Softcap": (ops.Softcap(1.5), [3 * n(2, 3)], lambda s: 1.5 * torch.tanh(s / 1.5), ()),
    "Cos": (ops.Cos(), [n(2, 3)], torch.cos, ()),
    "Sin": (ops.Sin(), [n(2, 3)], torch.sin, ()),
    "Activate relu": (ops.Activate("relu"), [n(4, 5)], F.relu, ()),
    "Activate gelu": (ops.Activate("gelu"), [2 * n(4, 5)], F.gelu, ()),
    "Activate gelu_tanh": (ops.Activate("gelu_tanh"), [2 * n(4, 5)], lambda x: F.gelu(x, approximate="tanh"), ()),
    "Activate silu": (ops.Activate("silu"), [2 * n(4, 5)], F.silu, ()),
    "Softmax": (ops.Softmax(), [n(2, 3, 4)], lambda s: s.softmax(dim=-1), ()),
    "Softmax empty row": (ops.Softmax(), [HIDING], safe, ()),
    "Softmax sink": (ops.Softmax(), [n(2, 3, 4, 5), n(3)], lambda s, z: sunk(s, z)[..., :-1], ()),
    "SinkWeight": (ops.SinkWeight(), [n(2, 3, 4, 5), n(3)], lambda s, z: sunk(s, z)[..., -1], ()),
    "SinkWeight one": (
        ops.SinkWeight(),
        [n(4, 5), n(1)],
        lambda s, z: torch.cat([s, z.expand(4, 1)], dim=-1).softmax(dim=-1)[..., -1],
        (),
    ),
    "Normalise layernorm": (
        ops.Normalise("layernorm", 1e-2, weighted=True, shifted=True),
        [n(2, 3, 4), n(4), n(4, seed=1)],
        lambda x, w, b: F.layer_norm(x, (4,), w, b, 1e-2),
        (),
    ),
    "Normalise shifted": (
        ops.Normalise("layernorm", 1e-5, shifted=True),
        [n(3, 4), n(4)],
        lambda x, b: F.layer_norm(x, (4,), None, b),
        (),
    ),
    "Normalise rmsnorm": (
        ops.Normalise("rmsnorm", 1e-2, weighted=True),
        [n(2, 3, 4), n(4)],
        lambda x, w: F.rms_norm(x, (4,), w, 1e-2),
        (),
    ),
    "Normalise l2": (ops.Normalise("l2", 1e-12), [n(3, 4)], lambda x: F.normalize(x, dim=-1, eps=1e-12), ()),
    "Normalise short l2": (ops.Normalise("l2", 10.0), [n(3, 4)], lambda x: F.normalize(x, dim=-1, eps=10.0), ()),
    "Rotate": (ops.Rotate("interleaved", 4), [n(2, 3, 5), n(3, 2), n(3, 2, seed=1)], turn, ()),
    "Rotate half": (ops.Rotate("half", 4), [n(2, 6, 3, 4), n(2, 3, 2), n(2, 3, 2, seed=1)], turn_halves, ()),
    "LinearBias": (ops.LinearBias(), [n(4), n(3, 5)], lambda m, far: -m[:, None, None] * far, ()),
    "LinearBias items": (ops.LinearBias(), [n(4), n(2, 3, 5)], lambda m, far: -m[:, None, None] * far[:, None], ()),
    "LinearBias one": (ops.LinearBias(headed=False), [n(1), n(3, 5)], lambda m, far: -m * far, ()),
    "Angles": (ops.Angles(), [n(2, 3), n(4)], lambda p, theta: p[..., None] * theta, ()),
    "Split": (ops.Split(2), [n(3, 6)], lambda x: x.unflatten(-1, (2, 3)).transpose(0, 1), ()),
    "Merge": (ops.Merge(), [n(2, 4, 3, 5)], lambda c: c.transpose(1, 2).flatten(-2), ()),
    "Same": (ops.Same(), [n(2, 3)], lambda a: a.clone(), ()),
    "Repeat": (ops.Repeat(3), [n(2, 2, 4, 3)], lambda k: k.repeat_interleave(3, dim=1), ()),
    "Take": (ops.Take(1, 3), [n(2, 5, 3)], lambda x: x[:, 1:3], ()),
    "Concat": (ops.Concat(), [n(2, 3), n(1, 3), n(4, 3)], lambda *parts: torch.cat(parts), ()),
    "Gather": (
        ops.Gather(3),
        [n(3, 4, 2, 5), TABLE],
        lambda b, t: torch.stack([torch.cat([b[int(i)] for i in row], dim=1)[:, :3] for row in t]),
        (1,),
    ),
    "LookUp": (ops.LookUp(), [n(4, 3), ROWS], lambda table, at: table[at.long()], (1,)),
    "RowMax": (ops.RowMax(), [n(2, 3, 4)], lambda s: s.max(dim=-1).values, ()),
    "Maximum": (ops.Maximum(), [n(3, 4), n(3, 4, seed=1)], torch.maximum, ()),
    "ExpDifference": (ops.ExpDifference(), [n(3, 4), n(3, 4, seed=1)], lambda s, m: torch.exp(s - m), ()),
    "ExpDifference rows": (ops.ExpDifference(rows=True), [HIDING[[0, 2]], n(2)], lambda s, m: torch.exp(s - m[:, None]), ()),
    "RowSum": (ops.RowSum(), [n(2, 3, 4)], lambda p: p.sum(dim=-1), ()),
    "Combine": (ops.Combine(), [n(3), n(3, seed=1), n(3, seed=2)], lambda a, f, b: a * f + b, ()),
    "Combine rows": (
        ops.Combine(rows=True),
        [n(2, 3, 4), n(2, 3), n(2, 3, 4, seed=1), n(2, 3, seed=1)],
        lambda a, f, b, g: a * f[..., None] + b * g[..., None],
        (),
    ),
    "Quotient": (ops.Quotient(), [n(2, 3, 4), 2 + n(2, 3) ** 2], lambda o, total: o / total[..., None], ()),
    "AddSink": (
        ops.AddSink(),
        [n(2, 3, 4), n(2, 3, 4, seed=1), n(3)],
        lambda total, m, z: total + torch.exp(z[:, None] - m),
        (),
    ),
    "AddSink one": (ops.AddSink(), [n(4), n(4, seed=1), n(1)], lambda total, m, z: total + torch.exp(z - m), ()),
}
WITHOUT_OPERANDS = (ops.Slopes(4), ops.Frequencies(100.0, 4))


def test_every_operation_has_a_case() -> None:
    there = {cls for name in ops.__all__ if issubclass(cls := getattr(ops, name), ops.Operation)}
    tried = {type(case[0]) for case in CASES.values()} | {type(op) for op in WITHOUT_OPERANDS}
    assert tried == (there | {Subtract}) - {ops.Operation, ops.Copying}


@pytest.mark.parametrize("op", WITHOUT_OPERANDS, ids=str)
def test_what_has_no_operands_passes_nothing_on(op: ops.Operation) -> None:
    assert op.backward(op.forward(), op.forward()) == ()


@pytest.mark.parametrize("name", CASES)
def test_an_operation_passes_back_what_torch_does(name: str) -> None:
    op, operands, function, fixed = CASES[name]
    leaves = [torch.tensor(a) if i in fixed else torch.tensor(a).requires_grad_() for i, a in enumerate(operands)]
    y = function(*leaves)
    result = op.forward(*operands)
    np.testing.assert_allclose(result, y.detach().numpy(), rtol=1e-12, atol=1e-13)
    g = np.random.default_rng(9).normal(size=result.shape)
    theirs = iter(torch.autograd.grad(y, [leaf for leaf in leaves if leaf.requires_grad], torch.tensor(g)))
    ours = op.backward(g, result, *operands)
    assert len(ours) == len(operands)
    for i, (found, operand) in enumerate(zip(ours, operands, strict=True)):
        if i in fixed:
            assert found is None
        else:
            assert found is not None
            assert found.shape == operand.shape
            np.testing.assert_allclose(found, next(theirs).numpy(), rtol=1e-12, atol=1e-13, err_msg=f"operand {i}")


@pytest.mark.parametrize("name", CASES)
def test_a_formula_names_the_gradient_that_it_is_made_of(name: str) -> None:
    op, operands, _, fixed = CASES[name]
    symbols = [f"X{i}" for i in range(len(operands))]
    for i in range(len(operands)):
        if i not in fixed:
            assert "dY" in op.gradient(i, "dY", "Y", symbols)


def test_a_row_without_keys_passes_zeros_back() -> None:
    """In tiles such a row has the maximum −∞ and the sum 0, at which torch's own autograd gives NaN."""
    empty, m, g = np.full((1, 3), -np.inf), np.array([-np.inf]), np.ones((1, 3))
    op = ops.ExpDifference(rows=True)
    with np.errstate(invalid="ignore"):
        y = op.forward(empty, m)
    for found in op.backward(g, y, empty, m):
        assert found is not None
        np.testing.assert_array_equal(found, 0)
    quotient = ops.Quotient().backward(g, np.zeros((1, 3)), np.zeros((1, 3)), np.zeros(1))
    assert quotient[1] is not None
    np.testing.assert_array_equal(quotient[1], 0)


# ------------------------------------------------------------------ laws


def test_nothing_passes_softmax_when_all_keys_gain_alike() -> None:
    """Values that are all 1: the output is the sum of each row, 1 whatever the scores are."""
    g = values({"q": n(3, 4), "k": n(5, 4), "v": np.ones((5, 2))})
    for name in ("d_scaled", "d_q", "d_k"):
        np.testing.assert_allclose(g[name], 0, atol=1e-15)
    np.testing.assert_allclose(g["d_v"].sum(), 6)


def test_rows_of_the_gradient_of_scores_sum_to_zero() -> None:
    g = values("multi-head-causal", "draw")
    np.testing.assert_allclose(g["d_masked"].sum(axis=-1), 0, atol=1e-16)
    assert np.abs(g["d_masked"]).max() > 1e-4


def test_a_sink_loses_what_the_keys_gain() -> None:
    g = values("sinks", "draw")
    assert g["d_sinks"].shape == (2,)
    np.testing.assert_allclose(g["d_masked" if "d_masked" in g else "d_scaled"].sum(axis=(-2, -1)), -g["d_sinks"], atol=1e-14)


def test_permuting_tokens_permutes_the_gradient_of_x() -> None:
    order = [3, 1, 0, 2]
    c = {"x": n(4, 5), "w_q": n(5, 3), "w_k": n(5, 3, seed=1), "w_v": n(5, 2)}
    weights = n(4, 2)
    one, other = values(c, weights), values({**c, "x": c["x"][order]}, weights[order])
    np.testing.assert_allclose(other["d_x"], one["d_x"][order], rtol=1e-12)
    for name in ("d_w_q", "d_w_k", "d_w_v"):
        np.testing.assert_allclose(other[name], one[name], rtol=1e-10)


def test_a_group_gets_the_sum_of_its_heads() -> None:
    q, k, v = n(4, 3, 2), n(2, 5, 2), n(2, 5, 3)
    shared = values({"q": q, "k": k, "v": v, "heads": 4, "kv_heads": 2}, "draw:1")
    apart = values({"q": q, "k": k.repeat(2, axis=0), "v": v.repeat(2, axis=0), "heads": 4}, "draw:1")
    for name in ("d_k", "d_v"):
        np.testing.assert_allclose(shared[name], apart[name].reshape(2, 2, *shared[name].shape[1:]).sum(axis=1), rtol=1e-12)
    np.testing.assert_allclose(shared["d_q"], apart["d_q"], rtol=1e-12)


@pytest.mark.parametrize("core", [{"tiled": {"queries": 2, "keys": 3}}, {"ring": {"devices": 3}}], ids=["tiled", "ring"])
@pytest.mark.parametrize(
    "more", [{}, {"sinks": [0.3, -1.0]}, {"mask": {"keep": [[0] * 7, [1] * 7, [1, 0] * 3 + [1]] + [[1] * 7] * 2}}]
)
def test_tiles_have_the_gradients_of_the_whole(core: Any, more: Config) -> None:
    c = {"q": n(2, 5, 4), "k": n(2, 7, 4), "v": n(2, 7, 3), "heads": 2, **more}
    whole, tiles = values(c, "draw"), values({**c, "core": core}, "draw")
    for name in ("d_q", "d_k", "d_v", *(("d_sinks",) if "sinks" in more else ())):
        np.testing.assert_allclose(tiles[name], whole[name], rtol=1e-10, atol=1e-13, err_msg=name)


def test_a_query_that_may_attend_to_nothing_has_no_gradient() -> None:
    g = values("fully-masked-row", "draw")
    np.testing.assert_array_equal(g["d_q"][0], 0)
    assert np.abs(g["d_q"][1:]).max() > 0
    assert all(np.isfinite(a).all() for a in g.values())


def test_dropped_weights_have_no_gradient() -> None:
    t = attntrace.trace("multi-head-dropout")
    g = gradients(t, "draw")
    np.testing.assert_array_equal(g["d_weights"].values[t["keep"].values == 0], 0)


def test_only_the_queries_that_are_traced_have_a_gradient() -> None:
    c = {"q": n(5, 3), "k": n(4, 3), "v": n(4, 3)}
    g = values(c, queries="1:3")
    assert np.abs(g["d_q_given"][1:3]).min() > 0
    np.testing.assert_array_equal(g["d_q_given"][[0, 3, 4]], 0)


# ------------------------------------------------------------------ published numbers, and their scale

PUBLISHED_D_X = [0.00033935850907894984, 0.0009592357526701002, -0.0002919568949925816, -0.0005101197952132833]
PUBLISHED_D_X += [0.0015761524708216438, -0.00150557161177857, -0.0033934971791471816, 0.0002534975671417837]
PUBLISHED_D_W_QKV = [-1.5461180136371504e-05, -7.4872923799434125e-06, 3.294065145945874e-05, 5.873717609995028e-06]
PUBLISHED_NORM = 0.007288667478181413  # of d_x
SMALL: Config = {
    "x": {"draw": "normal", "shape": [1, 3, 8], "seed": 2, "dtype": "float32"},
    "w_qkv": {"draw": "normal", "std": 0.02, "shape": [8, 24], "seed": 1, "dtype": "float32"},
    "w_o": {"draw": "normal", "std": 0.02, "shape": [8, 8], "seed": 1, "dtype": "float32"},
    "heads": 2,
}


def test_the_published_gradient_of_the_sum() -> None:
    """Multi-head attention of 8 features, loss = sum of the output, from a worked example."""
    g = values(SMALL)
    np.testing.assert_allclose(g["d_x"][0, 0], PUBLISHED_D_X, rtol=1e-9)
    np.testing.assert_allclose(g["d_w_qkv"][0, :4], PUBLISHED_D_W_QKV, rtol=1e-9)
    assert np.linalg.norm(g["d_x"]) == pytest.approx(PUBLISHED_NORM, rel=1e-9)


def test_the_gradient_of_the_mean_is_smaller_by_the_number_of_outputs() -> None:
    np.testing.assert_allclose(values(SMALL, "mean")["d_x"][0, 0], np.array(PUBLISHED_D_X) / 24, rtol=1e-9)


def test_a_target_means_half_the_sum_of_squares() -> None:
    """torch's mse_loss takes the mean of the squares: its gradient is 2/n times this one."""
    c, d = {"x": n(3, 4), "w_q": n(4, 4), "w_k": n(4, 4, seed=1), "w_v": n(4, 2), "weight_layout": "in_out"}, Draw(0)
    d.arrays, d.batch, d.heads, d.groups, d.d, d.past = (
        {k: v for k, v in c.items() if k[0] in "xw" and k[:3] != "wei"},
        None,
        None,
        None,
        4,
        0,
    )
    target = n(3, 2)
    half = autograd(c, d, lambda y: (y - torch.tensor(target)).square().sum() / 2)
    mean = autograd(c, d, lambda y: F.mse_loss(y, torch.tensor(target)))
    ours = values(c, target=target)
    for name in ("d_x", "d_w_q", "d_w_k", "d_w_v"):
        np.testing.assert_allclose(ours[name], half[name], rtol=1e-11, atol=1e-14)
        np.testing.assert_allclose(ours[name] * 2 / target.size, mean[name], rtol=1e-11, atol=1e-14)


# ------------------------------------------------------------------ the check can fail, and gives no false alarms


def faulty(monkeypatch: pytest.MonkeyPatch, op: type[ops.Operation], spoil: Callable[..., Any]) -> None:
    right = op.backward
    monkeypatch.setattr(op, "backward", lambda self, g, y, *x: spoil(right(self, g, y, *x), g, y, *x))


def without_row_sums(found: Any, g: np.ndarray, y: np.ndarray, *x: np.ndarray) -> Any:
    """The mistake of many a softmax: dS = A ∘ dA."""
    return (y * g, *found[1:])


def test_a_forgotten_row_sum_fails_and_names_the_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    faulty(monkeypatch, ops.Softmax, without_row_sums)
    result = grad("toy", "--check-only", "--upstream", "draw")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert {line.split()[1] for line in lines if line.startswith("✗  ")} == {"d_x", "d_w_q", "d_w_k"}
    assert {line.split()[1] for line in lines if line.startswith("✓")} == {"d_w_v"}
    assert "d_w_q differs from finite differences, most at d_w_q[" in result.stdout
    assert lines[-1].startswith("1 of 4 gradients agree with finite differences (39 of 39 cells)")
    assert lines[-1].endswith("in float64; wrong: d_x, d_w_q, d_w_k")


def test_the_sum_as_the_loss_hides_a_wrong_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the note says, with rows of V that sum to the same: then dA is the same along a row, and a mistake that takes away
    its plain mean and not the weighted one gives 0, as it should."""
    faulty(monkeypatch, ops.Softmax, lambda found, g, y, *x: (y * (g - g.mean(axis=-1, keepdims=True)),))
    problem = attntrace.load({"q": n(3, 2), "k": n(4, 2), "v": np.array([[1, 2, 3], [3, 2, 1], [0, 0, 6], [2, 2, 2.0]])})
    y = last(attntrace.trace(problem))
    wrong = {u: {r.step for r in gradcheck.check(problem, upstream_of(y, u)).rows if not r.agrees} for u in ("sum", "draw")}
    assert wrong == {"sum": set(), "draw": {"d_q", "d_k"}}
    assert [note.code for note in upstream_of(y, "sum").notes] == ["upstream-ones"]
    assert [note.code for note in upstream_of(y, "mean").notes] == ["upstream-ones"]
    assert upstream_of(y, "draw").notes == upstream_of(y, target=np.zeros(y.shape)).notes == []


PLANTED = [
    ("toy", "MatMul"),
    ("toy", "Project"),
    ("toy", "Softmax"),
    ("toy", "Divide"),
    ("multi-head-causal", "Merge"),
    ("multi-head-causal", "AddMask"),
    ("multi-head-dropout", "Dropout"),
    ("grouped-query", "Repeat"),
    ("softcap", "Softcap"),
    ("rope-half", "Rotate"),
    ("rope-interleaved", "Rotate"),
    ("kv-cache", "Concat"),
    ("paged", "Gather"),
    ("flash", "Take"),
    ("flash", "ExpDifference"),
    ("flash", "RowSum"),
    ("flash", "Combine"),
    ("flash", "Quotient"),
    ("ring", "Combine"),
    ("llama-block", "Normalise"),
    ("llama-block", "Activate"),
    ("llama-block", "Multiply"),
    ("neox-block", "Activate"),
]  # what a tile's maximum passes on cancels: RowMax and Maximum change no gradient of an input


@pytest.mark.parametrize(("example", "name"), PLANTED)
def test_a_small_fault_in_any_operation_is_found(example: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One part in 100,000, by finite differences alone."""
    faulty(monkeypatch, getattr(ops, name), lambda found, *_: tuple(None if f is None else f * (1 + 1e-5) for f in found))
    monkeypatch.setattr(gradcheck, "ask_autograd", lambda bench: ([], {"autograd": "not asked"}))
    problem = attntrace.load(example)
    found = gradcheck.check(problem, upstream_of(last(attntrace.trace(problem)), "draw"))
    assert not found.agrees


def test_a_fault_in_one_cell_among_thousands_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not every cell is moved by itself, but all of them are moved at once."""

    def spoil(found: Any, *_: Any) -> Any:
        dx, dw = (np.array(f) for f in found[:2])
        dw[-1, -1] += 1e-3
        return dx, dw, *found[2:]

    faulty(monkeypatch, ops.Project, spoil)
    monkeypatch.setattr(gradcheck, "ask_autograd", lambda bench: ([], {}))
    c = {"x": n(3, 40), "w_q": n(40, 40) / 6, "w_k": n(40, 40, seed=1) / 6, "w_v": n(40, 40, seed=2) / 6}
    problem = attntrace.load(c)
    found = gradcheck.check(problem, upstream_of(last(attntrace.trace(problem)), "draw"))
    assert {row.step for row in found.rows if not row.agrees} == {"d_w_q", "d_w_k", "d_w_v"}
    assert sum(row.cells for row in found.rows) <= 300
    assert "then all at once" in found.verdict


def agreeing(c: Any, upstream: Any = "draw", **options: Any) -> gradcheck.Checks:
    problem = attntrace.load(c, **options)
    found = gradcheck.check(problem, upstream_of(last(attntrace.trace(problem)), upstream))
    assert found.agrees, [row for row in found.rows if not row.agrees]
    assert found.rows
    return found


@pytest.mark.parametrize("size", [1e-30, 1e-3, 10.0, 100.0, 1e3, 1e6, 1e20])
def test_scores_of_any_size_give_no_false_alarm(size: float) -> None:
    for seed in range(4):
        c = {"x": size * n(4, 3, seed=seed), "w_q": n(3, 3), "w_k": n(3, 3, seed=1), "w_v": n(3, 3, seed=2)}
        agreeing(c)


@pytest.mark.parametrize("mlp", ["relu", "gelu"])
def test_a_corner_gives_no_false_alarm(mlp: str) -> None:
    """x = 0 makes everything before relu exactly 0, where it has no derivative: 0 and 1 and all between are as good."""
    width = {"w_q": np.eye(3), "w_k": np.eye(3), "w_v": np.eye(3), "w_up": n(3, 4), "w_down": n(4, 3)}
    x = np.array([[0.0, 0, 0], [1, 2, 3]])
    found = agreeing({"x": x, **width, "block": {"norm": "rmsnorm", "mlp": mlp, "order": "parallel"}})
    assert ("(54 of 57 cells)" if mlp == "relu" else "(57 of 57 cells)") in found.verdict  # a cell at a corner is left out


def test_a_row_of_zeros_that_is_brought_to_unit_length() -> None:
    """x / max(‖x‖, 1e-12) is as steep as 1e12 there, but only within 1e-12."""
    agreeing({"q": np.array([[0.0, 0], [1, 2]]), "k": n(3, 2), "v": n(3, 2), "qk_norm": "l2"})


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_check_is_in_float64_whatever_the_dtype(dtype: str) -> None:
    found = agreeing("rope-half", sets=[f"dtype={dtype}", "softmax_dtype=float16"])
    assert max(row.error for row in found.rows) < 1e-8
    assert found.verdict.endswith("in float64")


@pytest.mark.parametrize("example", names())
def test_every_example_agrees(example: str) -> None:
    for upstream in ("sum", "draw"):
        found = agreeing(example, upstream)
        assert not found.silent
        t = attntrace.trace(example)
        assert {row.step for row in found.rows} == {f"d_{s.name}" for s in moving(t) if s.given}


def test_without_torch_finite_differences_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "attntrace.reference.autograd", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    if hasattr(attntrace, "reference"):
        monkeypatch.delattr(attntrace.reference, "autograd", raising=False)
    problem = attntrace.load("toy")
    found = gradcheck.check(problem, upstream_of(last(attntrace.trace(problem))))
    assert found.silent == {"autograd": "torch is not installed"}
    assert found.verdict == "4 of 4 gradients agree with finite differences (39 of 39 cells), in float64"


def test_what_is_not_a_number_has_no_differences() -> None:
    result = grad("fully-masked-row", "--set", "masked_row=nan", "--format", "json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    steps = {step["name"]: step["values"] for step in document["steps"]}
    assert steps["d_q"][0] == ["NaN"] * 4
    assert document["check"]["agrees"] is None
    assert document["check"]["verdict"].startswith("nothing was checked: the output or a gradient is NaN")
    assert "masked-row" in {note["code"] for note in document["notes"]}
    only = grad("fully-masked-row", "--set", "masked_row=nan", "--check-only")
    assert only.exit_code == 2
    assert only.stderr.startswith("error: nothing was checked")


FUNCTIONS: list[tuple[Callable[[float], float], float]] = [
    (lambda h: float(np.exp(h)), 1.0),
    (lambda h: float(np.tanh(1e6 * h)), 1e6),
    (lambda h: 3.0 * h + 7, 3.0),
    (lambda h: float(np.sin(50 * h) + 1e3), 50.0),
    (lambda h: float(np.exp(-1e4 * (h - 1e-3) ** 2)), 20 * float(np.exp(-1e-2))),
    (lambda h: 4.0, 0.0),
]


@pytest.mark.parametrize(("f", "slope"), FUNCTIONS)
def test_the_doubt_of_a_difference_quotient_is_honest(f: Callable[[float], float], slope: float) -> None:
    found, doubt = gradcheck.derivative(f, 4e-16 * abs(f(0)) + 1e-16)
    assert abs(found - slope) <= 4 * doubt
    assert doubt <= 1e-6 * max(1.0, slope)


def test_the_check_sees_an_error_of_autograd_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from attntrace.reference import autograd as reference

    right = reference.gradients
    monkeypatch.setattr(reference, "gradients", lambda *a: {k: v * (1 + 1e-9) for k, v in right(*a).items()})
    problem = attntrace.load("toy")
    found = gradcheck.check(problem, upstream_of(last(attntrace.trace(problem)), "draw"))
    assert {row.against for row in found.rows if not row.agrees} == {reference.name()}


# ------------------------------------------------------------------ the command


def document(*args: str) -> dict[str, Any]:
    result = grad(*args, "--format", "json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_the_output_comes_first_and_the_inputs_last() -> None:
    names = [step["name"] for step in document("cross-attention")["steps"]]
    assert names[0] == "d_output"
    inputs = [name for name in names if name in {f"d_{i}" for i in ("x", "x_kv", "w_q", "w_k", "w_v")}]
    assert inputs == ["d_x", "d_x_kv", "d_w_q", "d_w_k", "d_w_v"]
    tail = [name for name in names if "_via_" not in name][-5:]
    assert tail == inputs


def test_every_step_has_its_formula() -> None:
    formulas = {step["name"]: step["formula"] for step in document("multi-head-causal", "--set", "w_qkv.std=1")["steps"]}
    assert formulas["d_masked"] == "dS″ = A ∘ (dA − rowsum(A ∘ dA))"
    assert formulas["d_scores"] == "dS = dS′ / √d_k"
    assert formulas["d_w_o"] == "dW_O = Hᵀ dY"
    assert formulas["d_x"] == "dX = dX⟨Q⟩ + dX⟨K⟩ + dX⟨V⟩"
    assert formulas["d_x_via_q"] == "dX⟨Q⟩ = (heads of dQ side by side) W_QKVᵀ, the columns of W_QKV that make Q"


def test_symbols_tell_tiles_apart() -> None:
    """No two steps of one way back have the same symbol, so that a sum says what it is of."""
    symbols = [step["symbol"] for step in document("flash")["steps"]]
    assert len(symbols) == len(set(symbols))


def test_a_gradient_may_be_shown_beside_its_step() -> None:
    steps = document("toy", "--steps", "weights,d_weights,d_x")["steps"]
    assert [step["name"] for step in steps] == ["weights", "d_weights", "d_x"]


def test_one_head_of_one_item() -> None:
    steps = {s["name"]: s for s in document("multi-head-causal", "--batch", "1", "--head", "2")["steps"]}
    whole = values("multi-head-causal")
    np.testing.assert_array_equal(steps["d_weights"]["values"], whole["d_weights"][1, 2])


def test_the_table_follows_the_steps() -> None:
    result = grad("toy")
    assert result.exit_code == 0
    assert result.stdout.index("━━ d_output ━━") < result.stdout.index("━━ d_x ━━") < result.stdout.index("held against")
    assert "✓  d_w_v     finite differences" in result.stdout
    assert "note: the gradient of the output is the same number everywhere" in result.stderr


@pytest.mark.parametrize("kind", ["csv", "npz", "markdown", "latex"])
def test_other_formats_tell_the_verdict_as_a_note(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "out"
    result = grad("toy", "--format", kind, "--output", str(file), "--upstream", "draw")
    assert result.exit_code == 0
    told = result.stderr if kind in ("csv", "npz") else file.read_text()
    assert "gradients agree with finite differences" in told
    if kind == "npz":
        with np.load(file) as arrays:
            assert "d_x" in arrays
            assert "x" not in arrays


def test_check_only_prints_the_table_alone() -> None:
    result = grad("toy", "--check-only", "--upstream", "draw")
    assert result.stdout.splitlines()[0].split() == ["gradient", "held", "against", "cells", "error", "tolerance"]
    assert "━━" not in result.stdout
    found = json.loads(grad("toy", "--check-only", "--format", "json").stdout)
    assert found["agrees"] is True
    assert [row["name"] for row in found["gradients"]] == ["d_x", "d_w_q", "d_w_k", "d_w_v"] * 2
    assert grad("toy", "--check-only", "--format", "csv").exit_code == 2


def test_quiet_says_nothing_and_fails_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    faulty(monkeypatch, ops.Softmax, without_row_sums)
    result = grad("toy", "--quiet")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "")


# ------------------------------------------------------------------ upstream gradients


def test_an_upstream_from_a_file(tmp_path: Path) -> None:
    weights = n(4, 3)
    np.save(tmp_path / "g.npy", weights)
    np.savez(tmp_path / "g.npz", one=weights, two=2 * weights)
    np.savetxt(tmp_path / "g.csv", weights, delimiter=",", fmt="%.17g")
    expected = values("toy", weights)["d_x"]
    for text, factor in (("g.npy", 1), ("g.npz:two", 2), ("g.csv", 1)):
        np.testing.assert_allclose(values("toy", str(tmp_path / text))["d_x"], factor * expected, rtol=1e-15)
        origin = document("toy", "--upstream", str(tmp_path / text))["steps"][0]["origin"]
        assert origin == f"from {str(tmp_path / text).replace(':two', ' [two]')}"


def test_a_drawn_upstream_is_the_same_each_time() -> None:
    drawn = np.random.default_rng(5).normal(size=(4, 3))
    np.testing.assert_array_equal(values("toy", "draw:5")["d_output"], drawn)
    np.testing.assert_array_equal(values("toy", "draw")["d_output"], np.random.default_rng(0).normal(size=(4, 3)))


def test_a_target_is_a_step_and_so_is_the_distance_from_it() -> None:
    steps = document("toy", "--target", "[[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]]")["steps"]
    assert [step["name"] for step in steps[:2]] == ["target", "d_output"]
    assert steps[0]["origin"] == "L = ½ ‖Y − T‖²"
    assert (steps[1]["formula"], steps[1]["operands"]) == ("dY = Y − T", ["output", "target"])
    y = attntrace.trace("toy")["output"].values
    np.testing.assert_array_equal(steps[1]["values"], y - np.eye(4, 3))


def test_axes_of_one_in_front_do_not_matter() -> None:
    np.testing.assert_array_equal(values(SMALL, n(3, 8))["d_output"], n(3, 8)[None])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--target", "[[1, 0, 0]]"), "--target: expected the shape of output, query 4 × d_v 3; found 1 × 3"),
        (("--target", "[[1, a]]"), "--target[0][1]: expected a number, found 'a'"),
        (("--target", "[[1, 2], [3]]"), "--target: row 1 has 1 number; expected 2, as the rows before it"),
        (("--upstream", "drw"), 'did you mean "draw"?'),
        (("--upstream", "sum:3"), "--upstream sum:3: expected sum, mean, draw, draw:SEED, a list of numbers, or a .npy"),
        (("--upstream", "g.npz"), "--upstream: g.npz does not exist"),
        (("--target", "draw"), "--target draw: expected a list of numbers, or a .npy, .npz, .csv or .safetensors file"),
        (("--upstream", "sum", "--target", "[[1]]"), "each makes the gradient of the output; give one of them"),
        (("--upstream", "[[1,"), "--upstream"),
        (("--steps", "d_y"), "there is no step 'd_y' in this trace"),
    ],
)
def test_errors(args: tuple[str, ...], message: str) -> None:
    result = grad("toy", *args)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""


def test_the_block_is_what_a_loss_is_of() -> None:
    names = list(values("llama-block"))
    assert names[0] == "d_block_output"
    assert "d_output" in names


def test_a_step_of_the_way_back_knows_what_it_is_made_of() -> None:
    t = attntrace.trace("toy")
    step = gradients(t)["d_weights"]
    assert step.operation == Backward(ops.MatMul(), 0)
    assert [o.name for o in step.operands] == ["d_output", "output", "weights", "v"]


def test_losses_are_what_they_say() -> None:
    y = n(2, 3)
    assert Weighted(np.full((2, 3), 2.0), "").terms(y).sum() == pytest.approx(2 * y.sum())
    assert Squared(np.ones((2, 3)), "").terms(y).sum() == pytest.approx(((y - 1) ** 2).sum() / 2)


def test_a_long_check_shows_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from attntrace.cli import grad as module
    from attntrace.cli.options import Output

    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr(module, "PATIENCE", -1.0)
    with module.progress(Output()) as tick:
        tick(3, 12)
    assert "finite differences" in capsys.readouterr().err
    monkeypatch.setattr(module, "PATIENCE", 1e9)
    with module.progress(Output()) as tick:
        tick(3, 12)
    assert capsys.readouterr().err == ""
