"""Dropout on the attention weights: some are set to zero, the others enlarged to make up for it."""

from __future__ import annotations

from attntrace.ops import Dropout
from attntrace.parts.mask import excerpt
from attntrace.problem import Problem, Tile
from attntrace.tape import Step, Trace


def drop(t: Trace, p: Problem, a: Step, at: Tile) -> Step:
    """Drop weights at the problem's rate; no dropout records nothing. `keep` holds 1 for the weights that stay."""
    rate = p.options.dropout
    if rate is None:
        return a
    read = lambda: excerpt(p.arrays["keep"], at)  # noqa: E731 - a step reads its numbers late
    keep = t.given(f"keep{at.suffix}", "D", a.axes, read, p.sources["keep"].origin)
    return t(f"dropped{at.suffix}", f"A′ = {a.symbol} ∘ D / (1 − {rate:g})", a.axes, Dropout(rate), a, keep)
