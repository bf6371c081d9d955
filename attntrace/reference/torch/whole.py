"""torch's own attention, asked to go the whole way in one call: scaled_dot_product_attention, flex_attention where a softcap or
sinks are on, nn.MultiheadAttention."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812 - the name everybody uses

from attntrace.problem import Problem
from attntrace.reference import Opinion
from attntrace.reference.torch import place
from attntrace.reference.torch.project import KEYS, QUERIES, VALUES, source
from attntrace.reference.torch.tensors import Arrays, Tensor, array
from attntrace.tape import Array

try:
    from torch.nn.attention.flex_attention import flex_attention
except ImportError:  # torch has it since 2.5
    flex_attention = None

FUSED, FLEX, MULTIHEAD = "scaled_dot_product_attention", "flex_attention", "nn.MultiheadAttention"


def whole(p: Problem, have: Mapping[str, Array]) -> Iterator[Opinion]:
    """What torch's own attention gives, where it can express the problem."""
    silent, a = silences(p, have), Arrays(have)
    if FUSED not in silent:
        yield fused(p, a)
    if FLEX not in silent and flexible(p):
        yield flex(p, a)
    if MULTIHEAD not in silent:
        yield from multihead(p, a)


def silences(p: Problem, have: Mapping[str, Array]) -> dict[str, str]:
    """Which of them is not asked, and why. flex_attention is only wanted where there is something that SDPA lacks."""
    found = {FUSED: next(fused_obstacles(p), ""), MULTIHEAD: next(multihead_obstacles(p), "")}
    if flexible(p):
        found[FLEX] = next(flex_obstacles(p), "")
    return {what: why for what, why in found.items() if why}


def flexible(p: Problem) -> bool:
    return p.options.softcap is not None or "sinks" in p.sources


def fused_obstacles(p: Problem) -> Iterator[str]:
    yield from common_obstacles(p)
    yield from unknown_scores(p)


def flex_obstacles(p: Problem) -> Iterator[str]:
    yield from common_obstacles(p)
    if flex_attention is None or not hasattr(torch.compiler, "set_stance"):
        yield "this version of torch has none that runs as it is"


def common_obstacles(p: Problem) -> Iterator[str]:
    if p.options.dropout is not None:
        yield "it draws its own dropout"
    if p.options.masked_row == "nan":
        yield "it gives zeros for a query without keys"


def unknown_scores(p: Problem) -> Iterator[str]:
    if p.options.softcap is not None:
        yield "it has no softcap"
    if "sinks" in p.sources:
        yield "it has no sinks"


def multihead_obstacles(p: Problem) -> Iterator[str]:
    if not p.projected:
        yield "it makes q, k and v itself"
    if p.options.dropout is not None:
        yield "it draws its own dropout"
    if p.options.scale is not None:
        yield "it always divides by √d_k"
    if p.group > 1:
        yield "it has no grouped heads"
    for key, what in (("qk_norm", "norms of q and k"), ("rope", "rotations"), ("cache", "cache")):
        if key in p.options.parts:
            yield f"it has no {what}"
    yield from unknown_scores(p)
    if not square(p):
        yield "it wants d_k = d_v, and q and the output as wide as x"
    if place.bias(p, Arrays({})).isneginf().all(dim=-1).any():
        yield "it gives NaN for a query without keys"
    if np.dtype(p.options.dtype).itemsize < 4:
        yield "in half precision it rounds at other places than the steps do"


def square(p: Problem) -> bool:
    """Whether d_k · heads, d_v · heads and the output are all as wide as x."""
    heads, width = p.sizes.get("head", 1), p.sizes.get("d_model")
    return p.sizes["d_k"] * heads == p.sizes["d_v"] * heads == p.sizes.get("d_out", width) == width


def added(p: Problem, a: Arrays) -> Tensor | None:
    """All that is added to the scores: (batch, head, query, key), the first two may be 1. None when nothing is."""
    total = place.bias(p, a) if p.masks else None
    if "alibi" not in p.options.parts:
        return total
    far = place.distance(p, a)
    slope = a["slopes"]
    alibi = (slope.neg().view(-1, 1, 1) * far.to(slope.dtype).unsqueeze(-3)).view(-1, len(slope), *far.shape[-2:])
    return alibi.to(a["q"].dtype) if total is None else alibi.to(total.dtype) + total


