"""LaTeX: a fragment to paste into a document, with a paragraph per step and a tabular per matrix."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import BinaryIO

from attntrace.errors import plain
from attntrace.render.grid import Grid, grids
from attntrace.render.labels import GAP
from attntrace.render.text import axes_line, write_lines
from attntrace.render.view import Shown, View
from attntrace.tape import Note

PREAMBLE = r"""% A fragment by attntrace. The preamble of the document around it needs
%   \usepackage{amsmath}
% Letters that pdflatex lacks (Chinese, say) are left as they are: XeLaTeX and LuaLaTeX set them, given a font."""

ESCAPES = {
    **{c: f"\\{c}" for c in "#$%&_{}"},
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "`": r"\textasciigrave{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\char34{}",  # some languages of babel make accents of it
    "[": "{[}",  # after the end of a row, [ would begin an argument and * be swallowed
    "]": "{]}",
    "*": "{*}",
    "…": r"\dots{}",
}
COMMANDS = {"×": "times", "·": "cdot", "∘": "circ", "≤": "leq", "≥": "geq", "∞": "infty", "√": "surd"}
MARKS = {"−": "-", "′": "'", "″": "''", "ᵀ": r"^{\top}", **{d: f"_{i}" for i, d in enumerate("₀₁₂₃₄₅₆₇₈₉")}}
IN_TEXT = ESCAPES | {c: rf"$\{name}$" for c, name in COMMANDS.items()} | {c: f"${tex}$" for c, tex in MARKS.items()}
UNSAFE = re.compile(rf"[{re.escape(''.join(IN_TEXT))}]|([-,'])(?=\1)")  # the latter: -- would become a dash


def write(view: View, out: BinaryIO) -> None:
    """Write the title, the steps and the notes."""
    write_lines(document(view), out)


def document(view: View) -> Iterator[str]:
    yield PREAMBLE
    title = escape(view.trace.title)
    if title:
        yield rf"\subsection*{{{title}}}"
    for s in view.shown:
        yield from paragraph(view, s)
    yield from notes(view.notes)


def paragraph(view: View, s: Shown) -> Iterator[str]:
    yield ""
    yield rf"\paragraph{{{escape(s.name)}}} {summary(s)}"
    for grid in grids(s, view.labels, view.precision, view.full):
        yield from matrix(grid)


def summary(s: Shown) -> str:
    """Formula, axes and dtype; of an input its symbol, and where it comes from."""
    formula = f"${math(s.step.symbol)}$ given" if s.step.given else f"${math(s.step.formula)}$"
    parts = [formula, escape(axes_line(s)), s.step.dtype.name, escape(s.step.origin)]
    return "; ".join(filter(None, parts))


def notes(found: Iterable[Note]) -> Iterator[str]:
    items = [rf"\item {item(note)}" for note in found]
    if items:
        yield from ["", r"\paragraph{Notes}", r"\begin{itemize}", *items, r"\end{itemize}"]


def item(note: Note) -> str:
    return escape(note.message)


# ------------------------------------------------------------------ tables


def matrix(grid: Grid) -> Iterator[str]:
    """A tabular below its caption (\\\\* keeps them on one page), and what it leaves out."""
    if grid.rows:
        yield ""
        yield r"\smallskip\noindent"
        if grid.caption:
            yield rf"\textbf{{{escape(grid.caption)}}}\\*"
        yield from tabular(grid)
    if grid.left_out:
        yield ""
        yield rf"\noindent\emph{{{escape(grid.left_out)}}}"


def tabular(grid: Grid) -> Iterator[str]:
    extra = ["largest"] if grid.largest else []
    yield rf"\begin{{tabular}}{{l{'r' * len(grid.columns)}|r{'l' * len(extra)}}}"
    yield rf"{line(['', *map(escape, grid.columns), 'sum', *extra])} \hline"
    yield from map(line, rows(grid))
    yield r"\end{tabular}"


def rows(grid: Grid) -> Iterator[list[str]]:
    """The cells of each row; in the one that stands for rows left out, the first number is a gap."""
    largest = [[where] for where in grid.largest] or [[] for _ in grid.rows]
    for label, numbers, marks, total, tail in zip(grid.rows, grid.numbers, grid.marks, grid.sums, largest, strict=True):
        if numbers[0] == GAP:
            yield gap_row(grid.numbers[0], len(tail))
        else:
            yield [escape(label), *map(number, numbers, marks), number(total), *map(place, tail)]


def gap_row(like: Sequence[str], extra: int) -> list[str]:
    """Dots going down, and aslant in the column that stands for columns left out."""
    dots = (r"$\ddots$" if cell == GAP else r"$\vdots$" for cell in like)
    return [r"$\vdots$", *dots, *[r"$\vdots$"] * (1 + extra)]


def line(cells: Sequence[str]) -> str:
    return rf"{' & '.join(cells)} \\"


def number(text: str, mark: str = "") -> str:
    """A number of a grid: the largest of its row in bold, its equals with = before."""
    if text == "NaN":
        return "NaN"
    if text == GAP:
        return r"$\dots$"
    bold = "boldsymbol" if "∞" in text else "mathbf"
    value = math(text).strip()
    equal = braced(value) if text.startswith("-") else value  # after =, a bare minus would have spaces around it
    return {"max": rf"$\{bold}{{{value}}}$", "tie": f"${{=}}{equal}$"}.get(mark, f"${value}$")


def place(largest: str) -> str:
    """`0.87 at t2`: the number is ours, the label is not."""
    value, _, label = largest.partition(" at ")
    return f"{number(value)} at {escape(label)}"


# ------------------------------------------------------------------ text and formulas


def escape(text: str) -> str:
    """`text` on one line, such that it is set as it is: no command, no group, no end of a cell."""
    return UNSAFE.sub(lambda match: IN_TEXT.get(match[0], f"{match[0]}{{}}"), plain(text).strip())


WORD = "[A-Za-z]{2,}(?![A-Za-z_(])"
FORMULA = re.compile(
    r"(?P<mantissa>\d+(?:\.\d+)?)e(?P<exponent>[+-]?\d+)"
    r"|√(?P<root>\w+)"
    r"|(?P<base>[A-Za-z])_(?P<index>[A-Za-z0-9]+)"
    r"|(?P<function>[A-Za-z]{2,})(?=\()"
    rf"|(?P<words>(?:(?<=[^=+−×∘/]) )?{WORD}(?: {WORD})* ?)"  # with their spaces, but for those around an operator
    r"|(?P<division>//)"
    r"|(?P<slice>:)"
    rf"|(?P<command>[{''.join(COMMANDS)}]) ?"
    rf"|(?P<mark>[{''.join(MARKS)}])"
    r"|(?P<other>[^\w\s()\[\]=+\-/.,;!'])"
)


def math(formula: str) -> str:
    """A formula such as `A = softmax(S′)` in LaTeX's math mode. Formulas are the tool's own text, never a user's."""
    return FORMULA.sub(lambda match: TRANSLATIONS[match.lastgroup or ""](match), formula)


TRANSLATIONS: dict[str, Callable[[re.Match[str]], str]] = {  # by the group that a match ends in
    "exponent": lambda m: rf"{m['mantissa']} \times 10^{{{int(m['exponent'])}}}",
    "root": lambda m: rf"\sqrt{{{math(m['root'])}}}",
    "index": lambda m: f"{m['base']}_{m['index'] if len(m['index']) == 1 else braced(m['index'])}",
    "function": lambda m: rf"\operatorname{braced(m['function'])}",
    "words": lambda m: rf"\text{braced(m['words'])}",
    "division": lambda m: r"\mathbin{//}",
    "slice": lambda m: "{:}",  # without the space of a relation
    "command": lambda m: rf"\{COMMANDS[m['command']]} ",
    "mark": lambda m: MARKS[m["mark"]],
    "other": lambda m: rf"\text{braced(escape(m['other']))}",
}


def braced(text: str) -> str:
    return f"{{{text}}}"
