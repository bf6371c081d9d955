"""Dropout on the attention weights: some are set to zero, the others enlarged to make up for it."""

from __future__ import annotations

from attntrace.ops import Dropout
from attntrace.problem import Problem
from attntrace.tape import Step, Trace


def drop(t: Trace, p: Problem, a: Step) -> Step:
    """Drop weights at the problem's rate; no dropout records nothing. `keep` holds 1 for the weights that stay."""
    rate = p.options.dropout
    if rate is None:
        return a
    keep = t.given("keep", "D", a.axes, lambda: p.arrays["keep"], p.sources["keep"].origin)
    return t("dropped", f"A′ = {a.symbol} ∘ D / (1 − {rate:g})", a.axes, Dropout(rate), a, keep)
