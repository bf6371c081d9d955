"""The steps of a trace as a table, without their numbers."""

from __future__ import annotations

from typing import BinaryIO

from attntrace.errors import plain
from attntrace.render.canvas import Canvas, table
from attntrace.render.text import axes_line
from attntrace.render.view import Shown, View

HEAD = ("step", "formula", "axes", "dtype", "from")
STYLES = ("bold cyan", "", "", "dim", "dim")


def write(view: View, out: BinaryIO) -> None:
    canvas = Canvas(out, view.colour, view.width)
    rows = [row(shown) for shown in view.shown]
    table(canvas, HEAD, rows, [STYLES] * len(rows), (False,) * len(HEAD))


def row(shown: Shown) -> tuple[str, str, str, str, str]:
    s = shown.step
    formula = f"{s.symbol}, given" if s.given else s.formula
    operands = ", ".join(o.name for o in s.operands) or plain(s.origin)
    return s.name, formula, axes_line(shown), s.dtype.name, operands
