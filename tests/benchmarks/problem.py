"""The layer that is traced for time and memory: 8 heads of 2,048 tokens with d_k 64 in float32; q, k and v given."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from attntrace.problem import Problem

HEADS, TOKENS, D_K = 8, 2048, 64
STEPS = ("scores", "scaled", "weights", "context")


def inputs() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((HEADS, TOKENS, D_K), dtype=np.float32) for _ in "qkv"]


def posed() -> Problem:
    """The problem with its arrays at hand, as NumPy and torch have theirs."""
    import attntrace

    q, k, v = inputs()
    problem = attntrace.load({"dtype": "float32", "q": q, "k": k, "v": v})
    assert set(problem.arrays) == {"q", "k", "v"}  # reads them
    return problem
