"""Where tokens stand: rotary angles and rotations, and the slopes of linear biases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attntrace.arithmetic import PI, Line, Result, apply, constant
from attntrace.ops.base import Gradients, Operation, per_row
from attntrace.ops.cells import Cells
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

    def explain(self, cells: Cells, theta: Line) -> list[Line]:
        low, high, one = constant(self.low), constant(self.high), constant(1)
        before = [Result(theta, i) for i in range(len(theta.terms))]
        turned = [constant(self.original) * t / (constant(2) * PI) for t in before]
        turns = cells.partials("turns", f"{self.original:g} × θ₀ / (2 × π)", turned)
        shares = [(Result(turns, i) - low) / (high - low) for i in range(len(before))]
        smooth = cells.partials(
            "smooth",
            f"(turns − {self.low:g}) / ({self.high:g} − {self.low:g}), at least 0 and at most 1",
            [apply("max", constant(0), apply("min", one, share)) for share in shares],
        )
        parts = [Result(smooth, i) for i in range(len(before))]
        terms = [t * (s + (one - s) / constant(self.factor)) for t, s in zip(before, parts, strict=True)]
        return [turns, smooth, cells.line(f"θ₀ × (smooth + (1 − smooth) / {self.factor:g})", terms)]


@dataclass(frozen=True)
class Linear:
    """Linear scaling (position interpolation): all pairs turn `factor` times slower."""

    factor: float

    def __call__(self, theta: Array) -> Array:
        return theta / self.factor

    def explain(self, cells: Cells, theta: Line) -> list[Line]:
        terms = [Result(theta, i) / constant(self.factor) for i in range(len(theta.terms))]
        return [cells.line(f"θ₀ / {self.factor:g}", terms)]


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

    def backward(self, g: Array, y: Array) -> Gradients:
        return ()

    def gradient(self, i: int, g: str, y: str, x: Sequence[str]) -> str:
        return ""

    def explain(self, cells: Cells) -> list[Line]:
        base, d = constant(self.base), constant(self.dims)
        turn = [base ** -(constant(2 * i) / d) for i in cells.columns]
        formula = f"{base.symbol}^(−2i/{self.dims})"
        if self.scaling is None:
            return [cells.line(formula, turn)]
        theta = cells.partials("θ₀", formula, turn)
        return [theta, *self.scaling.explain(cells, theta)]


class Angles(Operation):
    """The angle of each pair at each position, position × θ: (…, token) and (pair) give (…, token, pair)."""

    def forward(self, positions: Array, theta: Array) -> Array:
        return np.asarray(positions[..., None] * theta)

    def rounding(self, positions: Array, theta: Array) -> tuple[float, Array]:
        return 1, np.abs(self.forward(positions, theta))

    def spread(self, errors: Sequence[Array], positions: Array, theta: Array) -> Array:
        return self.forward(np.abs(positions), errors[1]) + self.forward(errors[0], np.abs(theta) + errors[1])

    def backward(self, g: Array, y: Array, positions: Array, theta: Array) -> Gradients:
        return (g * theta).sum(axis=-1), (g * positions[..., None]).reshape(-1, theta.size).sum(axis=0)

    def gradient(self, i: int, g: str, y: str, x: Sequence[str]) -> str:
        return f"{g} {x[1]}" if i == 0 else f"Σ over positions {g} ∘ {x[0]}"

    def explain(self, cells: Cells) -> list[Line]:
        position = cells.cell(0, cells.row, above=True)
        terms = [position * theta for theta in cells.read(1, (), above=True)]
        return [cells.line(f"{cells.name(0)} × {cells.name(1)}", terms)]


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

    def backward(self, g: Array, y: Array, x: Array, cos: Array, sin: Array) -> Gradients:
        """Turned back: a rotation's transpose is its inverse. Of cos and sin, added up over the heads that share them."""
        (a, b), (u, v) = self._pairs(x), self._pairs(g)
        dcos, dsin = u * a + v * b, v * a - u * b
        return self.forward(g, cos, -sin), self._shared(dcos, cos), self._shared(dsin, sin)

    @staticmethod
    def _shared(d: Array, table: Array) -> Array:
        more = d.ndim - table.ndim
        axes = tuple(range(more)) if table.ndim == 2 else tuple(range(1, 1 + more))
        return np.asarray(d.sum(axis=axes))

    def gradient(self, i: int, g: str, y: str, x: Sequence[str]) -> str:
        return f"{g} turned back" if i == 0 else f"Σ over heads of what {x[i]} was multiplied by, ∘ {g}"

    def explain(self, cells: Cells) -> list[Line]:
        """The angles of its pairs, their cosines and sines, and each entry with the other one of its pair."""
        first, second = (list(range(self.dims)[s]) for s in self.indexes())
        pairs = {c: i for i, both in enumerate(zip(first, second, strict=True)) for c in both if c in cells.columns}
        turning = sorted(set(pairs.values()))
        lead = cells.row[: len(cells.shape(1)) - 2]
        cos, sin = (
            dict(zip(turning, cells.read(i, (*lead, cells.row[-1]), turning, above=True), strict=True)) if turning else {}
            for i in (1, 2)
        )
        terms = []
        for c in cells.columns:
            if c not in pairs:
                terms.append(cells.cell(0, (*cells.row, c)))
                continue
            i = pairs[c]
            a, b = (cells.cell(0, (*cells.row, part[i])) for part in (first, second))
            terms.append(a * cos[i] - b * sin[i] if c == first[i] else a * sin[i] + b * cos[i])
        return [cells.line(cells.formula, terms, self._note(cells, [(first[i], second[i]) for i in turning]))]

    def _note(self, cells: Cells, pairs: Sequence[tuple[int, int]]) -> str:
        """Which entries turn together, and which do not turn."""
        turning = [f"entries {a} and {b} are a pair" for a, b in pairs[:1]]
        still = [f"entry {c} does not turn" for c in cells.columns if c >= self.dims][:1]
        return "; ".join([*turning, *still]) if len(cells.columns) == 1 else ""


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
        first = 2.0 ** (-8.0 / n)
        return np.asarray(first * first ** np.arange(n))  # in the authors' order of roundings

    def rounding(self) -> tuple[float, Array]:
        return 4, self.forward()

    def spread(self, errors: Sequence[Array]) -> Array:
        return np.zeros(self.heads)

    def backward(self, g: Array, y: Array) -> Gradients:
        return ()

    def gradient(self, i: int, g: str, y: str, x: Sequence[str]) -> str:
        return ""

    def explain(self, cells: Cells) -> list[Line]:
        n = 1 << (self.heads.bit_length() - 1)
        shares = [(h + 1, n) if h < n else (2 * (h - n) + 1, 2 * n) for h in cells.columns]
        terms = [constant(2) ** -(constant(8 * h) / constant(of)) for h, of in shares]
        later = f"; from head {n} on those of {2 * n} heads, every other one" if any(of > n for _, of in shares) else ""
        return [cells.line(f"2^(−8h/{n})", terms, f"h counts heads from 1{later}")]


