"""Mistakes that the claimed numbers themselves suggest: which rows stand where, or how many weights were dropped.

They change one step as it is written down, and not what leads to it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attntrace.mistakes.base import Compute, Mistake, wrapping
from attntrace.tape import Array, Step

ENTRIES = 64  # rows or columns that an order is looked for of
WEIGHTS = ("weights", "dropped")


def observed(step: Step, claimed: Array, half: Array) -> Iterator[Mistake]:
    """What might have been done to a step, by the numbers claimed of it (NaN where nothing is)."""
    right = step.values.astype(np.float64)
    if right.ndim >= 2 and right.shape[-1] == right.shape[-2]:
        yield Mistake(
            "order-transposed",
            f"{step.name} written down transposed",
            f"{step.symbol}ᵀ",
            step.symbol,
            f"Rows are {step.axes[-2]}, columns are {step.axes[-1]}: print the shape with the names of its axes.",
            edit=wrapping(step.name, lambda op, *operands: op(*operands).swapaxes(-1, -2)),
        )
    for axis, what in ((-2, "rows"), (-1, "columns")):
        order = order_of(claimed, right, half, axis)
        if order is not None:
            yield reordered(step, what, axis, order)
    if step.name in WEIGHTS:
        yield from dropped(step, claimed, right)


# ------------------------------------------------------------------ another order


def order_of(claimed: Array, right: Array, half: Array, axis: int) -> list[int] | None:
    """Which row (or column) of the right numbers each claimed one is; None unless it is another order of all of them."""
    if right.ndim < 2 or not 1 < right.shape[axis] <= ENTRIES:
        return None
    rows = [np.moveaxis(a, axis, 0).reshape(a.shape[axis], -1) for a in (claimed, right, half)]
    order: list[int] = []
    for row, room in zip(rows[0], rows[2], strict=True):
        with np.errstate(all="ignore"):
            off = np.abs(rows[1] - row) > room * (1 + 1e-9) + np.abs(rows[1]) * 1e-9 + 1e-12
        same = (rows[1] == row) | np.isnan(row)
        fits = [i for i in np.flatnonzero(~(off & ~same).any(axis=1)).tolist() if i not in order]
        if not fits:
            return None
        order.append(len(order) if len(order) in fits else fits[0])
    return None if order == sorted(order) else order


def reordered(step: Step, what: str, axis: int, order: list[int]) -> Mistake:
    moved = [f"{i} is {of}" for i, of in enumerate(order) if i != of]
    shown = ", ".join(moved[:6]) + (", …" if len(moved) > 6 else "")
    return Mistake(
        f"order-{what}",
        f"the {what} of {step.name} in another order ({shown})",
        f"{what} {', '.join(map(str, order[:12]))}{', …' if len(order) > 12 else ''}",
        f"{what} in the order of the tokens",
        f"Each number is right and stands at the wrong {step.axes[axis]}: sets and dictionaries of tokens lose their order.",
        edit=wrapping(step.name, lambda op, *operands: np.take(op(*operands), order, axis=axis)),
    )


# ------------------------------------------------------------------ dropout


def dropped(step: Step, claimed: Array, right: Array) -> Iterator[Mistake]:
    """Zeros among the weights, and the others all enlarged by the same factor, or as they were."""
    gone, kept = (claimed == 0) & (right > 0), (claimed > 0) & (right > 0)
    if not gone.any() or not kept.any():
        return
    sure = kept & (right >= np.median(right[kept]))  # the larger weights tell more of their digits
    factor = float(np.median(claimed[sure] / right[sure]))
    rate = round(1 - 1 / factor, 2) if factor > 1 else 0.0
    teach = "Zeros where no mask is, and rows that do not sum to 1: call model.eval() before numbers are compared."
    if 0 < rate < 1:
        says, used = f"dropout (rate {rate:g}) applied, where it should be off", f"{step.symbol} ∘ D / (1 − {rate:g})"
        yield Mistake("dropout-on", says, used, step.symbol, teach, edit=wrapping(step.name, zeroed(gone, 1 - rate)))
    says, used = "dropout applied, where it should be off, and what stays not rescaled", f"{step.symbol} ∘ D"
    yield Mistake("dropout-on-not-rescaled", says, used, step.symbol, teach, edit=wrapping(step.name, zeroed(gone, 1.0)))


def zeroed(gone: Array, share: float) -> Compute:
    return lambda op, *operands: np.where(gone, 0, op(*operands) / share)
