"""Operations on each number by itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from attntrace.ops.base import Operation
from attntrace.tape import Array


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
class Dropout(Operation):
    """A ∘ keep / (1 − rate): the weights that stay are enlarged, so that their sum is right on average."""

    rate: float

    def forward(self, a: Array, keep: Array) -> Array:
        return np.asarray(a * keep / a.dtype.type(1 - self.rate))

    def rounding(self, a: Array, keep: Array) -> tuple[float, Array]:
        return 2, np.abs(self.forward(a, keep))

    def spread(self, errors: Sequence[Array], a: Array, keep: Array) -> Array:
        return self.forward(errors[0], keep)


class Add(Operation):
    """A + B + …, all of the same shape."""

    def forward(self, *terms: Array) -> Array:
        total = terms[0] + terms[1]
        for term in terms[2:]:
            total = total + term
        return np.asarray(total)

    def rounding(self, *terms: Array) -> tuple[float, Array]:
        return len(terms) - 1, self.forward(*map(np.abs, terms))

    def spread(self, errors: Sequence[Array], *terms: Array) -> Array:
        return self.forward(*errors)


class Multiply(Operation):
    """A ∘ B, of the same shape."""

    def forward(self, a: Array, b: Array) -> Array:
        return np.asarray(a * b)

    def rounding(self, a: Array, b: Array) -> tuple[float, Array]:
        return 1, np.abs(a * b)

    def spread(self, errors: Sequence[Array], a: Array, b: Array) -> Array:
        return np.asarray(errors[0] * (np.abs(b) + errors[1]) + np.abs(a) * errors[1])


@dataclass(frozen=True)
class Softcap(Operation):
    """c tanh(S / c): scores between −c and c, nearly themselves while they are small (Gemma 2)."""

    cap: float

    def forward(self, s: Array) -> Array:
        cap = s.dtype.type(self.cap)
        return np.asarray(np.tanh(s / cap) * cap)

    def rounding(self, s: Array) -> tuple[float, Array]:
        """The quotient's rounding is passed on by the slope of tanh, which is next to nothing for large scores."""
        capped = self.forward(s)
        slope = 1 - np.square(capped / self.cap)
        return 3, np.abs(capped) + np.where(slope > 0, np.abs(s), 0) * slope

    def spread(self, errors: Sequence[Array], s: Array) -> Array:
        return np.minimum(errors[0], 2 * abs(self.cap))


class Cos(Operation):
    """The cosine of angles in radians."""

    def forward(self, angles: Array) -> Array:
        return np.asarray(np.cos(angles))

    def rounding(self, angles: Array) -> tuple[float, Array]:
        return 1, np.ones(angles.shape)

    def spread(self, errors: Sequence[Array], angles: Array) -> Array:
        return np.minimum(errors[0], 2)


class Sin(Cos):
    """The sine of angles in radians."""

    def forward(self, angles: Array) -> Array:
        return np.asarray(np.sin(angles))


ROOT_HALF = math.sqrt(0.5)
GELU_TANH = math.sqrt(2 / math.pi), 0.044715  # of the approximation that GPT-2 uses
ACTIVATIONS: dict[str, tuple[str, Callable[[Array], Array]]] = {
    "relu": ("max(0, x)", lambda x: np.maximum(x, 0)),
    "gelu": ("x · (1 + erf(x / √2)) / 2", lambda x: x * (1 + erf(x * x.dtype.type(ROOT_HALF))) / 2),
    "gelu_tanh": (
        "x · (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2",
        lambda x: x * (1 + np.tanh(x.dtype.type(GELU_TANH[0]) * (x + x.dtype.type(GELU_TANH[1]) * x * x * x))) / 2,
    ),
    "silu": ("x / (1 + exp(−x))", lambda x: x / (1 + np.exp(-x))),
}


def erf(x: Array) -> Array:
    """The error function, number by number: NumPy has none."""
    return np.asarray(np.vectorize(math.erf, otypes=[x.dtype])(x))


@dataclass(frozen=True)
class Activate(Operation):
    """The nonlinearity of an MLP: relu, gelu (exact, as GPT-NeoX), gelu_tanh (as GPT-2) or silu."""

    kind: str

    @property
    def formula(self) -> str:
        return ACTIVATIONS[self.kind][0]

    def forward(self, x: Array) -> Array:
        return ACTIVATIONS[self.kind][1](x)

    def rounding(self, x: Array) -> tuple[float, Array]:
        """1 + erf and 1 + tanh cancel for negative numbers, where what is left is small beside x."""
        return 6, np.where(np.isfinite(x), np.abs(x), 0) * (1 + np.minimum(np.abs(x), 40))

    def spread(self, errors: Sequence[Array], x: Array) -> Array:
        return 1.2 * errors[0]  # no slope of them is steeper than 1.13
