"""The tape: steps in the order in which they are computed. No maths here, and no printing.

A step names its axes, and a trace knows one size for each axis name, so every shape is known, and checked, before anything
is computed. Numbers are computed when they are first read: listing the steps costs nothing, one cell costs its ancestors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attntrace.dtypes import DType, working
from attntrace.errors import AttnTraceError, nearest
from attntrace.memory import available, human

if TYPE_CHECKING:
    from attntrace.ops import Operation

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(eq=False, repr=False)
class Step:
    """One entry of the tape: what is computed, from what, and (once read) the numbers.

    `shape` follows from `axes`; `values` has it, in `dtype`. An input has the operation None and the formula "given";
    its `origin` says where its numbers come from.
    """

    name: str
    symbol: str
    formula: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: DType
    operation: Operation | None
    operands: tuple[Step, ...] = ()
    origin: str = ""
    read: Callable[[], Array] | None = None
    _values: Array | None = None

    def __repr__(self) -> str:
        axes = " × ".join(f"{axis} {size}" for axis, size in zip(self.axes, self.shape, strict=True))
        return f"Step({self.name}: {self.formula}, {axes}, {self.dtype.name})"

    @property
    def values(self) -> Array:
        """The numbers, computed when first read (and again, if the trace has let go of them since). Steps share memory
        with the inputs and with one another: copy before you write."""
        if self._values is None:
            for step in lineage(self, lambda s: s.computed):
                step._values = step._compute()
        assert self._values is not None
        return self._values

    def _compute(self) -> Array:
        with np.errstate(all="ignore"):  # overflow and NaN are shown by the trace and named by its notes
            result = self._result().astype(self.dtype, copy=False)
        if result.shape != self.shape:
            raise AssertionError(f"step {self.name}: axes {self.axes} promise {self.shape}, computed {result.shape}")
        return result

    def _result(self) -> Array:
        if self.operation is None:
            assert self.read is not None
            return self.read()
        wide = working(self.dtype)
        return self.operation.forward(*(o.values.astype(wide, copy=False) for o in self.operands))

    def forget(self) -> None:
        """Let go of the numbers; reading `values` computes them again."""
        self._values = None

    @property
    def computed(self) -> bool:
        return self._values is not None

    @property
    def given(self) -> bool:
        """Whether the step is an input and not the result of an operation."""
        return self.operation is None

    @property
    def nbytes(self) -> int:
        size = self.dtype.itemsize
        for length in self.shape:
            size *= length
        return size

    @property
    def row_sums(self) -> Array:
        """The sum of each row (the last axis), added in float64 whatever the dtype of the step."""
        return row_sums(self.values)

    @property
    def argmax(self) -> Array:
        """The position of the largest entry of each row, the first one of equals; NaN counts as largest."""
        return row_argmax(self.values)


def lineage(step: Step, done: Callable[[Step], bool]) -> list[Step]:
    """A step and what it is computed from, operands first, without those that are `done` and what only they come from.

    No recursion: a tape of many tiles is deeper than Python's stack.
    """
    order: dict[str, Step] = {}
    todo = [(step, False)]
    while todo:
        s, visited = todo.pop()
        if visited:
            order[s.name] = s
        elif s.name not in order and not done(s):
            todo += [(s, True), *((o, False) for o in reversed(s.operands))]
    return list(order.values())


def row_sums(values: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(values.sum(axis=-1, dtype=np.float64))


def row_argmax(values: Array) -> Array:
    return np.asarray(values.astype(working(values.dtype), copy=False).argmax(axis=-1))


NAMED = 1 << 20  # entries of an axis that get names of their own


class Trace:
    """A tape of steps. Iterating gives the steps in order; `trace["weights"]` gives one by name.

    `sizes` maps each axis name to its length; `labels` maps an axis name to the labels of its entries, where there are any.
    """

    def __init__(
        self,
        sizes: Mapping[str, int],
        dtype: DType,
        labels: Mapping[str, Sequence[str]] | None = None,
        title: str = "",
        config: Mapping[str, Any] | None = None,
        remarks: Sequence[Note] = (),
        changes: Sequence[str] = (),
    ) -> None:
        self.sizes = dict(sizes)
        self.dtype = dtype
        self.labels = dict(labels or {})
        self.title = title
        self.config = dict(config or {})
        self.remarks = list(remarks)  # notes that follow from the problem alone
        self.changes = list(changes)  # what was changed in the config, in words of the command line
        self._steps: dict[str, Step] = {}

    def __call__(
        self,
        name: str,
        formula: str,
        axes: Sequence[str],
        operation: Operation,
        *operands: Step,
        dtype: DType | None = None,
    ) -> Step:
        """Record a computed step; `formula` reads "symbol = expression"."""
        symbol = formula.partition(" = ")[0]
        kind = dtype or self.dtype
        return self._record(Step(name, symbol, formula, tuple(axes), self._shape(axes), kind, operation, operands))

    def given(
        self,
        name: str,
        symbol: str,
        axes: Sequence[str],
        read: Callable[[], Array],
        origin: str = "",
        dtype: DType | None = None,
    ) -> Step:
        """Record an input, whose numbers `read` fetches."""
        shape, kind = self._shape(axes), dtype or self.dtype
        return self._record(Step(name, symbol, "given", tuple(axes), shape, kind, None, (), origin, read))

    def axis(self, name: str, of: str, rows: range) -> str:
        """Name a run of the entries along the axis `of`, which keep their labels."""
        assert self.sizes.get(name, len(rows)) == len(rows), f"axis {name} has two lengths"
        self.sizes[name] = len(rows)
        labels = self.labels.get(of)
        if labels or len(rows) <= NAMED:
            self.labels[name] = [labels[i] for i in rows] if labels else [f"t{i}" for i in rows]
        return name

    def _record(self, step: Step) -> Step:
        assert step.name not in self._steps, f"step {step.name} recorded twice"
        self._steps[step.name] = step
        return step

    def _shape(self, axes: Sequence[str]) -> tuple[int, ...]:
        return tuple(self.sizes[axis] for axis in axes)

    def __iter__(self) -> Iterator[Step]:
        return iter(self._steps.values())

    def __len__(self) -> int:
        return len(self._steps)

    def __contains__(self, name: object) -> bool:
        return name in self._steps

    def __getitem__(self, name: str) -> Step:
        try:
            return self._steps[name]
        except KeyError:
            hint = nearest(name, self._steps) or f"; its steps are {', '.join(self._steps)}"
            raise AttnTraceError(f"there is no step {name!r} in this trace{hint}") from None

    @property
    def names(self) -> list[str]:
        return list(self._steps)

    def needed(self, names: Collection[str] | None) -> list[Step]:
        """The steps that `names` are computed from, and they themselves, in order; all steps, when None."""
        if names is None:
            return list(self)
        wanted = {self[name].name for name in names}
        for step in reversed(list(self)):
            if step.name in wanted:
                wanted.update(o.name for o in step.operands)
        return [step for step in self if step.name in wanted]

    def play(self, keep: Collection[str] | None = None) -> Iterator[Step]:
        """Compute and yield one step after the other: all, or those that the steps in `keep` need, whose numbers are let
        go of as soon as no later step reads them. Raises AttnTraceError, before anything is computed, when it would not
        fit in memory."""
        self.fits(keep)
        released = self._released(keep)
        for step in self.needed(keep):
            step.values  # noqa: B018 - reading computes
            yield step
            for done in released.get(step.name, ()):
                done.forget()

    def _released(self, keep: Collection[str] | None) -> dict[str, list[Step]]:
        """For each step, by name, the steps that nobody reads after it."""
        if keep is None:
            return {}
        last = {o.name: step for step in self.needed(keep) for o in (step, *step.operands)}
        result: dict[str, list[Step]] = {}
        for name, reader in last.items():
            if name not in keep:
                result.setdefault(reader.name, []).append(self[name])
        return result

    def peak(self, keep: Collection[str] | None = None) -> int:
        """The largest number of bytes that `play` holds at one time. Inputs are counted from the beginning to the end: the
        problem reads all of them at once, and keeps them."""
        held = peak = sum(step.nbytes for step in self if step.given)
        released = self._released(keep)
        for step in self.needed(keep):
            held += 0 if step.given else step.nbytes
            peak = max(peak, held)
            held -= sum(s.nbytes for s in released.get(step.name, ()) if not s.given)
        return peak

    def fits(self, keep: Collection[str] | None = None) -> None:
        """Raise AttnTraceError when the trace needs more memory than there is."""
        need, have = self.peak(keep), available()
        if need > have:
            largest = max(self.needed(keep), key=lambda s: s.nbytes)
            raise AttnTraceError(
                f"this trace needs {human(need)} of memory and {human(have)} are free: its largest step, {largest.name}, "
                f"has shape {largest.shape} and takes {human(largest.nbytes)}; use fewer tokens, a smaller dtype, "
                "or keep only some steps with --steps"
            )


@dataclass(frozen=True)
class Note:
    """Something that a careful reader should know: a code for scripts, the step it is about (or None), a sentence.

    `cause` is where NaN or an infinity comes from, when it comes from somewhere.
    """

    code: str
    step: str | None
    message: str
    cause: str = ""
