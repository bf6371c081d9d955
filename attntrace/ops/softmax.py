"""Softmax over the keys, alone or with a sink."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attntrace.arithmetic import Expression, Line, Result, apply, constant, largest, total
from attntrace.dtypes import DType, working
from attntrace.ops.base import Gradients, Operation, by_rows, per_row
from attntrace.ops.cells import Cells, Row
from attntrace.tape import Array


@dataclass(frozen=True)
class Softmax(Operation):
    """exp(S) / Σ exp(S) along the last axis, the row's maximum subtracted first so that exp cannot overflow.

    A row of −∞ has no softmax. It gives zeros, as torch's scaled_dot_product_attention and ONNX do; with `empty` "nan" it
    gives the NaN of the plain formula. A second operand z is a sink's logit for each head, (head): it takes a share of the
    sum, exp(z), that no key gets. `inner` is the dtype to compute in, if it is not that of the scores.
    """

    empty: str = "zero"
    inner: DType | None = None

    def forward(self, s: Array, z: Array | None = None) -> Array:
        if self.inner is None:
            return by_rows(self._rows, s) if z is None else self._with_sink(s, z)
        inside = [a.astype(self.inner).astype(working(self.inner)) for a in (s, z) if a is not None]
        weights = Softmax("nan").forward(*inside).astype(self.inner).astype(s.dtype)
        if self.empty == "zero":  # by the scores as they are: one that only overflows in the inner dtype is there all the same
            weights[np.isneginf(s.max(axis=-1))] = 0
        return weights

    def _rows(self, s: Array, out: Array) -> None:
        top = s.max(axis=-1, keepdims=True)
        if self.empty == "zero":
            top[np.isneginf(top)] = 0
        np.exp(np.subtract(s, top, out=out), out=out)
        total = out.sum(axis=-1, keepdims=True)
        if self.empty == "zero":
            total[total == 0] = 1
        out /= total

    def _with_sink(self, s: Array, z: Array) -> Array:
        z = per_row(z, s.ndim)
        top = np.maximum(s.max(axis=-1, keepdims=True), z)
        e = np.exp(s - top)
        return np.asarray(e / (e.sum(axis=-1, keepdims=True) + np.exp(z - top)))

    def rounding(self, s: Array, z: Array | None = None) -> tuple[float, Array]:
        """exp turns the rounding of its argument s − max into a relative error of that size; the sum adds its own."""
        result = self.forward(s) if z is None else self.forward(s, z)
        top = s.max(axis=-1, keepdims=True)
        top = top if z is None else np.maximum(top, per_row(z, s.ndim))
        argument = np.where(result == 0, 0, arguments(s, top, self.inner))
        reach = (argument * result).sum(axis=-1, keepdims=True)
        if z is not None:
            reach = reach + arguments(per_row(z, s.ndim), top, self.inner) * (1 - result.sum(axis=-1, keepdims=True))
        return s.shape[-1] + (z is not None), result * (1 + argument + reach)

    def spread(self, errors: Sequence[Array], s: Array, z: Array | None = None) -> Array:
        """Scores off by at most d scale a weight by a factor between e^(−2d) and e^(2d); it stays between 0 and 1."""
        reach = np.where(np.isneginf(s), 0, errors[0]).max(axis=-1, keepdims=True)
        if z is not None:
            reach = np.maximum(reach, per_row(errors[1], s.ndim))
        weights = self.forward(s) if z is None else self.forward(s, z)
        return np.asarray(np.minimum(weights * np.expm1(2 * reach), 1))

    def backward(self, g: Array, y: Array, s: Array, z: Array | None = None) -> Gradients:
        """dS = A ∘ (dA − rowsum(A ∘ dA)); a row without keys, all zeros, gets zeros. The sink's share loses what all gain."""
        along = (y * g).sum(axis=-1, keepdims=True)
        ds = y * (g - along)
        if z is None:
            return (ds,)
        share = SinkWeight(self.inner).forward(s, z)
        return ds, -by_sink(share * along[..., 0], z)

    def gradient(self, i: int, g: str, y: str, x: Sequence[str]) -> str:
        return f"{y} ∘ ({g} − rowsum({y} ∘ {g}))" if i == 0 else f"−Σ over queries a_z rowsum({y} ∘ {g})"

    def explain(self, cells: Cells) -> list[Line]:
        """Scores, their exponentials, the sum, the quotients: a line each, as a person would write them."""
        lines, e, sink = exponentials(cells, cells.row)
        values, columns = cells.values(0)[cells.row], list(cells.columns)
        if sink is None and self.empty == "zero" and np.all(np.isneginf(values)):
            return [cells.line("0", [constant(0)] * len(columns), "the query may attend to nothing: every weight is 0")]
        sum_ = summed(cells, e, sink)
        hidden = f"exp(−∞) = 0: what has {cells.name(0)} = −∞ gets no weight" if np.any(np.isneginf(values[columns])) else ""
        inner = "" if self.inner is None else f"the trace computes this step in {self.inner.name}"
        note = "; ".join(filter(None, (hidden, inner)))
        return [*lines, sum_, cells.line("e / sum", [e[c] / Result(sum_) for c in columns], note)]


