"""Sheets to fill in, and their keys: Markdown to read, LaTeX to print, YAML to hand in again.

A sheet and its key are the same text, but for the heading and the blank cells. The YAML of either is a config: under `expect` a
sheet has null in each blank cell, and the key has the answers. So `check` says whether a sheet that was filled in is right,
`grade` marks it with the key as its config, and `run` traces it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, BinaryIO

import numpy as np

from attntrace.errors import plain
from attntrace.ledger import amount
from attntrace.problem import INPUTS
from attntrace.render import latex, markdown
from attntrace.render.grid import Grid, grids, named, positive_zero, special
from attntrace.render.labels import legible
from attntrace.render.text import axes_line, write_lines
from attntrace.render.view import Shown
from attntrace.tape import Array, Step
from attntrace.worksheet import Sheet, queries

BLANK = "_" * 8  # room to write, which a reader of claims takes for nothing
CARRIED = 2  # more decimals of given steps than are asked for, so that no answer depends on how they were rounded
TABLED = 6  # decimals of a matrix up to which all of its numbers are written with as many
LONG = 1e8  # from here on, numbers are written with an exponent
NAMED = 8  # blank steps that are listed by name
HANDED_OUT = "# The layer, and a place for each answer under expect: put a number there instead of each null."
HELD_BACK = "# The layer, and the answers under expect: what `attntrace grade` takes as its CONFIG, for answers to this sheet."


def write_markdown(sheet: Sheet, key: bool, out: BinaryIO) -> None:
    write_lines(as_markdown(Page(sheet, key)), out)


def write_latex(sheet: Sheet, key: bool, out: BinaryIO) -> None:
    write_lines(as_latex(Page(sheet, key)), out)


def write_yaml(sheet: Sheet, key: bool, out: BinaryIO) -> None:
    write_lines(as_yaml(Page(sheet, key)), out)


WRITERS: dict[str, Callable[[Sheet, bool, BinaryIO], None]] = {
    "markdown": write_markdown,
    "latex": write_latex,
    "yaml": write_yaml,
}


@dataclass(frozen=True)
class Page:
    """What all three formats say."""

    sheet: Sheet
    key: bool

    @cached_property
    def labels(self) -> dict[str, list[str]]:
        return {axis: legible(labels) for axis, labels in self.sheet.trace.labels.items()}

    @property
    def title(self) -> str:
        title = self.sheet.trace.title or "Attention by hand"
        return f"Key: {title}" if self.key else title

    @property
    def task(self) -> str:
        """`Fill in weights and output, to 3 decimals.`"""
        names = self.sheet.blank
        what = " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)
        return f"Fill in {what if len(names) <= NAMED else f'{len(names)} steps'}, {self.digits}."

    @property
    def digits(self) -> str:
        return f"to {amount(self.sheet.decimals, 'decimals')}" if self.sheet.decimals else "to the nearest whole number"

    @property
    def numbers(self) -> str:
        """Which numbers these are, so that the sheet can be made again."""
        return "" if self.sheet.seed is None else f"Seed {self.sheet.seed}"

    def asked(self, step: Step) -> str:
        return f"fill in, {self.digits}" if step.name in self.sheet.blank and not self.key else ""

    def formula(self, step: Step) -> str:
        return f"{step.symbol}, given" if step.given else step.formula

    def cells(self, step: Step, blank: str, special: Callable[[float], str]) -> Any:
        """What stands in each cell of a step, in its shape."""
        decimals = self.sheet.decimals
        if step.given:
            texts = written(step.values, special)
        elif step.name not in self.sheet.blank:
            texts = carried(step.values, decimals + CARRIED, special)
        else:
            texts = rounded(step.values, decimals, special) if self.key else [blank] * step.values.size
        return np.array(texts, dtype=object).reshape(step.shape)

    def matrices(self, step: Step) -> Iterator[tuple[Grid, list[list[str]]]]:
        """Each matrix of a step: its caption and labels, and its cells."""
        cells = self.cells(step, BLANK, special)
        index = np.ndindex(step.shape[:-2])
        for grid, i in zip(grids(Shown(step, {}), self.labels, 0, full=True), index, strict=True):
            yield grid, np.atleast_2d(cells[i]).tolist()


# ------------------------------------------------------------------ numbers


def written(values: Array, special: Callable[[float], str]) -> list[str]:
    """Numbers with all of their digits: the fewest that give the same number again in this dtype."""
    flat = values.astype(np.float64).ravel().tolist()
    for decimals in range(TABLED + 1):
        texts = [f"{v:.{decimals}f}" for v in flat]
        if same(texts, flat, values):
            return [special(v) or positive_zero(text) for v, text in zip(flat, texts, strict=True)]
    return [special(v) or shortest(v, values) for v in flat]


def same(texts: Sequence[str], flat: Sequence[float], like: Array) -> bool:
    """Whether texts give the finite ones of some numbers again."""
    finite = np.isfinite(flat)
    read = np.array([float(text) for text in texts]).astype(like.dtype).astype(np.float64)
    return bool((read[finite] == np.array(flat)[finite]).all())


def shortest(v: float, like: Array) -> str:
    texts = (f"{v:.{digits}g}" for digits in range(1, 18))
    return next((text for text in texts if same([text], [v], like)), repr(v))


def rounded(values: Array, decimals: int, special: Callable[[float], str]) -> list[str]:
    """Answers: with the decimals that are asked for, unless they are huge."""
    flat = values.astype(np.float64).ravel().tolist()
    kind = "f" if np.abs(np.nan_to_num(flat, posinf=0, neginf=0)).max() < LONG else "e"
    return [special(v) or positive_zero(f"{v:.{decimals}{kind}}") for v in flat]


def carried(values: Array, decimals: int, special: Callable[[float], str]) -> list[str]:
    """Numbers that were computed: with no more decimals than they have, if sums like 0.1 + 0.2 are taken for what they mean."""
    finite = values.astype(np.float64)[np.isfinite(values.astype(np.float64))]
    fits = (d for d in range(decimals) if np.allclose(np.round(finite, d), finite, rtol=1e-12, atol=1e-12))
    return rounded(values, next(fits, decimals), special)


# ------------------------------------------------------------------ Markdown


def as_markdown(page: Page) -> Iterator[str]:
    yield f"# {markdown.escape(page.title)}"
    yield ""
    who = f"Name: {markdown.escape(page.sheet.student) or BLANK * 3}"
    yield " · ".join(filter(None, [who, page.numbers]))
    yield ""
    yield markdown.escape(page.task)
    for step in page.sheet.steps:
        yield from ["", f"## {step.name}", "", about(page, step)]
        for grid, cells in page.matrices(step):
            yield from ["", f"**{markdown.escape(grid.caption)}**"] if grid.caption else []
            yield ""
            yield from pipes(grid, cells)


def about(page: Page, step: Step) -> str:
    """Formula and axes, and what is asked."""
    formula = f"`{step.symbol}` given" if step.given else f"`{step.formula}`"
    asked = page.asked(step)
    kind = "" if step.dtype == np.float64 else step.dtype.name
    return " · ".join(filter(None, [formula, markdown.escape(axes_line(Shown(step, {}))), kind, asked and f"**{asked}**"]))


def pipes(grid: Grid, cells: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table whose columns stand below one another in the text too, which may be filled in as it is."""
    head = ["", *map(markdown.escape, grid.columns)]
    rows = [[markdown.escape(label), *row] for label, row in zip(grid.rows, cells, strict=True)]
    widths = [max(4, *map(len, column)) for column in zip(head, *rows, strict=True)]
    yield markdown.line(padded(head, widths))
    yield markdown.line([":" + "-" * (widths[0] - 1), *("-" * (width - 1) + ":" for width in widths[1:])])
    yield from (markdown.line(padded(row, widths)) for row in rows)


