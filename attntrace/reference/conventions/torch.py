"""What PyTorch does: scaled_dot_product_attention and nn.MultiheadAttention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from attntrace.problem import Problem
from attntrace.reference.conventions import Convention, Have, aligned, without_keys
from attntrace.tape import Array

FUSED = "scaled_dot_product_attention"
MULTIHEAD = "nn.MultiheadAttention"


def conventions(p: Problem, have: Have) -> Iterator[Convention]:
    yield from without_keys(p, have, FUSED, lambda v: fused(v, attn_mask=torch.zeros(1, v.shape[2], dtype=torch.bool))[0])
    yield from without_keys(p, have, MULTIHEAD, multihead)
    yield from aligned(p, f"{FUSED} with is_causal", lambda queries, keys: fused(identity(keys), queries, is_causal=True))


def identity(keys: int) -> Array:
    """Values that tell which keys were seen: every key's is a column of its own."""
    return np.eye(keys, dtype=np.float32)[None, None]


def fused(v: Array, queries: int = 1, **options: Any) -> Array:
    """Queries and keys of zeros."""
    values = torch.from_numpy(np.ascontiguousarray(v))
    q, k = (torch.zeros(1, 1, n, 1, dtype=values.dtype) for n in (queries, v.shape[2]))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, values, **options)
    return np.asarray(out[0, 0].numpy())


def multihead(v: Array) -> Array:
    """A module of one head that hands its values on as they are."""
    width = v.shape[-1]
    values = torch.from_numpy(np.ascontiguousarray(v[0]))
    module = torch.nn.MultiheadAttention(width, 1, bias=False, batch_first=True, dtype=values.dtype).eval()
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.eye(width).repeat(3, 1))
        module.out_proj.weight.copy_(torch.eye(width))
        hidden = torch.ones(1, v.shape[2], dtype=torch.bool)
        out, _ = module(torch.zeros_like(values[:, :1]), torch.zeros_like(values), values, attn_mask=hidden)
    return np.asarray(out[0, 0].numpy())
