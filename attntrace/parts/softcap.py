"""Softcap: scores squeezed between −c and c before the mask, as Gemma 2 and ONNX do."""

from __future__ import annotations

from attntrace.ops import Softcap
from attntrace.problem import Problem, Tile
from attntrace.tape import Step, Trace


def cap(t: Trace, p: Problem, s: Step, at: Tile) -> Step:
    """Cap the scaled scores; without softcap, record nothing."""
    c = p.options.softcap
    if c is None:
        return s
    return t(f"capped{at.suffix}", f"Ŝ = {c:g} tanh({s.symbol} / {c:g})", s.axes, Softcap(c), s)
