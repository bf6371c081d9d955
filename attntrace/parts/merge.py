"""From the average of each head to the output."""

from __future__ import annotations

from attntrace.ops import Merge, Project, Same
from attntrace.problem import Problem
from attntrace.tape import Step, Trace


def merge(t: Trace, p: Problem, c: Step) -> Step:
    """Put the heads side by side. Without heads and w_o there is nothing to merge; without heads, C passes as it is."""
    if not p.merges:
        return c
    lead = ("batch",) if p.batched else ()
    if p.headed:
        return t("concat", "H = heads of C side by side", (*lead, "query", "head*d_v"), Merge(), c)
    return t("concat", "H = C", (*lead, "query", "d_v"), Same(), c)


def project_out(t: Trace, p: Problem, given: dict[str, Step], h: Step) -> Step:
    """H W_O + b_O; without w_o, H is the output."""
    if not p.merges:
        return h
    if "w_o" not in given:
        return t("output", f"Y = {h.symbol}", h.axes, Same(), h)
    bias = [given["b_o"]] if "b_o" in given else []
    formula = f"Y = H W_O{'ᵀ' * p.options.transposed}" + " + b_O" * len(bias)
    project = Project(None, None, p.options.transposed)
    return t("output", formula, (*h.axes[:-1], "d_out"), project, h, given["w_o"], *bias)
