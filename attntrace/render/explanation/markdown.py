"""Markdown, as GitHub renders it: tables as tables, equations as code, in which nothing is markup."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import BinaryIO

from attntrace.arithmetic import Carry
from attntrace.explaining import Explanation
from attntrace.render.explanation.layout import Block, Equation, Remark, Section, Table, sections
from attntrace.render.explanation.lines import WIDE, lines
from attntrace.render.markdown import LIST, escape, line
from attntrace.render.text import write_lines


def write(e: Explanation, out: BinaryIO) -> None:
    write_lines(document(e), out)


def document(e: Explanation) -> Iterator[str]:
    about = [escape(e.trace.title), escape(" ".join(e.trace.changes))]
    for said, mark in zip(about, ("# ", ""), strict=True):
        if said:
            yield f"{mark}{said}"
            yield ""
    for s in sections(e):
        yield from section(s, e.carry)


def section(s: Section, carry: Carry) -> Iterator[str]:
    yield f"## {escape(s.title)}"
    yield ""
    yield " · ".join(filter(None, [f"`{s.formula}`", escape(s.where), escape(s.origin)]))
    yield ""
    for kind, blocks in groupby(s.blocks, key=type):
        if kind is Equation:
            yield from ["```text", *(each for b in blocks for each in equation(b, carry)), "```", ""]
        else:
            for b in blocks:
                yield from [*(table(b) if isinstance(b, Table) else remark(b)), ""]


def table(t: Table) -> Iterator[str]:
    yield line([escape(t.axis), *map(escape, t.heads)])
    yield line([":---", *["---:"] * len(t.heads)])
    for row in t.rows:
        label = escape(row.label) if "|" in row.label else f"`{row.label}`"  # a pipe would end the cell, code or not
        yield line([label, *row.cells])


def equation(b: Block, carry: Carry) -> Iterator[str]:
    assert isinstance(b, Equation)
    *before, last = lines(b, carry, WIDE)
    yield from [*before, last + (f"   ({b.aside})" if b.aside else "")]


def remark(b: Block) -> Iterator[str]:
    assert isinstance(b, Remark)
    yield LIST.sub(r"\1\\\2", escape(b.text))
