"""Normalisation of each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attntrace.arithmetic import Expression, Line, Result, apply, constant, root, square, total
from attntrace.ops.base import Gradients, Operation
from attntrace.ops.cells import Cells
from attntrace.tape import Array

FORMULAS = {
    "layernorm": "(x − mean) / √(var + ε)",
    "rmsnorm": "x / √(mean(x²) + ε)",
    "l2": "x / max(‖x‖, ε)",
}


@dataclass(frozen=True)
class Normalise(Operation):
    """Bring every row to unit size: "layernorm", "rmsnorm" or "l2"; then times w and plus b, where they are given.

    Operands are x, then w if `weighted`, then b if `shifted`, each of the length of a row.
    """

    kind: str
    eps: float
    weighted: bool = False
    shifted: bool = False

    def forward(self, x: Array, *wb: Array) -> Array:
        y = self._centred(x) / self._size(x)
        if self.weighted:
            y = y * wb[0]
        return np.asarray(y + wb[-1] if self.shifted else y)

    def _centred(self, x: Array) -> Array:
        return np.asarray(x - x.mean(axis=-1, keepdims=True)) if self.kind == "layernorm" else x

    def _size(self, x: Array) -> Array:
        """√(mean(x²) + ε), or the length of the row."""
        squares = np.square(self._centred(x))
        eps = x.dtype.type(self.eps)
        if self.kind == "l2":
            return np.asarray(np.maximum(np.sqrt(squares.sum(axis=-1, keepdims=True)), eps))
        return np.asarray(np.sqrt(squares.mean(axis=-1, keepdims=True) + eps))

    def rounding(self, x: Array, *wb: Array) -> tuple[float, Array]:
        """The mean is off by d roundings of the mean size; this moves every entry, and the size of the row."""
        size, w = self._size(x), self._weight(wb)
        unit = np.abs(self._centred(x)) / size
        shift = np.abs(x).mean(axis=-1, keepdims=True) / size if self.kind == "layernorm" else np.zeros(size.shape)
        b = np.abs(wb[-1]) if self.shifted else 0
        return x.shape[-1] + 4, np.asarray(w * (unit + shift * (1 + unit)) + b)

    def _weight(self, wb: Sequence[Array]) -> Array:
        return np.abs(wb[0]) if self.weighted else np.ones(1)

    def spread(self, errors: Sequence[Array], x: Array, *wb: Array) -> Array:
        """To first order and doubled; but no entry of a row of d is larger than √d."""
        size, w, d = self._size(x), self._weight(wb), x.shape[-1]
        unit = np.abs(self._centred(x)) / size
        e = errors[0] + (errors[0].mean(axis=-1, keepdims=True) if self.kind == "layernorm" else 0)
        along = (unit * e).sum(axis=-1, keepdims=True) / (1 if self.kind == "l2" else d)
        moved = np.minimum(2 * (e + unit * along) / size, 2 * np.sqrt(d))
        dw = errors[1] if self.weighted else 0
        db = errors[-1] if self.shifted else 0
        return np.asarray(moved * (w + dw) + unit * dw + db)

    def backward(self, g: Array, y: Array, x: Array, *wb: Array) -> Gradients:
        """The part of a row's gradient that only makes the row longer does nothing, and is taken away (see `gradient`)."""
        size = self._size(x)
        unit = self._centred(x) / size
        inner = g * wb[0] if self.weighted else g
        found: list[Array] = [self._along(inner, unit, size)]
        if self.weighted:
            found.append((g * unit).reshape(-1, g.shape[-1]).sum(axis=0))
        if self.shifted:
            found.append(g.reshape(-1, g.shape[-1]).sum(axis=0))
        return tuple(found)

    def _along(self, g: Array, unit: Array, size: Array) -> Array:
        if self.kind == "l2":
            longer = (g * unit).sum(axis=-1, keepdims=True)
            return np.asarray((g - np.where(size > self.eps, unit * longer, 0)) / size)
        longer = (g * unit).mean(axis=-1, keepdims=True)
        mean = g.mean(axis=-1, keepdims=True) if self.kind == "layernorm" else 0
        return np.asarray((g - mean - unit * longer) / size)

    def gradient(self, i: int, g: str, y: str, x: Sequence[str]) -> str:
        if i == 0:
            inner = f"{g} ∘ {x[1]}" if self.weighted else g
            mean = f" − mean({inner})" if self.kind == "layernorm" else ""
            along = "Σ" if self.kind == "l2" else "mean"
            return f"({inner}{mean} − u {along}({inner} ∘ u)) / size, u = {x[0]} at unit size"
        return f"Σ over rows {g} ∘ u" if i == 1 and self.weighted else f"Σ over rows {g}"

    def explain(self, cells: Cells) -> list[Line]:
        x, every, name = cells.whole(0, above=True), range(cells.shape(0)[-1]), cells.name(0)
        weights = [cells.read(i, (), above=True) for i in range(1, len(cells.step.operands))]
        lines = []
        if self.kind == "layernorm":
            mean = cells.partial("mean", f"mean of {name}", total(x) / constant(len(x)))
            name = "centred"
            centred = cells.partials(name, f"{cells.name(0)} − mean", [a - Result(mean) for a in x], every)
            lines, x = [mean, centred], [Result(centred, i) for i in every]
        size = self._explain_size(cells, name, x)
        terms = [x[c] / Result(size) for c in cells.columns]
        if self.weighted:
            terms = [term * w for term, w in zip(terms, weights[0], strict=True)]
        if self.shifted:
            terms = [term + b for term, b in zip(terms, weights[-1], strict=True)]
        return [*lines, size, cells.line(self._said(cells), terms)]

    def _explain_size(self, cells: Cells, name: str, x: list[Expression]) -> Line:
        eps = constant(self.eps, "ε")
        squares = total([square(a) for a in x])
        if self.kind == "l2":
            return cells.partial("size", f"max(√(Σ {name}²), ε)", apply("max", root(squares), eps))
        return cells.partial("size", f"√(mean of {name}² + ε)", root(squares / constant(len(x)) + eps))

    def _said(self, cells: Cells) -> str:
        weight = f" ∘ {cells.name(1)}" if self.weighted else ""
        above = "centred" if self.kind == "layernorm" else cells.name(0)
        return f"{above} / size{weight}" + (f" + {cells.name(1 + self.weighted)}" if self.shifted else "")
