"""`weights[0, 1]`, `x[:, 3:]`: a name with a NumPy index, as typed on a command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attntrace.errors import AttnTraceError, plain

Index = tuple[Any, ...]  # of int, slice and Ellipsis

CELL = re.compile(r"\s*([A-Za-z_]\w*)\s*((?:\[[^\[\]]*\]\s*)*)", re.ASCII)
NUMBER = re.compile(r"[+-]?\d{1,18}", re.ASCII)


@dataclass(frozen=True)
class Cell:
    """The name of a step or tensor, and the index into it; an empty index means all of it."""

    name: str
    index: Index = ()

    def __str__(self) -> str:
        return self.name + (f"[{', '.join(map(word, self.index))}]" if self.index else "")

    def within(self, axes: Sequence[str], shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of what the index takes out of an array of `shape`. Raises AttnTraceError when it takes nothing."""
        self._count(axes)
        for item, axis, size in self._pairs(axes, shape):
            if isinstance(item, int) and not -size <= item < size:
                raise AttnTraceError(
                    f"{self}: index {item} is out of range: axis {axis} has {size} {'entry' if size == 1 else 'entries'}, "
                    f"numbered 0 to {size - 1}"
                )
        taken = np.broadcast_to(np.False_, shape)[self.index].shape  # no memory, whatever the shape
        if 0 in taken:
            raise AttnTraceError(f"{self}: selects nothing from shape {' × '.join(map(str, shape))}")
        return taken

    def _count(self, axes: Sequence[str]) -> None:
        given = sum(item is not Ellipsis for item in self.index)
        if len(self.index) - given > 1:
            raise AttnTraceError(f"{self}: more than one ...")
        if given > len(axes):
            raise AttnTraceError(f"{self}: {given} indexes, but {self.name} has {len(axes)} axes ({', '.join(axes)})")

    def _pairs(self, axes: Sequence[str], shape: Sequence[int]) -> list[tuple[Any, str, int]]:
        """Each item of the index with the axis it applies to."""
        index = list(self.index)
        if Ellipsis in index:
            at = index.index(Ellipsis)
            index[at : at + 1] = [slice(None)] * (len(axes) - len(index) + 1)
        return list(zip(index, axes, shape, strict=False))


def word(item: Any) -> str:
    if item is Ellipsis:
        return "..."
    if isinstance(item, slice):
        ends = ["" if n is None else str(n) for n in (item.start, item.stop, item.step)]
        return ":".join(ends if ends[2] else ends[:2])
    return str(item)


def parse(text: str) -> Cell:
    """`weights`, `weights[0]`, `weights[0, 1]`, `weights[0][1]`, `x[:, 3:]`, `q[..., -1]`."""
    match = CELL.fullmatch(text)
    if not match:
        raise AttnTraceError(f"{plain(text)!r}: expected a name with an index, such as weights, weights[0,1] or x[:,3:]")
    groups = re.findall(r"\[([^\[\]]*)\]", match[2])
    items = [item for group in groups for item in group.removesuffix(",").split(",")]
    return Cell(match[1], tuple(parse_item(item.strip(), text) for item in items))


def parse_item(item: str, text: str) -> Any:
    if item == "...":
        return Ellipsis
    parts = [part.strip() for part in item.split(":")]
    if len(parts) > 3 or not all(NUMBER.fullmatch(part) or (not part and len(parts) > 1) for part in parts):
        raise AttnTraceError(f"{plain(text)!r}: {plain(item)!r} is not an index; expected a whole number, a slice such as 1:3, or ...")
    numbers = [int(part) if part else None for part in parts]
    if len(numbers) == 1:
        return numbers[0]
    if len(numbers) == 3 and numbers[2] == 0:
        raise AttnTraceError(f"{plain(text)!r}: the step of a slice cannot be 0")
    return slice(*numbers)
