"""The operations that attention is made of. Arrays in, arrays out: no names, no files, no printing.

Each operation is a small frozen dataclass that knows its own arithmetic:

- `forward(*operands)` computes;
- `rounding(*operands)` says how long its sums are and of what size their terms, from which `compare` works out
  how far two right implementations may lie apart;
- `spread(errors, *operands)` says how far its result moves when its operands move.

Explaining a cell (`explain`) and sending a gradient back (`backward`) belong beside them, one method each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from attntrace.tape import Array

BLOCK = 1 << 18  # bytes of rows worked on at a time: they stay in the processor's cache from the first pass to the last


class Operation:
    """What a step does. Shapes: the last two axes are a matrix, axes before them (batch, head) are carried along.

    The three are declared and not defined here, since each operation names its own operands.
    """

    forward: Callable[..., Array]  # (*operands)
    rounding: Callable[..., tuple[float, Array]]  # (*operands): (n, m), each cell is n roundings of terms of size m
    spread: Callable[..., Array]  # (errors, *operands): how far each cell moves when operand i moves by errors[i]


class Copying(Operation):
    """Moves the cells of its operand to other places: nothing is rounded, and errors move along."""

    def rounding(self, x: Array) -> tuple[float, Array]:
        return 0, self.forward(np.zeros(x.shape))

    def spread(self, errors: Sequence[Array], x: Array) -> Array:
        return self.forward(errors[0])


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


@dataclass(frozen=True)
class Split(Copying):
    """(…, token, heads · d) to (…, head, token, d)."""

    heads: int

    def forward(self, x: Array) -> Array:
        return split(x, self.heads)


class Merge(Copying):
    """(…, head, token, d) to (…, token, heads · d): the heads side by side, head 0 first."""

    def forward(self, c: Array) -> Array:
        c = c.swapaxes(-2, -3)
        return c.reshape(*c.shape[:-2], -1)


class Same(Copying):
    """The operand, under another name."""

    def forward(self, a: Array) -> Array:
        return a


@dataclass(frozen=True)
class Repeat(Copying):
    """(…, group, key, d) to (…, head, key, d): each group `times` times in a row, so head h reads group h // times."""

    times: int

    def forward(self, k: Array) -> Array:
        return k.repeat(self.times, axis=-3)


@dataclass(frozen=True)
class Scale(Operation):
    """S · factor."""

    factor: float

    def forward(self, s: Array) -> Array:
        return np.asarray(s * s.dtype.type(self.factor))

    def rounding(self, s: Array) -> tuple[float, Array]:
        return 1, np.abs(s) * abs(self.factor)

    def spread(self, errors: Sequence[Array], s: Array) -> Array:
        return errors[0] * abs(self.factor)


@dataclass(frozen=True)
class Divide(Operation):
    """S / divisor, in the dtype of S (a NumPy float64 scalar would widen a float32 array)."""

    divisor: float

    def forward(self, s: Array) -> Array:
        return np.asarray(s / s.dtype.type(self.divisor))

    def rounding(self, s: Array) -> tuple[float, Array]:
        return 1, np.abs(s) / abs(self.divisor)

    def spread(self, errors: Sequence[Array], s: Array) -> Array:
        return errors[0] / abs(self.divisor)


@dataclass(frozen=True)
class AddMask(Operation):
    """S + M. `missing` are the axes of S, by position, that M lacks and is the same along."""

    missing: tuple[int, ...] = ()

    def forward(self, s: Array, m: Array) -> Array:
        return np.asarray(s + np.expand_dims(m, self.missing))

    def rounding(self, s: Array, m: Array) -> tuple[float, Array]:
        total = self.forward(s, m)
        return 1, np.where(np.isinf(total), 0, np.abs(total))

    def spread(self, errors: Sequence[Array], s: Array, m: Array) -> Array:
        return np.where(np.isneginf(self.forward(s, m)), 0, errors[0] + np.expand_dims(errors[1], self.missing))


@dataclass(frozen=True)
class Softmax(Operation):
    """exp(S) / Σ exp(S) along the last axis, the row's maximum subtracted first so that exp cannot overflow.

    A row of −∞ has no softmax. It gives zeros, as torch's scaled_dot_product_attention and ONNX do; with `empty` "nan" it
    gives the NaN of the plain formula.
    """

    empty: str = "zero"

    def forward(self, s: Array) -> Array:
        return by_rows(self._rows, s)

    def _rows(self, s: Array, out: Array) -> None:
        top = s.max(axis=-1, keepdims=True)
        if self.empty == "zero":
            top[np.isneginf(top)] = 0
        np.exp(np.subtract(s, top, out=out), out=out)
        total = out.sum(axis=-1, keepdims=True)
        if self.empty == "zero":
            total[total == 0] = 1
        out /= total

    def rounding(self, s: Array) -> tuple[float, Array]:
        """exp turns the rounding of its argument s − max into a relative error of that size; the sum adds its own."""
        result = self.forward(s)
        gap = s - s.max(axis=-1, keepdims=True)
        argument = np.where(result == 0, 0, np.abs(gap))
        reach = (argument * result).sum(axis=-1, keepdims=True)
        return s.shape[-1], result * (1 + argument + reach)

    def spread(self, errors: Sequence[Array], s: Array) -> Array:
        """Scores off by at most d scale a weight by a factor between e^(−2d) and e^(2d); it stays between 0 and 1."""
        reach = np.where(np.isneginf(s), 0, errors[0]).max(axis=-1, keepdims=True)
        return np.asarray(np.minimum(self.forward(s) * np.expm1(2 * reach), 1))


@dataclass(frozen=True)
class Dropout(Operation):
    """A ∘ keep / (1 − rate): the weights that stay are enlarged, so that their sum is right on average."""

    rate: float

    def forward(self, a: Array, keep: Array) -> Array:
        return np.asarray(a * keep / a.dtype.type(1 - self.rate))

    def rounding(self, a: Array, keep: Array) -> tuple[float, Array]:
        return 2, np.abs(self.forward(a, keep))

    def spread(self, errors: Sequence[Array], a: Array, keep: Array) -> Array:
        return self.forward(errors[0], keep)


def split(y: Array, heads: int) -> Array:
    """(…, token, heads · d) to (…, head, token, d)."""
    y = y.reshape(*y.shape[:-1], heads, y.shape[-1] // heads)
    return np.ascontiguousarray(y.swapaxes(-2, -3))


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
