"""What `verify` found, as a table or as JSON."""

from __future__ import annotations

import json
import math
from typing import Any, BinaryIO

from attntrace.render.canvas import Canvas, table
from attntrace.verify import Report, Row

HEAD = ("step", "held against", "largest error", "in ulps", "tolerance", "")
STYLES = ("bold cyan", "", "", "", "dim", "bold")


def write(report: Report, out: BinaryIO, width: int | None, colour: bool) -> None:
    canvas = Canvas(out, colour, width)
    table(canvas, HEAD, [cells(row) for row in report.rows], STYLES, (False, False, True, True, True, False))
    if report.opinions:
        canvas.line()
        canvas.paragraph("", "Several steps in one call:", "dim")
        table(canvas, HEAD, [cells(row) for row in report.opinions], STYLES, (False, False, True, True, True, False))
    canvas.line()
    if report.given:
        canvas.paragraph("", f"given, and so not compared: {', '.join(report.given)}", "dim")
    canvas.paragraph("", report.verdict, "bold green" if report.agrees else "bold red")


def cells(row: Row) -> tuple[str, ...]:
    d = row.difference
    verdict = "agrees" if d.agrees else f"differs at {row.step}[{', '.join(map(str, d.worst))}]"
    return row.step, row.what, f"{d.error:.1e}", ulps(d.ulps), f"{d.tolerance:.1e}", verdict


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
        "verdict": report.verdict,
    }
    out.write((json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode())


def entry(row: Row) -> dict[str, Any]:
    d = row.difference
    numbers = {"error": d.error, "ulps": d.ulps, "tolerance": d.tolerance}
    strict = {name: v if math.isfinite(v) else "Infinity" for name, v in numbers.items()}
    return {"name": row.step, "against": row.what, **strict, "worst": list(d.worst), "agrees": d.agrees}
