"""How far two arrays are apart, and how far two right implementations may be: tolerances, units in the last place.

A tolerance follows from the dtype and the length of the sum, cell by cell. Each operation says how many roundings its cells
go through and of what size the terms are (`Operation.rounding`); two implementations, which may add in any order, then differ
by at most twice that. No constant fits all: a sum of 4 terms near 1 and one of 4,096 terms near 100 are not the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from attntrace.dtypes import DType, epsilon, largest, smallest, working
from attntrace.tape import Array, Step, lineage

SLACK = 4  # roundings that any implementation may have on top of its sums: exp, a quotient, a product by the scale


@dataclass(frozen=True)
class Difference:
    """One array held against another: the largest error, absolute and in units in the last place, and what was allowed.

    `worst` is the cell with the largest error, or where the arrays differ the one that breaks its tolerance worst;
    `tolerance` is the one of that cell.
    """

    error: float
    ulps: float
    tolerance: float
    worst: tuple[int, ...]
    agrees: bool


def difference(ours: Array, theirs: Array, tolerance: Array, step: Step) -> Difference:
    """Hold `ours` against `theirs`. NaN equals NaN only, and an infinity itself, or what may have been rounded to it.

    Where the tolerance is infinite nothing can be said, and all agree.
    """
    if ours.shape != theirs.shape:
        return Difference(np.inf, np.inf, 0.0, (), agrees=False)
    ours, theirs = ours.astype(np.float64), theirs.astype(np.float64)
    allowed = np.broadcast_to(tolerance, ours.shape)
    with np.errstate(all="ignore"):
        same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
        error = np.where(same, 0.0, np.abs(ours - theirs))
        error[np.isnan(error)] = np.inf
        near = distance(ours, theirs, step) <= allowed
        excess = np.where(same | near | np.isposinf(allowed), 0, np.where(allowed > 0, error / allowed, np.inf))
        ulps = np.where(same, 0, error / spacing(theirs, step))
    agrees = not excess.any()
    ranking = excess if not agrees else error if error.any() else allowed
    worst = np.unravel_index(int(np.argmax(ranking)), error.shape)
    return Difference(float(error.max()), float(ulps.max()), float(allowed[worst]), tuple(map(int, worst)), agrees)


def distance(ours: Array, theirs: Array, step: Step) -> Array:
    """How far apart cells are; an infinity counts as the first number that is rounded to it, half a unit beyond the largest."""
    top = largest(step.dtype)
    beyond = (np.isinf(ours) != np.isinf(theirs)) * (top * epsilon(step.dtype) / 4)
    return np.asarray(np.abs(ours.clip(-top, top) - theirs.clip(-top, top)) + beyond)


def spacing(values: Array, step: Step) -> Array:
    """The distance from each value to the next one in the dtype of the step: one unit in the last place."""
    size = np.abs(values).clip(smallest(step.dtype), largest(step.dtype))
    _, exponent = np.frexp(size)  # size is a number in [0.5, 1) times 2 to this
    ulp: Array = np.maximum(np.ldexp(epsilon(step.dtype), exponent - 1), smallest(step.dtype))
    return ulp


def rounding(step: Step) -> Array:
    """How far the values of a step may be from exact arithmetic on its operands, cell by cell.

    n roundings of terms of size m, in the dtype that sums are made in, and one rounding of the result to the step's dtype.
    A rounding is off by at most half of epsilon times m, or where m is tiny by half of the smallest number: both are
    counted whole. What copies its operand rounds nothing.
    """
    if step.operation is None:
        return np.zeros(step.shape)
    wide = working(step.dtype)
    operands = [o.values.astype(np.float64) for o in step.operands]
    with np.errstate(all="ignore"):
        length, size = step.operation.rounding(*operands)
        if length == 0:
            return np.zeros(step.shape)
        inner = step.operation.inner or wide
        error = (length + SLACK) * (max(epsilon(wide), epsilon(inner)) * size + max(smallest(wide), smallest(inner)))
        if wide != step.dtype:
            error += epsilon(step.dtype) * np.abs(step.values.astype(np.float64)) + smallest(step.dtype)
    return np.where((length > 1) & overflowing(size, wide, operands), np.inf, bounded(error))


def overflowing(size: Array, wide: DType, operands: list[Array]) -> Array:
    """Where a sum of finite terms may pass the largest number on its way: one order of adding gives infinity, another NaN,
    a third a number, and none is wrong. An operand that is infinite or NaN itself gives the same in every order."""
    return (size > largest(wide)) & all(np.isfinite(o).all() for o in operands)


def bounded(error: Array) -> Array:
    """NaN and infinite bounds, which come from operands that are so themselves, become 0: there values must be alike."""
    return np.where(np.isfinite(error), error, 0.0)


def tolerance(step: Step) -> Array:
    """How far two right implementations of a step, given the same operands, may be apart."""
    return 2 * rounding(step)


def accumulated(step: Step, start: Mapping[str, Array]) -> Array:
    """How far two right implementations of all steps from `start` up to `step` may be apart.

    `start` has the error of the steps that both begin from. Each operation spreads the errors of its operands and adds its
    own roundings.
    """
    errors: dict[str, Array] = dict(start)
    for s in lineage(step, lambda s: s.name in errors):
        own, far = tolerance(s), largest(working(s.dtype))
        moved = None if s.operation is None else spread(s, [errors[o.name] for o in s.operands])
        errors[s.name] = own if moved is None else np.minimum(moved + own, far)
    return errors[step.name]


def spread(step: Step, errors: list[Array]) -> Array:
    """How far a step may move with its operands."""
    assert step.operation is not None
    operands = [o.values.astype(np.float64) for o in step.operands]
    with np.errstate(all="ignore"):
        moved = step.operation.spread(errors, *operands)
    return np.nan_to_num(moved, nan=0.0, posinf=largest(working(step.dtype)))
