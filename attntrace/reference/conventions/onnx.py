"""What the Attention operator of ONNX's reference evaluator does."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attntrace.problem import Problem
from attntrace.reference.conventions import Convention, Have, aligned, capped_before, without_keys
from attntrace.reference.onnx.evaluator import run
from attntrace.tape import Array

WHAT = "Attention"


def conventions(p: Problem, have: Have) -> Iterator[Convention]:
    past = p.sizes.get("past_key", 0)
    yield from without_keys(p, have, WHAT, hidden_values)
    yield from aligned(p, f"{WHAT} with is_causal and {'a' if past else 'no'} cache", lambda n, keys: seen(n, keys, past))
    yield from capped_before(p, have, WHAT, hidden_weight)


def hidden_values(v: Array) -> Array:
    keys = v.shape[2]
    hidden = np.full((1, keys), -np.inf, v.dtype)
    return np.asarray(run(WHAT, zeros(1, v), zeros(keys, v), v, hidden)[0][0, 0, 0])


def zeros(tokens: int, like: Array | None = None) -> Array:
    return np.zeros((1, 1, tokens, 1), np.float32 if like is None else like.dtype)


def seen(queries: int, keys: int, past: int) -> Array:
    """Every key's value is a column of its own; with a cache, the first keys are in it."""
    v = np.eye(keys, dtype=np.float32)[None, None]
    cache = (zeros(past), v[:, :, :past]) if past else (None, None)
    new = v[:, :, past:]
    y = run(WHAT, zeros(queries), zeros(keys - past), new, None, *cache, outputs=3 if past else 1, is_causal=1)[0]
    return np.asarray(y[0, 0])


def hidden_weight(cap: float) -> float:
    """Of two keys with scores of 0, the weight of the one that is hidden."""
    hidden = np.array([[0, -np.inf]], np.float32)
    options = {"softcap": cap, "qk_matmul_output_mode": 3}
    return float(run(WHAT, zeros(1), zeros(2), zeros(2), hidden, outputs=4, **options)[3][0, 0, 0, 1])
