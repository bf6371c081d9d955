"""What every operation is, and what those that only move numbers have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from attntrace.dtypes import DType
from attntrace.tape import Array

BLOCK = 1 << 18  # bytes of rows worked on at a time: they stay in the processor's cache from the first pass to the last


class Operation:
    """What a step does. Shapes: the last two axes are a matrix, axes before them (batch, head) are carried along.

    The three are declared and not defined here, since each operation names its own operands.
    """

    forward: Callable[..., Array]  # (*operands)
    rounding: Callable[..., tuple[float, Array]]  # (*operands): (n, m), each cell is n roundings of terms of size m
    spread: Callable[..., Array]  # (errors, *operands): how far each cell moves when operand i moves by errors[i]
    inner: DType | None = None  # the dtype that it computes in, where that is not the one of its step


class Copying(Operation):
    """Moves the cells of its operand to other places: nothing is rounded, and errors move along."""

    def rounding(self, x: Array) -> tuple[float, Array]:
        return 0, self.forward(np.zeros(x.shape))

    def spread(self, errors: Sequence[Array], x: Array) -> Array:
        return self.forward(errors[0])


def by_rows(function: Callable[[Array, Array], None], a: Array) -> Array:
    """A new array that `function(rows, out)` fills, some rows of `a` at a time.

    Same numbers as one call for all; less time, as the rows do not leave the cache between the passes over them.
    """
    out = np.empty(a.shape, a.dtype)  # in C order whatever the order of `a`, so that its rows are views
    rows, results = a.reshape(-1, a.shape[-1]), out.reshape(-1, a.shape[-1])
    step = max(1, BLOCK // max(1, rows.itemsize * rows.shape[-1]))
    for start in range(0, len(rows), step):
        function(rows[start : start + step], results[start : start + step])
    return out


def per_row(a: Array, rank: int) -> Array:
    """A number for each head (or for the one there is), (head), so that it broadcasts to (…, head, query, key)."""
    return a.reshape(-1, 1, 1) if rank > 2 else a.reshape(1, 1)
