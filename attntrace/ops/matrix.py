"""Products of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attntrace.arithmetic import Expression, Line, total
from attntrace.ops.base import Gradients, Operation
from attntrace.ops.cells import Cells
from attntrace.ops.moves import merged, split
from attntrace.tape import Array


@dataclass(frozen=True)
class MatMul(Operation):
    """A B, or A Bᵀ when `transpose` is set."""

    transpose: bool = False

    def forward(self, a: Array, b: Array) -> Array:
        return np.asarray(np.matmul(a, self._b(b)))

    def _b(self, b: Array) -> Array:
        return b.swapaxes(-1, -2) if self.transpose else b

    def rounding(self, a: Array, b: Array) -> tuple[float, Array]:
        return a.shape[-1], self.forward(np.abs(a), np.abs(b))

    def spread(self, errors: Sequence[Array], a: Array, b: Array) -> Array:
        return self.forward(errors[0], np.abs(b) + errors[1]) + self.forward(np.abs(a), errors[1])

    def backward(self, g: Array, y: Array, a: Array, b: Array) -> Gradients:
        """For C = A B: dA = dC Bᵀ, dB = Aᵀ dC. For C = A Bᵀ: dA = dC B, dB = dCᵀ A."""
        if self.transpose:
            return np.matmul(g, b), np.matmul(g.swapaxes(-1, -2), a)
        return np.matmul(g, b.swapaxes(-1, -2)), np.matmul(a.swapaxes(-1, -2), g)

    def gradient(self, i: int, g: str, y: str, x: Sequence[str]) -> str:
        if self.transpose:
            return f"{g} {x[1]}" if i == 0 else f"{g}ᵀ {x[0]}"
        return f"{g} {x[1]}ᵀ" if i == 0 else f"{x[0]}ᵀ {g}"

    def explain(self, cells: Cells) -> list[Line]:
        a = cells.whole(0)
        terms = [total([x * y for x, y in zip(a, self._column(cells, j), strict=True)]) for j in cells.columns]
        inner = f"{cells.name(0)} row · {cells.name(1)} {'row' if self.transpose else 'column'}"
        return [cells.line(inner, terms)]

    def _column(self, cells: Cells, j: int) -> list[Expression]:
        """Column j of B, or row j of a B that is transposed."""
        lead = cells.row[:-1]
        if self.transpose:
            return cells.whole(1, (*lead, j))
        return [cells.cell(1, (*lead, t, j)) for t in range(cells.shape(1)[-2])]


@dataclass(frozen=True)
class Project(Operation):
    """X W + b, split into heads.

    `transposed`: W is stored (out, in), as torch.nn.Linear does. `columns`: which outputs of a fused W are read.
    `heads`: (…, token, heads · d) becomes (…, head, token, d), each head a run of d neighbouring columns.
    """

    heads: int | None = None
    columns: tuple[int, ...] | None = None
    transposed: bool = False

    def forward(self, x: Array, w: Array, b: Array | None = None) -> Array:
        y = np.matmul(x, self._w(w))
        if b is not None:
            y += self._pick(b)
        return y if self.heads is None else split(y, self.heads)

    def _w(self, w: Array) -> Array:
        return self._pick(w.T if self.transposed else w)

    def _pick(self, a: Array) -> Array:
        return a if self.columns is None else a[..., list(self.columns)]

    def rounding(self, x: Array, w: Array, *b: Array) -> tuple[float, Array]:
        return x.shape[-1] + len(b), self.forward(np.abs(x), np.abs(w), *map(np.abs, b))

    def spread(self, errors: Sequence[Array], x: Array, w: Array, *b: Array) -> Array:
        return self.forward(errors[0], np.abs(w) + errors[1]) + self.forward(np.abs(x), *errors[1:])

    def backward(self, g: Array, y: Array, x: Array, w: Array, b: Array | None = None) -> Gradients:
        """For Y = X W + b: dX = dY Wᵀ, dW = Xᵀ dY and db = Σ dY, added up over tokens and batch."""
        g = g if self.heads is None else merged(g)
        rows, inputs = g.reshape(-1, g.shape[-1]), x.reshape(-1, x.shape[-1])
        dw = self._put(inputs.T @ rows, (x.shape[-1], w.shape[0] if self.transposed else w.shape[1]))
        gradients = (np.matmul(g, self._w(w).T), dw.T if self.transposed else dw)
        return gradients if b is None else (*gradients, self._put(rows.sum(axis=0), b.shape))

    def _put(self, part: Array, shape: tuple[int, ...]) -> Array:
        """The gradient of a fused matrix: zero but for the outputs that are read."""
        if self.columns is None:
            return part
        whole = np.zeros(shape, part.dtype)
        whole[..., list(self.columns)] = part
        return whole

    def gradient(self, i: int, g: str, y: str, x: Sequence[str]) -> str:
        g = g if self.heads is None else f"(heads of {g} side by side)"
        outputs = "rows" if self.transposed else "columns"
        if i == 0:
            part = "" if self.columns is None else f", the {outputs} of {x[1]} that make {y}"
            return f"{g} {x[1]}{'' if self.transposed else 'ᵀ'}{part}"
        part = "" if self.columns is None else f", 0 in the other {'entries' if i == 2 else outputs}"
        if i == 2:
            return f"Σ over tokens {g}{part}"
        return (f"{g}ᵀ {x[0]}" if self.transposed else f"{x[0]}ᵀ {g}") + part

    def explain(self, cells: Cells) -> list[Line]:
        x = cells.whole(0, cells.row if self.heads is None else (*cells.row[:-2], cells.row[-1]))
        outputs = [self._output(cells, c) for c in cells.columns]
        return [cells.line(cells.formula, [self._dot(cells, x, out) for out in outputs], self._note(cells, outputs))]

    def _dot(self, cells: Cells, x: list[Expression], out: int) -> Expression:
        w = [cells.cell(1, (out, i) if self.transposed else (i, out)) for i in range(len(x))]
        bias = [cells.cell(2, (out,))] if len(cells.step.operands) == 3 else []
        return total([*(a * b for a, b in zip(x, w, strict=True)), *bias])

    def _note(self, cells: Cells, outputs: Sequence[int]) -> str:
        """Which output of W it is, where heads or a fused W make it another one than its column."""
        if list(outputs) == list(cells.columns):
            return ""
        head = "" if self.heads is None else f" of head {cells.row[-2]}"
        which = "row" if self.transposed else "column"
        return f"entry {cells.columns[0]}{head} is {which} {outputs[0]} of {cells.name(1)}"

    def _output(self, cells: Cells, column: int) -> int:
        """Which output of W a cell is: heads lie side by side, and a fused W has those of q, k and v in `columns`."""
        if self.heads is not None:
            column += cells.row[-2] * cells.step.shape[-1]
        return column if self.columns is None else self.columns[column]
