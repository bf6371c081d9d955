"""For people: tables and equations as on a blackboard, styled on a terminal and plain elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import BinaryIO

from attntrace.arithmetic import Carry
from attntrace.errors import cells, plain
from attntrace.explaining import Explanation
from attntrace.render.canvas import Canvas, left, right, widest
from attntrace.render.explanation.layout import Equation, Remark, Row, Section, Table, sections
from attntrace.render.explanation.lines import WIDE, lines
from attntrace.render.rich import blocks as packed

INDENT = "   "
LABEL = 32  # a formula that would make the labels of a table wider than this stands above its row


def write(e: Explanation, out: BinaryIO, width: int | None, colour: bool) -> None:
    canvas = Canvas(out, colour, width)
    heading(canvas, e)
    found = list(sections(e))
    for i, each in enumerate(found):
        section(canvas, each, e.carry)
        if i < len(found) - 1:
            canvas.line()


def heading(canvas: Canvas, e: Explanation) -> None:
    about = [(e.trace.title, "bold"), (" ".join(e.trace.changes), "dim")]
    for said, style in about:
        if said:
            canvas.paragraph("", plain(said), style)
    if any(said for said, _ in about):
        canvas.line()


def section(canvas: Canvas, s: Section, carry: Carry) -> None:
    """`━━ weights[0] ━━  A = softmax(S′)  ·  query t0`, and what it comes from."""
    name, facts = f"━━ {s.title} ━━", [s.formula, *([s.where] if s.where else [])]
    if canvas.width is None or cells(name) + sum(cells(fact) + 5 for fact in facts) <= canvas.width:
        canvas.line((name, "bold cyan"), f"  {facts[0]}", *((f"  ·  {fact}", "dim") for fact in facts[1:]))
    else:
        canvas.line((name, "bold cyan"))
        canvas.paragraph(INDENT, facts[0])
        for fact in facts[1:]:
            canvas.paragraph(INDENT, fact, "dim")
    if s.origin:
        canvas.paragraph(INDENT, plain(s.origin), "dim")
    canvas.line()
    label, widths = columns(canvas, s)
    for block in s.blocks:
        if isinstance(block, Table):
            table(canvas, block, label, widths[block.axis])
        elif isinstance(block, Equation):
            equation(canvas, block, carry)
        else:
            remark(canvas, block)


def remark(canvas: Canvas, r: Remark) -> None:
    canvas.paragraph(f"{INDENT}  ", plain(r.text), "yellow")


# ------------------------------------------------------------------ tables


def columns(canvas: Canvas, s: Section) -> tuple[int, dict[str, list[int]]]:
    """The width of the labels of all tables of a section, and those of their columns, so that they stand below one another."""
    tables = [b for b in s.blocks if isinstance(b, Table)]
    label = widest(name for b in tables for name in (b.axis, *(brief(canvas, row) for row in b.rows)))
    widths: dict[str, list[int]] = {}
    for b in tables:
        of = [widest((head, *numbers)) for head, *numbers in zip(b.heads, *(row.cells for row in b.rows), strict=True)]
        widths[b.axis] = [max(pair) for pair in zip(of, widths.get(b.axis, of), strict=True)]
    return label, widths


def brief(canvas: Canvas, row: Row) -> str:
    """A row's label; without its formula where that is long."""
    most = LABEL if canvas.width is None else min(LABEL, canvas.width // 3)
    return row.label if cells(row.label) <= most else row.symbol


def table(canvas: Canvas, t: Table, label: int, widths: Sequence[int]) -> None:
    """In blocks of as many columns as fit side by side."""
    spans = packed(widths, label + len(INDENT), 0, canvas.width)
    for start, stop in spans:
        if start or (len(spans) > 1 and not t.first):
            canvas.line()
        if t.first or len(spans) > 1:
            heads = zip(t.heads[start:stop], widths[start:stop], strict=True)
            canvas.line((f"{INDENT}{left(t.axis, label)}{''.join(f'  {right(head, w)}' for head, w in heads)}", "dim"))
        for row in t.rows:
            short = brief(canvas, row)
            if row.formula and short == row.symbol and start == 0:
                canvas.paragraph(f"{INDENT}{row.symbol} = ", row.formula)
            numbers = zip(row.cells[start:stop], widths[start:stop], strict=True)
            canvas.line(f"{INDENT}{left(short, label)}", *(f"  {right(number, w)}" for number, w in numbers))


# ------------------------------------------------------------------ equations


def equation(canvas: Canvas, e: Equation, carry: Carry) -> None:
    *before, last = lines(e, carry, (canvas.width or WIDE) - len(INDENT))
    aside = f"   ({e.aside})" if e.aside else ""
    for line in before:
        canvas.line(f"{INDENT}{line}")
    if canvas.width is None or cells(f"{INDENT}{last}{aside}") <= canvas.width:
        canvas.line(f"{INDENT}{last}", (aside, "dim"))
    else:
        canvas.line(f"{INDENT}{last}")
        canvas.paragraph(f"{INDENT}  ", aside.strip(), "dim")
