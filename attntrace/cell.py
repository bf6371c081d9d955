"""`weights[0, 1]`, `x[:, 3:]`: a name with a NumPy index, as typed on a command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attntrace.errors import AttnTraceError

Index = tuple[Any, ...]  # of int, slice and Ellipsis

CELL = re.compile(r"\s*([A-Za-z_]\w*)\s*(\[.*)?", re.ASCII | re.DOTALL)
INDEX = re.compile(r"(?:\[[^\[\]]*\]\s*)*", re.ASCII)
NUMBER = re.compile(r"[+-]?\d{1,30}", re.ASCII)  # more digits are no position, and Python reads at most some thousands
SHOWN = 40  # characters of the text that a message quotes


@dataclass(frozen=True)
class Cell:
    """The name of a step or tensor, and the index into it; an empty index means all of it."""

    name: str
    index: Index = ()

    def __str__(self) -> str:
        return self.name + (f"[{', '.join(map(word, self.index))}]" if self.index else "")

    def within(self, axes: Sequence[str], shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of what the index takes out of an array of `shape`, which may be larger than any memory.

        Raises AttnTraceError when it takes nothing."""
        self._count(axes)
        taken = []
        for item, axis, size in self._pairs(axes, shape):
            if isinstance(item, slice):
                taken.append(len(range(*item.indices(size))))
            elif not -size <= item < size:
                raise AttnTraceError(f"{self}: index {item} is out of range: axis {axis} has {numbered(size)}")
        if 0 in taken:
            raise AttnTraceError(f"{self}: selects nothing from shape {' × '.join(map(str, shape))}")
        return tuple(taken)

    def _count(self, axes: Sequence[str]) -> None:
        given = sum(item is not Ellipsis for item in self.index)
        if len(self.index) - given > 1:
            raise AttnTraceError(f"{self}: expected at most one ..., found {len(self.index) - given}")
        if given > len(axes):
            most = f"at most {len(axes)} ({', '.join(axes)})"
            raise AttnTraceError(f"{self}: {self.name} takes one index for each axis: expected {most}, found {given}")

    def _pairs(self, axes: Sequence[str], shape: Sequence[int]) -> list[tuple[Any, str, int]]:
        """Each axis with the item of the index that applies to it; axes that the index leaves out are taken whole."""
        index = list(self.index)
        at = index.index(Ellipsis) if Ellipsis in index else len(index)
        index[at : at + 1] = [slice(None)] * (len(axes) - len(index) + (at < len(index)))
        return list(zip(index, axes, shape, strict=True))


def numbered(size: int) -> str:
    return f"{size} {'entry' if size == 1 else 'entries'}, numbered " + (f"0 to {size - 1}" if size > 1 else "0")


def word(item: Any) -> str:
    if item is Ellipsis:
        return "..."
    if isinstance(item, slice):
        ends = ["" if n is None else str(n) for n in (item.start, item.stop, item.step)]
        return ":".join(ends if ends[2] else ends[:2])
    return str(item)


def parse(text: str) -> Cell:
    """`weights`, `weights[0]`, `weights[0, 1]`, `weights[0][1]`, `x[:, 3:]`, `q[..., -1]`."""
    match = CELL.fullmatch(text.rstrip())
    if not match:
        raise expected(text)
    return Cell(match[1], parse_index(match[2] or "", text))


def parse_index(brackets: str, text: str) -> Index:
    """What stands in the brackets behind a name; `text` is quoted when it is no index."""
    if not INDEX.fullmatch(brackets):
        if re.match(r"\[[^\]]*\[", brackets):
            raise AttnTraceError(f"{clipped(text)}: takes numbers and slices, such as 0, -1 or 1:3, and no lists of positions")
        raise expected(text)
    *first, last = [parse_group(group, text) for group in re.findall(r"\[([^\[\]]*)\]", brackets)] or [()]
    for item in (item for group in first for item in group if not isinstance(item, int)):
        # NumPy takes the next brackets of what the slice gives, which begins at the first axis again
        raise AttnTraceError(f"{clipped(text)}: after {word(item)} all axes go in the same brackets, such as x[:, 0]")
    return (*(item for group in first for item in group), *last)


def parse_group(group: str, text: str) -> Index:
    return tuple(parse_item(item.strip(), text) for item in group.rstrip().removesuffix(",").split(","))


def expected(text: str) -> AttnTraceError:
    return AttnTraceError(f"{clipped(text)}: expected a name with an index, such as weights, weights[0,1] or x[:,3:]")


def parse_item(item: str, text: str) -> Any:
    if item == "...":
        return Ellipsis
    parts = [part.strip() for part in item.split(":")]
    if len(parts) > 3 or not all(NUMBER.fullmatch(part) or (not part and len(parts) > 1) for part in parts):
        found = clipped(item) if item else "nothing"
        raise AttnTraceError(f"{clipped(text)}: expected an index such as 0, -1, 1:3 or ..., found {found}")
    numbers = [int(part) if part else None for part in parts]
    if len(numbers) == 1:
        return numbers[0]
    if len(numbers) == 3 and numbers[2] == 0:
        raise AttnTraceError(f"{clipped(text)}: the step of a slice cannot be 0")
    return slice(*numbers)


def clipped(text: str) -> str:
    return repr(text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…")
