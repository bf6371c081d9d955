"""From x to queries, keys and values: projections, norms, rotations by complex numbers, caches, grouped heads."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812 - the name everybody uses

from attntrace.parts.block import Block
from attntrace.parts.qk_norm import QKNorm
from attntrace.parts.rope import Rope
from attntrace.problem import Problem
from attntrace.reference.torch.place import rows
from attntrace.reference.torch.tensors import Arrays, Tensor, wide

# What queries, keys and values become one after the other, before they are shared by groups.
QUERIES = ("q", "q_norm", "q_rot")
KEYS = ("k", "k_norm", "k_rot", "k_all")
VALUES = ("v", "v_all")


def linear(p: Problem, x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """torch's linear wants weights stored (out, in)."""
    return F.linear(x, w if p.options.transposed else w.mT.contiguous(), b)


def heads_first(t: Tensor, heads: int) -> Tensor:
    """(…, token, heads · d) to (…, head, token, d)."""
    return t.unflatten(-1, (heads, -1)).transpose(-3, -2)


def source(p: Problem, a: Arrays, letter: str) -> str:
    """What queries, or keys and values, are made from: x, or what the block makes of it first; of x the rows that ask."""
    if letter != "q" and p.cross:
        return "x_kv"
    block = p.options.parts.get("block")
    x = "normed1" if isinstance(block, Block) and block.order != "post" else "x"
    return a.latest(x, f"{x}_rows") if letter == "q" else x


def project(p: Problem, a: Arrays, letter: str) -> Tensor | None:
    if not p.projected:
        return divided(p, a, letter)
    x = a[source(p, a, letter)]
    if "w_qkv" in p.sources:
        return unfused(p, linear(p, x, a["w_qkv"], a.get("b_qkv")), letter)
    y = linear(p, x, a[f"w_{letter}"], a.get(f"b_{letter}"))
    return y if p.options.heads is None else heads_first(y, counts(p)["qkv".index(letter)])


def divided(p: Problem, a: Arrays, letter: str) -> Tensor | None:
    """Queries, keys or values that were given: the queries that are traced, or heads that lay side by side."""
    if letter == "q" and "q_given" in a:
        return picked(p, a, "q_given")
    merged = a.get(f"{letter}_merged")
    return None if merged is None else heads_first(merged, counts(p)["qkv".index(letter)])


def q_given(p: Problem, a: Arrays) -> Tensor | None:
    return heads_first(a["q_merged"], counts(p)[0]) if "q_merged" in a else None


def picked(p: Problem, a: Arrays, name: str) -> Tensor:
    """The tokens whose queries are traced."""
    return a[name].index_select(-2, rows(p, a))


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


# ------------------------------------------------------------------ norms


def norm(kind: str, x: Tensor, eps: float, weight: Tensor | None, bias: Tensor | None = None) -> Tensor:
    """torch's norm of that name; half precision is widened first, since torch rounds some of them on their way."""
    x, weight, bias = wide(x), *(None if t is None else wide(t) for t in (weight, bias))
    if kind == "layernorm":
        return F.layer_norm(x, x.shape[-1:], weight, bias, eps)
    if kind == "rmsnorm":
        return F.rms_norm(x, x.shape[-1:], weight, eps)
    unit = F.normalize(x, dim=-1, eps=eps)
    return unit if weight is None else unit.mul(weight)


def qk_norm(p: Problem, a: Arrays, letter: str) -> Tensor:
    part = p.options.parts["qk_norm"]
    assert isinstance(part, QKNorm)
    return norm(part.norm, a[letter], part.eps, a.get(f"{letter}_norm_weight"))


# ------------------------------------------------------------------ rotations


def frequencies(p: Problem, a: Arrays) -> Tensor:
    rope = p.options.parts["rope"]
    assert isinstance(rope, Rope)
    dims = rope.dims or a["q"].shape[-1]
    turns = torch.arange(0, dims, 2, dtype=torch.float64).div(dims)
    return scaled(torch.tensor(rope.base, dtype=torch.float64).pow(turns).reciprocal(), rope.scaling)


