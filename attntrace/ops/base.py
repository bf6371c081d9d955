"""What every operation is, and what those that only move numbers have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from attntrace.arithmetic import Line
from attntrace.dtypes import DType
from attntrace.ops.cells import Cells
from attntrace.tape import Array

BLOCK = 1 << 18  # bytes of rows worked on at a time: they stay in the processor's cache from the first pass to the last


Gradients = tuple[Array | None, ...]  # one for each operand; None for one that only counts or chooses


class Operation:
    """What a step does. Shapes: the last two axes are a matrix, axes before them (batch, head) are carried along.

    They are declared and not defined here, since each operation names its own operands.
    """

    forward: Callable[..., Array]  # (*operands)
    rounding: Callable[..., tuple[float, Array]]  # (*operands): (n, m), each cell is n roundings of terms of size m
    spread: Callable[..., Array]  # (errors, *operands): how far each cell moves when operand i moves by errors[i]
    backward: Callable[..., Gradients]  # (g, y, *operands): what reaches each operand, when g reaches the result y
    gradient: Callable[[int, str, str, Sequence[str]], str]  # (i, "dY", "Y", symbols): the formula of the i-th of them
    explain: Callable[[Cells], list[Line]]  # how some cells of a row come about, line by line; the last one is they
    elementwise = False  # whether a cell depends on one cell of its first operand: explained together with what reads it
    apart = False  # whether each cell is made from a row of its own, and so explained by itself
    inner: DType | None = None  # the dtype that it computes in, where that is not the one of its step


class Copying(Operation):
    """Moves the cells of its operand to other places: nothing is rounded, and errors move along."""

    def rounding(self, x: Array) -> tuple[float, Array]:
        return 0, self.forward(np.zeros(x.shape))

    def spread(self, errors: Sequence[Array], x: Array) -> Array:
        return self.forward(errors[0])

    def explain(self, cells: Cells) -> list[Line]:
        """Each cell is one of the first operand."""
        terms = [cells.cell(0, self.source(cells, (*cells.row, c))) for c in cells.columns]
        return [cells.line(cells.formula, terms, self.note(cells))]

    def source(self, cells: Cells, index: tuple[int, ...]) -> tuple[int, ...]:
        """Where in the first operand a cell comes from."""
        raise NotImplementedError

    def note(self, cells: Cells) -> str:
        """What is worth saying of it."""
        return ""


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
