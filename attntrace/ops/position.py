"""Where tokens stand: rotary angles and rotations, and the slopes of linear biases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attntrace.ops.base import Operation, per_row
from attntrace.tape import Array


@dataclass(frozen=True)
class Llama3:
    """Llama 3.1's scaling: slow pairs turn `factor` times slower, fast ones as before, those between by degrees.

    A pair is slow when its wavelength 2π/θ is longer than `original` / `low`, fast when shorter than `original` / `high`.
    """

    factor: float
    low: float
    high: float
    original: float

    def __call__(self, theta: Array) -> Array:
        turns = self.original * theta / (2 * math.pi)  # within the context that the model was trained with
        smooth = ((turns - self.low) / (self.high - self.low)).clip(0, 1)
        return np.asarray(theta * (smooth + (1 - smooth) / self.factor))


@dataclass(frozen=True)
class Linear:
    """Linear scaling (position interpolation): all pairs turn `factor` times slower."""

    factor: float

    def __call__(self, theta: Array) -> Array:
        return theta / self.factor


@dataclass(frozen=True)
class Frequencies(Operation):
    """θ_i = base^(−2i/d) for i from 0 to d/2 − 1: radians that pair i turns by from one position to the next."""

    base: float
    dims: int
    scaling: Linear | Llama3 | None = None

    def forward(self) -> Array:
        theta = float(self.base) ** (-np.arange(0, self.dims, 2) / self.dims)
        return theta if self.scaling is None else self.scaling(theta)

    def rounding(self) -> tuple[float, Array]:
        return 8, self.forward() * (1 + abs(math.log(self.base)))  # a power passes its exponent's rounding on

    def spread(self, errors: Sequence[Array]) -> Array:
        return np.zeros(self.dims // 2)


class Angles(Operation):
    """The angle of each pair at each position, position × θ: (…, token) and (pair) give (…, token, pair)."""

    def forward(self, positions: Array, theta: Array) -> Array:
        return np.asarray(positions[..., None] * theta)

    def rounding(self, positions: Array, theta: Array) -> tuple[float, Array]:
        return 1, np.abs(self.forward(positions, theta))

    def spread(self, errors: Sequence[Array], positions: Array, theta: Array) -> Array:
        return self.forward(np.abs(positions), errors[1]) + self.forward(errors[0], np.abs(theta) + errors[1])


@dataclass(frozen=True)
class Rotate(Operation):
    """Turn each pair (a, b) of the last axis by its angle: (a cos − b sin, a sin + b cos).

    Pairs "interleaved" are neighbours, (0, 1), (2, 3), … as in RoFormer and GPT-J; pairs "half" are (0, d/2), (1, d/2 + 1),
    … as in GPT-NeoX and Llama. `dims` are turned, the first ones; the others stay. cos and sin are ([batch], token, pair).
    """

    pairs: str
    dims: int

    def forward(self, x: Array, cos: Array, sin: Array) -> Array:
        a, b = self._pairs(x)
        c, s = lifted(cos, x.ndim), lifted(sin, x.ndim)
        return self._put(x, a * c - b * s, a * s + b * c)

    def indexes(self) -> tuple[slice, slice]:
        """Which entries are the first and the second of a pair."""
        if self.pairs == "interleaved":
            return slice(0, self.dims, 2), slice(1, self.dims, 2)
        return slice(0, self.dims // 2), slice(self.dims // 2, self.dims)

    def _pairs(self, x: Array) -> tuple[Array, Array]:
        first, second = self.indexes()
        return x[..., first], x[..., second]

    def _put(self, x: Array, a: Array, b: Array) -> Array:
        """x with other pairs; what is not turned stays."""
        turned = np.array(np.broadcast_to(x, (*a.shape[:-1], x.shape[-1])))
        first, second = self.indexes()
        turned[..., first], turned[..., second] = a, b
        return turned

    def rounding(self, x: Array, cos: Array, sin: Array) -> tuple[float, Array]:
        a, b = self._pairs(np.abs(x))
        c, s = np.abs(lifted(cos, x.ndim)), np.abs(lifted(sin, x.ndim))
        return 3, self._put(np.zeros(x.shape), a * c + b * s, a * s + b * c)

    def spread(self, errors: Sequence[Array], x: Array, cos: Array, sin: Array) -> Array:
        a, b = self._pairs(np.abs(x))
        e, f = self._pairs(errors[0])
        c, s, dc, ds = (np.abs(lifted(z, x.ndim)) for z in (cos, sin, errors[1], errors[2]))
        near = e * (c + dc) + f * (s + ds) + a * dc + b * ds
        return self._put(errors[0], near, e * (s + ds) + f * (c + dc) + a * ds + b * dc)


def lifted(table: Array, rank: int) -> Array:
    """(batch, token, pair) as (batch, 1, token, pair) beside what has heads."""
    return table if table.ndim == 2 or table.ndim == rank else table[:, None]


@dataclass(frozen=True)
class Slopes(Operation):
    """ALiBi's slope for each head: 2^(−8/n), 2^(−16/n), … for n heads, a power of two.

    For another number the slopes of the next smaller power come first, then every other slope of the next larger one
    (as the authors' code does).
    """

    heads: int

    def forward(self) -> Array:
        n = 1 << (self.heads.bit_length() - 1)
        more = self._powers(2 * n)[::2][: self.heads - n]
        return np.concatenate([self._powers(n), more])

    @staticmethod
    def _powers(n: int) -> Array:
        return 2.0 ** (-8.0 * np.arange(1, n + 1) / n)

    def rounding(self) -> tuple[float, Array]:
        return 4, self.forward()

    def spread(self, errors: Sequence[Array]) -> Array:
        return np.zeros(self.heads)


class LinearBias(Operation):
    """−m · |i − j|: slopes (head) and distances ([batch], query, key) give ([batch], [head], query, key)."""

    def forward(self, slopes: Array, distance: Array) -> Array:
        if slopes.size == 1:
            return np.asarray(-slopes.reshape(1, 1) * distance)
        return np.asarray(-per_row(slopes, 3) * (distance if distance.ndim == 2 else distance[:, None]))

    def rounding(self, slopes: Array, distance: Array) -> tuple[float, Array]:
        return 1, np.abs(self.forward(slopes, distance))

    def spread(self, errors: Sequence[Array], slopes: Array, distance: Array) -> Array:
        return np.abs(self.forward(errors[0], distance)) + np.abs(self.forward(np.abs(slopes) + errors[0], errors[1]))
