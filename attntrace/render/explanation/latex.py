"""LaTeX: a fragment to paste into a document, tables as tabulars and equations aligned at their signs."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import BinaryIO

from attntrace.arithmetic import Carry, Expression, Notation, Result, Write, called, text
from attntrace.arithmetic import Number as Put
from attntrace.explaining import Explanation
from attntrace.render.explanation.layout import Block, Equation, Remark, Section, Table, sections
from attntrace.render.labels import GAP
from attntrace.render.latex import PREAMBLE, braced, escape, line, math
from attntrace.render.text import write_lines

NAMED = ("exp", "max", "min", "tanh", "cos", "sin")  # functions that LaTeX has a command for
GREEK = {"Σ": r"\sum ", "θ": r"\theta ", "φ": r"\varphi ", "α": r"\alpha ", "β": r"\beta ", "ε": r"\varepsilon ", "π": r"\pi "}
GREEK |= {"ℓ": r"\ell "}
ACCENTS = {"\u0303": "tilde", "\u0302": "hat"}
WIDE = 110  # characters of LaTeX on a line of an equation
STEP = re.compile(r"[a-z]{2,}(_[a-z0-9]+)+")  # the name of a step, where symbols are not enough


def write(e: Explanation, out: BinaryIO) -> None:
    write_lines(document(e), out)


def document(e: Explanation) -> Iterator[str]:
    yield PREAMBLE
    if title := escape(e.trace.title):
        yield rf"\subsection*{{{title}}}"
    if changes := escape(" ".join(e.trace.changes)):
        yield changes
    for s in sections(e):
        yield from section(s, e.carry)


def section(s: Section, carry: Carry) -> Iterator[str]:
    yield ""
    facts = [f"${formula(s.formula)}$", escape(s.where), escape(s.origin)]
    yield rf"\paragraph{{{escape(s.title)}}} {'; '.join(filter(None, facts))}"
    for kind, blocks in groupby(s.blocks, key=type):
        yield ""
        if kind is Equation:
            yield r"\begin{align*}"
            yield from rows([side for b in blocks for side in equation(b, carry)])
            yield r"\end{align*}"
        else:
            for b in blocks:
                yield from table(b) if isinstance(b, Table) else remark(b)


def rows(sides: Sequence[str]) -> Iterator[str]:
    for i, side in enumerate(sides):
        yield side + (r" \\" if i < len(sides) - 1 else "")


def remark(b: Block) -> Iterator[str]:
    assert isinstance(b, Remark)
    yield rf"\noindent\emph{{{escape(b.text)}}}"
    yield ""


def table(t: Table) -> Iterator[str]:
    yield r"\smallskip\noindent"
    yield rf"\begin{{tabular}}{{l{'r' * len(t.heads)}}}"
    yield rf"{line([escape(t.axis), *map(escape, t.heads)])} \hline"
    for row in t.rows:
        label = f"${formula(row.label)}$" if row.formula else formula_or_text(row.symbol)
        yield line([label, *map(number, row.cells)])
    yield r"\end{tabular}"


def formula_or_text(symbol: str) -> str:
    return escape(symbol) if " " in symbol and "|" not in symbol else f"${formula(symbol)}$"


def number(written: str) -> str:
    return r"$\dots$" if written == GAP else f"${math(written)}$" if written else ""


# ------------------------------------------------------------------ equations


def equation(b: Block, carry: Carry) -> Iterator[str]:
    assert isinstance(b, Equation)
    symbols = formula(b.said) if b.said else None if b.symbols is None else expression(b.symbols, lambda e: name(called(e)))
    numbers = None if b.numbers is None else expression(b.numbers, lambda e: put_in(e, carry))
    aside = rf" \quad ({formula(b.aside)})" if b.aside else ""
    sides = [side for side in (symbols, numbers, math(b.value).strip() + aside) if side is not None]
    for i, side in enumerate(sides):
        for j, part in enumerate(broken(side)):
            before = f"{name(b.name)} &= " if i == j == 0 else r"&\quad " if j else "&= "
            yield before + part


def expression(e: Expression, leaf: Write) -> str:
    return text(e, leaf, NOTATION)


def put_in(e: Put | Result, carry: Carry) -> str:
    """A number in an expression: with a power of ten it is a product, which needs parentheses."""
    written = carry.write(e)
    more = rf"\text{{ ({e.more} between)}}" if isinstance(e, Put) and e.more else ""
    found = formula(written).strip() + more
    return f"({found})" if r"\times" in found else found


def function(name: str, arguments: Sequence[str]) -> str:
    if name == "√":
        return rf"\sqrt{{{arguments[0]}}}"
    command = rf"\{name}" if name in NAMED else rf"\operatorname{{{name}}}"
    return f"{command}({', '.join(arguments)})"


NOTATION = Notation(
    {"+": " + ", "−": " - ", "×": r" \times ", "/": " / "},
    function,
    lambda base, exponent: f"{base}^{{{exponent}}}",
)


def broken(side: str) -> Iterator[str]:
    """Lines of an equation, broken before + and - outside braces."""
    current, depth = "", 0
    for piece in re.split(r"( (?=[+-] ))", side):
        if piece == " " and depth == 0 and len(current) > WIDE:
            yield current
            current = ""
        else:
            current += piece
        depth += piece.count("{") - piece.count("}")
    yield current


# ------------------------------------------------------------------ formulas


def name(symbol: str) -> str:
    """`S[0, 1]`; the name of a step is set as text."""
    head, bracket, index = symbol.partition("[")
    return (rf"\text{braced(escape(head))}" if STEP.fullmatch(head) else formula(head)) + bracket + index


def formula(said: str) -> str:
    """What `math` makes of a formula, with the commands that Greek letters and accents have."""
    parts = re.split(rf"({STEP.pattern})", said)
    whole = [part for i, part in enumerate(parts) if i % 3 != 2]  # what the group within the pattern found is part of it
    return "".join(name(part) if STEP.fullmatch(part) else accented(part) for part in whole)


def accented(said: str) -> str:
    set_ = math(unicodedata.normalize("NFD", said))
    for letter, command in GREEK.items():
        set_ = set_.replace(rf"\text{{{letter}}}", command).replace(letter, command)
    for mark, command in ACCENTS.items():
        set_ = re.sub(rf"(\w)\\text\{{{mark}\}}", rf"\\{command}{{\1}}", set_)
    return set_.replace("²", "^2").replace("³", "^3")
