"""Tensors laid out as tables of text: which rows and columns are shown, how each number is written, what is marked.

A number is written once, here; the terminal, Markdown and LaTeX only put the text into their own kind of table.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from attntrace.dtypes import working
from attntrace.render.labels import GAP
from attntrace.render.view import Shown
from attntrace.tape import Array, row_argmax, row_sums

THRESHOLD = 1000  # a tensor with more numbers is elided, as NumPy does
EDGE = 3  # entries kept at each end of an elided axis
LARGE = 1e8  # from here on, numbers are written with an exponent
T = TypeVar("T")
TOKENS = ("token", "query", "key", "kv_token")


@dataclass(frozen=True)
class Grid:
    """One matrix as text. `marks` has "max" for a row's largest entry, "tie" for its equals, else "".

    `largest` says what and where each row's largest entry is, when columns are left out; `left_out` says how much is.
    A grid without rows stands for matrices that are left out.
    """

    caption: str
    columns: Sequence[str] = ()
    rows: Sequence[str] = ()
    numbers: Sequence[Sequence[str]] = ()
    marks: Sequence[Sequence[str]] = ()
    sums: Sequence[str] = ()
    largest: Sequence[str] = ()
    left_out: str = ""


def grids(s: Shown, labels: Mapping[str, Sequence[str]], precision: int, full: bool) -> Iterator[Grid]:
    """The matrices of a step, in order, elided in the middle unless `full` or small."""
    lead = s.axes[:-2]
    large = not full and size(s.shape) > THRESHOLD
    for index in itertools.product(*(kept(n, large) for n in s.shape[: len(lead)])):
        if None in index:
            if all(i == 0 for i in index[index.index(None) + 1 :]):
                yield Grid(caption="", left_out=skipped(s, index))
            continue
        yield matrix(s, tuple(i for i in index if i is not None), labels, precision, large)


def size(shape: Sequence[int]) -> int:
    product = 1
    for n in shape:
        product *= n
    return product


def kept(length: int, large: bool) -> list[int | None]:
    """The positions shown along an axis, with None for those left out."""
    if not large or length <= 2 * EDGE:
        return list(range(length))
    return [*range(EDGE), None, *range(length - EDGE, length)]


def skipped(s: Shown, index: Sequence[int | None]) -> str:
    """What is left out where a leading axis is elided."""
    gap = index.index(None)
    axis, n = s.axes[gap], s.shape[gap]
    outer = "".join(f"{a} {i}, " for a, i in zip(s.axes, index[:gap], strict=False))
    return f"{outer}{axis} {EDGE} to {n - EDGE - 1} left out ({n - 2 * EDGE} of {n}; --full prints all)"


def matrix(s: Shown, index: tuple[int, ...], labels: Mapping[str, Sequence[str]], precision: int, large: bool) -> Grid:
    """One matrix of a step. Only the rows that are shown are read, so the cost of a large one is that of a small one."""
    values = s.values[index]
    rows, columns = (kept(n, large) for n in np.atleast_2d(values).shape)
    read = np.atleast_2d(values)[present(rows)]
    read = read.astype(working(read.dtype), copy=False)
    shown = read[:, present(columns)]
    best = row_argmax(read)
    top = read[np.arange(len(read)), best]
    write = writer(shown, precision, s.step.given)
    marks = [marked(row, b, t, present(columns)) for row, b, t in zip(shown.tolist(), best.tolist(), top.tolist(), strict=True)]
    return Grid(
        caption=caption(s, index),
        columns=named(s.axes[-1], columns, labels),
        rows=named(s.axes[-2], rows, labels) if values.ndim == 2 else [""],
        numbers=spread([list(map(write, row)) for row in shown.tolist()], rows, columns, GAP),
        marks=spread(marks, rows, columns, ""),
        sums=widen(total(row_sums(read), shown, precision, s.step.given), rows, GAP),
        largest=widen(located(top, best, s, labels, precision), rows, GAP) if None in columns else (),
        left_out=left_out(s.axes[-2:], values.shape, rows, columns),
    )


def present(positions: Sequence[int | None]) -> list[int]:
    return [i for i in positions if i is not None]


def total(sums: Array, shown: Array, precision: int, given: bool) -> list[str]:
    """Row sums, with as many decimals as the numbers that are summed; where those cancel, what is left of them is 0.0000."""
    both = np.concatenate([sums[:, None], shown], axis=1)
    return list(map(writer(both, precision, given, like=shown), sums.tolist()))


def located(top: Array, best: Array, s: Shown, labels: Mapping[str, Sequence[str]], precision: int) -> list[str]:
    """`0.8735 at t57`: each row's largest entry, which may be among the columns left out."""
    write = writer(top[:, None], precision, s.step.given)
    places = named(s.axes[-1], best.tolist(), labels)
    return [f"{write(value)} at {place}" for value, place in zip(top.tolist(), places, strict=True)]


