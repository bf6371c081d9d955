"""Operations that move numbers to other places and compute nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attntrace.ops.base import Copying, Operation
from attntrace.tape import Array


@dataclass(frozen=True)
class Split(Copying):
    """(…, token, heads · d) to (…, head, token, d)."""

    heads: int

    def forward(self, x: Array) -> Array:
        return split(x, self.heads)


class Merge(Copying):
    """(…, head, token, d) to (…, token, heads · d): the heads side by side, head 0 first."""

    def forward(self, c: Array) -> Array:
        c = c.swapaxes(-2, -3)
        return c.reshape(*c.shape[:-2], -1)


class Same(Copying):
    """The operand, under another name."""

    def forward(self, a: Array) -> Array:
        return a


@dataclass(frozen=True)
class Repeat(Copying):
    """(…, group, key, d) to (…, head, key, d): each group `times` times in a row, so head h reads group h // times."""

    times: int

    def forward(self, k: Array) -> Array:
        return k.repeat(self.times, axis=-3)


@dataclass(frozen=True)
class Take(Copying):
    """Rows `start` to `stop` − 1 (of the last axis but one)."""

    start: int
    stop: int

    def forward(self, x: Array) -> Array:
        return x[..., self.start : self.stop, :]


class Concat(Operation):
    """Its operands one below the other, along the last axis but one."""

    def forward(self, *parts: Array) -> Array:
        return np.concatenate(parts, axis=-2)

    def rounding(self, *parts: Array) -> tuple[float, Array]:
        return 0, np.zeros(self.forward(*parts).shape)

    def spread(self, errors: Sequence[Array], *parts: Array) -> Array:
        return self.forward(*errors)


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


def split(y: Array, heads: int) -> Array:
    """(…, token, heads · d) to (…, head, token, d)."""
    y = y.reshape(*y.shape[:-1], heads, y.shape[-1] // heads)
    return np.ascontiguousarray(y.swapaxes(-2, -3))
