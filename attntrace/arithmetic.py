"""Arithmetic that is shown, and that whoever reads it can do again: numbers, and what is done with them.

A line of an explanation computes one number or a row of them. Its terms are expressions over numbers of the trace and over
the results of earlier lines. `Carry` does the arithmetic as a person with a calculator does: every number is put in with a
fixed number of decimals, and every line's result is rounded before it is used again. So what is printed is what was computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field


class Expression:
    """Something with a value. `+`, `-`, `*`, `/` and `**` on expressions make larger ones, and so does a minus before one."""

    def __add__(self, other: Expression) -> Expression:
        return Apply("+", (self, other))

    def __sub__(self, other: Expression) -> Expression:
        return Apply("−", (self, other))

    def __mul__(self, other: Expression) -> Expression:
        return Apply("×", (self, other))

    def __truediv__(self, other: Expression) -> Expression:
        return Apply("/", (self, other))

    def __pow__(self, other: Expression) -> Expression:
        return Apply("^", (self, other))

    def __neg__(self) -> Expression:
        return Apply("−", (self,))


@dataclass(frozen=True, eq=False, repr=False)
class Number(Expression):
    """A number that is put in, and what it is called.

    An `exact` one, of the config or of a formula, is used as it is, and written so, or as `written`. One of an input (`given`)
    is written without zeros at its end. `size` is that of the largest number beside it, which tells whether all of them are
    written with an exponent. `more` is how many terms left out it stands for.
    """

    value: float
    symbol: str
    exact: bool = False
    given: bool = False
    size: float | None = None
    written: str = ""
    more: int = 0


@dataclass(frozen=True, eq=False, repr=False)
class Result(Expression):
    """What a line came to, in its place `at`. One of another paragraph has a `symbol`; others stand above, in the same one."""

    line: Line
    at: int = 0
    symbol: str = ""


@dataclass(frozen=True, eq=False, repr=False)
class Apply(Expression):
    """An operation on other expressions: + − × / ^, or a function by name."""

    name: str
    arguments: tuple[Expression, ...]


Leaf = Number | Result


@dataclass(frozen=True, eq=False, repr=False)
class Line:
    """One line of an explanation: what it computes, by which formula, and an expression for each number of it.

    Its numbers lie at `columns` along `axis`; one by itself has no axis. `row` is the index of the other axes, where they are
    cells of a step. A line that `quotes` only says what its numbers are. `note` is said below it.
    """

    symbol: str
    formula: str
    terms: tuple[Expression, ...]
    axis: str = ""
    columns: tuple[int, ...] = ()
    row: tuple[int, ...] | None = None
    note: str = ""
    quotes: bool = False

    def name(self, at: int) -> str:
        """`S[0, 2]`, or `exp[2]` for one that is no cell of a step."""
        if self.row is not None:
            return place(self.symbol, (*self.row, *self.columns[at : at + 1]))
        return place(self.symbol, self.columns[at : at + 1]) if len(self.columns) > 1 else self.symbol

    @property
    def tabular(self) -> bool:
        """Whether everything it uses stands above it, so that a person writes its numbers below those, and no more."""
        return bool(self.axis) and (self.quotes or not any(map(fresh, leaves(self.terms))))


def place(symbol: str, index: Sequence[int]) -> str:
    return f"{symbol}[{', '.join(map(str, index))}]" if index else symbol


def called(e: Leaf) -> str:
    return e.symbol or e.line.name(e.at) if isinstance(e, Result) else e.symbol


def fresh(e: Leaf) -> bool:
    """Whether a number has not been seen yet by who reads a paragraph from its top."""
    return bool(e.symbol) if isinstance(e, Result) else not e.exact


def leaves(expressions: Sequence[Expression]) -> Iterator[Leaf]:
    for e in expressions:
        if isinstance(e, Apply):
            yield from leaves(e.arguments)
        elif isinstance(e, Number | Result):
            yield e


# ------------------------------------------------------------------ building expressions


def constant(value: float, symbol: str = "", written: str = "") -> Number:
    """A number of the config or of a formula."""
    return Number(float(value), symbol or written or shortest(value), exact=True, written=written)


def shortest(value: float) -> str:
    return repr(float(value)).removesuffix(".0")


PI = constant(math.pi, "π", "π")


def apply(name: str, *arguments: Expression) -> Apply:
    return Apply(name, arguments)


def root(e: Expression) -> Expression:
    return apply("√", e)


def square(e: Expression) -> Expression:
    return e ** constant(2)


MOST, KEPT = 48, 8  # terms that are shown, and of more than these the first and the last


def total(terms: Sequence[Expression]) -> Expression:
    """Their sum; of very many the first and last, and what those between come to together."""
    return terms[0] if len(terms) == 1 else Apply("+", shortened("+", terms))


def largest(terms: Sequence[Expression]) -> Expression:
    """The largest of them, shortened as a sum is."""
    return terms[0] if len(terms) == 1 else Apply("max", shortened("max", terms))


def shortened(name: str, terms: Sequence[Expression]) -> tuple[Expression, ...]:
    if len(terms) <= MOST:
        return tuple(terms)
    exact, between = Carry(), terms[KEPT:-KEPT]
    value = calculate(name, [exact.value(term) for term in between])
    return (*terms[:KEPT], Number(value, f"({len(between)} between)", more=len(between)), *terms[-KEPT:])


# ------------------------------------------------------------------ computing


LARGE = 1e8  # from here on, numbers are written with an exponent
INFINITE = {math.inf: "∞", -math.inf: "−∞"}


@dataclass
class Carry:
    """Arithmetic with `decimals` digits after the point; with None, exact (in float64).

    Numbers are written as `run` writes them: with an exponent where they are large, or where next to nothing would show.
    Here a single one that would be rounded to nothing has an exponent too.
    """

    decimals: int | None = None
    _done: dict[Line, tuple[tuple[float, str], ...]] = field(default_factory=dict)

    def value(self, e: Expression) -> float:
        if isinstance(e, Number):
            return e.value if e.exact or self.decimals is None else read(self.write(e))
        if isinstance(e, Result):
            return self.results(e.line)[e.at][0]
        assert isinstance(e, Apply)
        return calculate(e.name, [self.value(a) for a in e.arguments])

    def results(self, line: Line) -> tuple[tuple[float, str], ...]:
        """The numbers of a line, and how they are written; one that is only quoted, as it is written where it is from."""
        if line not in self._done:
            values = [self.value(term) for term in line.terms]
            size = max(map(self.size, line.terms), default=0)
            texts = [
                self.write(term) if isinstance(term, Number | Result) else self.rounded(v, size)
                for term, v in zip(line.terms, values, strict=True)
            ]
            self._done[line] = tuple((v if self.decimals is None else read(s), s) for v, s in zip(values, texts, strict=True))
        return self._done[line]

    def size(self, e: Expression) -> float:
        """How large a number of a line is taken to be; of a sum, as its largest term."""
        terms = e.arguments if isinstance(e, Apply) and e.name in "+−" else (e,)
        return max((abs(v) for v in map(self.value, terms) if math.isfinite(v)), default=0)

    def write(self, e: Leaf) -> str:
        """A number of the trace or a result as it is printed, which is the number that is carried."""
        if isinstance(e, Result):
            return self.results(e.line)[e.at][1]
        if e.exact:
            return e.written or INFINITE.get(e.value) or shortest(e.value)
        text = self.rounded(e.value, abs(e.value) if e.size is None else e.size, half_up=False)
        return text.rstrip("0").rstrip(".") if e.given and "." in text and "e" not in text else text

    def rounded(self, value: float, size: float, half_up: bool = True) -> str:
        """A number among others of at most `size`.

        A tie is rounded up (`half_up`), as people do: 3.203 / 2 is 1.602 with three decimals, although the float64 next to
        1.6015 lies below it.
        """
        if not math.isfinite(value):
            return INFINITE.get(value, "NaN")
        if self.decimals is None:
            return repr(value)
        more = abs(value) * 2.0**-48 if half_up else 0
        if size >= LARGE or 0 < size < faint(self.decimals):
            return self.with_exponent(value + math.copysign(more, value))
        fixed = f"{value + math.copysign(min(more, 10.0**-self.decimals / 1000), value):.{self.decimals}f}"
        if fixed.strip("-0."):
            return fixed
        return self.with_exponent(value + math.copysign(more, value)) if value else fixed.removeprefix("-")

    def with_exponent(self, value: float) -> str:
        return f"{value:.{self.decimals}e}" if value else "0"


def faint(decimals: int) -> float:
    """Below this, the largest number would show a single digit; with few decimals, which do not promise more, none."""
    return 10.0 ** (1 - decimals) if decimals > 2 else 0.5 * 10.0**-decimals


def read(text: str) -> float:
    return float(text.replace("−", "-").replace("∞", "inf"))


def calculate(name: str, values: list[float]) -> float:
    """What a calculator shows, and where it shows an error what IEEE 754 has for it."""
    if name in FUNCTIONS:
        return math.nan if any(map(math.isnan, values)) else float(FUNCTIONS[name](*values))
    if name == "+":
        return math.fsum(values) if all(abs(v) < 1e290 for v in values) else sum(values)
    if name == "×":
        return math.prod(values)
    if name == "−":
        return -values[0] if len(values) == 1 else values[0] - values[1]
    if name == "/":
        return divided(*values)
    assert name == "^"
    return power(*values)


def divided(a: float, b: float) -> float:
    if b:
        return a / b
    return math.copysign(math.inf, a) * math.copysign(1, b) if a and not math.isnan(a) else math.nan


def power(base: float, exponent: float) -> float:
    try:
        return float(base**exponent)
    except OverflowError:
        return math.inf
    except ZeroDivisionError:
        return math.inf


FUNCTIONS: Mapping[str, Callable[..., float]] = {
    "exp": lambda x: math.exp(x) if x < 709.78 else math.inf,
    "√": lambda x: math.sqrt(x) if x >= 0 else math.nan,
    "tanh": math.tanh,
    "erf": math.erf,
    "cos": lambda x: math.cos(x) if math.isfinite(x) else math.nan,
    "sin": lambda x: math.sin(x) if math.isfinite(x) else math.nan,
    "max": max,
    "min": min,
}


# ------------------------------------------------------------------ as text

Write = Callable[[Leaf], str]


@dataclass(frozen=True)
class Notation:
    """How operations are written: each operator, a function of some arguments, a power, and the name of a leaf."""

    operators: Mapping[str, str]
    function: Callable[[str, Sequence[str]], str]
    power: Callable[[str, str], str]


RANKS = {"+": 1, "−": 1, "×": 2, "/": 2, "^": 3}  # what binds more has the larger one
LEAF = 9
POWERS = {"2": "²", "3": "³"}


def function(name: str, arguments: Sequence[str]) -> str:
    """`exp(0.5)`; a root of a name or of digits needs no parentheses."""
    inner = ", ".join(arguments)
    return f"√{inner}" if name == "√" and inner.replace("_", "").replace(".", "").isalnum() else f"{name}({inner})"


PLAIN = Notation(
    {"+": " + ", "−": " − ", "×": " × ", "/": " / "},
    function,
    lambda base, exponent: f"{base}{POWERS[exponent]}" if exponent in POWERS else f"{base}^{exponent}",
)


def text(e: Expression, write: Write, notation: Notation = PLAIN, guarded: bool = False) -> str:
    """An expression on one line, with parentheses where they are needed; `write` writes numbers and results.

    What stands after a sign is `guarded`: if it begins with a minus it needs parentheses."""
    if not isinstance(e, Apply):
        assert isinstance(e, Number | Result)
        return protected(write(e), guarded)
    if e.name not in RANKS:
        return notation.function(e.name, [text(a, write, notation) for a in e.arguments])
    if len(e.arguments) == 1:
        sign = notation.operators["−"].strip()
        return protected(sign + inside(e.arguments[0], "×", 0, write, notation, guarded=True), guarded)
    first = guarded or e.name == "^"
    parts = [inside(a, e.name, i, write, notation, first or i > 0) for i, a in enumerate(e.arguments)]
    return notation.power(*parts) if e.name == "^" else notation.operators[e.name].join(parts)


def protected(written: str, guarded: bool) -> str:
    return f"({written})" if guarded and written[0] in "-−" else written


def inside(e: Expression, above: str, position: int, write: Write, notation: Notation, guarded: bool) -> str:
    """An argument of `above`, in parentheses if it binds less."""
    rank = RANKS.get(e.name, LEAF) if isinstance(e, Apply) and len(e.arguments) > 1 else LEAF
    if rank < RANKS[above] or (rank == RANKS[above] and position > 0 and above in "−/^"):
        return f"({text(e, write, notation)})"
    return text(e, write, notation, guarded)