def padded(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]


# ------------------------------------------------------------------ LaTeX

PREAMBLE = r"""% A sheet by attntrace. pdflatex prints it; letters that it lacks (Chinese, say) need XeLaTeX and a font.
\documentclass[11pt]{article}
\usepackage[margin=2cm]{geometry}
\usepackage{amsmath,graphicx}
\setlength{\parindent}{0pt}
\begin{document}"""
ROOM = "p{3.2em}|"  # a column to write in
PAGE = 60  # characters that a page surely holds in the columns of a table
BLOCK = 16  # columns of a table, beyond which it goes on in another one


def as_latex(page: Page) -> Iterator[str]:
    yield PREAMBLE
    yield rf"\section*{{{latex.escape(page.title)}}}"
    student = latex.escape(page.sheet.student) or r"\underline{\hspace{16em}}"
    yield rf"Name: {student} \hfill {page.numbers}"
    yield ""
    yield rf"\medskip {latex.escape(page.task)}"
    for step in page.sheet.steps:
        yield from ["", rf"\paragraph{{{latex.escape(step.name)}}} {summary(page, step)}"]
        for grid, cells in page.matrices(step):
            yield from [rf"\par\smallskip\textbf{{{latex.escape(grid.caption)}}}"] if grid.caption else []
            for start in range(0, len(grid.columns), BLOCK):
                part = slice(start, start + BLOCK)
                yield r"\par\smallskip" if start else r"\par\nobreak\smallskip"
                yield from tabular(grid.columns[part], grid.rows, [row[part] for row in cells])
    yield r"\end{document}"


def summary(page: Page, step: Step) -> str:
    formula = f"${latex.math(step.symbol)}$ given" if step.given else f"${latex.math(step.formula)}$"
    asked = page.asked(step)
    kind = "" if step.dtype == np.float64 else step.dtype.name
    return "; ".join(filter(None, [formula, latex.escape(axes_line(Shown(step, {}))), kind, asked and rf"\textbf{{{asked}}}"]))


