"""Lines of styled text for a terminal, or plain ones for everything else."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import BinaryIO

from attntrace.errors import cells

Span = tuple[str, str]  # a text and its Rich style

NARROW = 24  # a last column narrower than this is not wrapped into


class Canvas:
    """Writes lines made of spans to `out`, as UTF-8. Rich renders the styles; without colour they are left out.

    Nothing is cropped or interpreted, and only a `paragraph` is wrapped: text comes out as it went in.
    """

    def __init__(self, out: BinaryIO, colour: bool, width: int | None) -> None:
        self.out, self.colour, self.width = out, colour, width
        self._styles: dict[str, tuple[str, str]] = {}

    def line(self, *spans: Span | str) -> None:
        parts = [(span, "") if isinstance(span, str) else span for span in spans]
        text = "".join(self._styled(*part) if self.colour and part[1] else part[0] for part in parts)
        self.out.write((text.rstrip() + "\n").encode("utf-8", "replace"))

    def _styled(self, text: str, style: str) -> str:
        if style not in self._styles:
            self._styles[style] = escapes(style)
        before, after = self._styles[style]
        return f"{before}{text}{after}"

    def paragraph(self, head: Span | str, text: str, style: str = "") -> None:
        """`head`, then `text` wrapped to the width, its further lines indented below it."""
        indent = " " * cells(head if isinstance(head, str) else head[0])
        width = 10**9 if self.width is None else max(20, self.width - len(indent))
        for i, line in enumerate(wrapped(text, width)):
            self.line(head if i == 0 else indent, (line, style))


def wrapped(text: str, width: int) -> list[str]:
    """`text` broken between words; a word that is longer than a line stays whole."""
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]


def escapes(style: str) -> tuple[str, str]:
    """What a terminal is sent before and after text of a Rich style; the 16 colours that every theme defines."""
    from rich.color import ColorSystem
    from rich.style import Style

    before, _, after = Style.parse(style).render("\0", color_system=ColorSystem.STANDARD).partition("\0")
    return before, after


def right(text: str, width: int) -> str:
    """`text` padded on the left to `width` terminal cells."""
    return " " * (width - cells(text)) + text


def left(text: str, width: int) -> str:
    return text + " " * (width - cells(text))


def widest(texts: Iterable[str]) -> int:
    return max(map(cells, texts), default=0)


Rows = Sequence[Sequence[str]]


def table(canvas: Canvas, head: Sequence[str], rows: Rows, styles: Rows, numeric: Sequence[bool]) -> None:
    """Aligned columns under a heading, each cell in its style.

    Where that is too wide for the terminal the last column is wrapped, or if it would be too narrow, cells get lines of
    their own.
    """
    widths = [widest(column) for column in zip(head, *rows, strict=True)]
    before = sum(widths[:-1]) + 2 * (len(widths) - 1)
    fits = canvas.width is None or before + widths[-1] <= canvas.width
    if not fits and canvas.width is not None and canvas.width - before < NARROW:
        stacked(canvas, head, rows, styles)
        return
    place = [right if n else left for n in numeric]
    for row, style in zip([head, *rows], [["dim"] * len(head), *styles], strict=True):
        cells = [(f"{p(text, w)}  ", s) for p, text, w, s in zip(place, row, widths, style, strict=True)]
        last = [cells[-1]] if fits else [(part, style[-1]) for part in wrapped(row[-1], (canvas.width or before) - before)]
        canvas.line(*cells[:-1], last[0])
        for part in last[1:]:
            canvas.line(" " * before, part)


def stacked(canvas: Canvas, head: Sequence[str], rows: Rows, styles: Rows) -> None:
    """Each row as a block of lines: the first named cell and what stands before it, then a labelled cell a line."""
    named = next(i for i, name in enumerate(head) if name)
    label = widest(head)
    for row, style in zip(rows, styles, strict=True):
        canvas.line(*((f"{text} ", s) for text, s in zip(row[: named + 1], style, strict=False)))
        for name, text, s in list(zip(head, row, style, strict=True))[named + 1 :]:
            canvas.paragraph((f"  {left(name, label)}  ", "dim"), text, s)
