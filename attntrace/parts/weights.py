"""From scores to weights: softmax over the keys, with a sink or without, in a dtype of its own or not."""

from __future__ import annotations

from attntrace.ops import SinkWeight, Softmax
from attntrace.problem import Problem
from attntrace.tape import Step, Trace


def weigh(t: Trace, p: Problem, s: Step) -> Step:
    """A = softmax(S). A sink z takes exp(z) of each row's sum, so that row sum + sink weight = 1."""
    inner = p.options.softmax_dtype
    where = "" if inner is None else f", in {inner.name}"
    if "sinks" not in p.sources:
        return t("weights", f"A = softmax({s.symbol}){where}", s.axes, Softmax(p.options.masked_row, inner), s)
    z = t["sinks"]
    total = f"(Σ exp {s.symbol} + exp z)"
    a = t("weights", f"A = exp {s.symbol} / {total}{where}", s.axes, Softmax(p.options.masked_row, inner), s, z)
    t("sink_weights", f"a_z = exp z / {total}{where}", s.axes[:-1], SinkWeight(inner), s, z)
    return a
