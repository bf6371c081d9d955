"""Right formulas in the wrong precision."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from attntrace.dtypes import dtype, epsilon
from attntrace.errors import MissingPackage
from attntrace.mistakes.base import Compute, Edit, Instead, Mistake, Pose, with_options
from attntrace.problem import Problem
from attntrace.tape import Array, Step, Trace

DTYPES = ("float32", "float16", "bfloat16")  # the finest first
DECIMALS = range(7)


def precisions(p: Problem) -> Iterator[Mistake]:
    for name in DTYPES:
        if coarser(name, p):
            yield Mistake(
                f"dtype-{name}",
                f"computed in {name}",
                f"every step rounded to {name}",
                f"every step in {p.options.dtype.name}",
                f"Nothing is wrong with the formula: the numbers are those of {name}, which has fewer digits.",
                pose=in_dtype(name),
                loose=True,
            )
    for n in DECIMALS:
        digits = f"{n} {'decimal' if n == 1 else 'decimals'}"
        teach = "Rounding on the way adds up: carry a few more digits than you write down."
        for key, says, own in (
            (f"rounded-{n}", f"intermediate results rounded to {digits} along the way", False),
            (f"rounded-{n}-too", f"every result rounded to {digits}, fewer than are written", True),
        ):
            used, right = f"every step rounded to {digits} before the next", "round once, at the end"
            yield Mistake(key, says, used, right, teach, edit=rounding(n, own))


def coarser(name: str, p: Problem) -> bool:
    """Whether a dtype is there, and has fewer digits than the trace."""
    try:
        return epsilon(dtype(name)) > epsilon(p.options.dtype)
    except MissingPackage:
        return False


def in_dtype(name: str) -> Pose:
    return lambda p: with_options(p, dtype=dtype(name))


def rounding(decimals: int, own: bool) -> Edit:
    """Every result rounded when it is used, and with `own` when it is written down; neither what is given nor tables."""

    def edit(t: Trace, p: Problem) -> bool:
        exact = {s.name for s in t if s.given} | set(tables(t))
        for step in t:
            if step.operation is not None and step.name not in exact:
                step.operation = Instead(of_rounded(step, exact, decimals, own))
        return True

    return edit


def tables(t: Trace) -> Iterator[str]:
    """Steps that hang on positions alone, as cosines and slopes: a person looks them up, or a library has them."""
    found = {"positions", "key_positions", "distance"}
    for step in t:
        if step.operation is not None and all(o.name in found for o in step.operands):
            found.add(step.name)
            yield step.name


def of_rounded(step: Step, exact: Collection[str], decimals: int, own: bool) -> Compute:
    op, rough = step.operation, [o.name not in exact for o in step.operands]
    assert op is not None
    forward = op.forward

    def compute(*operands: Array) -> Array:
        result = forward(*(np.round(o, decimals) if r else o for o, r in zip(operands, rough, strict=True)))
        return np.round(result, decimals) if own else result

    return compute
