"""Grouped-query attention: several query heads read one key/value head."""

from __future__ import annotations

from attntrace.ops import Repeat
from attntrace.problem import Problem
from attntrace.tape import Step, Trace


def share(t: Trace, p: Problem, k: Step, v: Step) -> tuple[Step, Step]:
    """Give every query head its key/value head: query head h reads h // group. One head each records nothing."""
    if p.group == 1:
        return k, v
    reads = f"head h reads h // {p.group}"
    return (
        t("k_shared", f"K′ = K, {reads}", (*p.lead, "key", "d_k"), Repeat(p.group), k),
        t("v_shared", f"V′ = V, {reads}", (*p.lead, "key", "d_v"), Repeat(p.group), v),
    )
