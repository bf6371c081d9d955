"""`.csv`: a table of numbers, with a header or without."""

from __future__ import annotations

import csv
import io
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from attntrace.config.files.block import Array, ArrayFile
from attntrace.config.files.opening import TEXT_LIMIT, bad, keyless, quoted, stamp, text

LINE_LIMIT = 4 << 20  # of a .csv: 150 000 numbers of full precision; all cells of a line are in memory at once
SEPARATORS = ";,\t"  # in this order, since the numbers of a file with semicolons may have decimal commas


def open_csv(file: io.BufferedReader, path: Path, key: str | None) -> ArrayFile:
    """A text says its shape only once it is parsed, so its numbers are at hand from here on."""
    keyless(path, key)
    table = parse_csv(text(file, path, TEXT_LIMIT), path)
    return ArrayFile(path, None, table.shape, str(table.dtype), lambda _: table.copy(), stamp(file))


def parse_csv(source: str, path: Path) -> Array:
    """The table in `source`: two axes, always."""
    values, first, width = array("d"), 0, 0
    for line, cells in body(rows(source, path)):
        first, width = first or line, width or len(cells)
        if len(cells) != width:
            found = "1 cell" if len(cells) == 1 else f"{len(cells)} cells"
            raise bad(f"line {line} of {path}", f"holds {found}, expected {width} as in line {first}")
        values.extend(numbers(cells, line, path))
    if not values:
        raise bad(path, "holds no numbers, expected rows of them, separated by commas, semicolons or tabs")
    return np.frombuffer(values).reshape(-1, width)


def rows(source: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and cells, without blank lines and comments. The first separator to occur is that of the file."""
    separator = None
    for line, content in enumerate(io.StringIO(source, newline=None), 1):
        if len(content) > LINE_LIMIT:
            raise bad(f"line {line} of {path}", f"is longer than {LINE_LIMIT} characters")
        if content.strip() and not content.lstrip().startswith("#"):
            separator = separator or next((s for s in SEPARATORS if s in content), None)
            yield line, next(csv.reader([content.strip(" \n")], delimiter=separator or ",", skipinitialspace=True))


def body(table: Iterator[tuple[int, list[str]]]) -> Iterator[tuple[int, list[str]]]:
    """The rows below the header, which is a first row in which no cell is a number; one odd cell is a mistake."""
    for line, cells in table:
        if any(number(cell) is not None for cell in cells):
            yield line, cells
        break
    yield from table


def numbers(cells: list[str], line: int, path: Path) -> Iterator[float]:
    for column, cell in enumerate(cells, 1):
        value = number(cell)
        if value is None:
            raise bad(f"line {line}, column {column} of {path}", f"holds {quoted(cell)}, expected a number")
        yield value


def number(cell: str) -> float | None:
    """What `cell` says, or None. float() alone would also take 1_000 and the digits of every script."""
    if "_" in cell or not cell.isascii():
        return None
    try:
        return float(cell)
    except ValueError:
        return None
