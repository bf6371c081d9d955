"""Products of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attntrace.ops.base import Operation
from attntrace.ops.moves import split
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
