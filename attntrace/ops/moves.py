"""Operations that move numbers to other places and compute nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attntrace.arithmetic import Line, place
from attntrace.ops.base import Copying, Gradients, Operation
from attntrace.ops.cells import Cells
from attntrace.tape import Array


@dataclass(frozen=True)
class Split(Copying):
    """(…, token, heads · d) to (…, head, token, d)."""

    heads: int

    def forward(self, x: Array) -> Array:
        return split(x, self.heads)

    def backward(self, g: Array, y: Array, x: Array) -> Gradients:
        return (merged(g),)

    def gradient(self, i: int, g: str, y: str, x: Sequence[str]) -> str:
        return f"heads of {g} side by side"

    def source(self, cells: Cells, index: tuple[int, ...]) -> tuple[int, ...]:
        *lead, head, token, column = index
        return (*lead, token, head * cells.step.shape[-1] + column)

    def note(self, cells: Cells) -> str:
        return spans(cells.step.shape[-1])


class Merge(Copying):
    """(…, head, token, d) to (…, token, heads · d): the heads side by side, head 0 first."""

    def forward(self, c: Array) -> Array:
        return merged(c)

    def backward(self, g: Array, y: Array, c: Array) -> Gradients:
        return (split(g, c.shape[-3]),)

    def gradient(self, i: int, g: str, y: str, x: Sequence[str]) -> str:
        return f"{g} split into heads"

    def source(self, cells: Cells, index: tuple[int, ...]) -> tuple[int, ...]:
        *lead, token, column = index
        head, entry = divmod(column, cells.shape(0)[-1])
        return (*lead, head, token, entry)

    def note(self, cells: Cells) -> str:
        return spans(cells.shape(0)[-1])


class Same(Copying):
    """The operand, under another name."""

    def forward(self, a: Array) -> Array:
        return a

    def backward(self, g: Array, y: Array, a: Array) -> Gradients:
        return (g,)

    def gradient(self, i: int, g: str, y: str, x: Sequence[str]) -> str:
        return g

    def source(self, cells: Cells, index: tuple[int, ...]) -> tuple[int, ...]:
        return index


@dataclass(frozen=True)
class Repeat(Copying):
    """(…, group, key, d) to (…, head, key, d): each group `times` times in a row, so head h reads group h // times."""

    times: int

    def forward(self, k: Array) -> Array:
        return k.repeat(self.times, axis=-3)

    def backward(self, g: Array, y: Array, k: Array) -> Gradients:
        """A group's gradient is the sum over the heads that read it."""
        return (g.reshape(*g.shape[:-3], -1, self.times, *g.shape[-2:]).sum(axis=-3),)

    def gradient(self, i: int, g: str, y: str, x: Sequence[str]) -> str:
        return f"Σ over the heads of a group {g}"

    def source(self, cells: Cells, index: tuple[int, ...]) -> tuple[int, ...]:
        *lead, head, key, column = index
        return (*lead, head // self.times, key, column)

    def note(self, cells: Cells) -> str:
        head = cells.row[-2]
        return f"head {head} reads group {head} // {self.times} = {head // self.times}"


@dataclass(frozen=True)
class Take(Copying):
    """Rows `start` to `stop` − 1 (of the last axis but one)."""

    start: int
    stop: int

    def forward(self, x: Array) -> Array:
        return x[..., self.start : self.stop, :]

    def backward(self, g: Array, y: Array, x: Array) -> Gradients:
        whole = np.zeros(x.shape, g.dtype)
        whole[..., self.start : self.stop, :] = g
        return (whole,)

    def gradient(self, i: int, g: str, y: str, x: Sequence[str]) -> str:
        last = self.stop - 1
        return f"{g} in {f'row {last}' if last == self.start else f'rows {self.start} to {last}'}, 0 elsewhere"

    def source(self, cells: Cells, index: tuple[int, ...]) -> tuple[int, ...]:
        *lead, row, column = index
        return (*lead, self.start + row, column)


class Concat(Operation):
    """Its operands one below the other, along the last axis but one."""

    def forward(self, *parts: Array) -> Array:
        return np.concatenate(parts, axis=-2)

    def rounding(self, *parts: Array) -> tuple[float, Array]:
        return 0, np.zeros(self.forward(*parts).shape)

    def spread(self, errors: Sequence[Array], *parts: Array) -> Array:
        return self.forward(*errors)

    def backward(self, g: Array, y: Array, *parts: Array) -> Gradients:
        ends = np.cumsum([part.shape[-2] for part in parts])[:-1]
        return tuple(np.split(g, ends, axis=-2))

    def gradient(self, i: int, g: str, y: str, x: Sequence[str]) -> str:
        return f"the rows of {g} that hold {x[i]}"

    def explain(self, cells: Cells) -> list[Line]:
        *lead, row = cells.row
        part = 0
        while row >= cells.shape(part)[-2]:
            row, part = row - cells.shape(part)[-2], part + 1
        note = f"row {cells.row[-1]} is row {row} of {cells.name(part)}"
        return [cells.line(cells.formula, cells.read(part, (*lead, row)), note)]


@dataclass(frozen=True)
class Gather(Operation):
    """The blocks that a table names, in its order, each sequence's side by side; the first `length` slots of them.

    blocks (block, [head], slot, d) and table ([batch], page) give ([batch], [head], length, d).
    """

    length: int

    def forward(self, blocks: Array, table: Array) -> Array:
        found = blocks[table.astype(np.intp)]  # ([batch], page, [head], slot, d)
        if blocks.ndim == 4:
            found = found.swapaxes(-4, -3)
        return found.reshape(*found.shape[:-3], -1, found.shape[-1])[..., : self.length, :]

    def rounding(self, blocks: Array, table: Array) -> tuple[float, Array]:
        return 0, np.zeros(self.forward(blocks, table).shape)

    def spread(self, errors: Sequence[Array], blocks: Array, table: Array) -> Array:
        return self.forward(errors[0], table)

    def backward(self, g: Array, y: Array, blocks: Array, table: Array) -> Gradients:
        """Each slot's gradient is the sum over the places that it was read from."""
        found = np.zeros(blocks.shape, g.dtype)
        at = self.forward(np.arange(blocks.size).reshape(blocks.shape), table)
        np.add.at(found.reshape(-1), at, g)
        return found, None

    def gradient(self, i: int, g: str, y: str, x: Sequence[str]) -> str:
        return f"{g} put back into the blocks of {x[1]}"

    def explain(self, cells: Cells) -> list[Line]:
        *lead, token = cells.row
        page, slot = divmod(token, cells.shape(0)[-2])
        entry = (*lead[: len(cells.shape(1)) - 1], page)
        block = int(cells.values(1)[entry])
        row = (block, *lead[len(entry) - 1 :], slot)
        note = f"slot {token} of the sequence is slot {slot} of its page {page}, {place(cells.name(1), entry)} = block {block}"
        return [cells.line(cells.formula, cells.read(0, row), note)]


class LookUp(Operation):
    """Rows of a table, one for each position: ([batch], row, d) and ([batch], token) give ([batch], token, d)."""

    def forward(self, table: Array, positions: Array) -> Array:
        at = positions.astype(np.intp)
        if table.ndim == 2:
            return np.asarray(table[at])
        return np.take_along_axis(table, np.broadcast_to(at, (len(table), at.shape[-1]))[..., None], axis=-2)

    def rounding(self, table: Array, positions: Array) -> tuple[float, Array]:
        return 0, np.zeros(self.forward(table, positions).shape)

    def spread(self, errors: Sequence[Array], table: Array, positions: Array) -> Array:
        return self.forward(errors[0], positions)

    def backward(self, g: Array, y: Array, table: Array, positions: Array) -> Gradients:
        found = np.zeros(table.shape, g.dtype)
        np.add.at(found.reshape(-1), self.forward(np.arange(table.size).reshape(table.shape), positions), g)
        return found, None

    def gradient(self, i: int, g: str, y: str, x: Sequence[str]) -> str:
        return f"{g} added up by position"

    def explain(self, cells: Cells) -> list[Line]:
        *lead, token = cells.row
        standing = (*lead[: len(cells.shape(1)) - 1], token)
        position = int(cells.values(1)[standing])
        note = f"{place(cells.name(1), standing)} = {position}: row {position} of {cells.name(0)}"
        return [cells.line(cells.formula, cells.read(0, (*lead[: len(cells.shape(0)) - 2], position)), note)]


def split(y: Array, heads: int) -> Array:
    """(…, token, heads · d) to (…, head, token, d)."""
    y = y.reshape(*y.shape[:-1], heads, y.shape[-1] // heads)
    return np.ascontiguousarray(y.swapaxes(-2, -3))


def merged(c: Array) -> Array:
    """(…, head, token, d) to (…, token, heads · d)."""
    c = c.swapaxes(-2, -3)
    return c.reshape(*c.shape[:-2], -1)


def spans(width: int) -> str:
    return f"head h is columns {width}h to {width}h + {width - 1}" if width > 1 else "head h is column h"
