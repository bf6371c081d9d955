"""What a mistake is: a layer that is posed or computed in another way, so that its numbers can be held against a claim.

`pose` rewrites the problem (a weight transposed, another mask); `edit` replaces operations of the tape (softmax over the
queries). A mistake that does not apply to a layer returns None or False, and is not tried. Edits of two mistakes are made in
the order of the layer, and what wraps an operation wraps whatever is there by then, so that mistakes can be made together.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attntrace import layer
from attntrace.fit import pose
from attntrace.ops import Operation
from attntrace.problem import Part, Problem, Source
from attntrace.tape import Array, Trace

Pose = Callable[[Problem], "Problem | None"]
Edit = Callable[[Trace, Problem], bool]
Compute = Callable[..., Array]


@dataclass(frozen=True)
class Mistake:
    """A known mistake. `says` names it in a sentence; `used` and `right` are the formulas; `teach` tells how to see it.

    `loose` numbers are known to within the roundings of a coarser dtype only.
    """

    key: str
    says: str
    used: str
    right: str
    teach: str
    pose: Pose | None = None
    edit: Edit | None = None
    loose: bool = False

    @property
    def kind(self) -> str:
        """Scale, softmax, …: of most kinds one is made at a time."""
        return self.key.partition("-")[0]


def replay(p: Problem, *mistakes: Mistake) -> Trace | None:
    """The trace of a layer with mistakes made in it; None when one of them does not apply."""
    for mistake in mistakes:
        posed = p if mistake.pose is None else mistake.pose(p)
        if posed is None:
            return None
        p = posed
    t = layer.trace(p)
    done = all(mistake.edit is None or mistake.edit(t, p) for mistake in mistakes)
    return t if done else None


# ------------------------------------------------------------------ rewriting a problem


@dataclass(frozen=True)
class Read:
    """An input with other numbers than its source has: `read` gives them, and `shape` is theirs."""

    origin: str
    shape: tuple[int, ...]
    read: Callable[[], Array]


def kept(p: Problem, name: str) -> Source:
    """An input that a problem has read once, so that nothing is drawn twice."""
    return Read(p.sources[name].origin, p.sources[name].shape, lambda: p.arrays[name])


def changed(p: Problem, name: str, change: Callable[[Array], Array]) -> Source:
    """An input with other numbers; `change` may swap its axes."""
    shape = change(np.empty(p.sources[name].shape)).shape
    return Read(p.sources[name].origin, shape, lambda: change(p.arrays[name]))


def with_options(p: Problem, **changes: Any) -> Problem | None:
    """The same inputs under other options; None when they do not fit."""
    posed = pose({name: kept(p, name) for name in p.sources}, replace(p.options, **changes), p.config)
    return posed if isinstance(posed, Problem) else None


def with_sources(p: Problem, changes: Mapping[str, Source | None]) -> Problem | None:
    """Other inputs under the same options; None leaves one out. None when they do not fit."""
    sources = {name: changes[name] if name in changes else kept(p, name) for name in p.sources}
    there = {name: s for name, s in sources.items() if s is not None}
    if all(name in there and there[name].shape == s.shape for name, s in p.sources.items()):
        same = copy.copy(p)  # shapes that fitted fit again
        same.__dict__.pop("arrays", None)
        same.sources = there
        return same
    posed = pose(there, p.options, p.config)
    return posed if isinstance(posed, Problem) else None


def with_part(p: Problem, key: str, part: Part) -> Problem | None:
    """The problem with another part under a key."""
    return with_options(p, parts={**p.options.parts, key: part})


def without_core(p: Problem) -> Problem:
    """The same layer with all scores at once, whatever core it has: the same numbers, in steps that mistakes are known of."""
    if "core" not in p.options.parts:
        return p
    return with_options(p, parts={key: part for key, part in p.options.parts.items() if key != "core"}) or p


# ------------------------------------------------------------------ rewriting a tape


@dataclass(frozen=True)
class Instead(Operation):
    """What is computed by mistake, in the place of another operation; `after` then does something to the result."""

    compute: Compute
    after: Compute | None = None

    def forward(self, *operands: Array) -> Array:
        result = np.asarray(self.compute(*operands))
        return result if self.after is None else np.asarray(self.after(result, *operands))


def instead(t: Trace, name: str, compute: Compute, *operands: str) -> bool:
    """Compute a step in another way, from the same operands or from those named; False when there is no such step."""
    if name not in t or t[name].given or not all(o in t for o in operands):
        return False
    step = t[name]
    step.operation = Instead(compute, getattr(step.operation, "after", None))
    if operands:
        step.operands = tuple(t[o] for o in operands)
    return True


def computing(name: str, compute: Compute, *operands: str) -> Edit:
    """An edit that computes a step in another way."""
    return lambda t, p: instead(t, name, compute, *operands)


def finishing(name: str, after: Compute) -> Edit:
    """An edit that does something to the result of a step, however that is computed: `after` gets it, then the operands."""

    def edit(t: Trace, p: Problem) -> bool:
        op = t[name].operation if name in t else None
        if op is None:
            return False
        t[name].operation = Instead(op.forward, after)
        return True

    return edit


def wrapping(name: str, compute: Compute) -> Edit:
    """An edit that does something about a step: `compute` gets what the step does, then its operands."""

    def edit(t: Trace, p: Problem) -> bool:
        op = t[name].operation if name in t else None
        return op is not None and instead(t, name, lambda *operands: compute(op.forward, *operands))

    return edit


def skipping(*names: str) -> Edit:
    """An edit that lets steps, which must be there, be their first operand: as if they had been left out."""
    return every(*(computing(name, lambda first, *others: first) for name in names))


def every(*edits: Edit) -> Edit:
    """Several edits as one; all of them must apply."""
    return lambda t, p: all(edit(t, p) for edit in edits)


def last_of(t: Trace, *names: str) -> str:
    """The last of some steps that the tape has, or ""."""
    return next((name for name in reversed(names) if name in t), "")
