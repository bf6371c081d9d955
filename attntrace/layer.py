"""The attention layer, from top to bottom. Read this first.

Every line that records a step reads: its name, its formula, its axes, the operation, and the steps it is computed from. A
part that is switched off records nothing.
"""

from __future__ import annotations

from attntrace.ops import Divide, MatMul, Scale, Softmax
from attntrace.parts import mask as masks
from attntrace.parts.dropout import drop
from attntrace.parts.gqa import share
from attntrace.parts.mask import mask
from attntrace.parts.merge import merge, project_out
from attntrace.parts.project import inputs, project
from attntrace.problem import Problem, labels
from attntrace.tape import Step, Trace


def trace(p: Problem) -> Trace:
    """The tape of the layer that `p` poses. Nothing is computed until it is read."""
    t = Trace(p.sizes, p.options.dtype, labels(p), p.options.title, p.config, [*p.remarks, *masks.remarks(p)], p.changes)
    attention(t, p)
    return t


def attention(t: Trace, p: Problem) -> Step:
    """Record the attention layer of `p` in `t`; returns the output."""
    given = inputs(t, p)
    q, k, v = project(t, p, given)
    k, v = share(t, p, k, v)
    s = t("scores", f"S = {q.symbol} {k.symbol}ᵀ", (*p.lead, "query", "key"), MatMul(transpose=True), q, k)
    s = scale(t, p, s)
    s = mask(t, p, s)
    a = t("weights", f"A = softmax({s.symbol})", s.axes, Softmax(p.options.masked_row), s)
    a = drop(t, p, a)
    c = average(t, p, a, v)
    c = merge(t, p, c)
    return project_out(t, p, given, c)


def scale(t: Trace, p: Problem, s: Step) -> Step:
    """Divide by √d_k, or multiply by the number that the config gives."""
    if p.options.scale is None:
        return t("scaled", f"S′ = {s.symbol} / √d_k", s.axes, Divide(p.divisor), s)
    return t("scaled", f"S′ = {s.symbol} × {p.options.scale!r}", s.axes, Scale(p.options.scale), s)


def average(t: Trace, p: Problem, a: Step, v: Step) -> Step:
    """The values, averaged by the weights: the output itself, where there are no heads to merge and no w_o to come."""
    name, symbol = ("context", "C") if p.merges else ("output", "Y")
    return t(name, f"{symbol} = {a.symbol} {v.symbol}", (*p.lead, "query", "d_v"), MatMul(), a, v)