def spread(cells: list[list[str]], rows: Sequence[int | None], columns: Sequence[int | None], gap: str) -> list[list[str]]:
    """A table of cells with a row and a column of gaps where some are left out."""
    return widen([widen(row, columns, gap) for row in cells], rows, [gap] * len(columns))


def widen(items: list[T], positions: Sequence[int | None], gap: T) -> list[T]:
    """`items` with `gap` put in where `positions` has None."""
    return [*items[:EDGE], gap, *items[EDGE:]] if None in positions else items


def marked(row: Sequence[float], best: int, top: float, positions: Sequence[int]) -> list[str]:
    """Where the row's largest entry is among the columns shown, and what equals it."""
    if not top > -np.inf or not any(row):  # NaN is not the largest of anything; in a row of −∞ or of zeros nothing is
        return [""] * len(positions)
    return ["max" if j == best else "tie" if v == top else "" for j, v in zip(positions, row, strict=True)]


def caption(s: Shown, index: Sequence[int]) -> str:
    """`weights[1, 2]  batch 1, head 2`: the index that `get` takes, and what it means; nothing for a lone matrix."""
    free = iter(index)
    lead = s.step.axes[:-2] if len(s.step.axes) > 2 else ()
    full = {axis: s.index[axis] if axis in s.index else next(free) for axis in lead}
    if not full:
        return ""
    return f"{s.name}[{', '.join(map(str, full.values()))}]  {', '.join(f'{axis} {i}' for axis, i in full.items())}"


def left_out(axes: Sequence[str], shape: Sequence[int], rows: Sequence[int | None], columns: Sequence[int | None]) -> str:
    sizes = [(n, axis) for n, axis, shown in zip(shape, axes, (rows, columns)[-len(shape) :], strict=True) if None in shown]
    words = " and ".join(f"{n - 2 * EDGE} of {n} along {axis}" for n, axis in sizes)
    return f"left out: {words} (--full prints all)" if words else ""


# ------------------------------------------------------------------ labels


def named(axis: str, positions: Sequence[int | None], labels: Mapping[str, Sequence[str]]) -> list[str]:
    """The labels of the entries at `positions`: tokens by their label or as t0, t1 …; features by number."""
    own = labels.get(axis)
    if own is None:
        prefix = "t" if axis in TOKENS else ""
        return [GAP if i is None else f"{prefix}{i}" for i in positions]
    return [GAP if i is None else own[i] for i in positions]


# ------------------------------------------------------------------ numbers


def writer(values: Array, precision: int, given: bool, like: Array | None = None) -> Callable[[float], str]:
    """How the numbers of one matrix are written: all with the same number of decimals, or all with an exponent.

    Computed numbers get `precision` decimals. Given ones get as many as they need, up to `precision`: 0.5 stays 0.5. An
    exponent is used when a number would be wider than eight digits, or when next to nothing would show.
    """
    finite = np.abs(values[np.isfinite(values)])
    top = finite.max(initial=0)
    if top >= LARGE or 0 < top < faint(precision):
        return lambda v: special(v) or (f"{v:.{precision}e}" if v else "0")
    decimals = needed(values if like is None else like, precision) if given else precision
    return lambda v: special(v) or positive_zero(f"{v:.{decimals}f}")


def faint(precision: int) -> float:
    """Below this, the largest number would show a single digit; with few decimals, which do not promise more, none."""
    return float(10.0 ** (1 - precision)) if precision > 2 else 0.5 * 10.0**-precision


def needed(values: Array, precision: int) -> int:
    """The least number of decimals, up to `precision`, that writes all of `values` in full."""
    finite = values[np.isfinite(values)]
    for decimals in range(precision):
        if (np.round(finite, decimals) == finite).all():
            return decimals
    return precision


def special(v: float) -> str:
    if v - v == 0:  # finite
        return ""
    return "NaN" if v != v else "∞" if v > 0 else "−∞"


def positive_zero(text: str) -> str:
    """-0.0000 is a rounding of something small, or a zero with a sign: neither is worth a reader's while."""
    return text[1:] if text[0] == "-" and not text.strip("-0.") else text
