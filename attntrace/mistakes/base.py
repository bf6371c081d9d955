"""What a mistake is: a layer that is posed or computed in another way, so that its numbers can be held against a claim.

`pose` rewrites the problem (a weight transposed, another mask); `edit` replaces the operation of steps of the tape (softmax
over the queries). A mistake that does not apply to a layer returns None or False, and is not tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from attntrace import layer
from attntrace.fit import pose
from attntrace.ops import Operation
from attntrace.problem import Options, Problem, Source
from attntrace.tape import Array, Step, Trace

Pose = Callable[[Problem], Problem | None]
Edit = Callable[[Trace, Problem], bool]


@dataclass(frozen=True)
class Mistake:
    """A known mistake. `says` names it in a sentence; `used` and `right` are the formulas; `teach` tells how to see it."""

    key: str
    says: str
    used: str
    right: str
    teach: str
    pose: Pose | None = None
    edit: Edit | None = None


def replay(p: Problem, *mistakes: Mistake) -> Trace | None:
    """The trace of a layer with mistakes made in it; None when one of them does not apply."""
    for mistake in mistakes:
        if mistake.pose is not None:
            posed = mistake.pose(p)
            if posed is None:
                return None
            p = posed
    t = layer.trace(p)
    for mistake in mistakes:
        if mistake.edit is not None and not mistake.edit(t, p):
            return None
    return t


# ------------------------------------------------------------------ rewriting a problem


@dataclass(frozen=True)
class Changed:
    """A source whose numbers are changed after they are read; its shape is that of the change."""

    source: Source
    change: Callable[[Array], Array]
    shape: tuple[int, ...]

    @property
    def origin(self) -> str:
        return self.source.origin

    def read(self) -> Array:
        return self.change(self.source.read())


def with_options(p: Problem, **changes: object) -> Problem | None:
    """The same inputs under other options."""
    return again(p, options=replace(p.options, **changes))  # type: ignore[arg-type]


def with_sources(p: Problem, **changes: Source | None) -> Problem | None:
    """Other inputs under the same options; None leaves one out."""
    sources = {name: changes.get(name, s) for name, s in p.sources.items()}
    return again(p, sources={name: s for name, s in sources.items() if s is not None})


def again(p: Problem, sources: Mapping[str, Source] | None = None, options: Options | None = None) -> Problem | None:
    """A copy of a problem that has what the original has read, so that nothing is drawn twice; None when it does not fit."""
    kept: dict[str, Source] = {
        name: Kept(s, p, name) if s is p.sources.get(name) else s for name, s in (sources or p.sources).items()
    }
    posed = pose(kept, options or p.options, p.config)
    return posed if isinstance(posed, Problem) else None


@dataclass(frozen=True)
class Kept:
    """A source of another problem, whose numbers that problem has read once."""

    source: Source
    problem: Problem
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        return self.source.shape

    @property
    def origin(self) -> str:
        return self.source.origin

    def read(self) -> Array:
        return self.problem.arrays[self.name]


def changed(p: Problem, name: str, change: Callable[[Array], Array]) -> Source:
    """An input with other numbers; `change` may swap its axes."""
    source = Kept(p.sources[name], p, name)
    shape = change(np.empty(source.shape)).shape
    return Changed(source, change, shape)


# ------------------------------------------------------------------ rewriting a tape


@dataclass(frozen=True)
class Instead(Operation):
    """What is computed by mistake, in the place of another operation."""

    compute: Callable[..., Array]

    def forward(self, *operands: Array) -> Array:
        return np.asarray(self.compute(*operands))


def instead(t: Trace, name: str, compute: Callable[..., Array], *operands: str) -> bool:
    """Compute a step in another way, from the same operands or from those named; False when there is no such step."""
    if name not in t or not all(o in t for o in operands):
        return False
    step = t[name]
    step.operation = Instead(compute)
    if operands:
        step.operands = tuple(t[o] for o in operands)
    return True


def instead_all(t: Trace, names: Iterable[str], compute: Callable[..., Array]) -> bool:
    """The same for several steps, all of which must be there."""
    found = [instead(t, name, compute) for name in names]
    return all(found)


def skip(t: Trace, name: str) -> bool:
    """Let a step be its first operand, as if it had been left out."""
    return name in t and instead(t, name, lambda first, *others: first)


def first_of(t: Trace, *names: str) -> Step | None:
    return next((t[name] for name in names if name in t), None)
