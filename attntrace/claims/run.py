"""What `attntrace run` prints for people: a heading per step, tables with labels, marks and sums."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from attntrace.claims import number
from attntrace.claims.claim import Index
from attntrace.claims.tables import Table, unmarked
from attntrace.claims.text import Text

HEADING = re.compile(r"━━ (\S{1,100}) ━━")
CAPTION = re.compile(r"   \S{1,100}\[([\d, ]{1,60})\]  ")
COLUMNS = re.compile(r"   columns? ")
END = re.compile(r"▸ largest|note: |━━ ")
CURE = "attntrace run --full"
BAR = "│"
ABOVE = 12  # lines: the command, the title and what is said of it


@dataclass
class Block:
    """The lines of one table, of which a narrow terminal shows some columns at a time."""

    index: Index
    part: bool  # whether a line says which columns these are
    last: bool
    rows: list[tuple[int, list[str]]]


def start(text: Text) -> int:
    """The line of the first heading, if it is near enough to the top that nothing but titles can stand above it; else 0."""
    return next((i for i, line in enumerate(text.lines[:ABOVE]) if HEADING.match(line)), 0)


def section(text: Text, line: int) -> tuple[list[Table], int]:
    """The tables below the heading in `line`, and the line after them. Raises AttnTraceError where numbers are left out."""
    match = HEADING.match(text.lines[line])
    assert match is not None
    result: list[Table] = []
    open_ = False  # whether columns of the last table are still to come
    paragraphs = list(split(text, line + 1))
    for paragraph in paragraphs[1:]:
        block = read(text, paragraph)
        if block is None:
            continue
        if open_ and block.part and len(block.rows) == len(result[-1].rows):
            result[-1].rows = [(i, [*a, *b]) for (i, a), (_, b) in zip(result[-1].rows, block.rows, strict=True)]
        else:
            result.append(Table(match[1], None, block.rows, block.index, CURE))
        open_ = block.part and not block.last
    return result, (paragraphs[-1].stop if paragraphs else line + 1)


def split(text: Text, line: int) -> Iterator[range]:
    """Runs of lines without a blank one, up to the next heading or the end of the steps. The first is the heading's own."""
    start = line
    for i in range(line, len(text.lines) + 1):
        ends = i == len(text.lines) or END.match(text.lines[i]) is not None
        if ends or not text.lines[i].strip():
            if i > start or start == line:
                yield range(start, i)
            start = i + 1
        if ends:
            return


def read(text: Text, lines: range) -> Block | None:
    """A table out of its lines; None where they are none."""
    index: Index = ()
    part = False
    at = lines.start
    if match := CAPTION.match(text.lines[at]):
        index = tuple(("", int(i)) for i in match[1].split(",") if i.strip())
        at += 1
    if at < lines.stop and COLUMNS.match(text.lines[at]):
        part, at = True, at + 1
    if at + 1 >= lines.stop:
        return None
    count = columns(text, range(at, lines.stop))
    rows = [(i, cells(text.lines[i])[-count:]) for i in range(at + 1, lines.stop)]
    return Block(index, part, BAR in text.lines[at], rows) if count else None


def columns(text: Text, lines: range) -> int:
    """How many numbers a row has: as many as the header has names, unless a name has wide gaps in itself."""
    named = len(re.split(r"\s{2,}", text.lines[lines.start].partition(BAR)[0].strip()))
    least = min(run(cells(text.lines[i])) for i in lines[1:])
    return min(named, least)


def cells(line: str) -> list[str]:
    """The words of a row before its sum, without marks."""
    return [unmarked(word) for word in line.partition(BAR)[0].split()]


def run(words: list[str]) -> int:
    """How many words at the end of a row are numbers, or stand for numbers left out."""
    count = 0
    for word in reversed(words):
        if not (number.is_number(word) or number.is_gap(word)):
            break
        count += 1
    return count
