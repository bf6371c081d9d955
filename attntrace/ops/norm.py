"""Normalisation of each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attntrace.ops.base import Operation
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
        size, w, result = self._size(x), self._weight(wb), np.abs(self.forward(x, *wb))
        unit = np.abs(self._centred(x)) / size
        shift = np.abs(x).mean(axis=-1, keepdims=True) / size if self.kind == "layernorm" else np.zeros(size.shape)
        b = np.abs(wb[-1]) if self.shifted else 0
        return x.shape[-1] + 4, result + w * (unit + shift) * (1 + unit) + b

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