@dataclass(frozen=True)
class LinearBias(Operation):
    """−m · |i − j|: slopes (head) and distances ([batch], query, key) give ([batch], head, query, key).

    Without heads (not `headed`) there is one slope, and no axis of heads.
    """

    headed: bool = True

    def forward(self, slopes: Array, distance: Array) -> Array:
        if not self.headed:
            return np.asarray(-slopes.reshape(1, 1) * distance)
        return np.asarray(-per_row(slopes, 3) * (distance if distance.ndim == 2 else distance[:, None]))

    def rounding(self, slopes: Array, distance: Array) -> tuple[float, Array]:
        return 1, np.abs(self.forward(slopes, distance))

    def spread(self, errors: Sequence[Array], slopes: Array, distance: Array) -> Array:
        return np.abs(self.forward(errors[0], distance)) + np.abs(self.forward(np.abs(slopes) + errors[0], errors[1]))

    def backward(self, g: Array, y: Array, slopes: Array, distance: Array) -> Gradients:
        if not self.headed:
            return np.full(slopes.shape, -(g * distance).sum()), -slopes.reshape(1, 1) * g
        apart = distance if distance.ndim == 2 else distance[:, None]
        by_head = -(g * apart).sum(axis=(-2, -1))
        both = -per_row(slopes, 3) * g
        return by_head.reshape(-1, slopes.size).sum(axis=0), both.sum(axis=-3).reshape(distance.shape)

    def gradient(self, i: int, g: str, y: str, x: Sequence[str]) -> str:
        return f"−Σ {g} ∘ {x[1]} of each head" if i == 0 else f"−Σ over heads {x[0]} {g}"

    def explain(self, cells: Cells) -> list[Line]:
        m = cells.cell(0, (cells.row[-2] if self.headed else 0,), above=True)
        at = (*cells.row[: len(cells.shape(1)) - 2], cells.row[-1])
        return [cells.line(f"−{cells.name(0)} × {cells.name(1)}", [-m * d for d in cells.read(1, at, above=True)])]
