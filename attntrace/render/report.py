"""What `verify` found, as a table or as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, BinaryIO

from attntrace.render.canvas import Canvas, table
from attntrace.render.json import data
from attntrace.verification import Report, Row

HEAD = ("", "step", "held against", "error", "ulps", "tolerance")
NUMERIC = (False, False, False, True, True, True)
AGREES, DIFFERS = "✓", "✗"


def write(report: Report, out: BinaryIO, width: int | None, colour: bool) -> None:
    canvas = Canvas(out, colour, width)
    rows(canvas, report.rows)
    if report.opinions:
        canvas.line()
        canvas.line(("several steps in one call:", "dim"))
        rows(canvas, report.opinions)
    canvas.line()
    if report.given:
        canvas.paragraph("", f"given, and so not compared: {', '.join(report.given)}", "dim")
    for what, why in report.silent.items():
        canvas.paragraph("", f"not asked: {what} ({why})", "dim")
    for row in (*report.rows, *report.opinions):
        if not row.difference.agrees:
            place = f"{row.step}[{', '.join(map(str, row.difference.worst))}]"
            canvas.paragraph((f"{DIFFERS} ", "bold red"), f"{row.step} differs from {row.what}, most at {place}")
    canvas.paragraph("", report.verdict, "bold green" if report.agrees else "bold red")


def rows(canvas: Canvas, found: Sequence[Row]) -> None:
    """A table of comparisons: ✓ or ✗, the largest error absolute and in units in the last place, and what was allowed."""
    styles = ["bold green" if row.difference.agrees else "bold red" for row in found]
    table(canvas, HEAD, [cells(row) for row in found], [(style, "bold", "", "", "", "dim") for style in styles], NUMERIC)


def cells(row: Row) -> tuple[str, ...]:
    d = row.difference
    mark = AGREES if d.agrees else DIFFERS
    return mark, row.step, row.what, short(d.error), ulps(d.ulps), short(d.tolerance)


def short(v: float) -> str:
    return f"{v:.1e}" if v else "0"


def ulps(n: float) -> str:
    return f"{n:.2g}" if n < 10 else f"{n:.0f}" if n < 1e6 else f"{n:.0e}"


def write_json(report: Report, out: BinaryIO, width: int | None, colour: bool) -> None:
    document = {
        "reference": {"name": report.reference, "version": report.version},
        "agrees": report.agrees,
        "first_difference": report.first.step if report.first else None,
        "steps": [entry(row) for row in report.rows],
        "opinions": [entry(row) for row in report.opinions],
        "given": list(report.given),
        "not_asked": dict(report.silent),
        "verdict": report.verdict,
    }
    out.write((json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode())


def entry(row: Row) -> dict[str, Any]:
    d = row.difference
    numbers = data({"error": d.error, "ulps": d.ulps, "tolerance": d.tolerance})
    return {"name": row.step, "against": row.what, **numbers, "worst": list(d.worst), "agrees": d.agrees}
