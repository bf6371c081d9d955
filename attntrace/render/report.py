"""What `verify` found, as a table or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO

from attntrace.render.canvas import Canvas, table
from attntrace.render.json import data
from attntrace.verification import Report, Reports, Row

HEAD = ("", "step", "held against", "error", "ulps", "tolerance")
NUMERIC = (False, False, False, True, True, True)
AGREES, DIFFERS, NO_ANSWER, ASIDE = "✓", "✗", "·", "†"
ALIKE = 10  # tolerances of one step that are shown as one
SHORTENED = f"{ASIDE} without the rows that differ by design"


def write(found: Report | Reports, out: BinaryIO, width: int | None, colour: bool) -> None:
    canvas = Canvas(out, colour, width)
    if isinstance(found, Reports):
        several(canvas, found)
    else:
        alone(canvas, found)


# ------------------------------------------------------------------ one reference


def alone(canvas: Canvas, report: Report) -> None:
    if report.rows:
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
    design(canvas, [report])
    differing(canvas, report)
    canvas.paragraph("", report.verdict, "bold green" if report.agrees else "bold red")


def rows(canvas: Canvas, found: Sequence[Row]) -> None:
    """A table of comparisons: ✓ or ✗, the largest error absolute and in units in the last place, and what was allowed."""
    styles = ["bold green" if row.difference.agrees else "bold red" for row in found]
    table(canvas, HEAD, [cells(row) for row in found], [(style, "bold", "", "", "", "dim") for style in styles], NUMERIC)


def cells(row: Row) -> tuple[str, ...]:
    d = row.difference
    what = f"{row.what} {ASIDE}" if row.aside else row.what
    return mark(row), row.step, what, short(d.error), ulps(d.ulps), short(d.tolerance)


def mark(row: Row) -> str:
    return AGREES if row.difference.agrees else DIFFERS


def differing(canvas: Canvas, report: Report) -> None:
    """Where each comparison that differs is worst."""
    for row in (*report.rows, *report.opinions):
        if not row.difference.agrees:
            place = f"{row.step}[{', '.join(map(str, row.difference.worst))}]"
            canvas.paragraph((f"{DIFFERS} ", "bold red"), f"{row.step} differs from {row.what}, most at {place}")


def design(canvas: Canvas, reports: Sequence[Report]) -> None:
    """Points on which references differ by design, and what each does there."""
    if any(row.aside for report in reports for row in report.opinions):
        canvas.paragraph("", SHORTENED, "dim")
    for report in reports:
        for told in report.conventions:
            head = "differs by design" if told.differs else "by design"
            canvas.paragraph((f"{head}: ", "yellow" if told.differs else "dim"), f"{report.reference}: {told.sentence}")


# ------------------------------------------------------------------ several references


def several(canvas: Canvas, found: Reports) -> None:
    """One table: a row for each step, a column for each reference with its largest error."""
    names = [report.reference for report in found.reports]
    order = steps(report.rows for report in found.reports)
    lines = {step: [at(report.rows, step) for report in found.reports] for step in order}
    calls = steps(report.opinions for report in found.reports)
    for step in sorted(calls, key=lambda step: order.index(step) if step in order else len(order)):
        lines[f"{step}, in one call"] = [at(report.opinions, step) for report in found.reports]
    body = [line(step, answers) for step, answers in lines.items()]
    styles = [("bold", *(style(row) for row in answers), "dim") for answers in lines.values()]
    table(canvas, ("step", *names, "tolerance"), body, styles, (False, *(True,) * (len(names) + 1)))
    canvas.line()
    remarks(canvas, found)
    for report in found.reports:
        canvas.paragraph("", report.verdict, "bold green" if report.agrees else "bold red")


def steps(columns: Iterable[Sequence[Row]]) -> list[str]:
    """The steps of which one reference or another has something to say, in the order of the longest list first."""
    longest_first = sorted(columns, key=len, reverse=True)
    return list(dict.fromkeys(row.step for column in longest_first for row in column))


def at(found: Sequence[Row], step: str) -> Row | None:
    """What a reference says of a step; of several calls, the one that is worst off."""
    answers = [row for row in found if row.step == step]
    return max(answers, key=lambda row: (not row.difference.agrees, row.difference.error), default=None)


def line(step: str, answers: Sequence[Row | None]) -> tuple[str, ...]:
    allowed = sorted(row.difference.tolerance for row in answers if row is not None)
    least, most = allowed[0], allowed[-1]
    each = short(most) if most <= ALIKE * least else f"{short(least)} to {short(most)}"
    return step, *(cell(row) for row in answers), each


def cell(row: Row | None) -> str:
    if row is None:
        return NO_ANSWER
    return f"{short(row.difference.error)} {mark(row)}{ASIDE if row.aside else ''}"


def style(row: Row | None) -> str:
    return "dim" if row is None else "green" if row.difference.agrees else "bold red"


def remarks(canvas: Canvas, found: Reports) -> None:
    """What is left out and why, and what differs."""
    given = list(dict.fromkeys(name for report in found.reports for name in report.given))
    answered = {row.step for report in found.reports for row in (*report.rows, *report.opinions)}
    if left := [name for name in given if name not in answered]:
        canvas.paragraph("", f"given, and so not compared: {', '.join(left)}", "dim")
    for report in found.reports:
        for what, why in report.silent.items():
            canvas.paragraph("", f"not asked: {report.reference}: {what} ({why})", "dim")
    for name, why in found.missing.items():
        canvas.paragraph("", f"left out: {name}: {why}", "dim")
    design(canvas, found.reports)
    for report in found.reports:
        differing(canvas, report)


# ------------------------------------------------------------------ numbers


def short(v: float) -> str:
    return f"{v:.1e}" if v else "0"


def ulps(n: float) -> str:
    return f"{n:.2g}" if n < 10 else f"{n:.0f}" if n < 1e6 else f"{n:.0e}"


# ------------------------------------------------------------------ JSON


def write_json(found: Report | Reports, out: BinaryIO, width: int | None, colour: bool) -> None:
    whole = every(found) if isinstance(found, Reports) else document(found)
    out.write((json.dumps(whole, indent=2, ensure_ascii=False) + "\n").encode())


def every(found: Reports) -> dict[str, Any]:
    return {
        "agrees": found.agrees,
        "references": [document(report) for report in found.reports],
        "missing": dict(found.missing),
        "verdict": found.verdict,
    }


def document(report: Report) -> dict[str, Any]:
    return {
        "reference": {"name": report.reference, "version": report.version},
        "agrees": report.agrees,
        "first_difference": report.first.step if report.first else None,
        "steps": [entry(row) for row in report.rows],
        "opinions": [entry(row) for row in report.opinions],
        "given": list(report.given),
        "not_asked": dict(report.silent),
        "by_design": [
            {"point": c.point, "what": c.what, "does": c.does, "number": c.number, **data({"ours": c.ours, "theirs": c.theirs})}
            | {"differs": c.differs}
            for c in report.conventions
        ],
        "verdict": report.verdict,
    }


def entry(row: Row) -> dict[str, Any]:
    d = row.difference
    numbers = data({"error": d.error, "ulps": d.ulps, "tolerance": d.tolerance})
    return {
        "name": row.step,
        "against": row.what,
        **numbers,
        "worst": list(d.worst),
        "agrees": d.agrees,
        "set_aside": row.aside,
    }