def scaled(theta: Tensor, scaling: Any) -> Tensor:
    """Linear scaling divides all alike. Llama 3's divides those of long waves, and between long and short ones it goes from
    one to the other evenly in the number of waves that the original context holds."""
    if scaling is None:
        return theta
    slow = theta.div(scaling.factor)
    if not hasattr(scaling, "original"):
        return slow
    wave = 2 * torch.pi / theta
    longest, shortest = scaling.original / scaling.low, scaling.original / scaling.high
    share = (scaling.original / wave - scaling.low) / (scaling.high - scaling.low)
    between = torch.lerp(slow, theta, share)
    return torch.where(wave > longest, slow, torch.where(wave < shortest, theta, between))


def angles(p: Problem, a: Arrays, prefix: str) -> Tensor:
    theta = a["frequencies"]
    return torch.einsum("...t,i->...ti", a[f"{prefix}positions"].to(theta.dtype), theta)


def circular(p: Problem, a: Arrays, prefix: str, which: str) -> Tensor:
    """Cosine or sine of the angles, as the parts of a number on the unit circle; or looked up in the table that is given."""
    table = a.get(f"{which}_table")
    if table is not None:
        return looked_up(table, a[f"{prefix}positions"].long())
    phi = a[f"{prefix}angles"]
    turned = torch.polar(torch.ones_like(phi), phi)
    return turned.real if which == "cos" else turned.imag


def looked_up(table: Tensor, at: Tensor) -> Tensor:
    """F.embedding's rows of one table, or for each batch item of its own."""
    if table.dim() == 2:
        return F.embedding(at, table)
    each = at.expand(len(table), -1)
    return torch.stack([F.embedding(row, own) for row, own in zip(each, table, strict=True)])


def rotated(p: Problem, a: Arrays, letter: str) -> Tensor:
    """Each pair of entries is a complex number, which is multiplied by cos + i sin."""
    rope = p.options.parts["rope"]
    assert isinstance(rope, Rope)
    x = wide(a.last(letter, f"{letter}_norm"))
    prefix = "key_" if letter == "k" and "key_cos" in a else ""
    turn = torch.complex(wide(a[f"{prefix}cos"]), wide(a[f"{prefix}sin"]))
    dims = 2 * turn.shape[-1]
    if turn.dim() == 3 and x.dim() == 4:
        turn = turn.unsqueeze(1)
    still = x[..., dims:].expand(*torch.broadcast_shapes(x.shape[:-1], turn.shape[:-1]), -1)
    return torch.cat([times(x[..., :dims], turn, rope.pairs), still], dim=-1)


def times(x: Tensor, turn: Tensor, pairs: str) -> Tensor:
    if pairs == "interleaved":
        product = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * turn
        return torch.view_as_real(product).flatten(-2)
    product = torch.complex(*x.chunk(2, dim=-1)) * turn
    return torch.cat([product.real, product.imag], dim=-1)


# ------------------------------------------------------------------ caches and groups


def from_blocks(p: Problem, a: Arrays, letter: str) -> Tensor | None:
    """The blocks of each sequence side by side, as many slots of them as are held; None when the past is given whole."""
    if f"{letter}_blocks" not in a:
        return None
    blocks, table = a[f"{letter}_blocks"], a["table"]
    found = blocks.index_select(0, table.flatten()).unflatten(0, table.shape)  # ([batch], page, [head], slot, d)
    at = table.dim() - 1
    found = found.movedim(at, -3).flatten(-3, -2)  # ([batch], [head], page · slot, d)
    return found.narrow(-2, 0, p.sizes["past_key"])


def joined(p: Problem, a: Arrays, letter: str) -> Tensor:
    """The past, then what is new."""
    return torch.cat([a[f"{letter}_past"], a.last(letter, f"{letter}_norm", f"{letter}_rot")], dim=-2)


def shared(p: Problem, a: Arrays, *names: str) -> Tensor:
    return a.last(*names).repeat_interleave(p.group, dim=-3)
