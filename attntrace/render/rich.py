"""For people: every step with its formula, axes and tables, styled by Rich on a terminal and plain elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import BinaryIO

from attntrace.errors import cells, plain
from attntrace.render.canvas import Canvas, Span, left, right, widest
from attntrace.render.grid import Grid, grids
from attntrace.render.labels import GAP
from attntrace.render.text import axes_line
from attntrace.render.view import Shown, View
from attntrace.tape import Note

MARKS = {"max": "▸", "tie": "=", "": " "}
STYLES = {"max": "bold green", "tie": "green", "": ""}


def write(view: View, out: BinaryIO) -> None:
    """The whole trace, then the notes where `view` has them."""
    canvas = Canvas(out, view.colour, view.width)
    if view.trace.title:
        canvas.paragraph("", plain(view.trace.title), "bold")
    source = view.trace.config.get("source")
    about = [f"source: {source}" if source else "", " ".join(view.trace.changes)]
    for text in filter(None, about):
        canvas.paragraph("", plain(text), "dim")
    if view.trace.title or any(about):
        canvas.line()
    ties = [step(canvas, view, shown) for shown in view.shown]
    canvas.line((f"{MARKS['max']} largest of its row" + (f"   {MARKS['tie']} equal to it" if any(ties) else ""), "dim"))
    if view.notes:
        canvas.line()
        notes(canvas, view.notes)


def notes(canvas: Canvas, found: Sequence[Note]) -> None:
    for note in found:
        canvas.paragraph(("note: ", "bold yellow"), plain(note.message))


def step(canvas: Canvas, view: View, shown: Shown) -> bool:
    """One step; tells whether a row of it has two largest entries."""
    heading(canvas, shown)
    ties = False
    for grid in grids(shown, view.labels, view.precision, view.full):
        matrix(canvas, grid)
        ties = ties or any("tie" in row for row in grid.marks)
    return ties


def heading(canvas: Canvas, shown: Shown) -> None:
    """`━━ scores ━━  S = Q Kᵀ  ·  query 3 × key 3  ·  float64`, on several lines where it does not fit on one."""
    s = shown.step
    formula = f"{s.symbol}, given" if s.given else s.formula
    kept = "".join(f", {axis} {i}" for axis, i in shown.index.items())
    facts = [formula, axes_line(shown) + kept, s.dtype.name]
    title = f"━━ {s.name} ━━"
    if canvas.width is None or cells(title) + sum(cells(f) + 5 for f in facts) <= canvas.width:
        canvas.line((title, "bold cyan"), f"  {facts[0]}", *((f"  ·  {fact}", "dim") for fact in facts[1:]))
    else:
        canvas.line((title, "bold cyan"))
        canvas.paragraph("   ", facts[0])
        canvas.paragraph("   ", "  ·  ".join(facts[1:]), "dim")
    if s.origin:
        canvas.paragraph("   ", plain(s.origin), "dim")
    canvas.line()


def matrix(canvas: Canvas, grid: Grid) -> None:
    """A table, in blocks of as many columns as fit side by side."""
    if not grid.rows:
        canvas.line((f"   … {grid.left_out}", "dim"))
        canvas.line()
        return
    if grid.caption:
        canvas.line((f"   {grid.caption}", "bold"))
    label = widest(grid.rows)
    widths = [1 + widest((name, *column)) for name, column in zip(grid.columns, zip(*grid.numbers, strict=True), strict=True)]
    spans = blocks(widths, label, tail(grid), canvas.width)
    for start, stop in spans:
        if len(spans) > 1:
            canvas.line((f"   {columns(grid, start, stop)}", "dim"))
        block(canvas, grid, label, widths, start, stop, last=stop == len(widths))
        canvas.line()
    if grid.left_out:
        canvas.line((f"   … {grid.left_out}", "dim"))
        canvas.line()


def columns(grid: Grid, start: int, stop: int) -> str:
    """`columns t0 to t4`: what a block holds; the gap of an elided matrix has no name."""
    shown = [name for name in grid.columns[start:stop] if name != GAP]
    return f"column {shown[0]}" if len(shown) == 1 else f"columns {shown[0]} to {shown[-1]}" if shown else "columns left out"


def tail(grid: Grid) -> int:
    """The cells that the row sums, and the largest entries where they are told, take after the last column."""
    return 5 + widest(("sum", *grid.sums)) + (2 + widest(("largest", *grid.largest)) if grid.largest else 0)


def blocks(widths: Sequence[int], label: int, end: int, width: int | None) -> list[tuple[int, int]]:
    """Runs of columns (start, stop) that fit the width, as even as they can be; the last has room for the row sums."""
    room = 10**9 if width is None else width - label - end
    several = list(packed(widths, room, len(widths)))
    most = -(-len(widths) // len(several))
    even = list(packed(widths, room, most))
    return even if len(even) == len(several) else several


def packed(widths: Sequence[int], room: int, most: int) -> Iterator[tuple[int, int]]:
    """Runs of at most `most` columns that fit into `room`; a column that is wider than that has one to itself."""
    start = used = 0
    for j, w in enumerate(widths):
        if j > start and (used + 2 + w > room or j - start == most):
            yield start, j
            start, used = j, 0
        used += 2 + w
    yield start, len(widths)


def block(canvas: Canvas, grid: Grid, label: int, widths: Sequence[int], start: int, stop: int, last: bool) -> None:
    names = "".join(f"  {right(name, w)}" for name, w in zip(grid.columns[start:stop], widths[start:stop], strict=True))
    sums = [right(text, widest(("sum", *grid.sums))) for text in ("sum", *grid.sums)]
    ends = [f"  │  {text}" if last else "" for text in sums]
    if last and grid.largest:
        ends = [f"{end}  {text}" for end, text in zip(ends, ("largest", *grid.largest), strict=True)]
    canvas.line((f"{' ' * label}{names}{ends[0]}", "dim"))
    for name, numbers, marks, end in zip(grid.rows, grid.numbers, grid.marks, ends[1:], strict=True):
        row = zip(numbers[start:stop], marks[start:stop], widths[start:stop], strict=True)
        canvas.line((left(name, label), "dim"), *(cell(*c) for c in row), (end, "dim"))


def cell(number: str, mark: str, width: int) -> Span:
    """A number right-aligned, its mark just before it; what is not finite stands out."""
    style = STYLES[mark] or ("bold red" if number == "NaN" else "magenta" if number == "∞" else "")
    return f"  {right(MARKS[mark].strip() + number, width)}", style
