"""A trace held against independent implementations, step by step."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attntrace.compare import Difference, accumulated, difference, tolerance
from attntrace.errors import AttnTraceError
from attntrace.problem import Problem
from attntrace.reference import Opinion, Reference, chosen, installed, reference
from attntrace.reference.conventions import Convention, conventions
from attntrace.remarks import TILE, calm
from attntrace.tape import Array, Step, Trace


@dataclass(frozen=True)
class Row:
    """One comparison: of which step, with what of the reference, and how it went.

    `aside` is the number of cells that differ by design and were not compared.
    """

    step: str
    what: str
    difference: Difference
    aside: int = 0


@dataclass(frozen=True)
class Report:
    """All comparisons with one reference. `rows` has one for each step; `opinions` are calls that span several steps."""

    reference: str
    version: str
    rows: tuple[Row, ...]
    opinions: tuple[Row, ...]
    given: tuple[str, ...]  # steps that are inputs, so that there is nothing to compare
    silent: Mapping[str, str]  # calls that were not made and steps without an answer, and why
    conventions: tuple[Convention, ...] = ()  # points that the problem touches on which references differ by design

    @property
    def agrees(self) -> bool:
        return all(row.difference.agrees for row in (*self.rows, *self.opinions))

    @property
    def first(self) -> Row | None:
        """The first comparison that differs: a step, or where all steps agree an opinion."""
        return next((row for row in (*self.rows, *self.opinions) if not row.difference.agrees), None)

    @property
    def name(self) -> str:
        return f"{self.reference} {self.version}"

    @property
    def verdict(self) -> str:
        """`7 of 7 steps agree with torch 2.13.0`, and what the opinions say."""
        compared = self.rows or self.opinions
        if not compared:
            return f"nothing to compare with {self.name}"
        agreeing = sum(row.difference.agrees for row in compared)
        verdict = f"{agreeing} of {len(compared)} steps agree with {self.name}"
        if self.first is None:
            names = list(dict.fromkeys(row.what for row in self.opinions))
            return f"{verdict}; so {'does' if len(names) == 1 else 'do'} {' and '.join(names)}" if names else verdict
        return f"{verdict}; the first that differs is {self.first.step} ({self.first.what})"


@dataclass(frozen=True)
class Reports:
    """Comparisons with several references, and why some could not be asked."""

    reports: tuple[Report, ...]
    missing: Mapping[str, str] = field(default_factory=dict)  # references that are not installed, and how to get them

    @property
    def agrees(self) -> bool:
        return all(report.agrees for report in self.reports)

    @property
    def first(self) -> Row | None:
        """The first comparison that differs, reference by reference."""
        return next((report.first for report in self.reports if report.first), None)

    @property
    def verdict(self) -> str:
        """A line for each reference."""
        return "\n".join(report.verdict for report in self.reports)


def verify(problem: Problem, trace: Trace, against: str = "torch", only: Collection[str] | None = None) -> Report:
    """Hold every step of `trace` that the reference can give against it, or those in `only`.

    Raises MissingPackage without the reference's framework, and AttnTraceError when there is nothing to compare.
    """
    found = held(problem, trace, reference(against), only)
    if not found.rows and not found.opinions:
        raise AttnTraceError(f"nothing to compare: {nothing(trace, against, only)}")
    return found


def verify_all(problem: Problem, trace: Trace, against: str = "all", only: Collection[str] | None = None) -> Reports:
    """The same against several references, `torch,onnx` or `all`; those that are not installed are named.

    Raises MissingPackage when none is installed, and AttnTraceError when none has anything to compare.
    """
    frameworks, missing = installed(chosen(against))
    reports = tuple(held(problem, trace, framework, only) for framework in frameworks.values())
    if not any(report.rows or report.opinions for report in reports):
        raise AttnTraceError(f"nothing to compare: {nothing(trace, ', '.join(frameworks), only)}")
    return Reports(reports, missing)


def nothing(trace: Trace, names: str, only: Collection[str] | None) -> str:
    """Why nothing was compared."""
    if only and all(trace[name].given for name in only):
        return f"{', '.join(only)} is given, not computed"
    return f"{names} {'have' if ',' in names else 'has'} no answer for {', '.join(only) if only else 'any step'}"


def held(problem: Problem, trace: Trace, framework: Reference, only: Collection[str] | None) -> Report:
    """`trace` against one framework, be there anything to compare or not."""
    for name in only or ():
        trace[name]  # raises when there is no such step
    have = {step.name: step.values for step in trace}
    rows = tuple(
        Row(name, what, difference(have[name], theirs, allowance(framework, trace[name]), trace[name]))
        for name, what, theirs in framework.steps(problem, have)
        if only is None or name in only
    )
    opinions, silent = ask(framework, problem, trace, have, only)
    compared = {row.step for row in (*rows, *opinions)}
    left = [s for s in trace if s.name not in compared and (only is None or s.name in only)]
    given = tuple(s.name for s in left if s.given)
    silent = silent | unanswered(framework, [s.name for s in left if not s.given])
    told = tuple(conventions(framework.NAME, problem, have))
    return Report(framework.NAME, framework.version(), rows, opinions, given, silent, told)


def unanswered(framework: Reference, names: Collection[str]) -> dict[str, str]:
    """Steps for which a framework has no answer, those with the same reason together."""
    reasons: Mapping[str, str] = getattr(framework, "REASONS", {})
    alike: dict[str, list[str]] = {}
    for name in names:
        tiled = TILE.search(name) is not None
        why = reasons.get("" if tiled else name, "it has nothing of the kind")
        alike.setdefault(why, []).append(TILE.sub("_…", name) if tiled else name)
    return {", ".join(dict.fromkeys(steps)): why for why, steps in alike.items()}


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
    """A call that spans several steps may be off by what all their roundings add up to, and by what it rounds otherwise."""
    step, ours = trace[o.step], have[o.step]
    theirs = o.values if o.aside is None else np.where(o.aside, ours, o.values)
    aside = 0 if o.aside is None else int(o.aside.sum())
    return Row(o.step, o.what, difference(ours, theirs, bound(o, trace, have), step), aside)


def bound(o: Opinion, trace: Trace, have: Mapping[str, Array]) -> Array:
    """The errors at the start, and those that the call adds on its way, spread up to its step."""
    errors: dict[str, Any] = {name: np.zeros(have[name].shape) for name in o.start if name in have}
    path = {s.name for s in trace.needed([o.step])}
    for name in [name for name in trace.names if name in o.off and name in path]:
        errors[name] = accumulated(trace[name], errors) + o.off[name]
    return accumulated(trace[o.step], errors)


# ------------------------------------------------------------------ numbers too small for a framework


def allowance(framework: Reference, step: Step) -> Array:
    """The tolerance of a step; a framework that takes numbers below the smallest normal one for zero may be off by them."""
    allowed = tolerance(step)
    return allowed + flushed(step) if getattr(framework, "FLUSHES", False) and step.operation is not None else allowed


def flushed(step: Step) -> Array:
    """How far a step may be off when tiny numbers are zero: among its operands, among the terms of its sums, and itself."""
    assert step.operation is not None
    wide = [o.values.astype(np.float64) for o in step.operands]
    least = float(np.finfo(np.float64 if step.dtype.itemsize == 8 else np.float32).smallest_normal)
    lost = [np.where(np.abs(x) < least, np.abs(x), 0.0) for x in wide]
    with np.errstate(all="ignore"):
        length, _ = step.operation.rounding(*wide)
        if length == 0:  # what is only copied is not touched
            return np.zeros(step.shape)
        moved = step.operation.spread(lost, *wide) if any(x.any() for x in lost) else 0.0
    return np.asarray(np.nan_to_num(np.broadcast_to(moved + (length + 1) * least, step.shape), nan=0.0))
