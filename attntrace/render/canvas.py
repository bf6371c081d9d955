"""Lines of styled text for a terminal, or plain ones for everything else."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import BinaryIO

from attntrace.errors import cells

Span = tuple[str, str]  # a text and its Rich style

FLUSH = 1 << 16


class Canvas:
    """Writes lines made of spans to `out`, as UTF-8. Rich renders the styles; without colour they are left out.

    Nothing is wrapped, cropped or interpreted: text comes out as it went in.
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
        for i, line in enumerate(textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]):
            self.line(head if i == 0 else indent, (line, style))


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
    """Aligned columns under a heading, each cell in its style; where that is too wide for the terminal, a cell a line."""
    widths = [widest(column) for column in zip(head, *rows, strict=True)]
    if canvas.width is not None and sum(widths) + 2 * (len(widths) - 1) > canvas.width:
        stacked(canvas, head, rows, styles)
        return
    place = [right if n else left for n in numeric]
    canvas.line(*((f"{p(text, w)}  ", "dim") for p, text, w in zip(place, head, widths, strict=True)))
    for row, style in zip(rows, styles, strict=True):
        canvas.line(*((f"{p(text, w)}  ", s) for p, text, w, s in zip(place, row, widths, style, strict=True)))


def stacked(canvas: Canvas, head: Sequence[str], rows: Rows, styles: Rows) -> None:
    """Each row as a block of lines: the first named cell and what stands before it, then a labelled cell a line."""
    named = next(i for i, name in enumerate(head) if name)
    label = widest(head)
    for row, style in zip(rows, styles, strict=True):
        canvas.line(*((f"{text} ", s) for text, s in zip(row[: named + 1], style, strict=False)))
        for name, text, s in list(zip(head, row, style, strict=True))[named + 1 :]:
            canvas.paragraph((f"  {left(name, label)}  ", "dim"), text, s)
