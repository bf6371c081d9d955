"""Markdown, as GitHub renders it: a section per step, a table per matrix, the largest entry of each row in bold."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO

from attntrace.errors import plain
from attntrace.render.grid import Grid, grids
from attntrace.render.text import axes_line, write_lines
from attntrace.render.view import Shown, View
from attntrace.tape import Note

# What Markdown would read as markup. An underscore before a letter (d_model) may stay: it cannot close any emphasis.
MARKUP = re.compile(r"[\\`*\[\]~=]|#(?!\d)|_(?![^\W_])")
LIST = re.compile(r"^(\d*)([-+.)])")  # at the start of a line
ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "&vert;"})
# What GitHub looks for once the backslashes are gone: $maths$, @people, #12, :emoji:, https:// and www. In a span of its
# own such a character has no neighbours to mean something with.
APART = re.compile(r"\$|@(?=\w)|#(?=\d)|:(?=//|[a-z+-][\w+-]*:)|(?<=www)\.", re.IGNORECASE)


def write(view: View, out: BinaryIO) -> None:
    """Write the title, the steps and the notes."""
    write_lines(document(view), out)


def document(view: View) -> Iterator[str]:
    title = escape(view.trace.title)
    if title:
        yield f"# {title}"
        yield ""
    for s in view.shown:
        yield from section(view, s)
    yield from notes(view.notes)


def section(view: View, s: Shown) -> Iterator[str]:
    yield f"## {escape(s.name)}"
    yield ""
    yield summary(s)
    yield ""
    for grid in grids(s, view.labels, view.precision, view.full):
        yield from matrix(grid)


def summary(s: Shown) -> str:
    """Formula, axes and dtype; of an input its symbol, and where it comes from."""
    formula = f"`{s.step.symbol}` given" if s.step.given else f"`{s.step.formula}`"
    parts = [formula, escape(axes_line(s)), s.step.dtype.name, escape(s.step.origin)]
    return " · ".join(filter(None, parts))


def matrix(grid: Grid) -> Iterator[str]:
    """A table between its caption and what it leaves out."""
    if grid.caption:
        yield f"**{escape(grid.caption)}**"
        yield ""
    if grid.rows:
        yield from table(grid)
        yield ""
    if grid.left_out:
        yield f"*{escape(grid.left_out)}*"
        yield ""


def table(grid: Grid) -> Iterator[str]:
    largest = [[escape(where)] for where in grid.largest] or [[] for _ in grid.rows]
    extra = ["largest"] if grid.largest else []
    yield line(["", *map(escape, grid.columns), "sum", *extra])
    yield line([":---", *["---:"] * len(grid.columns), "---:", *[":---"] * len(extra)])
    for label, numbers, marks, total, tail in zip(grid.rows, grid.numbers, grid.marks, grid.sums, largest, strict=True):
        yield line([escape(label), *map(marked, numbers, marks), total, *tail])


def line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def marked(number: str, mark: str) -> str:
    """The largest entry of a row in bold, its equals with = before."""
    return {"max": f"**{number}**", "tie": f"={number}"}.get(mark, number)


def notes(found: Iterable[Note]) -> Iterator[str]:
    items = [f"- {item(note)}" for note in found]
    if items:
        yield "## Notes"
        yield ""
        yield from items


def item(note: Note) -> str:
    """The sentence, whose beginning must not make another list."""
    return LIST.sub(r"\1\\\2", escape(note.message))


def escape(text: str) -> str:
    """`text` on one line, such that it is shown as it is: no markup, no HTML, no end of a table cell.

    A pipe becomes an entity, since a table is cut at its pipes before backslashes are looked at.
    """
    escaped = MARKUP.sub(r"\\\g<0>", plain(text).strip()).translate(ENTITIES)
    return APART.sub(r"<span>\g<0></span>", escaped)
