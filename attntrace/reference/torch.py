"""PyTorch as the reference: linear, matmul, softmax, scaled_dot_product_attention and nn.MultiheadAttention.

Each step is recomputed by torch from the trace's own earlier steps, so that a step that is wrong is told apart from those
that only carry its error on. Then torch's own attention goes the whole way in one call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from attntrace.errors import MissingPackage
from attntrace.parts import mask as masks
from attntrace.problem import Problem
from attntrace.reference import Opinion
from attntrace.tape import Array

try:
    import torch
    from torch.nn import functional as F  # noqa: N812 - the name everybody uses
except ImportError:
    raise MissingPackage("verify", "torch", "torch") from None

NAME = "torch"
FUSED, MULTIHEAD = "scaled_dot_product_attention", "nn.MultiheadAttention"
Tensor = Any


def version() -> str:
    return str(torch.__version__).partition("+")[0]


def tensor(array: Array) -> Tensor:
    """An array as a tensor of the same dtype; bfloat16, which NumPy hands over as bytes, by way of float32.

    torch wants memory in C order that it might write to.
    """
    if array.dtype.name == "bfloat16":
        return tensor(array.astype(np.float32)).to(torch.bfloat16)
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def array(t: Tensor) -> Array:
    """A tensor as an array; bfloat16 widened to float32, which is exact."""
    t = t.detach()
    return np.asarray((t.float() if t.dtype == torch.bfloat16 else t).numpy())


# ------------------------------------------------------------------ step by step


def steps(p: Problem, have: Mapping[str, Array]) -> Iterator[tuple[str, str, Array]]:
    """(step, what torch calls it, its values) for every step of the trace `have` that torch can give."""
    for name in have:
        if name in STEPS:
            what, compute = STEPS[name]
            got = compute(p, Arrays(have))
            if got is not None:
                yield name, what, array(got)


class Arrays:
    """The arrays of a trace as tensors: `a["q"]`; `a.get` gives None for a step that is not there."""

    def __init__(self, have: Mapping[str, Array]) -> None:
        self.have = have

    def __getitem__(self, name: str) -> Tensor:
        return tensor(self.have[name])

    def get(self, name: str) -> Tensor | None:
        return self[name] if name in self.have else None

    def last(self, *names: str) -> Tensor:
        """The last one of `names` that the trace has."""
        return self[[name for name in names if name in self.have][-1]]


def linear(p: Problem, x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """torch's linear wants weights stored (out, in)."""
    return F.linear(x, w if p.options.transposed else w.mT.contiguous(), b)


def heads_first(t: Tensor, heads: int) -> Tensor:
    """(…, token, heads · d) to (…, head, token, d)."""
    return t.unflatten(-1, (heads, -1)).transpose(-3, -2)


def project(p: Problem, a: Arrays, letter: str) -> Tensor | None:
    if not p.projected:
        merged = a.get(f"{letter}_merged")
        return None if merged is None else heads_first(merged, counts(p)["qkv".index(letter)])
    x = a["x"] if letter == "q" or not p.cross else a["x_kv"]
    if "w_qkv" in p.sources:
        return unfused(p, linear(p, x, a["w_qkv"], a.get("b_qkv")), letter)
    y = linear(p, x, a[f"w_{letter}"], a.get(f"b_{letter}"))
    return y if p.options.heads is None else heads_first(y, counts(p)["qkv".index(letter)])


def counts(p: Problem) -> tuple[int, int, int]:
    """How many heads there are of queries, keys and values."""
    heads = p.options.heads or 1
    groups = p.options.kv_heads or heads
    return heads, groups, groups


def unfused(p: Problem, y: Tensor, letter: str) -> Tensor:
    """Queries, keys or values out of a fused projection, whose outputs lie as qkv_layout says."""
    heads, groups, _ = counts(p)
    which, n = "qkv".index(letter), heads // groups
    d = y.shape[-1] // (heads + 2 * groups)
    if p.options.qkv_layout == "q|k|v":
        part = y.split([heads * d, groups * d, groups * d], dim=-1)[which]
    else:
        part = y.unflatten(-1, (groups, n + 2, d)).split([n, 1, 1], dim=-2)[which].flatten(-3)
    return part if p.options.heads is None else heads_first(part, counts(p)[which])


