"""What an explanation looks like, whatever the format: paragraphs of tables, equations and remarks.

Rows of numbers that belong to the same axis stand in one table, as a person writes them below one another. What has one number,
or uses numbers that do not stand above, is an equation: the symbols, the numbers put in, the value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from attntrace.arithmetic import KEPT, MOST, Carry, Expression, Line, Number, called, leaves, place, text
from attntrace.explaining import Explanation, Paragraph
from attntrace.render.grid import named
from attntrace.render.labels import GAP, legible
from attntrace.tape import Step

FEW = 2  # numbers of a row that are named one by one; what is made of more is told by its formula


@dataclass(frozen=True)
class Row:
    """A row of a table: a symbol, how it is computed, and a number (or nothing) in each column."""

    symbol: str
    formula: str
    cells: Sequence[str]

    @property
    def label(self) -> str:
        return f"{self.symbol} = {self.formula}" if self.formula else self.symbol


@dataclass(frozen=True)
class Table:
    """`heads` are labels, which are a user's text. `first`: no table of the paragraph has told them yet."""

    axis: str
    heads: Sequence[str]
    rows: Sequence[Row]
    first: bool


@dataclass(frozen=True)
class Equation:
    """`name` = `symbols` (or what is `said` instead) = `numbers` = `value`; what would say the same twice is None.

    `aside` is a formula by which the number was found elsewhere.
    """

    name: str
    said: str | None
    symbols: Expression | None
    numbers: Expression | None
    value: str
    aside: str = ""


@dataclass(frozen=True)
class Remark:
    text: str


Block = Table | Equation | Remark


@dataclass(frozen=True)
class Section:
    """A paragraph laid out: the cells in NumPy's notation, the formula, where they stand, and the blocks.

    `where` has labels, and `origin` says where a given number comes from: both are a user's text."""

    title: str
    formula: str
    where: str
    origin: str
    blocks: Sequence[Block]


def sections(e: Explanation) -> Iterator[Section]:
    labels, before = {axis: legible(names) for axis, names in e.trace.labels.items()}, None
    for p in e.paragraphs:
        found = section(p, e.carry, labels)
        yield replace(found, origin="") if p.step is before else found
        before = p.step


Labels = Mapping[str, Sequence[str]]


def section(p: Paragraph, carry: Carry, labels: Labels) -> Section:
    s = p.step
    formula = f"{s.symbol}, given" if s.given else s.formula
    return Section(title(p), formula, where(p, labels), s.origin, tuple(Layout(p, carry, labels).blocks()))


def title(p: Paragraph) -> str:
    """`weights[0]` for a whole row, `weights[0, 1]` or `weights[0, 1:3]` for a part of it."""
    columns, size = list(p.run.columns), p.step.shape[-1]
    if len(columns) == size and (size > 1 or p.run.row):
        return place(p.step.name, p.run.row)
    if len(columns) == 1:
        return place(p.step.name, (*p.run.row, columns[0]))
    together = columns == list(range(columns[0], columns[-1] + 1))
    part = f"{columns[0]}:{columns[-1] + 1}" if together else f"[{', '.join(map(str, columns))}]"
    return f"{p.step.name}[{', '.join([*map(str, p.run.row), part])}]"


def where(p: Paragraph, labels: Labels) -> str:
    """`head 0, query t2`: the row, and the column where there is one."""
    index = [*p.run.row, *(p.run.columns if len(p.run.columns) == 1 else ())]
    return ", ".join(f"{axis} {named(axis, [i], labels)[0]}" for axis, i in zip(p.step.axes, index, strict=False))


