"""What jax.nn.dot_product_attention does: with a mask, which is a choice, and with a bias, which is a sum."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from attntrace.problem import Problem
from attntrace.reference.conventions import Convention, Have, aligned, without_keys
from attntrace.reference.jax.whole import attention
from attntrace.tape import Array

WHAT = "nn.dot_product_attention"


def conventions(p: Problem, have: Have) -> Iterator[Convention]:
    yield from without_keys(p, have, f"{WHAT} with a mask", lambda v: probe(v, mask=every(v, False))[0])
    yield from without_keys(p, have, f"{WHAT} with a bias of −∞", lambda v: probe(v, bias=every(v, -np.inf))[0])
    yield from aligned(p, f"{WHAT} with is_causal", seen)


def seen(queries: int, keys: int) -> Array:
    """Every key's value is a column of its own."""
    return probe(np.eye(keys, dtype=np.float32)[None, None], queries, is_causal=True)


def every(v: Array, value: float) -> Array:
    """The same for every key."""
    return np.full((1, 1, 1, v.shape[2]), value, bool if value is False else v.dtype)


def probe(v: Array, queries: int = 1, **options: Any) -> Array:
    """Queries and keys of zeros, which it wants as wide as values."""
    shape = (*v.shape[:2], queries, v.shape[-1])
    return np.asarray(attention(np.zeros(shape, v.dtype), np.zeros_like(v), v, **options)[0, 0])