def scaled(p: Problem, a: Arrays) -> Tensor:
    s = a["scores"]
    return s.mul(p.options.scale) if p.options.scale is not None else s.div(a["q"].shape[-1] ** 0.5)


def allowed(p: Problem, m: Any, a: Arrays) -> Tensor:
    """Which keys a mask allows, as booleans that broadcast to (batch, head, query, key)."""
    queries, keys = a["scores"].shape[-2:]
    if isinstance(m, masks.Causal | masks.Window):
        left, right = (None, 0) if isinstance(m, masks.Causal) else (m.left, m.right)
        items = [band(queries, keys, offset, left, right) for offset in offsets(p, m, queries, keys)]
        return torch.stack(items).unsqueeze(1) if len(items) > 1 else items[0]
    if isinstance(m, masks.Padding):
        return torch.arange(keys).lt(torch.tensor(m.lengths).view(-1, 1, 1, 1))
    given = four_axes(p, tensor(p.arrays[m.name]))
    return given.ne(0) if m.sense == "keep" else given.eq(0)


def offsets(p: Problem, m: Any, queries: int, keys: int) -> list[int]:
    """The key at which the first query stands, one for each batch item or one for all."""
    if m.align != "bottom-right":
        return [m.align if isinstance(m.align, int) else 0]
    lengths = [other.lengths for other in p.options.masks if isinstance(other, masks.Padding)]
    return [min(ends) - queries for ends in zip(*lengths, strict=True)] if lengths else [keys - queries]


def band(queries: int, keys: int, offset: int, left: int | None, right: int | None) -> Tensor:
    """Ones on the diagonals from `left` below to `right` above that of the offset."""
    full = torch.ones(queries, keys, dtype=torch.bool)
    full = full if right is None else full.tril(diagonal=offset + right)
    return full if left is None else full.triu(diagonal=offset - left)


def four_axes(p: Problem, t: Tensor) -> Tensor:
    if t.dim() == 3 and not p.headed:
        return t.unsqueeze(1)
    return t.view(*(1,) * (4 - t.dim()), *t.shape)


def mask(p: Problem, a: Arrays) -> Tensor:
    """The masks added up one after the other; boolean ones are 0 and −∞."""
    total = torch.zeros((), dtype=a["scores"].dtype)
    for m in p.options.masks:
        if isinstance(m, masks.Array) and m.sense == "add":
            total = total + four_axes(p, tensor(p.arrays[m.name]))
        else:
            keep = allowed(p, m, a)
            total = total + torch.zeros(keep.shape, dtype=total.dtype).masked_fill(~keep, -torch.inf)
    total = total.view(*(1,) * (4 - total.dim()), *total.shape)
    return total.expand(*total.shape[:2], *a["scores"].shape[-2:]).reshape(a["mask"].shape)


def masked(p: Problem, a: Arrays) -> Tensor:
    return a["scaled"] + aligned(p, a["mask"], a["scaled"])


def aligned(p: Problem, m: Tensor, scores: Tensor) -> Tensor:
    """A mask over (batch, query, key) beside scores that have heads gets an axis of one head."""
    return m.unsqueeze(1) if m.dim() == 3 and scores.dim() == 4 and not per_head(p) else m


def per_head(p: Problem) -> bool:
    """Whether a mask tells heads apart."""
    given = [four_axes(p, tensor(p.arrays[m.name])) for m in p.options.masks if isinstance(m, masks.Array)]
    return any(m.shape[1] > 1 for m in given)


def weights(p: Problem, a: Arrays) -> Tensor:
    s = a.last("scaled", "masked")
    w = F.softmax(s, dim=-1)
    empty = s.isneginf().all(dim=-1, keepdim=True)
    return w if p.options.masked_row == "nan" else w.masked_fill(empty, 0)


