"""Grouped-query attention: several query heads read one key/value head."""

from __future__ import annotations

from attntrace.ops import Repeat
from attntrace.problem import Problem
from attntrace.tape import Step, Trace


def share(t: Trace, p: Problem, k: Step, v: Step) -> tuple[Step, Step]:
    """Give every query head its key/value head: query head h reads h // group. One head each records nothing."""
    if p.group == 1:
        return k, v
    reads = f"head h reads h // {p.group}: {groups(p.sizes['head'], p.group)}"
    return (
        t("k_shared", f"K′ = {k.symbol}, {reads}", (*p.lead, "key", "d_k"), Repeat(p.group), k),
        t("v_shared", f"V′ = {v.symbol}, {reads}", (*p.lead, "key", "d_v"), Repeat(p.group), v),
    )


def groups(heads: int, group: int) -> str:
    """`0, 0, 1, 1`: the group that each head reads; of many heads the first and the last."""
    read = [str(h // group) for h in range(heads)]
    return ", ".join(read if heads <= 16 else [*read[:4], "…", read[-1]])
