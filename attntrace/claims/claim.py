"""What somebody says the numbers of a step are, how finely it was said, and what a reader made of the text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from attntrace.claims import number
from attntrace.errors import AttnTraceError, Fault, Place, plain
from attntrace.tape import Array

CELLS = 2_000_000  # of all claims of a source
CLAIMS = 1000  # of a source
DEPTH = 4  # of nested lists
ROUNDED = 8  # decimals up to which an array is taken as rounded
EXACT = 12  # significant digits from which on an array is taken as full precision
FIXED = 10  # decimals that people and printers round to, however large the numbers are
SINGLE = 2.0**-24  # NumPy prints a float32 with as few digits as tell it from its neighbours
SHOWN = 60  # characters of a name in a message

Index = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Claim:
    """The numbers that are claimed of one step.

    `name` is the step, "" while it is not known; `called` is what the author calls it, which is untrusted text. A cell that
    is not `there` was left blank. `half` is half a unit of the last digit that was written, 0 where a number is exact.

    `index` says which part of the step this is, by axis: "" stands for the next axis, "head number" for a head as people
    number them, from 0 or 1. `axes` names the axes, where a source does. `loose` claims may lack rows at their end. After
    `match`, none of them is of any concern.
    """

    name: str
    called: str
    values: Array
    there: Array
    half: Array
    origin: str
    index: Index = ()
    axes: tuple[str, ...] = ()
    loose: bool = False
    place: Place | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = self.values.shape
        return shape

    @property
    def title(self) -> str:
        """The claim as a message names it; harmless to show."""
        return untitled(self.called or self.name)


@dataclass
class Reading:
    """The claims, in the order of the source; what was understood, in sentences; and what could not be read."""

    claims: list[Claim] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    def collect(self, make: Callable[[], Claim]) -> None:
        """Add a claim, or what is wrong with it: one bad claim does not spoil the others."""
        try:
            self.claims.append(make())
        except AttnTraceError as error:
            self.faults.extend(error.faults)


@dataclass
class Found:
    """An array as it was written: its cells, row by row, as text.

    `uniform` is how NumPy prints: every cell to the same decimals, but without the zeros at its end. `exact` is for formats
    that never round.
    """

    called: str
    cells: list[str]
    shape: tuple[int, ...]
    place: Place | None
    origin: str
    index: Index = ()
    axes: tuple[str, ...] = ()
    uniform: bool = False
    exact: bool = False
    loose: bool = False


def shown(text: str) -> str:
    """A name of the author's, short and harmless."""
    return plain(text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…")


def untitled(called: str) -> str:
    return shown(called) or "a claim without a name"


def claim_of(found: Found) -> Claim:
    """The numbers of an array that was written out. Raises AttnTraceError about the first cell that is none."""
    title = untitled(found.called)
    values, decimals, exponents, longest = [], [], [], 0
    for i, text in enumerate(found.cells):
        try:
            value, d, exponent, digits = number.read(text)
        except ValueError as error:
            raise fault(f"{title}: {where(i, found.shape)}{error}", found.place, found.origin) from None
        values.append(value)
        decimals.append(d)
        exponents.append(exponent)
        longest = max(longest, digits)
    array = np.array(values, dtype=np.float64)
    known = np.array(decimals, dtype=np.int64)
    there = known != number.BLANK
    exact = found.exact or (longest >= EXACT and not rounded(known, found.uniform))
    half = np.zeros(len(values)) if exact else halves(array, known, np.array(exponents, dtype=np.int64), found.uniform)
    array, there, half = (part.reshape(found.shape) for part in (array, there, half))
    return Claim("", found.called, array, there, half, found.origin, found.index, found.axes, found.loose, found.place)


def exact_claim(called: str, values: Array, origin: str, place: Place | None = None) -> Claim:
    """A claim out of numbers that were never text. If all of them are rounded to a few decimals, they claim no more."""
    wide = np.array(values, dtype=np.float64)
    return Claim("", called, wide, np.ones(wide.shape, bool), np.full(wide.shape, unit_of(wide) / 2), origin, place=place)


def unit_of(values: Array) -> float:
    """The last decimal that numbers are rounded to, 0.001 say; 0 for full precision, and for numbers as plain as 0.5 and 3."""
    finite = values[np.isfinite(values)]
    for decimals in range(1, ROUNDED + 1):
        if (np.round(finite, decimals) == finite).all():
            return 10.0**-decimals if decimals > 1 else 0.0
    return 0.0


def rounded(decimals: Array, uniform: bool) -> bool:
    """Whether many digits come of few decimals: 1303.15723160 was printed with eight, as everything beside it."""
    written = decimals[decimals >= 0]
    alike = written.size > 1 and bool((written == written[0]).all())
    return (uniform or alike) and bool(written.max() <= FIXED)


def where(i: int, shape: tuple[int, ...]) -> str:
    return f"[{', '.join(str(int(n)) for n in np.unravel_index(i, shape))}] "


def halves(values: Array, decimals: Array, exponents: Array, uniform: bool) -> Array:
    """Half a unit of the last digit of each cell.

    NumPy cuts the zeros at the end of each number, so the cell with most digits tells how far all of them go. A zero is
    known as well as the number beside it that is known least: 0 among 0.5774 and 0.123 is 0.000.
    """
    written = decimals >= 0
    if uniform and written.any():
        decimals = np.where(written, decimals.max(), decimals)
    half = np.where(written, 5.0 * 10.0 ** np.clip(exponents - decimals - 1.0, -400, 307), 0.0)
    half = np.where(written, nearest_power(half), 0.0)
    if uniform:
        half = np.where(written, np.maximum(half, np.abs(np.where(written, values, 0)) * SINGLE), half)
    beside = half[written & (values != 0)]
    if beside.size:
        half = np.where(written & (values == 0), np.minimum(half, beside.max()), half)
    return half


def nearest_power(half: Array) -> Array:
    """5e-5 and the like as Python reads them: a power of NumPy's may be an ulp away from it."""
    found, back = np.unique(half, return_inverse=True)
    return np.array([float(f"{v:.0e}") for v in found.tolist()], dtype=np.float64)[back].reshape(half.shape)


# ------------------------------------------------------------------ lists in lists


def flat(value: object) -> tuple[list[str], tuple[int, ...]]:
    """The cells of nested lists and their shape. None among rows is a row that was left blank. Raises ValueError."""
    shape = shape_of(value)
    cells: list[str] = []
    fill(value, shape, (), cells)
    return cells, shape


def shape_of(value: object) -> tuple[int, ...]:
    """The lengths of a list and of the lists that begin it."""
    shape: list[int] = []
    while isinstance(value, list):
        shape.append(len(value))
        if len(shape) > DEPTH:
            raise ValueError(f"lists nested more than {DEPTH} deep")
        value = next((v for v in value if v is not None), None)
    size = 1
    for n in shape:
        size *= n
    if not size or not shape:
        raise ValueError("expected numbers in lists, found nothing" if shape else "expected numbers in lists")
    if size > CELLS:
        raise ValueError(f"holds {size} numbers, expected at most {CELLS}")
    return tuple(shape)


def fill(value: object, shape: Sequence[int], path: tuple[int, ...], cells: list[str]) -> None:
    if not shape:
        if isinstance(value, list | dict):
            raise ValueError(f"{place_of(path)} is a {'list' if isinstance(value, list) else 'mapping'}; expected a number")
        cells.append("" if value is None else str(value))
        return
    if value is None:
        cells.extend([""] * int(np.prod(shape)))
        return
    if not isinstance(value, list):
        raise ValueError(f"{place_of(path)} is {quoted(str(value))}; expected a list of {shape[0]}")
    if len(value) != shape[0]:
        raise ValueError(ragged(path, len(value), shape[0], len(shape) > 1))
    for i, item in enumerate(value):
        fill(item, shape[1:], (*path, i), cells)


def ragged(path: tuple[int, ...], found: int, expected: int, rows: bool) -> str:
    what = ("row" if rows else "number") + ("" if found == 1 else "s")
    return f"{place_of(path)} has {found} {what}; expected {expected}, as before it"


def place_of(path: tuple[int, ...]) -> str:
    if len(path) == 1:
        return f"row {path[0]}"
    return f"row [{', '.join(map(str, path))}]" if path else "it"


def quoted(text: str) -> str:
    return f'"{shown(text)}"'


def fault(message: str, place: Place | None, origin: str) -> AttnTraceError:
    """The error of a claim; one without a place in a text says in words where it comes from."""
    return AttnTraceError(Fault(message, place=place) if place else Fault(f"{plain(origin)}: {message}"))
