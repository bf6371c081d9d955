"""Right formulas in the wrong precision."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attntrace.dtypes import dtype
from attntrace.mistakes.base import Instead, Mistake, with_options
from attntrace.ops import Operation
from attntrace.problem import Problem
from attntrace.tape import Array, Trace


def precisions(p: Problem) -> Iterator[Mistake]:
    for name in ("float16", "bfloat16", "float32"):
        if np.dtype(p.options.dtype).name != name and installed(name):
            yield Mistake(
                f"dtype-{name}",
                f"computed in {name}",
                f"every step rounded to {name}",
                f"every step in {np.dtype(p.options.dtype).name}",
                "Nothing is wrong with the formula: the numbers are those of a coarser dtype.",
                pose=lambda p, name=name: with_options(p, dtype=dtype(name)),  # type: ignore[misc]
            )
    for n in range(5):
        yield Mistake(
            f"rounded-{n}",
            f"intermediate results rounded to {n} {'decimal' if n == 1 else 'decimals'} along the way",
            f"every step rounded to {n} decimals before the next",
            "round once, at the end",
            "Rounding on the way adds up: carry a few more digits than you write down.",
            edit=lambda t, p, n=n: rounded(t, n),  # type: ignore[misc]
        )


def installed(name: str) -> bool:
    if name != "bfloat16":
        return True
    try:
        import ml_dtypes  # noqa: F401
    except ImportError:
        return False
    return True


def rounded(t: Trace, decimals: int) -> bool:
    for step in t:
        if step.operation is not None:
            step.operation = Instead(then_round(step.operation, decimals))
    return True


def then_round(op: Operation, decimals: int):  # type: ignore[no-untyped-def]
    def compute(*operands: Array) -> Array:
        return np.round(op.forward(*operands), decimals)

    return compute
