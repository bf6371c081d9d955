"""How far two arrays are apart, and how far two right implementations may be: tolerances, units in the last place.

A tolerance follows from the dtype and the length of the sum, cell by cell. Each operation says how many roundings its cells
go through and of what size the terms are (`Operation.rounding`); two implementations, which may add in any order, then differ
by at most twice that. No constant fits all: a sum of 4 terms near 1 and one of 4,096 terms near 100 are not the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from attntrace.dtypes import epsilon, largest, smallest, working
from attntrace.trace import Array, Step

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
    """Hold `ours` against `theirs`. NaN equals NaN, and infinities of one sign are equal; otherwise they differ by infinity."""
    if ours.shape != theirs.shape:
        return Difference(np.inf, np.inf, 0.0, (), agrees=False)
    ours, theirs = ours.astype(np.float64), theirs.astype(np.float64)
    with np.errstate(all="ignore"):
        same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
        error = np.where(same, 0.0, np.abs(ours - theirs))
        error[np.isnan(error)] = np.inf
        excess = np.where(error == 0, 0, error / np.broadcast_to(tolerance, error.shape))
        ulps = np.where(error == 0, 0, error / spacing(theirs, step))
    agrees = bool((excess <= 1).all())
    ranking = excess if not agrees else error if error.any() else np.broadcast_to(tolerance, error.shape)
    worst = np.unravel_index(int(np.argmax(ranking)), error.shape)
    allowed = float(np.broadcast_to(tolerance, error.shape)[worst])
    return Difference(float(error.max()), float(ulps.max()), allowed, tuple(map(int, worst)), agrees)


def spacing(values: Array, step: Step) -> Array:
    """The distance from each value to the next one in the dtype of the step: one unit in the last place."""
    exponent = np.floor(np.log2(np.maximum(np.abs(values), np.finfo(np.float64).tiny)))
    ulp: Array = np.maximum(np.exp2(exponent) * epsilon(step.dtype), smallest(step.dtype))
    return ulp


def rounding(step: Step) -> Array:
    """How far the values of a step may be from exact arithmetic on its operands, cell by cell.

    n roundings of terms of size m, in the dtype that sums are made in, and one rounding of the result to the step's dtype.
    """
    if step.operation is None:
        return np.zeros(step.shape)
    wide = working(step.dtype)
    values = step.values.astype(np.float64)
    with np.errstate(all="ignore"):
        length, size = step.operation.rounding(values, *(o.values.astype(np.float64) for o in step.operands))
        error = (length + SLACK) * epsilon(wide) * size + epsilon(step.dtype) * np.abs(values) * (wide != step.dtype)
    return bounded(error) + smallest(step.dtype)


def bounded(error: Array) -> Array:
    """NaN and infinite bounds, which come from values that are so themselves, bound nothing: 0, and the values must be alike."""
    return np.where(np.isfinite(error), error, 0.0)


def tolerance(step: Step) -> Array:
    """How far two right implementations of a step, given the same operands, may be apart."""
    return 2 * rounding(step)


def accumulated(step: Step, start: Mapping[str, Array]) -> Array:
    """How far two right implementations of all steps from `start` up to `step` may be apart, to first order.

    `start` has the error of the steps that both begin from. Each operation spreads the errors of its operands and adds its
    own roundings.
    """
    errors: dict[str, Array] = dict(start)

    def error(s: Step) -> Array:
        if s.name not in errors:
            errors[s.name] = tolerance(s) if s.operation is None else spread(s, [error(o) for o in s.operands]) + tolerance(s)
        return errors[s.name]

    return error(step)


def spread(step: Step, errors: list[Array]) -> Array:
    assert step.operation is not None
    operands = [o.values.astype(np.float64) for o in step.operands]
    with np.errstate(all="ignore"):
        moved = step.operation.spread(step.values.astype(np.float64), errors, *operands)
    return np.minimum(bounded(moved), largest(step.dtype))
