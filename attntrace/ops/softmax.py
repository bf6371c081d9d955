"""Softmax over the keys, alone or with a sink."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attntrace.dtypes import DType, working
from attntrace.ops.base import Operation, by_rows, per_row
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
        wide = working(self.inner)
        inside = [a.astype(self.inner).astype(wide) for a in (s, z) if a is not None]
        return Softmax(self.empty).forward(*inside).astype(self.inner).astype(s.dtype)

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
        argument = np.where(result == 0, 0, np.abs(s - top) + (0 if self.inner is None else np.abs(s)))
        reach = (argument * result).sum(axis=-1, keepdims=True)
        if z is not None:
            reach = reach + np.abs(per_row(z, s.ndim) - top) * (1 - result.sum(axis=-1, keepdims=True))
        return s.shape[-1] + (z is not None), result * (1 + argument + reach)

    def spread(self, errors: Sequence[Array], s: Array, z: Array | None = None) -> Array:
        """Scores off by at most d scale a weight by a factor between e^(−2d) and e^(2d); it stays between 0 and 1."""
        reach = np.where(np.isneginf(s), 0, errors[0]).max(axis=-1, keepdims=True)
        if z is not None:
            reach = np.maximum(reach, per_row(errors[1], s.ndim))
        weights = self.forward(s) if z is None else self.forward(s, z)
        return np.asarray(np.minimum(weights * np.expm1(2 * reach), 1))


@dataclass(frozen=True)
class SinkWeight(Operation):
    """exp(z) / (Σ exp(S) + exp(z)): what the sink takes of each row, (…, head, query)."""

    inner: DType | None = None

    def forward(self, s: Array, z: Array) -> Array:
        if self.inner is not None:
            inside = [a.astype(self.inner).astype(working(self.inner)) for a in (s, z)]
            return SinkWeight().forward(*inside).astype(self.inner).astype(s.dtype)
        z = per_row(z, s.ndim)
        top = np.maximum(s.max(axis=-1, keepdims=True), z)
        own = np.exp(z - top)
        return np.asarray(own / (np.exp(s - top).sum(axis=-1, keepdims=True) + own))[..., 0]

    def rounding(self, s: Array, z: Array) -> tuple[float, Array]:
        share, inner = self.forward(s, z), per_row(z, s.ndim)
        top = np.maximum(s.max(axis=-1, keepdims=True), inner)
        gaps = np.where(np.isneginf(s), 0, np.abs(s - top)).clip(max=800).max(axis=-1) + np.abs(inner - top)[..., 0]
        return s.shape[-1] + 1, share * (1 + 2 * gaps)

    def spread(self, errors: Sequence[Array], s: Array, z: Array) -> Array:
        reach = np.where(np.isneginf(s), 0, errors[0]).max(axis=-1)
        reach = np.maximum(reach, per_row(errors[1], s.ndim)[..., 0])
        return np.asarray(np.minimum(self.forward(s, z) * np.expm1(2 * reach), 1))
