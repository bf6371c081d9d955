"""The pieces of the online softmax: a running maximum, a running sum and a running output, which tiles are merged into.

After every tile, of the keys seen so far: m is the largest score of a row, l the sum of exp(s − m), and o the sum of
exp(s − m) v. A larger m found later makes what was summed before it too large by exp(m_new − m_old), which rescaling mends.
(Milakov and Gimelshein 2018; FlashAttention, Dao et al. 2022.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attntrace.arithmetic import Expression, Line, apply, constant, largest, total
from attntrace.ops.base import Gradients, Operation, per_row
from attntrace.ops.cells import Cells
from attntrace.tape import Array


class RowMax(Operation):
    """The largest entry of each row: (…, query, key) gives (…, query)."""

    def forward(self, s: Array) -> Array:
        return np.asarray(s.max(axis=-1))

    def rounding(self, s: Array) -> tuple[float, Array]:
        return 0, np.zeros(s.shape[:-1])

    def spread(self, errors: Sequence[Array], s: Array) -> Array:
        return np.asarray(np.where(np.isneginf(s), 0, errors[0]).max(axis=-1))

    def backward(self, g: Array, y: Array, s: Array) -> Gradients:
        """All of it goes to the first largest entry."""
        found = np.zeros(s.shape, g.dtype)
        np.put_along_axis(found, s.argmax(axis=-1)[..., None], g[..., None], axis=-1)
        return (found,)

    def gradient(self, i: int, g: str, y: str, x: Sequence[str]) -> str:
        return f"{g} at the largest of each row, 0 elsewhere"

    def explain(self, cells: Cells) -> list[Line]:
        return [cells.line(f"largest of {cells.name(0)}", [largest(s) for s in rows_of(cells)])]


class Maximum(Operation):
    """The larger one of two numbers."""

    def forward(self, a: Array, b: Array) -> Array:
        return np.maximum(a, b)

    def rounding(self, a: Array, b: Array) -> tuple[float, Array]:
        return 0, np.zeros(a.shape)

    def spread(self, errors: Sequence[Array], a: Array, b: Array) -> Array:
        return np.maximum(errors[0], errors[1])

    def backward(self, g: Array, y: Array, a: Array, b: Array) -> Gradients:
        return np.where(a >= b, g, 0), np.where(a >= b, 0, g)

    def gradient(self, i: int, g: str, y: str, x: Sequence[str]) -> str:
        return f"{g} where {x[i]} is the larger"

    def explain(self, cells: Cells) -> list[Line]:
        pairs = zip(cells.read(0, above=True), cells.read(1, above=True), strict=True)
        return [cells.line(f"max({cells.name(0)}, {cells.name(1)})", [apply("max", a, b) for a, b in pairs])]


@dataclass(frozen=True)
class ExpDifference(Operation):
    """exp(S − m), m one number a row (`rows`) or as many as S. What is −∞ gives 0, also where m is −∞ too."""

    rows: bool = False

    def forward(self, s: Array, m: Array) -> Array:
        return np.asarray(np.where(np.isneginf(s), s.dtype.type(0), np.exp(s - self._along(m))))

    def _along(self, m: Array) -> Array:
        return m[..., None] if self.rows else m

    def rounding(self, s: Array, m: Array) -> tuple[float, Array]:
        gap = np.where(np.isneginf(s), 0, np.abs(s - self._along(m)))
        return 1, self.forward(s, m) * (1 + gap)

    def spread(self, errors: Sequence[Array], s: Array, m: Array) -> Array:
        value = self.forward(s, m)
        reach = np.expm1(errors[0] + self._along(errors[1]))
        return np.where(value == 0, 0, np.minimum(value * reach, np.maximum(value, 1) * 2))

    def backward(self, g: Array, y: Array, s: Array, m: Array) -> Gradients:
        ds = np.where(y == 0, 0, g * y)
        return ds, -ds.sum(axis=-1) if self.rows else -ds

    def gradient(self, i: int, g: str, y: str, x: Sequence[str]) -> str:
        return f"{g} ∘ {y}" if i == 0 else f"−rowsum({g} ∘ {y})" if self.rows else f"−{g} ∘ {y}"

    def explain(self, cells: Cells) -> list[Line]:
        s = cells.read(0, above=True)
        m = [cells.cell(1, cells.row, above=True)] * len(s) if self.rows else cells.read(1, above=True)
        hidden = np.isneginf(cells.values(0)[cells.row])[list(cells.columns)]  # 0 whatever m is
        terms = [constant(0) if none else apply("exp", a - b) for none, a, b in zip(hidden, s, m, strict=True)]
        note = f"{cells.name(0)} = −∞ gives 0" if np.any(hidden) else ""
        return [cells.line(f"exp({cells.name(0)} − {cells.name(1)})", terms, note)]


class RowSum(Operation):
    """The sum of each row: (…, query, key) gives (…, query)."""

    def forward(self, p: Array) -> Array:
        return np.asarray(p.sum(axis=-1))

    def rounding(self, p: Array) -> tuple[float, Array]:
        return p.shape[-1], self.forward(np.abs(p))

    def spread(self, errors: Sequence[Array], p: Array) -> Array:
        return self.forward(errors[0])

    def backward(self, g: Array, y: Array, p: Array) -> Gradients:
        return (np.broadcast_to(g[..., None], p.shape),)

    def gradient(self, i: int, g: str, y: str, x: Sequence[str]) -> str:
        return f"{g} for every entry of its row"

    def explain(self, cells: Cells) -> list[Line]:
        return [cells.line(f"sum of {cells.name(0)}", [total(p) for p in rows_of(cells)])]


@dataclass(frozen=True)
class Combine(Operation):
    """a · α + b, or a · α + b · β: two partial sums brought to the same maximum. `rows`: α and β are one number a row."""

    rows: bool = False

    def forward(self, a: Array, alpha: Array, b: Array, beta: Array | None = None) -> Array:
        return np.asarray(a * self._along(alpha) + (b if beta is None else b * self._along(beta)))

    def _along(self, factor: Array) -> Array:
        return factor[..., None] if self.rows else factor

    def rounding(self, *operands: Array) -> tuple[float, Array]:
        return 3, self.forward(*map(np.abs, operands))

    def spread(self, errors: Sequence[Array], *operands: Array) -> Array:
        sizes = [np.abs(o) for o in operands]
        moved = self._product(sizes[:2], errors[:2])
        return moved + (self._product(sizes[2:], errors[2:]) if operands[3:] else errors[2])

    def _product(self, sizes: Sequence[Array], errors: Sequence[Array]) -> Array:
        """How far a · α moves."""
        (a, alpha), (e, by) = sizes, errors
        return np.asarray(e * self._along(alpha + by) + a * self._along(by))

    def backward(self, g: Array, y: Array, a: Array, alpha: Array, b: Array, beta: Array | None = None) -> Gradients:
        first = g * self._along(alpha), self._summed(g * a)
        return (*first, g) if beta is None else (*first, g * self._along(beta), self._summed(g * b))

    def _summed(self, d: Array) -> Array:
        return np.asarray(d.sum(axis=-1)) if self.rows else d

    def gradient(self, i: int, g: str, y: str, x: Sequence[str]) -> str:
        if i == 2 and len(x) == 3:
            return g
        other = x[i + 1 if i % 2 == 0 else i - 1]
        return f"rowsum({g} ∘ {other})" if i % 2 and self.rows else f"{other} {g}"

    def explain(self, cells: Cells) -> list[Line]:
        names = [cells.name(i) for i in range(len(cells.step.operands))]
        a, alpha, b, *beta = (self._read(cells, i) for i in range(len(names)))
        scaled = [x * f for x, f in zip(a, alpha, strict=True)]
        added = [x * f for x, f in zip(b, beta[0], strict=True)] if beta else b
        terms = [x + y for x, y in zip(scaled, added, strict=True)]
        return [cells.line(f"{names[0]} × {names[1]} + {' × '.join(names[2:])}", terms)]

    def _read(self, cells: Cells, i: int) -> list[Expression]:
        if i % 2 and self.rows:
            return [cells.cell(i, cells.row, above=True)] * len(cells.columns)
        return cells.read(i, above=True)


@dataclass(frozen=True)
class Quotient(Operation):
    """o / l, l one number a row. A row without keys has l = 0: it gives zeros, or with `empty` "nan" NaN."""

    empty: str = "zero"

    def forward(self, o: Array, l: Array) -> Array:  # noqa: E741 - the name that the papers have
        total = np.where(l == 0, l.dtype.type(1), l) if self.empty == "zero" else l
        return np.asarray(o / total[..., None])

    def rounding(self, o: Array, l: Array) -> tuple[float, Array]:  # noqa: E741
        return 1, np.abs(self.forward(o, l))

    def spread(self, errors: Sequence[Array], o: Array, l: Array) -> Array:  # noqa: E741
        share = np.minimum(errors[1] / np.where(l == 0, 1, l), 0.5)
        return np.asarray(self.forward(errors[0], l) * 2 + np.abs(self.forward(o, l)) * 2 * share[..., None])

    def backward(self, g: Array, y: Array, o: Array, l: Array) -> Gradients:  # noqa: E741
        total = np.where(l == 0, l.dtype.type(1), l) if self.empty == "zero" else l
        dl = -(g * y).sum(axis=-1) / total
        return g / total[..., None], np.where(l == 0, 0, dl) if self.empty == "zero" else dl

    def gradient(self, i: int, g: str, y: str, x: Sequence[str]) -> str:
        return f"{g} / {x[1]}" if i == 0 else f"−rowsum({g} ∘ {y}) / {x[1]}"

    def explain(self, cells: Cells) -> list[Line]:
        o, l = cells.read(0, above=True), cells.cell(1, cells.row, above=True)  # noqa: E741
        formula = f"{cells.name(0)} / {cells.name(1)}"
        if self.empty == "zero" and cells.values(1)[cells.row] == 0:
            return [cells.line(formula, [constant(0)] * len(o), f"{cells.name(1)} = 0: the row has no key, and gets 0")]
        return [cells.line(formula, [x / l for x in o])]


class AddSink(Operation):
    """l + exp(z − m): the sink's share joins the sum. z is a logit a head; l and m are (…, head, query)."""

    def forward(self, l: Array, m: Array, z: Array) -> Array:  # noqa: E741
        return np.asarray(l + np.exp(self._along(z, m) - m))

    @staticmethod
    def _along(z: Array, m: Array) -> Array:
        return per_row(z, m.ndim + 1)[..., 0]

    def rounding(self, l: Array, m: Array, z: Array) -> tuple[float, Array]:  # noqa: E741
        gap = self._along(z, m) - m
        term = np.exp(gap) * (1 + np.abs(gap))
        return 2, np.abs(l) + np.where(np.isfinite(term), term, 0)

    def spread(self, errors: Sequence[Array], l: Array, m: Array, z: Array) -> Array:  # noqa: E741
        term = np.exp(self._along(z, m) - m)
        return np.asarray(errors[0] + term * np.expm1(errors[1] + self._along(errors[2], m)))

    def backward(self, g: Array, y: Array, l: Array, m: Array, z: Array) -> Gradients:  # noqa: E741
        term = np.exp(self._along(z, m) - m)
        moved = np.where(np.isfinite(term), g * term, 0)
        by_head = moved.sum(axis=-1)
        return g, -moved, by_head.reshape(-1, z.size).sum(axis=0) if m.ndim > 1 else by_head.sum().reshape(1)

    def gradient(self, i: int, g: str, y: str, x: Sequence[str]) -> str:
        return g if i == 0 else f"{'−' if i == 1 else 'Σ over queries '}{g} ∘ exp({x[2]} − {x[1]})"

    def explain(self, cells: Cells) -> list[Line]:
        l, m = cells.read(0, above=True), cells.read(1, above=True)  # noqa: E741
        z = cells.cell(2, (cells.row[-1] if cells.shape(2)[0] > 1 else 0,), above=True)
        terms = [a + apply("exp", z - b) for a, b in zip(l, m, strict=True)]
        return [cells.line(f"{cells.name(0)} + exp({cells.name(2)} − {cells.name(1)})", terms)]


def rows_of(cells: Cells) -> list[list[Expression]]:
    """The whole row of the operand that each cell comes from."""
    return [cells.whole(0, (*cells.row, c)) for c in cells.columns]
