"""What is shown of a trace: which steps, which batch item and head, with which notes. Every format reads this."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from attntrace.errors import AttnTraceError
from attntrace.render.labels import legible
from attntrace.tape import Array, Note, Step, Trace, row_argmax, row_sums


@dataclass(frozen=True)
class Shown:
    """A step, or the part of it that belongs to the batch item and head in `index` (axis name to position)."""

    step: Step
    index: Mapping[str, int]

    @property
    def name(self) -> str:
        return self.step.name

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(axis for axis in self.step.axes if axis not in self.index)

    @property
    def shape(self) -> tuple[int, ...]:
        pairs = zip(self.step.axes, self.step.shape, strict=True)
        return tuple(size for axis, size in pairs if axis not in self.index)

    @property
    def key(self) -> tuple[int | slice, ...]:
        """The NumPy index that takes the part out of the step's values."""
        return tuple(self.index.get(axis, slice(None)) for axis in self.step.axes)

    @property
    def values(self) -> Array:
        return self.step.values[self.key]

    @property
    def row_sums(self) -> Array:
        return row_sums(self.values)

    @property
    def argmax(self) -> Array:
        return row_argmax(self.values)


@dataclass(frozen=True)
class View:
    """The steps to show, the notes about them, and how many decimals. `full` prints every number of large tensors.

    `width` is that of the terminal (None: as wide as need be), `colour` whether it shows colours.
    """

    trace: Trace
    shown: Sequence[Shown]
    notes: Sequence[Note] = ()
    precision: int = 4
    full: bool = False
    width: int | None = None
    colour: bool = False

    @cached_property
    def labels(self) -> dict[str, list[str]]:
        """The labels along each axis that has some, fit to be shown."""
        return {axis: legible(labels) for axis, labels in self.trace.labels.items()}


def select(trace: Trace, names: Collection[str] | None, index: Mapping[str, int]) -> list[Shown]:
    """The steps called `names` (all, when None), at the batch item and head in `index`, which are checked."""
    for axis, position in index.items():
        check_position(trace, axis, position)
    steps = [trace[name] for name in names] if names is not None else list(trace)
    return [Shown(s, {axis: i % trace.sizes[axis] for axis, i in index.items() if axis in s.axes}) for s in steps]


def check_position(trace: Trace, axis: str, position: int) -> None:
    if axis not in trace.sizes:
        raise AttnTraceError(f"--{axis} {position}: this trace has no {axis} axis")
    size = trace.sizes[axis]
    if not -size <= position < size:
        raise AttnTraceError(f"--{axis} {position}: out of range: there are {size}, numbered 0 to {size - 1}")
