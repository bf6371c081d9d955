"""Operations on each number by itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from attntrace.arithmetic import PI, Expression, Line, Number, apply, called, constant, root, shortest, text, total
from attntrace.ops.base import Gradients, Operation
from attntrace.ops.cells import Cells
from attntrace.tape import Array


@dataclass(frozen=True)
class Scale(Operation):
    """S · factor."""

    factor: float
    elementwise = True

    def forward(self, s: Array) -> Array:
        return np.asarray(s * s.dtype.type(self.factor))

    def rounding(self, s: Array) -> tuple[float, Array]:
        return 1, np.abs(s) * abs(self.factor)

    def spread(self, errors: Sequence[Array], s: Array) -> Array:
        return errors[0] * abs(self.factor)

    def backward(self, g: Array, y: Array, s: Array) -> Gradients:
        return (g * g.dtype.type(self.factor),)

    def gradient(self, i: int, g: str, y: str, x: Sequence[str]) -> str:
        return f"{g} × {self.factor!r}"

    def explain(self, cells: Cells) -> list[Line]:
        factor = constant(self.factor)
        return [cells.line(f"{cells.name(0)} × {factor.symbol}", [s * factor for s in cells.read(0, above=True)])]


@dataclass(frozen=True)
class Divide(Operation):
    """S / divisor, in the dtype of S (a NumPy float64 scalar would widen a float32 array)."""

    divisor: float
    elementwise = True

    def forward(self, s: Array) -> Array:
        return np.asarray(s / s.dtype.type(self.divisor))

    def rounding(self, s: Array) -> tuple[float, Array]:
        return 1, np.abs(s) / abs(self.divisor)

    def spread(self, errors: Sequence[Array], s: Array) -> Array:
        return errors[0] / abs(self.divisor)

    def backward(self, g: Array, y: Array, s: Array) -> Gradients:
        return (g / g.dtype.type(self.divisor),)

    def gradient(self, i: int, g: str, y: str, x: Sequence[str]) -> str:
        return f"{g} / √d_k"

    def explain(self, cells: Cells) -> list[Line]:
        d, name = constant(round(self.divisor**2), "d_k", shortest(round(self.divisor**2))), cells.name(0)
        return [cells.line(f"{name} / √d_k = {name} / √{d.written}", [s / root(d) for s in cells.read(0, above=True)])]


@dataclass(frozen=True)
class AddMask(Operation):
    """S + M. `missing` are the axes of S, by position, that M lacks and is the same along."""

    missing: tuple[int, ...] = ()
    elementwise = True

    def forward(self, s: Array, m: Array) -> Array:
        return np.asarray(s + np.expand_dims(m, self.missing))

    def rounding(self, s: Array, m: Array) -> tuple[float, Array]:
        total = self.forward(s, m)
        return 1, np.where(np.isinf(total), 0, np.abs(total))

    def spread(self, errors: Sequence[Array], s: Array, m: Array) -> Array:
        return np.where(np.isneginf(self.forward(s, m)), 0, errors[0] + np.expand_dims(errors[1], self.missing))

    def backward(self, g: Array, y: Array, s: Array, m: Array) -> Gradients:
        return g, g.sum(axis=self.missing).reshape(m.shape)

    def gradient(self, i: int, g: str, y: str, x: Sequence[str]) -> str:
        return g if i == 0 or not self.missing else f"Σ {g} over what {x[1]} is the same for"

    def explain(self, cells: Cells) -> list[Line]:
        at = tuple(n for i, n in enumerate(cells.row) if i not in self.missing)
        pairs = zip(cells.read(0, above=True), cells.read(1, at, above=True), strict=True)
        return [cells.line(f"{cells.name(0)} + {cells.name(1)}", [s + m for s, m in pairs])]


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

    def backward(self, g: Array, y: Array, a: Array, keep: Array) -> Gradients:
        return g * keep / g.dtype.type(1 - self.rate), None

    def gradient(self, i: int, g: str, y: str, x: Sequence[str]) -> str:
        return f"{g} ∘ {x[1]} / (1 − {self.rate:g})"

    def explain(self, cells: Cells) -> list[Line]:
        left = constant(1) - constant(self.rate)
        pairs = zip(cells.read(0, above=True), cells.read(1, above=True), strict=True)
        dropped = np.any(cells.values(1)[cells.row][list(cells.columns)] == 0)
        note = f"{cells.name(1)} = 0: dropped. What stays is divided by 1 − {self.rate:g}" if dropped else ""
        return [cells.line(f"{cells.name(0)} ∘ {cells.name(1)} / (1 − {self.rate:g})", [a * d / left for a, d in pairs], note)]


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

    def backward(self, g: Array, y: Array, *terms: Array) -> Gradients:
        return (g,) * len(terms)

    def gradient(self, i: int, g: str, y: str, x: Sequence[str]) -> str:
        return g

    def explain(self, cells: Cells) -> list[Line]:
        operands = range(len(cells.step.operands))
        columns = zip(*(cells.read(i, above=True) for i in operands), strict=True)
        return [cells.line(" + ".join(map(cells.name, operands)), [total(terms) for terms in columns])]


class Subtract(Operation):
    """A − B, of the same shape."""

    def forward(self, a: Array, b: Array) -> Array:
        return np.asarray(a - b)

    def rounding(self, a: Array, b: Array) -> tuple[float, Array]:
        return 1, np.abs(a - b)

    def spread(self, errors: Sequence[Array], a: Array, b: Array) -> Array:
        return np.asarray(errors[0] + errors[1])

    def backward(self, g: Array, y: Array, a: Array, b: Array) -> Gradients:
        return g, -g

    def gradient(self, i: int, g: str, y: str, x: Sequence[str]) -> str:
        return g if i == 0 else f"−{g}"

    def explain(self, cells: Cells) -> list[Line]:
        terms = [a - b for a, b in zip(cells.read(0), cells.read(1), strict=True)]
        return [cells.line(f"{cells.name(0)} − {cells.name(1)}", terms)]


class Multiply(Operation):
    """A ∘ B, of the same shape."""

    def forward(self, a: Array, b: Array) -> Array:
        return np.asarray(a * b)

    def rounding(self, a: Array, b: Array) -> tuple[float, Array]:
        return 1, np.abs(a * b)

    def spread(self, errors: Sequence[Array], a: Array, b: Array) -> Array:
        return np.asarray(errors[0] * (np.abs(b) + errors[1]) + np.abs(a) * errors[1])

    def backward(self, g: Array, y: Array, a: Array, b: Array) -> Gradients:
        return g * b, g * a

    def gradient(self, i: int, g: str, y: str, x: Sequence[str]) -> str:
        return f"{g} ∘ {x[1 - i]}"

    def explain(self, cells: Cells) -> list[Line]:
        pairs = zip(cells.read(0, above=True), cells.read(1, above=True), strict=True)
        return [cells.line(f"{cells.name(0)} ∘ {cells.name(1)}", [a * b for a, b in pairs])]


@dataclass(frozen=True)
class Softcap(Operation):
    """c tanh(S / c): scores between −c and c, nearly themselves while they are small (Gemma 2)."""

    cap: float
    elementwise = True

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

    def backward(self, g: Array, y: Array, s: Array) -> Gradients:
        """tanh′ = 1 − tanh², and the cap cancels."""
        return (g * (1 - np.square(y / y.dtype.type(self.cap))),)

    def gradient(self, i: int, g: str, y: str, x: Sequence[str]) -> str:
        return f"{g} ∘ (1 − ({y} / {self.cap:g})²)"

    def explain(self, cells: Cells) -> list[Line]:
        c, name = constant(self.cap), cells.name(0)
        terms = [c * apply("tanh", s / c) for s in cells.read(0, above=True)]
        return [cells.line(f"{c.symbol} × tanh({name} / {c.symbol})", terms)]


class Cos(Operation):
    """The cosine of angles in radians."""

    elementwise = True

    def forward(self, angles: Array) -> Array:
        return np.asarray(np.cos(angles))

    def rounding(self, angles: Array) -> tuple[float, Array]:
        return 1, np.ones(angles.shape)

    def spread(self, errors: Sequence[Array], angles: Array) -> Array:
        return np.minimum(errors[0], 2)

    def backward(self, g: Array, y: Array, angles: Array) -> Gradients:
        return (-g * np.sin(angles),)

    def gradient(self, i: int, g: str, y: str, x: Sequence[str]) -> str:
        return f"−{g} ∘ sin {x[0]}"

    def explain(self, cells: Cells) -> list[Line]:
        name = type(self).__name__.lower()
        return [cells.line(f"{name} {cells.name(0)}", [apply(name, a) for a in cells.read(0, above=True)])]


class Sin(Cos):
    """The sine of angles in radians."""

    def forward(self, angles: Array) -> Array:
        return np.asarray(np.sin(angles))

    def backward(self, g: Array, y: Array, angles: Array) -> Gradients:
        return (g * np.cos(angles),)

    def gradient(self, i: int, g: str, y: str, x: Sequence[str]) -> str:
        return f"{g} ∘ cos {x[0]}"


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


def half_of(x: Expression, share: Expression) -> Expression:
    return x * (constant(1) + share) / constant(2)


def inner_of_gelu_tanh(x: Expression) -> Expression:
    cubed = x ** constant(3)
    return root(constant(2) / PI) * (x + constant(GELU_TANH[1]) * cubed)


EXPLAINED: dict[str, Callable[[Expression], Expression]] = {
    "relu": lambda x: apply("max", constant(0), x),
    "gelu": lambda x: half_of(x, apply("erf", x / root(constant(2)))),
    "gelu_tanh": lambda x: half_of(x, apply("tanh", inner_of_gelu_tanh(x))),
    "silu": lambda x: x / (constant(1) + apply("exp", -x)),
}


def phi(x: Array) -> Array:
    """How much of a normal distribution lies below x."""
    return (1 + erf(x * x.dtype.type(ROOT_HALF))) / 2


def gelu_tanh_slope(x: Array) -> Array:
    a, b = map(x.dtype.type, GELU_TANH)
    t = np.tanh(a * (x + b * x * x * x))
    return np.asarray((1 + t) / 2 + x * (1 - t * t) * a * (1 + 3 * b * x * x) / 2)


def silu_slope(x: Array) -> Array:
    gate = 1 / (1 + np.exp(-x))
    return np.asarray(gate * (1 + x * (1 - gate)))


SLOPES: dict[str, Callable[[Array], Array]] = {  # the derivative of each
    "relu": lambda x: (x > 0).astype(x.dtype),
    "gelu": lambda x: phi(x) + x * np.exp(-x * x / 2) / x.dtype.type(math.sqrt(2 * math.pi)),
    "gelu_tanh": gelu_tanh_slope,
    "silu": silu_slope,
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
        """1 + erf and 1 + tanh cancel for negative numbers, where what is left is small beside x. relu rounds nothing."""
        if self.kind == "relu":
            return 0, np.zeros(x.shape)
        return 4, np.where(np.isfinite(x), np.abs(x), 0)

    def spread(self, errors: Sequence[Array], x: Array) -> Array:
        return 1.2 * errors[0]  # no slope of them is steeper than 1.13

    def backward(self, g: Array, y: Array, x: Array) -> Gradients:
        return (g * SLOPES[self.kind](x),)

    def gradient(self, i: int, g: str, y: str, x: Sequence[str]) -> str:
        return f"{g} ∘ {self.kind}′({x[0]})"

    def explain(self, cells: Cells) -> list[Line]:
        explained = EXPLAINED[self.kind]
        formula = text(explained(Number(0, cells.name(0))), called)
        return [cells.line(formula, [explained(x) for x in cells.read(0, above=True)])]