def dropped(p: Problem, a: Arrays) -> Tensor:
    return a["weights"].mul(a["keep"]).div(1 - (p.options.dropout or 0))


def attended(p: Problem, a: Arrays) -> Tensor:
    return a.last("weights", "dropped") @ a.last("v", "v_shared")


def concat(p: Problem, a: Arrays) -> Tensor:
    c = a["context"]
    return c.transpose(-3, -2).flatten(-2) if p.headed else c


def output(p: Problem, a: Arrays) -> Tensor:
    if "concat" not in a.have:
        return attended(p, a)
    return linear(p, a["concat"], a["w_o"], a.get("b_o")) if "w_o" in a.have else a["concat"]


def shared(p: Problem, a: Arrays, name: str) -> Tensor:
    return a[name].repeat_interleave(p.group, dim=-3)


STEPS: dict[str, tuple[str, Callable[[Problem, Arrays], Tensor | None]]] = {
    "q": ("linear", lambda p, a: project(p, a, "q")),
    "k": ("linear", lambda p, a: project(p, a, "k")),
    "v": ("linear", lambda p, a: project(p, a, "v")),
    "k_shared": ("repeat_interleave", lambda p, a: shared(p, a, "k")),
    "v_shared": ("repeat_interleave", lambda p, a: shared(p, a, "v")),
    "scores": ("matmul", lambda p, a: a["q"] @ a.last("k", "k_shared").mT),
    "scaled": ("div, mul", scaled),
    "mask": ("masked_fill", mask),
    "masked": ("add", masked),
    "weights": ("softmax", weights),
    "dropped": ("mul, div", dropped),
    "context": ("matmul", attended),
    "concat": ("transpose, flatten", concat),
    "output": ("linear, matmul", output),
}


# ------------------------------------------------------------------ the whole way


def whole(p: Problem, have: Mapping[str, Array]) -> Iterator[Opinion]:
    """What scaled_dot_product_attention and nn.MultiheadAttention give, where they can express the problem."""
    silent = silences(p, have)
    if FUSED not in silent:
        yield fused(p, Arrays(have))
    if MULTIHEAD not in silent:
        yield from multihead(p, Arrays(have))


def silences(p: Problem, have: Mapping[str, Array]) -> dict[str, str]:
    """Which of the two is not asked, and why."""
    found = {FUSED: next(fused_obstacles(p), ""), MULTIHEAD: next(multihead_obstacles(p, have), "")}
    return {what: why for what, why in found.items() if why}


def fused_obstacles(p: Problem) -> Iterator[str]:
    if p.options.dropout is not None:
        yield "it draws its own dropout"
    if p.options.masked_row == "nan":
        yield "it gives zeros for a query without keys"


def multihead_obstacles(p: Problem, have: Mapping[str, Array]) -> Iterator[str]:
    if not p.projected:
        yield "it makes q, k and v itself"
    if p.options.dropout is not None:
        yield "it draws its own dropout"
    if p.options.scale is not None:
        yield "it always divides by √d_k"
    if p.group > 1:
        yield "it has no grouped heads"
    if not square(p):
        yield "it wants d_k = d_v, and q and the output as wide as x"
    if (have.get("masked", have["scaled"]) == -np.inf).all(axis=-1).any():
        yield "it gives NaN for a query without keys"
    if np.dtype(p.options.dtype).itemsize < 4:
        yield "in half precision it rounds at other places than the steps do"


def square(p: Problem) -> bool:
    """Whether d_k · heads, d_v · heads and the output are all as wide as x."""
    heads, width = p.sizes.get("head", 1), p.sizes.get("d_model")
    return p.sizes["d_k"] * heads == p.sizes["d_v"] * heads == p.sizes.get("d_out", width) == width


