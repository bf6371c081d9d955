"""Rows of cells, as a spreadsheet or a printed table has them: which are labels, which are sums, which are numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from attntrace.claims import number
from attntrace.claims.claim import CELLS, Found, Index, shown, untitled
from attntrace.claims.text import Text

SUMS = ("sum", "sums", "row sum", "row sums", "total", "σ", "∑")  # a column of them, and what is to its right, is no claim
CORNERS = ("", "#", "token", "tokens", "row", "query", "index", "q\\k", "i")  # the heading of a column of labels
MARKS = "▸=*` "
EXAMPLE = "expected a number in each cell, or ? for a blank"

Row = tuple[int, list[str]]  # its line, from 0, and its cells


@dataclass
class Table:
    """A table on its way to an array. `header` may lack a heading for the column of labels."""

    called: str
    header: list[str] | None = None
    rows: list[Row] = field(default_factory=list)
    index: Index = ()
    cure: str = number.PRINTED  # how to print it whole


def found(table: Table, text: Text) -> Found:
    """The numbers of a table. Raises AttnTraceError naming the line that is not like the others."""
    rows, header = table.rows, table.header
    start = labels(rows, header)
    stop = sums(header, rows)
    width = widest(rows, header)
    cells: list[str] = []
    for line, row in rows:
        part = row[start:stop]
        if any(number.is_gap(cell) for cell in row):
            raise text.error(f"{untitled(table.called)}: {number.elided(table.cure)}", line)
        if len(row) != width:
            raise text.error(uneven(table.called, len(row) - start, width - start, rows[0][0] + 1), line)
        cells += part
        if len(cells) > CELLS:
            raise text.error(f"{untitled(table.called)}: holds more than {CELLS} numbers", rows[0][0])
    line = rows[0][0]
    shape = (len(rows), len(cells) // len(rows))
    if not cells:
        raise text.error(f"{untitled(table.called)}: a table without numbers; {EXAMPLE}", line)
    return Found(table.called, cells, shape, text.place(line), text.origin(line), table.index)


def widest(rows: Sequence[Row], header: Sequence[str] | None) -> int:
    """How many cells a row has. A header with no heading for the labels has one less."""
    width = len(rows[0][1])
    return len(header) if header is not None and len(header) > width else width


def uneven(called: str, found: int, expected: int, first: int) -> str:
    cells = "1 cell" if found == 1 else f"{found} cells"
    return f"{untitled(called)}: a row of {cells}; expected {expected}, as in line {first}"


def labels(rows: Sequence[Row], header: Sequence[str] | None) -> int:
    """How many columns of labels the table begins with: one or none."""
    firsts = [row[0] for _, row in rows if row]
    lacking = header is not None and len(header) == len(rows[0][1]) - 1
    corner = header is not None and not lacking and header[0].strip().lower() in CORNERS
    words = all(not number.is_cell(cell) for cell in firsts) and any(cell.strip() for cell in firsts)
    return int(lacking or (corner and len(rows[0][1]) > 1) or words)


def sums(header: Sequence[str] | None, rows: Sequence[Row]) -> int | None:
    """Where the numbers end: at a column of sums, which only its heading tells."""
    if header is None:
        return None
    shift = max(0, len(rows[0][1]) - len(header))
    at = next((i for i, cell in enumerate(header) if cell.strip().strip("*_").lower() in SUMS), None)
    return None if at is None else at + shift


def is_header(cells: Sequence[str]) -> bool:
    """Whether a first row names columns: no cell is a number, or all are the positions 0, 1, 2, … after an empty corner."""
    if not any(number.is_number(cell) for cell in cells):
        return any(cell.strip() and not number.is_cell(cell) for cell in cells)
    return positions(cells[1:]) and not cells[0].strip()


def positions(cells: Sequence[str]) -> bool:
    """Whether cells count from 0, with a heading for sums at the end or without."""
    words = [cell.strip() for cell in cells]
    count = next((i for i, word in enumerate(words) if word.lower() in SUMS), len(words))
    return count > 0 and words[:count] == [str(i) for i in range(count)]


def unmarked(cell: str) -> str:
    """A cell without the marks of its row's largest entry: ▸, =, and the stars of Markdown."""
    return cell.strip(MARKS)


def shorter(cells: Sequence[str]) -> list[str]:
    """A row without the empty cells at its end, which spreadsheets fill up with."""
    end = len(cells)
    while end and not cells[end - 1].strip():
        end -= 1
    return list(cells[:end])


def clipped(words: str) -> str:
    return shown(words)
