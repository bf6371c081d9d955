"""CSV: blocks of numbers below their names, or attntrace's own long format, a row per number."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from attntrace.claims import number, tables
from attntrace.claims.claim import CELLS, EXACT, Claim, Found, Reading, claim_of, untitled
from attntrace.claims.tables import Row, Table, is_header, shorter
from attntrace.claims.text import Text
from attntrace.errors import AttnTraceError

SEPARATORS = ";\t,"  # in this order: where semicolons or tabs separate, a comma is a decimal comma
LINE = 4 << 20  # characters of a line
FIELD = 1000  # of the cells of one line; more are no cells of numbers
LENGTH = 10_000  # of an axis in the long format
DECIMAL_COMMA = re.compile(r"[-+\u2212]?\d*,\d+(?:[eE][-+]?\d+)?")


def read(text: Text, reading: Reading) -> None:
    """The claims of a table file. Raises AttnTraceError when it is no table at all."""
    rows = list(split(text))
    first = next((row for _, row in rows if any(map(str.strip, row))), None)
    if first is None:
        raise AttnTraceError(f"{text.name} is empty, expected a table of numbers")
    if is_long(first):
        long(text, [row for row in rows if any(map(str.strip, row[1]))], reading)
        return
    for table in blocks(rows):
        reading.collect(partial(tabled, table, text))


def tabled(table: Table, text: Text) -> Claim:
    return claim_of(tables.found(table, text))


def split(text: Text) -> Iterator[Row]:
    """Every line as cells; what begins with # is a heading."""
    separator = separator_of(text.lines)
    for i, line in enumerate(text.lines):
        if len(line) > LINE:
            raise text.error(f"a line longer than {LINE} characters", i)
        if line.lstrip().startswith("#"):
            yield i, [line.strip().lstrip("# ")]
            continue
        yield i, [point(cell) for cell in cells_of(line, separator)]  # a comma left in a cell separates no cells


def separator_of(lines: Sequence[str]) -> str:
    """The first of semicolon, tab and comma that some line has; blanks where none has any, or where commas are decimal."""
    rows = [line for line in lines if not line.lstrip().startswith("#")]
    separator = next((s for s in SEPARATORS if any(s in line for line in rows)), " ")
    numbers = [line.split() for line in rows if "," in line]
    decimal = all(len(words) > 1 and all(map(DECIMAL_COMMA.fullmatch, words)) for words in numbers)
    return " " if separator == "," and decimal else separator


def cells_of(line: str, separator: str) -> list[str]:
    if separator == " ":
        return line.split()
    if '"' not in line:
        return [cell.strip() for cell in line.split(separator)]
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=separator, skipinitialspace=True))]
    except (csv.Error, StopIteration):
        return [cell.strip() for cell in line.split(separator)]


def point(cell: str) -> str:
    """A decimal comma as a point."""
    return cell.replace(",", ".") if DECIMAL_COMMA.fullmatch(cell) else cell


def blocks(rows: Sequence[Row]) -> Iterator[Table]:
    """Runs of rows between blank lines; a line of one word above a run names it."""
    called, gathered = "", list[Row]()
    for line, row in [*rows, (0, [])]:
        cells = shorter(row)
        titled = is_title(cells) and not (gathered and 1 < len(row) == len(gathered[-1][1]))  # a label before blanks
        if gathered and (not cells or titled):
            yield block(called, gathered)
            called, gathered = "", []
        if titled:
            called = cells[0].rstrip(" :=")
        elif cells:
            gathered.append((line, row))


def is_title(cells: Sequence[str]) -> bool:
    return len(cells) == 1 and not number.is_cell(cells[0])


def block(called: str, rows: list[Row]) -> Table:
    """A run as a table: its header told apart, and the empty columns cut that a spreadsheet leaves to the right of it."""
    width = max(len(shorter(row)) for _, row in rows)
    rows = [(line, [*row, *[""] * (width - len(row))][:width] if len(row) > width else row) for line, row in rows]
    header = rows[0][1] if len(rows) > 1 and is_header(rows[0][1]) else None
    return Table(called, header, rows[1:] if header else rows)


# ------------------------------------------------------------------ the long format


def is_long(cells: Sequence[str]) -> bool:
    words = [cell.strip().lower() for cell in cells]
    return len(words) > 1 and words[0] == "step" and words[-1] == "value"


def long(text: Text, rows: Sequence[Row], reading: Reading) -> None:
    """Every row is a step, its place along each axis (empty where a step lacks the axis), and a number."""
    width = len(rows[0][1])
    steps: dict[str, list[Row]] = {}
    for line, row in rows[1:]:
        if len(row) != width:
            raise text.error(tables.uneven("", len(row), width, rows[0][0] + 1), line)
        steps.setdefault(row[0], []).append((line, row))
    if len(rows) > CELLS:
        raise AttnTraceError(f"{text.name}: holds more than {CELLS} numbers")
    exact = any(full(row[-1]) for _, row in rows[1:])
    for name, cells in steps.items():
        reading.collect(partial(gathered, text, name, rows[0][1], cells, exact))


def full(cell: str) -> bool:
    """Whether a number has so many digits that it was not rounded; then none of its file was."""
    return len(cell.lstrip("-0.").partition("e")[0].replace(".", "")) >= EXACT and number.is_number(cell)


def gathered(text: Text, name: str, header: Sequence[str], rows: Sequence[Row], exact: bool) -> Claim:
    """The numbers of one step, put where their positions say; a position that no row has is blank."""
    used = [i for i in range(1, len(rows[0][1]) - 1) if rows[0][1][i].strip()]
    places = [tuple(position(text, name, line, row[i]) for i in used) for line, row in rows]
    shape = tuple(max(place[i] for place in places) + 1 for i in range(len(used)))
    size = int(np.prod(shape, dtype=np.float64))
    if size > CELLS:
        raise text.error(f"{untitled(name)}: its positions span {size} numbers, expected at most {CELLS}", rows[0][0])
    cells = [""] * size
    taken: dict[int, int] = {}
    for (line, row), place in zip(rows, places, strict=True):
        at = int(np.ravel_multi_index(place, shape)) if shape else 0
        if at in taken:
            raise text.error(f"{untitled(name)}: [{', '.join(map(str, place))}] twice, first in line {taken[at] + 1}", line)
        taken[at] = line
        cells[at] = row[-1]
    line = rows[0][0]
    axes = tuple(header[i].strip() for i in used)
    return claim_of(Found(name, cells, shape, text.place(line), text.origin(line), axes=axes, exact=exact, loose=True))


def position(text: Text, name: str, line: int, cell: str) -> int:
    word = cell.strip()
    if not (word.isascii() and word.isdigit() and len(word) < 6 and int(word) < LENGTH):
        raise text.error(f'{untitled(name)}: "{tables.clipped(word)}" is no position, expected 0, 1, 2, …', line)
    return int(word)