@dataclass(frozen=True)
class Layout:
    paragraph: Paragraph
    carry: Carry
    labels: Labels

    @property
    def step(self) -> Step:
        return self.paragraph.step

    def blocks(self) -> Iterator[Block]:
        """Lines that follow one another and lie along the same axis are one table."""
        seen: set[str] = set()
        for axis, lines in groupby(self.paragraph.lines, key=self.axis_of):
            if axis:
                yield from self.table(axis, list(lines), axis not in seen)
                seen.add(axis)
            else:
                for line in lines:
                    yield from self.equations(line)
        yield from self.own(self.paragraph.lines[-1])

    def axis_of(self, line: Line) -> str:
        """The axis of the table that a line stands in; an axis of which one column is used makes no table."""
        return line.axis if line.tabular and len(self.columns(line.axis)) > 1 else ""

    def columns(self, axis: str) -> list[int]:
        """The columns that are used of an axis."""
        return sorted({c for line in self.paragraph.lines if line.axis == axis and line.tabular for c in line.columns})

    def shown(self, axis: str) -> list[int | None]:
        """The columns that are shown; of very many the first, the last, and those that are asked for."""
        columns = self.columns(axis)
        if len(columns) <= MOST:
            return list(columns)
        last = self.paragraph.lines[-1]
        asked = set(last.columns) if last.axis == axis and len(last.columns) <= KEPT else set()
        kept = sorted({*columns[:KEPT], *asked, *columns[-KEPT:]})
        return [at for i, c in enumerate(kept) for at in ([None] if i and c > kept[i - 1] + 1 else []) + [c]]

    # -------------------------------------------------------------- tables

    def table(self, axis: str, lines: list[Line], first: bool) -> Iterator[Block]:
        columns = self.shown(axis)
        yield Table(axis, named(axis, columns, self.labels), [self.row(line, columns) for line in lines], first)
        for line in lines:
            if len(line.terms) == 1 and not line.quotes:
                yield self.equation(line, 0)
            yield from self.remarks(line)

    def row(self, line: Line, columns: Sequence[int | None]) -> Row:
        found = dict(zip(line.columns, self.carry.results(line), strict=True))
        return Row(line.symbol, line.formula, [GAP if c is None else found[c][1] if c in found else "" for c in columns])

    # -------------------------------------------------------------- equations

    def equations(self, line: Line) -> Iterator[Block]:
        for at in range(len(line.terms)):
            yield self.equation(line, at)
        yield from self.remarks(line)

    def equation(self, line: Line, at: int) -> Equation:
        term, value, name = line.terms[at], self.carry.results(line)[at][1], line.name(at)
        if line.quotes:
            return Equation(name, None, None, None, value, line.formula)
        numbers = self.written(term)
        symbols = text(term, called)
        if symbols == numbers or (not line.axis and sum(1 for _ in leaves([term])) > FEW):
            said: str | None = line.formula
            return Equation(name, None if said == value else said, None, term if numbers != value else None, value)
        return Equation(name, None, term, term if numbers != value else None, value)

    def written(self, e: Expression) -> str:
        return text(e, self.carry.write)

    def remarks(self, line: Line) -> Iterator[Remark]:
        if line.note:
            yield Remark(line.note)

    # -------------------------------------------------------------- the trace itself

    def own(self, line: Line) -> Iterator[Block]:
        """What the trace has, where the digits that were carried come to something else."""
        values = self.paragraph.values
        texts = [self.own_text(v) for v in values]
        carried = self.carry.results(line)
        if not any(differ(v, c, s) for v, (c, _), s in zip(values, carried, texts, strict=True)):
            return
        if self.axis_of(line):
            own, columns = dict(zip(line.columns, texts, strict=True)), self.shown(line.axis)
            cells = [GAP if c is None else own.get(c, "") for c in columns]
            yield Table(line.axis, named(line.axis, columns, self.labels), [Row("in the trace", "", cells)], first=False)
            return
        found = enumerate(zip(values, carried, texts, strict=True))
        others = [f"{line.name(at)} is {s}" for at, (v, (c, _), s) in found if differ(v, c, s)]
        yield Remark(f"in the trace {', '.join(others)}")

    def own_text(self, value: float) -> str:
        return self.carry.write(Number(value, "", size=self.size))

    @property
    def size(self) -> float:
        finite = [abs(v) for v in self.paragraph.values if v - v == 0]
        return max(finite, default=0.0)


def differ(own: float, carried: float, written: str) -> bool:
    """Whether the number of the trace, rounded as it is `written`, is another one than what was carried."""
    if own - own != 0 or carried - carried != 0:
        return not (own == carried or (own != own and carried != carried))
    return abs(own - carried) > 0.5 * unit(written) * (1 + 1e-6)


def unit(written: str) -> float:
    """One in the last place of a number as it is written."""
    mantissa, _, exponent = written.partition("e")
    decimals = len(mantissa.partition(".")[2])
    return float(10.0 ** (int(exponent or 0) - decimals))
