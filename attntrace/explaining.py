"""A cell of a trace, down to arithmetic that a calculator does.

Each operation explains its own cells (`Operation.explain`); here its operands are put in, and what they come from is explained
first, as deep as is asked for. No more of the trace is computed than the explanation reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from attntrace.arithmetic import Carry, Expression, Line, Number, Result, place
from attntrace.cell import Cell
from attntrace.errors import AttnTraceError
from attntrace.hidden import reasons
from attntrace.layer import trace
from attntrace.ops.cells import Cells, Row, Run, name_of
from attntrace.problem import Problem
from attntrace.tape import Array, Step, Trace

MOST = 400  # cells that may be asked for
DEEPEST = 4000  # cells that are explained on the way to them


@dataclass(frozen=True)
class Paragraph:
    """The explanation of a run of cells: of which step, which row, which columns, and how, line by line."""

    step: Step
    run: Run
    lines: tuple[Line, ...]

    @property
    def values(self) -> list[float]:
        """The numbers of the trace, which the last line comes to."""
        row = self.step.values[self.run.row]
        return [float(row[c]) for c in self.run.columns]


@dataclass(frozen=True)
class Explanation:
    """Paragraphs in the order of the computation, what was asked for last, and how many decimals are carried."""

    cell: str
    depth: int
    trace: Trace
    paragraphs: tuple[Paragraph, ...]
    carry: Carry


def explain(p: Problem, cell: Cell, depth: int = 1, decimals: int | None = 4) -> Explanation:
    """How the cells that `cell` takes come about.

    `depth` 1 begins at the operands of the step, and of those elementwise steps (scale, softcap, mask) that lead to it; each
    further one explains the operands too. Raises AttnTraceError for more than 400 cells.
    """
    t = trace(p)
    step = t[cell.name]
    asked = runs(step, cell)
    for _ in t.play(reach(step, depth)):
        pass
    with np.errstate(all="ignore"):  # NaN and infinities are explained as other numbers are
        paragraphs = tuple(Teller(p, t).tell(step, asked, depth))
    return Explanation(str(cell), depth, t, paragraphs, Carry(decimals))


def runs(step: Step, cell: Cell) -> list[Run]:
    """The rows that an index touches, and which of their columns."""
    taken = cell.within(step.axes, step.shape)
    count = int(np.prod(taken, dtype=object))
    if count > MOST:
        one = place(step.name, (0,) * (len(step.shape) - (step.shape[-1] <= MOST and len(step.shape) > 1)))
        raise AttnTraceError(f"{cell}: {count} cells, and an explanation takes at most {MOST}; name a part, such as {one}")
    along = [np.ravel(indexes(axis, step.shape)[cell.index]).tolist() for axis in range(len(step.shape))]
    rows: dict[Row, set[int]] = {}
    for *row, column in zip(*along, strict=True):
        rows.setdefault(tuple(row), set()).add(column)
    every = [Run(row, sorted(columns)) for row, columns in sorted(rows.items())]
    return [part for run in every for part in parts(step, run)]


def indexes(axis: int, shape: Sequence[int]) -> Array:
    """For each cell of an array its index along one axis, without the memory of such an array."""
    own = [1] * len(shape)
    own[axis] = shape[axis]
    return np.broadcast_to(np.arange(shape[axis]).reshape(own), shape)


def parts(step: Step, run: Run) -> Iterator[Run]:
    """A run whole; cell by cell where each is made from a row of its own."""
    apart = step.operation is not None and step.operation.apart
    return (Run(run.row, [c]) for c in run.columns) if apart else iter([run])


def reach(step: Step, depth: int) -> set[str]:
    """The steps whose numbers an explanation may read."""
    deepest: dict[str, int] = {}
    waiting = [(step, depth)]
    while waiting:
        at, left = waiting.pop()
        if deepest.get(at.name, -1) >= left:
            continue
        deepest[at.name] = left
        if left > 0 or elementwise(at):
            waiting += [(o, left if elementwise(o) and left > 0 else left - 1) for o in at.operands]
    return set(deepest)


def elementwise(step: Step) -> bool:
    return step.operation is not None and step.operation.elementwise


@dataclass
class Teller:
    """Explains runs of cells, each once, and those that they come from before them.

    What will be needed is found first, from the last step to the first: it takes all readers of a row to know which of its
    columns are to be explained.
    """

    p: Problem
    t: Trace
    wanted: dict[str, dict[Row, dict[int, int]]] = field(default_factory=dict)  # step, row, column: how deep
    told: dict[tuple[str, Row, int], Result] = field(default_factory=dict)
    count: int = 0

    def tell(self, step: Step, asked: Sequence[Run], depth: int) -> Iterator[Paragraph]:
        for run in asked:
            self.want(step, run, depth)
        for each in reversed(list(self.t)) if depth > 1 else ():
            for run, left in self.runs_of(each):
                self.lines(each, run, left, planning=True)
        for each in self.t:
            for run, left in self.runs_of(each):
                yield self.paragraph(each, run, left)

    def want(self, step: Step, run: Run, depth: int) -> None:
        columns = self.wanted.setdefault(step.name, {}).setdefault(run.row, {})
        self.count += sum(c not in columns for c in run.columns)
        if self.count > DEEPEST:
            what = f"more than {DEEPEST} cells would be explained on the way, the last ones of {step.name}"
            raise AttnTraceError(f"--depth: {what}; ask for less depth, or for fewer cells")
        columns.update({c: max(depth, columns.get(c, 0)) for c in run.columns})

    def runs_of(self, step: Step) -> list[tuple[Run, int]]:
        """What is to be explained of a step, and how deep."""
        rows = sorted(self.wanted.get(step.name, {}).items())
        return [(part, max(depths.values())) for row, depths in rows for part in parts(step, Run(row, sorted(depths)))]

    def paragraph(self, step: Step, run: Run, depth: int) -> Paragraph:
        lines = self.lines(step, run, depth)
        for at, c in enumerate(run.columns):
            self.told[step.name, run.row, c] = Result(lines[-1], at)
        return Paragraph(step, run, tuple(lines))

    def lines(self, step: Step, run: Run, depth: int, planning: bool = False) -> list[Line]:
        page = Page(self, depth, planning)
        if step.operation is None:
            return [page.quote(step, step.symbol, run, step.axes[-1])]
        own = step.operation.explain(Cells(step, run, page.read))
        return [*page.lines, *own]


@dataclass
class Page:
    """The lines of one paragraph that are written above those of the operation itself."""

    teller: Teller
    depth: int
    planning: bool
    lines: list[Line] = field(default_factory=list)
    written: dict[tuple[str, Row, tuple[int, ...]], Line] = field(default_factory=dict)

    def read(self, reader: Step, i: int, run: Run, axis: str) -> list[Expression]:
        """Cells of an operand, as numbers of the trace or as what their own paragraph came to; or as a line above."""
        operand, name = reader.operands[i], name_of(reader, i)
        if not axis:
            return list(self.numbers(operand, name, run))
        key = (operand.name, run.row, tuple(run.columns))
        if key not in self.written:
            self.written[key] = self.write(operand, name, run, axis)
        return [Result(self.written[key], at) for at in range(len(run.columns))]

    def write(self, operand: Step, name: str, run: Run, axis: str) -> Line:
        if operand.operation is not None and operand.operation.elementwise:
            self.lines += operand.operation.explain(Cells(operand, run, self.read))
        else:
            self.lines.append(self.quote(operand, name, run, axis))
        return self.lines[-1]

    def quote(self, step: Step, name: str, run: Run, axis: str) -> Line:
        formula = "" if step.given else step.formula.partition(" = ")[2]
        numbers, note = self.numbers(step, name, run), self.note(step, run)
        return Line(name, formula, numbers, axis, tuple(run.columns), run.row, note, quotes=True)

    def note(self, step: Step, run: Run) -> str:
        """Why a mask hides what it hides."""
        if not step.name.startswith("mask") or not step.given or self.planning:
            return ""
        why = list(dict.fromkeys(reasons(self.teller.p, self.teller.t, step, run)))
        return f"{step.symbol} = −∞: {listed(why)}" if why else ""

    def numbers(self, step: Step, name: str, run: Run) -> tuple[Expression, ...]:
        if self.depth > 1 and not step.given:
            return self.deeper(step, name, run)
        row, size = step.values[run.row], largest(step, run.row)
        symbols = [place(name, (*run.row, c)) for c in run.columns]
        return tuple(
            Number(float(row[c]), symbol, given=step.given, size=size) for c, symbol in zip(run.columns, symbols, strict=True)
        )

    def deeper(self, step: Step, name: str, run: Run) -> tuple[Expression, ...]:
        if self.planning:
            self.teller.want(step, run, self.depth - 1)
            return tuple(Number(0, "") for _ in run.columns)
        found = [(self.teller.told[step.name, run.row, c], c) for c in run.columns]
        return tuple(Result(result.line, result.at, place(name, (*run.row, c))) for result, c in found)


def largest(step: Step, row: Row) -> float:
    """The size of the largest number of a matrix, by which all its numbers are written alike."""
    matrix = step.values[row[:-1]] if step.values.size <= MATRIX else step.values[row]
    sizes = np.abs(matrix.astype(np.float64))
    return float(np.max(sizes, where=np.isfinite(sizes), initial=0))


MATRIX = 1 << 12  # numbers of a step that are looked at for the sake of writing some of them
MANY = 4  # reasons that are told


def listed(reasons: list[str]) -> str:
    rest = len(reasons) - MANY
    return "; ".join([*reasons[:MANY], *([f"and {rest} more"] if rest > 0 else [])])
