"""What a check of gradients found, as a table or as JSON."""

from __future__ import annotations

import json as standard
from collections.abc import Iterator
from typing import Any, BinaryIO

from attntrace.gradcheck import Check, Checks
from attntrace.render import json
from attntrace.render.canvas import Canvas, table
from attntrace.render.report import AGREES, DIFFERS, short
from attntrace.render.view import View

HEAD = ("", "gradient", "held against", "cells", "error", "tolerance")
NUMERIC = (False, False, False, True, True, True)


def write(found: Checks, out: BinaryIO, width: int | None, colour: bool) -> None:
    """A row for each gradient and each thing it was held against; then the verdict."""
    canvas = Canvas(out, colour, width)
    if found.rows:
        styles = ["bold green" if row.agrees else "bold red" for row in found.rows]
        table(canvas, HEAD, [cells(row) for row in found.rows], [(s, "bold", "", "", "", "dim") for s in styles], NUMERIC)
        canvas.line()
    for what, why in found.silent.items() if found.rows else ():
        canvas.paragraph("", f"not asked: {what} ({why})", "dim")
    for row in found.rows:
        if not row.agrees:
            canvas.paragraph((f"{DIFFERS} ", "bold red"), told(row))
    canvas.paragraph("", found.verdict, "bold green" if found.agrees and found.rows else "bold red")


def cells(row: Check) -> tuple[str, ...]:
    """`24 of 96 + all`: some cells one by one, and then all of them at once."""
    some = f"{row.cells} of {row.size}" + (" + all" if row.together else "")
    return AGREES if row.agrees else DIFFERS, row.step, row.against, some, short(row.error), short(row.tolerance)


def told(row: Check) -> str:
    """`d_w_q differs from finite differences, most at d_w_q[0, 3]: by 0.021, and 1.2e-09 is allowed`."""
    place = f"at {row.step}[{', '.join(map(str, row.worst))}]" if row.worst is not None else "with all its cells moved at once"
    by = f"by {row.error:.2g}, and {short(row.tolerance)} is allowed"
    return f"{row.step} differs from {row.against}, most {place}: {by}"


def write_json(found: Checks, out: BinaryIO, width: int | None = None, colour: bool = False) -> None:
    out.write((standard.dumps(document(found), indent=2, ensure_ascii=False) + "\n").encode())


def document(found: Checks) -> dict[str, Any]:
    return {
        "agrees": found.agrees if found.rows else None,
        "gradients": [entry(row) for row in found.rows],
        "not_asked": dict(found.silent),
        "verdict": found.verdict,
    }


def entry(row: Check) -> dict[str, Any]:
    """`worst` is null when the largest excess was found with all cells moved at once."""
    numbers = json.data({"error": row.error, "tolerance": row.tolerance})
    counts = {"cells": row.cells, "together": row.together, "size": row.size}
    worst = None if row.worst is None else list(row.worst)
    return {"name": row.step, "against": row.against, **counts, **numbers, "worst": worst, "agrees": row.agrees}


def write_trace(view: View, found: Checks, out: BinaryIO) -> None:
    """The JSON of a trace, as `run` writes it, with one member more: `check`."""
    out.writelines(map(str.encode, with_check(view, found)))


def with_check(view: View, found: Checks) -> Iterator[str]:
    before = ""
    for piece in json.document(view, values=True):
        yield before
        before = piece
    assert before == "}\n"
    yield f',\n"check": {json.text(document(found))}\n}}\n'
