"""The pieces of the online softmax: a running maximum, a running sum and a running output, which tiles are merged into.

After every tile, of the keys seen so far: m is the largest score of a row, l the sum of exp(s − m), and o the sum of
exp(s − m) v. A larger m found later makes what was summed before it too large by exp(m_new − m_old), which rescaling mends.
(Milakov and Gimelshein 2018; FlashAttention, Dao et al. 2022.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attntrace.ops.base import Operation, per_row
from attntrace.tape import Array


class RowMax(Operation):
    """The largest entry of each row: (…, query, key) gives (…, query)."""

    def forward(self, s: Array) -> Array:
        return np.asarray(s.max(axis=-1))

    def rounding(self, s: Array) -> tuple[float, Array]:
        return 0, np.zeros(s.shape[:-1])

    def spread(self, errors: Sequence[Array], s: Array) -> Array:
        return np.asarray(np.where(np.isneginf(s), 0, errors[0]).max(axis=-1))


class Maximum(Operation):
    """The larger one of two numbers."""

    def forward(self, a: Array, b: Array) -> Array:
        return np.maximum(a, b)

    def rounding(self, a: Array, b: Array) -> tuple[float, Array]:
        return 0, np.zeros(a.shape)

    def spread(self, errors: Sequence[Array], a: Array, b: Array) -> Array:
        return np.maximum(errors[0], errors[1])


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


class RowSum(Operation):
    """The sum of each row: (…, query, key) gives (…, query)."""

    def forward(self, p: Array) -> Array:
        return np.asarray(p.sum(axis=-1))

    def rounding(self, p: Array) -> tuple[float, Array]:
        return p.shape[-1], self.forward(np.abs(p))

    def spread(self, errors: Sequence[Array], p: Array) -> Array:
        return self.forward(errors[0])


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
        size = [np.abs(o) for o in operands]
        return self.forward(*(s + e for s, e in zip(size, errors, strict=True))) - self.forward(*size)


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