def arguments(s: Array, top: Array, inner: DType | None) -> Array:
    """The size of what exp is taken of, s − top; where s is first rounded to a dtype of its own, s itself on top of it.

    exp(−∞) is 0 without any rounding, be it of a score or of a sink that is switched off.
    """
    return np.where(np.isneginf(s), 0, np.abs(s - top) + (0 if inner is None else np.abs(s)))


@dataclass(frozen=True)
class SinkWeight(Operation):
    """exp(z) / (Σ exp(S) + exp(z)): what the sink takes of each row, (…, head, query)."""

    inner: DType | None = None
    apart = True

    def forward(self, s: Array, z: Array) -> Array:
        if self.inner is not None:
            inside = [a.astype(self.inner).astype(working(self.inner)) for a in (s, z)]
            return SinkWeight().forward(*inside).astype(self.inner).astype(s.dtype)
        z = per_row(z, s.ndim)
        top = np.maximum(s.max(axis=-1, keepdims=True), z)
        own = np.exp(z - top)
        return np.asarray(own / (np.exp(s - top).sum(axis=-1, keepdims=True) + own))[..., 0]

    def rounding(self, s: Array, z: Array) -> tuple[float, Array]:
        """As that of the weights: the rounding of every argument of exp, by what it weighs."""
        share, logit = self.forward(s, z), per_row(z, s.ndim)
        top = np.maximum(s.max(axis=-1, keepdims=True), logit)
        weights = Softmax().forward(s, z)
        reach = np.where(weights == 0, 0, arguments(s, top, self.inner) * weights).sum(axis=-1)
        own = arguments(logit, top, self.inner)[..., 0]
        return s.shape[-1] + 1, share * (1 + own * (1 + share) + reach)

    def spread(self, errors: Sequence[Array], s: Array, z: Array) -> Array:
        reach = np.where(np.isneginf(s), 0, errors[0]).max(axis=-1)
        reach = np.maximum(reach, per_row(errors[1], s.ndim)[..., 0])
        return np.asarray(np.minimum(self.forward(s, z) * np.expm1(2 * reach), 1))

    def backward(self, g: Array, y: Array, s: Array, z: Array) -> Gradients:
        weights = Softmax(inner=self.inner).forward(s, z)
        return -(g * y)[..., None] * weights, by_sink(g * y * (1 - y), z)

    def gradient(self, i: int, g: str, y: str, x: Sequence[str]) -> str:
        return f"−{g} ∘ {y} ∘ A" if i == 0 else f"Σ over queries {g} ∘ {y} ∘ (1 − {y})"

    def explain(self, cells: Cells) -> list[Line]:
        row = (*cells.row, cells.columns[0])
        lines, e, z = exponentials(cells, row)
        assert z is not None
        sum_ = summed(cells, e, z)
        return [*lines, sum_, cells.line("e_z / sum", [z / Result(sum_)])]


def by_sink(moved: Array, z: Array) -> Array:
    """What reaches each sink, from all queries and batch items: (…, head, query) gives (head)."""
    return np.asarray(moved.sum(axis=-1).reshape(-1, z.size).sum(axis=0))


CALM = 20.0  # exponentials of larger scores are no numbers for a calculator


def exponentials(cells: Cells, row: Row) -> tuple[list[Line], list[Expression], Expression | None]:
    """The exponential of every score of a row, and of its sink if there is one; the largest score subtracted if it is large."""
    s, name, top, lines = cells.whole(0, row, above=True), cells.name(0), cells.values(0)[row].max(), []
    z = cells.cell(1, (row[-2] if cells.shape(1)[0] > 1 else 0,)) if len(cells.step.operands) == 2 else None
    if top > -np.inf and abs(top) > CALM:
        most = cells.partial("max", f"largest of {name}", largest(s))
        lines, name = [most], f"({name} − max)"
        s, z = [a - Result(most) for a in s], None if z is None else z - Result(most)
    e = cells.partials("e", f"exp {name}", [apply("exp", a) for a in s], range(len(s)))
    lines.append(e)
    if z is not None:
        lines.append(cells.partial("e_z", "exp z", apply("exp", z)))
    return lines, [Result(e, i) for i in range(len(s))], None if z is None else Result(lines[-1])


def summed(cells: Cells, e: list[Expression], sink: Expression | None) -> Line:
    return cells.partial("sum", "Σ e", total(e)) if sink is None else cells.partial("sum", "Σ e + e_z", total([*e, sink]))
