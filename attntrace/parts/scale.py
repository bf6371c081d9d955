"""The size of the scores."""

from __future__ import annotations

from attntrace.ops import Divide, Scale
from attntrace.problem import Problem, Tile
from attntrace.tape import Step, Trace


def scale(t: Trace, p: Problem, s: Step, at: Tile) -> Step:
    """Divide by √d_k, or multiply by the number that the config gives."""
    name = f"scaled{at.suffix}"
    if p.options.scale is None:
        return t(name, f"S′ = {s.symbol} / √d_k", s.axes, Divide(p.divisor), s)
    return t(name, f"S′ = {s.symbol} × {p.options.scale!r}", s.axes, Scale(p.options.scale), s)
