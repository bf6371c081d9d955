"""What an operation sees of the step that it is to explain: a run of cells in one row, and how to read its operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from attntrace.arithmetic import Expression, Line
from attntrace.tape import Array, Step

Row = tuple[int, ...]  # an index of all axes but the last


class Run(NamedTuple):
    """Some columns of a row."""

    row: Row
    columns: Sequence[int]


# (step, i, run, axis): cells of the step's operand i; with an axis, as a line above that lies along it.
Reader = Callable[[Step, int, Run, str], list[Expression]]


@dataclass(frozen=True)
class Cells:
    """A run of cells of `step`.

    Cells of an operand are read as expressions, by default those at the same place. With `above` they are first written down
    as a line of their own, as a person writes a row of numbers before doing something with each of them.
    """

    step: Step
    run: Run
    reader: Reader

    @property
    def row(self) -> Row:
        return self.run.row

    @property
    def columns(self) -> Sequence[int]:
        return self.run.columns

    @property
    def formula(self) -> str:
        """What the formula of the step says it is."""
        return self.step.formula.partition(" = ")[2]

    def name(self, i: int) -> str:
        """What operand i is called here."""
        return name_of(self.step, i)

    def values(self, i: int) -> Array:
        return self.step.operands[i].values

    def shape(self, i: int) -> tuple[int, ...]:
        return self.step.operands[i].shape

    def read(
        self, i: int, row: Row | None = None, columns: Sequence[int] | None = None, above: bool = False
    ) -> list[Expression]:
        run = Run(self.row if row is None else row, self.columns if columns is None else columns)
        axis = (self.step if columns is None else self.step.operands[i]).axes[-1]  # d_out of one is d_model of the sum
        return self.reader(self.step, i, run, axis if above else "")

    def whole(self, i: int, row: Row | None = None, above: bool = False) -> list[Expression]:
        """A whole row of operand i."""
        return self.read(i, row, range(self.shape(i)[-1]), above)

    def cell(self, i: int, index: Sequence[int], above: bool = False) -> Expression:
        return self.read(i, tuple(index[:-1]), [index[-1]], above)[0]

    def line(self, formula: str, terms: Sequence[Expression], note: str = "") -> Line:
        """The line that the cells themselves come to."""
        axis = self.step.axes[-1]
        return Line(self.step.symbol, formula, tuple(terms), axis, tuple(self.columns), self.row, note)

    def partial(self, symbol: str, formula: str, term: Expression) -> Line:
        """A number on the way."""
        return Line(symbol, formula, (term,))

    def partials(self, symbol: str, formula: str, terms: Sequence[Expression], columns: Sequence[int] | None = None) -> Line:
        """A row of numbers on the way, by default one for each of the cells; they lie along the rows that are read."""
        axis = self.step.operands[0].axes[-1] if self.step.operands else self.step.axes[-1]
        return Line(symbol, formula, tuple(terms), axis, tuple(self.columns if columns is None else columns))


def name_of(step: Step, i: int) -> str:
    """The symbol of operand i; its name, where the step or another operand has the same symbol (m = max(m, m_tile))."""
    operand = step.operands[i]
    others = [step, *step.operands[:i], *step.operands[i + 1 :]]
    return operand.name if any(o.symbol == operand.symbol and o is not operand for o in others) else operand.symbol