def four(p: Problem, t: Tensor) -> Tensor:
    """([batch], [head], token, d) as (batch, head, token, d)."""
    t = t if p.headed else t.unsqueeze(-3)
    return t if p.batched else t.unsqueeze(0)


def fewer(p: Problem, t: Tensor) -> Tensor:
    """(batch, head, …) without the axes that the problem does not have."""
    t = t if p.headed else t.squeeze(1)
    return t if p.batched else t.squeeze(0)


def start(p: Problem, a: Arrays) -> tuple[str, ...]:
    """The steps that a call of torch's attention begins from: queries, keys and values as they are once they are ready."""
    ready = (a.latest(*names) for names in (QUERIES, KEYS, VALUES))
    return (*ready, *(name for name in ("slopes", "sinks") if name in a))


def opinion(p: Problem, a: Arrays, what: str, out: Tensor) -> Opinion:
    return Opinion("context" if p.merges else "output", what, start(p, a), array(fewer(p, out)))


def ready(p: Problem, a: Arrays) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (four(p, a.last(*names)) for names in (QUERIES, KEYS, VALUES))
    return q, k, v


def fused(p: Problem, a: Arrays) -> Opinion:
    """scaled_dot_product_attention; masks and linear biases are what it adds to the scores."""
    grouped = {"enable_gqa": True} if p.group > 1 else {}
    out = F.scaled_dot_product_attention(*ready(p, a), attn_mask=added(p, a), scale=p.options.scale, **grouped)
    return opinion(p, a, FUSED, out)


def flex(p: Problem, a: Arrays) -> Opinion:
    """flex_attention, which lets the scores be changed one by one, and tells the logarithm of each row's sum.

    A sink takes its share of a row afterwards: exp(lse) / (exp(lse) + exp(z)) = sigmoid(lse − z) stays.
    """
    q, k, v = ready(p, a)
    extra, cap = added(p, a), p.options.softcap
    extra = None if extra is None else extra.expand(len(q), q.shape[1], q.shape[2], k.shape[2])

    def modified(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        score = score if cap is None else cap * torch.tanh(score / cap)
        return score if extra is None else score + extra[batch, head, query, key]

    options = {"score_mod": modified, "scale": p.options.scale, "enable_gqa": p.group > 1, "return_lse": True}
    with warnings.catch_warnings(), torch.compiler.set_stance("force_eager"):
        warnings.simplefilter("ignore")  # it would rather be compiled
        out, lse = flex_attention(q, k, v, **options)
    if "sinks" in a:
        out = out * torch.sigmoid(lse - a["sinks"].view(-1, 1)).unsqueeze(-1)
    return opinion(p, a, FLEX, out.to(q.dtype))


# ------------------------------------------------------------------ nn.MultiheadAttention


def multihead(p: Problem, a: Arrays) -> Iterator[Opinion]:
    """nn.MultiheadAttention from x on, without averaging its weights over heads."""
    module = filled(p, a)
    names = source(p, a, "q"), source(p, a, "k")
    x, x_kv = (t if p.batched else t.unsqueeze(0) for t in map(a.__getitem__, names))
    with torch.no_grad():
        out, w = module(x, x_kv, x_kv, attn_mask=multihead_mask(p, a), average_attn_weights=False)
    begin = (*names, *(name for name in a.have if name in p.sources or name == "slopes"))
    if "weights" in a:
        yield Opinion("weights", MULTIHEAD, begin, array(fewer(p, w)))
    yield Opinion("output", MULTIHEAD, begin, array(out if p.batched else out.squeeze(0)))


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
    w_o = stored(p, a["w_o"]) if "w_o" in a else torch.eye(width, dtype=dtype)
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
    m = added(p, a)
    return None if m is None else m.expand(p.sizes.get("batch", 1), p.sizes.get("head", 1), -1, -1).flatten(0, 1)
