"""A trace held against an independent implementation, step by step."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attntrace.compare import Difference, accumulated, difference, tolerance
from attntrace.errors import AttnTraceError
from attntrace.problem import Problem
from attntrace.reference import Opinion, Reference, reference
from attntrace.remarks import calm
from attntrace.tape import Array, Trace


@dataclass(frozen=True)
class Row:
    """One comparison: of which step, with what of the reference, and how it went."""

    step: str
    what: str
    difference: Difference


@dataclass(frozen=True)
class Report:
    """All comparisons with one reference. `rows` has one for each step; `opinions` are calls that span several steps."""

    reference: str
    version: str
    rows: tuple[Row, ...]
    opinions: tuple[Row, ...]
    given: tuple[str, ...]  # steps that are inputs, so that there is nothing to compare
    silent: Mapping[str, str]  # calls that were not made, and why

    @property
    def agrees(self) -> bool:
        return all(row.difference.agrees for row in (*self.rows, *self.opinions))

    @property
    def first(self) -> Row | None:
        """The first comparison that differs: a step, or where all steps agree an opinion."""
        return next((row for row in (*self.rows, *self.opinions) if not row.difference.agrees), None)

    @property
    def verdict(self) -> str:
        """`7 of 7 steps agree with torch 2.13.0`, and what the opinions say."""
        agreeing = sum(row.difference.agrees for row in self.rows)
        verdict = f"{agreeing} of {len(self.rows)} steps agree with {self.reference} {self.version}"
        if self.first is None:
            names = list(dict.fromkeys(row.what for row in self.opinions))
            return f"{verdict}; so {'does' if len(names) == 1 else 'do'} {' and '.join(names)}" if names else verdict
        return f"{verdict}; the first that differs is {self.first.step} ({self.first.what})"


def verify(problem: Problem, trace: Trace, against: str = "torch", only: Collection[str] | None = None) -> Report:
    """Hold every step of `trace` that the reference can give against it, or those in `only`.

    Raises MissingPackage without the reference's framework, and AttnTraceError when there is nothing to compare.
    """
    framework = reference(against)
    for name in only or ():
        trace[name]  # raises when there is no such step
    have = {step.name: step.values for step in trace}
    rows = tuple(
        Row(name, what, difference(have[name], theirs, tolerance(trace[name]), trace[name]))
        for name, what, theirs in framework.steps(problem, have)
        if only is None or name in only
    )
    opinions, silent = ask(framework, problem, trace, have, only)
    if not rows:
        raise AttnTraceError(f"nothing to compare: {', '.join(only or ())} is given, not computed")
    compared = {row.step for row in rows}
    given = tuple(s.name for s in trace if s.given and s.name not in compared and (only is None or s.name in only))
    return Report(framework.NAME, framework.version(), rows, opinions, given, silent)


def ask(
    framework: Reference, problem: Problem, trace: Trace, have: Mapping[str, Array], only: Collection[str] | None
) -> tuple[tuple[Row, ...], dict[str, str]]:
    """What the framework's own attention says of the steps in `only`, and which calls are not made, and why."""
    silent = framework.silences(problem, have)
    # a call that spans several steps may keep to itself what overflows between them, and takes its own ways with NaN
    if not all(map(calm, trace)):
        return (), silent | {"several steps in one call": "with NaN or infinities every implementation has its own ways"}
    asked = (o for o in framework.whole(problem, have) if only is None or o.step in only)
    return tuple(opinion_row(o, trace, have) for o in asked), silent


def opinion_row(o: Opinion, trace: Trace, have: Mapping[str, Array]) -> Row:
    """A call that spans several steps may be off by what all their roundings add up to."""
    step = trace[o.step]
    start: dict[str, Any] = {name: np.zeros(have[name].shape) for name in o.start if name in have}
    return Row(o.step, o.what, difference(have[o.step], o.values, accumulated(step, start), step))