def fused(p: Problem, a: Arrays) -> Opinion:
    """scaled_dot_product_attention from q, k and v on."""
    bias = aligned(p, a["mask"], a["scores"]) if p.options.masks else None
    q, k, v = (a[name] for name in "qkv")
    grouped = {"enable_gqa": True} if p.group > 1 else {}
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=p.options.scale, **grouped)
    step = "context" if "context" in a.have else "output"
    return Opinion(step, FUSED, ("q", "k", "v", "mask"), array(out))


def multihead(p: Problem, a: Arrays) -> Iterator[Opinion]:
    """nn.MultiheadAttention from x on, without averaging its weights over heads."""
    module = filled(p, a)
    x, x_kv = (t if p.batched else t.unsqueeze(0) for t in (a["x"], a.last("x", "x_kv")))
    with torch.no_grad():
        out, w = module(x, x_kv, x_kv, attn_mask=multihead_mask(p, a), average_attn_weights=False)
    start = (*(name for name in a.have if name in p.sources), "mask")
    lead = a["weights"].shape
    yield Opinion("weights", MULTIHEAD, start, array(w.reshape(lead)))
    yield Opinion("output", MULTIHEAD, start, array(out if p.batched else out.squeeze(0)))


def filled(p: Problem, a: Arrays) -> Any:
    """A module with the problem's weights; what is not given is the identity, or zero."""
    width, heads = p.sizes["d_model"], p.sizes.get("head", 1)
    x_kv = a.last("x", "x_kv")
    dtype = a["x"].dtype
    module = torch.nn.MultiheadAttention(width, heads, kdim=x_kv.shape[-1], vdim=x_kv.shape[-1], batch_first=True, dtype=dtype)
    q, k, v = (weight(p, a, letter) for letter in "qkv")
    if module.in_proj_weight is None:
        own = {"q_proj_weight": q[0], "k_proj_weight": k[0], "v_proj_weight": v[0]}
    else:
        own = {"in_proj_weight": torch.cat([q[0], k[0], v[0]])}
    bias = torch.cat([q[1], k[1], v[1]])
    w_o = stored(p, a["w_o"]) if "w_o" in a.have else torch.eye(width, dtype=dtype)
    b_o = a.get("b_o")
    out = {"out_proj.weight": w_o, "out_proj.bias": torch.zeros(width, dtype=dtype) if b_o is None else b_o}
    module.load_state_dict({**own, "in_proj_bias": bias, **out})
    return module.eval()


def stored(p: Problem, w: Tensor) -> Tensor:
    return w if p.options.transposed else w.mT


def weight(p: Problem, a: Arrays, letter: str) -> tuple[Tensor, Tensor]:
    """Weight (out, in) and bias of one projection; of a fused one, the rows that its layout gives to this letter."""
    if "w_qkv" not in p.sources:
        w, b = stored(p, a[f"w_{letter}"]), a.get(f"b_{letter}")
        return w, torch.zeros(w.shape[0], dtype=w.dtype) if b is None else b
    w, b = stored(p, a["w_qkv"]), a.get("b_qkv")
    b = torch.zeros(w.shape[0], dtype=w.dtype) if b is None else b
    heads = p.options.heads or 1
    if p.options.qkv_layout == "q|k|v":
        return w.chunk(3)["qkv".index(letter)], b.chunk(3)["qkv".index(letter)]
    which = "qkv".index(letter)
    return w.unflatten(0, (heads, 3, -1))[:, which].flatten(0, 1), b.unflatten(0, (heads, 3, -1))[:, which].flatten()


def multihead_mask(p: Problem, a: Arrays) -> Tensor | None:
    """The module takes one mask for all, or one for each batch item and head: (batch · heads, query, key)."""
    if not p.options.masks:
        return None
    batch, heads = p.sizes.get("batch", 1), p.sizes.get("head", 1)
    m = aligned(p, a["mask"], a["scores"])
    queries, keys = m.shape[-2:]
    if m.dim() == 3 and p.batched and not p.headed:
        m = m.unsqueeze(1)
    return m.expand(batch, heads, queries, keys).reshape(batch * heads, queries, keys)