def tabular(columns: Sequence[str], rows: Sequence[str], cells: Sequence[Sequence[str]]) -> Iterator[str]:
    """Ruled cells, large ones where there is something to write. A table that is wider than the page is made smaller."""
    blank = cells[0][0] == BLANK
    width = sum(3 + max(map(len, column)) for column in zip(columns, *cells, strict=True))
    shrunk = width > PAGE
    yield rf"{{\renewcommand{{\arraystretch}}{{{1.8 if blank else 1.2}}}%"
    yield from [r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"] if shrunk else []
    yield rf"\begin{{tabular}}{{|l|{(ROOM if blank else 'r|') * len(columns)}}}"
    yield rf"\hline {latex.line(['', *map(latex.escape, columns)])} \hline"
    for label, row in zip(rows, cells, strict=True):
        yield rf"{latex.line([latex.escape(label), *('' if blank else latex.number(text) for text in row)])} \hline"
    yield r"\end{tabular}" + "}" * (1 + shrunk)


# ------------------------------------------------------------------ YAML


def as_yaml(page: Page) -> Iterator[str]:
    """A config. Comments say what `attntrace run` would say, and give the steps that are neither inputs nor blank."""
    yield f"# {plain(page.title)}"
    yield f"# Name: {plain(page.sheet.student)}".rstrip()
    yield "#"
    yield f"# {page.task}{page.numbers and f' {page.numbers}.'}"
    yield HELD_BACK if page.key else HANDED_OUT
    if part := queries(page.sheet.problem):
        yield f"# It is about some queries alone: --queries {part}"
    yield from config_lines(page)
    yield from ["", "expect:"]
    for step in page.sheet.steps:
        if step.name in page.sheet.blank:
            yield from ["", f"  # {line_about(page, step)}", f"  {step.name}:", *rows(page, step, "    ")]
        elif not step.given or step.name not in INPUTS:
            yield from ["", f"  # {step.name}: {line_about(page, step)}", *rows(page, step, "  #   ")]


def config_lines(page: Page) -> Iterator[str]:
    before = True
    for name, value in page.sheet.config.items():
        yield from [""] if before or name in INPUTS else []
        yield from input_lines(page, name, value) if name in INPUTS else [f"{name}: {flow(value)}"]
        before = name in INPUTS


def line_about(page: Page, step: Step) -> str:
    return " · ".join(filter(None, [page.formula(step), axes_line(Shown(step, {})), page.asked(step), columns(page, step)]))


def columns(page: Page, step: Step) -> str:
    """The labels of the columns, where they are not just numbers."""
    own = named(step.axes[-1], range(step.shape[-1]), page.labels)
    return f"columns: {', '.join(own)}" if own != list(map(str, range(len(own)))) else ""


def input_lines(page: Page, name: str, value: Any) -> Iterator[str]:
    """A tensor under its symbol and axes; a draw as the config has it, with what is drawn as a comment."""
    axes = page.sheet.problem.axes[name]
    sizes = " × ".join(f"{axis} {page.sheet.problem.sizes[axis]}" for axis in axes)
    yield f"# {INPUTS[name]}, given · {sizes}"
    array = page.sheet.problem.arrays[name]
    cells = np.array(written(array, yaml_special), dtype=object).reshape(array.shape)
    labels = named(axes[-2], range(array.shape[-2]), page.labels) if array.ndim > 1 and axes[-2] in page.labels else None
    if isinstance(value, Mapping):
        yield f"{name}: {flow(value)}"
        yield from nested(cells, "#   ", labels)
    else:
        yield f"{name}:"
        yield from nested(cells, "  ", labels)


def rows(page: Page, step: Step, indent: str) -> Iterator[str]:
    """The cells of a step in lists, a matrix row a line, its label behind it."""
    labels = named(step.axes[-2], range(step.shape[-2]), page.labels) if len(step.shape) > 1 else None
    return nested(page.cells(step, "null", yaml_special), indent, labels)


def nested(cells: Any, indent: str, labels: Sequence[str] | None) -> Iterator[str]:
    if cells.ndim == 1:
        yield f"{indent}[{', '.join(cells)}]"
    elif cells.ndim == 2:
        for i, row in enumerate(cells):
            yield f"{indent}- [{', '.join(row)}]" + (f"  # {labels[i]}" if labels else "")
    else:
        for part in cells:
            yield f"{indent}-"
            yield from nested(part, f"{indent}  ", labels)


def flow(value: Any) -> str:
    """A value of a config on one line."""
    if isinstance(value, np.ndarray):
        return bracketed(np.array(written(value, yaml_special), dtype=object).reshape(value.shape).tolist())
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {flow(item)}' for key, item in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(flow, value))}]"
    if isinstance(value, float):
        return yaml_special(value) or repr(value)
    return plain(json.dumps(value, ensure_ascii=False))  # whose escapes are those of YAML


def bracketed(cells: Any) -> str:
    return f"[{', '.join(map(bracketed, cells))}]" if isinstance(cells, list) else str(cells)


def yaml_special(v: float) -> str:
    return "" if math.isfinite(v) else ".nan" if v != v else ".inf" if v > 0 else "-.inf"
