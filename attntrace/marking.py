"""Claims held against a trace: right, wrong here, or carried over from an earlier wrong step; and which mistake it was.

A claim has the precision of its text: 0.124 claims ±0.0005. Whoever rounds on the way to it may come out a little further off
and be right all the same: how far is worked out by sending half a unit of every step through the tape (`Operation.spread`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Literal

import numpy as np

from attntrace import layer
from attntrace.claims import Claim, Reading, match, read, read_expect, read_mapping
from attntrace.compare import spread, tolerance
from attntrace.errors import AttnTraceError
from attntrace.mistakes import Mistake, known, replay
from attntrace.problem import Problem
from attntrace.tape import Array, Step, Trace, lineage

Status = Literal["right", "rounded", "carried over", "wrong here"]
NEAR = 0.7  # of the cells of a step that a mistake must explain to be offered


@dataclass(frozen=True)
class Verdict:
    """What is to be said of the claim about one step.

    `expected` is what the claimed steps before it lead to (the truth, where those are right), `wrong` the cells that are not
    that. `decimals` is how far the author seems to have rounded on the way, where the status is "rounded".
    """

    claim: Claim
    status: Status
    truth: Array
    expected: Array
    wrong: Array
    decimals: int | None = None

    @property
    def name(self) -> str:
        return self.claim.name


@dataclass(frozen=True)
class Finding:
    """Mistakes that explain a wrong step: alternatives, each of one mistake or of two made together.

    They explain `explained` of `cells` claimed cells; `open` are those that they do not.
    """

    step: str
    alternatives: tuple[tuple[Mistake, ...], ...]
    explained: int
    cells: int
    open: tuple[tuple[int, ...], ...] = ()

    @property
    def complete(self) -> bool:
        return self.explained == self.cells


@dataclass(frozen=True)
class Marked:
    """Everything that is to be said of some claims, in the order of the steps."""

    verdicts: tuple[Verdict, ...]
    findings: tuple[Finding, ...]

    @property
    def right(self) -> bool:
        return all(v.status in ("right", "rounded") for v in self.verdicts)

    @property
    def first_wrong(self) -> Verdict | None:
        return next((v for v in self.verdicts if v.status == "wrong here"), None)


@dataclass
class Marker:
    """Marks claims about one layer. What does not depend on them is worked out once: the truth, each mistake's numbers."""

    problem: Problem
    _values: dict[tuple[str, ...], dict[str, Array | None]] = field(default_factory=dict)
    _slack: dict[tuple[str, float], Array] = field(default_factory=dict)

    @cached_property
    def truth(self) -> Trace:
        return layer.trace(self.problem)

    @cached_property
    def known(self) -> tuple[Mistake, ...]:
        return tuple(known(self.problem))

    def mark(self, claims: Sequence[Claim]) -> Marked:
        """The verdict on each claim, in the order of the steps, and the mistakes behind those that are wrong."""
        order = {name: i for i, name in enumerate(self.truth.names)}
        ordered = sorted(claims, key=lambda c: order[c.name])
        verdicts = tuple(self.verdicts(ordered))
        findings = (self.diagnose(v.claim, ordered) for v in verdicts if v.status == "wrong here")
        return Marked(verdicts, tuple(f for f in findings if f is not None))

    # -------------------------------------------------------------- right or wrong

    def verdicts(self, claims: Sequence[Claim]) -> Iterator[Verdict]:
        """Each claimed step is computed again from those claimed before it, so that an error is told where it is made."""
        tape, halves, wrong = layer.trace(self.problem), dict[str, Array](), set[str]()
        for claim in claims:
            verdict = self.verdict(claim, tape, halves, wrong)
            if verdict.status in ("wrong here", "carried over"):
                wrong.add(claim.name)
            substitute(tape, claim)
            halves[claim.name] = np.where(claim.there, claim.half, 0.0)
            yield verdict

    def verdict(self, claim: Claim, tape: Trace, halves: Mapping[str, Array], wrong: set[str]) -> Verdict:
        truth, decimals = self.truth[claim.name].values, digits(claim)
        unit = 0.0 if decimals is None else 10.0**-decimals
        exact = fits(claim, truth, self.slack(claim.name, 0.0))
        if exact.all():
            return Verdict(claim, "right", truth, truth, ~exact)
        if unit and fits(claim, truth, self.slack(claim.name, unit)).all():
            return Verdict(claim, "rounded", truth, truth, ~exact, decimals)
        here = tape[claim.name]
        follows = fits(claim, here.values, slack(here, halves, unit))
        if follows.all():
            status: Status = "carried over" if wrong & ancestors(here) else "rounded"
            return Verdict(claim, status, truth, here.values, ~exact, decimals)
        return Verdict(claim, "wrong here", truth, here.values, ~follows)

    def slack(self, name: str, unit: float) -> Array:
        if (name, unit) not in self._slack:
            self._slack[name, unit] = slack(self.truth[name], {}, unit)
        return self._slack[name, unit]

    # -------------------------------------------------------------- which mistake

    def diagnose(self, claim: Claim, claims: Sequence[Claim]) -> Finding | None:
        """The mistakes that lead to what is claimed of a step: one, or two together, or nearly."""
        before = [c for c in claims if c is not claim and c.name in ancestors(self.truth[claim.name])]
        scored = [(m, cells) for m in self.known if (cells := self.explains((m,), claim, before)) is not None]
        single: list[tuple[Mistake, ...]] = [(m,) for m, cells in scored if cells.all()]
        full = single or list(self.pairs(claim))
        count = int(claim.there.sum())
        if full:
            return Finding(claim.name, tuple(full), count, count)
        return nearest(claim, scored, int((fits(claim, self.truth[claim.name].values, 0.0) & claim.there).sum()))

    def explains(self, mistakes: tuple[Mistake, ...], claim: Claim, before: Sequence[Claim] = ()) -> Array | None:
        """Which cells of a claim come out when mistakes are made: in the layer as it is, or after the claims `before` it.

        None when they cannot be made here.
        """
        values = self.values(mistakes, claim.name)
        if values is None or values.shape != claim.values.shape:
            return None
        found = fits(claim, values, np.abs(values) * 1e-9 + 1e-12)
        if found.all() or not before:
            return found
        tape = replay(self.problem, *mistakes)
        assert tape is not None
        for other in before:
            if other.name in tape and tape[other.name].shape == other.values.shape:
                substitute(tape, other)
        with np.errstate(all="ignore"):
            after = tape[claim.name].values
        closer = fits(claim, after, around(claim, after))
        return closer if closer.sum() > found.sum() else found

    def values(self, mistakes: tuple[Mistake, ...], name: str) -> Array | None:
        """The numbers of a step when mistakes are made, worked out once."""
        steps = self._values.setdefault(tuple(m.key for m in mistakes), {})
        if name not in steps:
            tape = replay(self.problem, *mistakes)
            with np.errstate(all="ignore"):
                steps[name] = tape[name].values if tape is not None and name in tape else None
        return steps[name]

    def pairs(self, claim: Claim) -> Iterator[tuple[Mistake, ...]]:
        """Two mistakes made together, out of those that change this step at all."""
        truth = self.truth[claim.name].values
        moving = [m for m in self.known if self.changes(m, claim.name, truth)]
        for pair in combinations(moving, 2):
            cells = self.explains(pair, claim)
            if cells is not None and cells.all():
                yield pair

    def changes(self, mistake: Mistake, name: str, truth: Array) -> bool:
        values = self.values((mistake,), name)
        return values is not None and (values.shape != truth.shape or not np.array_equal(values, truth, equal_nan=True))


def claims_about(problem: Problem, source: object = None, text: str | None = None, name: str = "") -> Reading:
    """The claims about a layer's steps, in their order: those of `source`, or of the config's `expect`.

    `source` is a file, a text, `-` or a mapping; `text` is that of the config, in which the digits of `expect` stand. Raises
    AttnTraceError when there is nothing to read.
    """
    tape = layer.trace(problem)
    if source is not None:
        reading = read(source, tape.names)  # type: ignore[arg-type]
    elif problem.config.get("expect") is None:
        raise AttnTraceError("nothing is claimed: give a file of claims, or expect: in the config")
    elif text is not None:
        reading = read_expect(text, name, tape.names)
    else:
        reading = read_mapping(problem.config["expect"], tape.names)
    matched = match(reading.claims, tape)
    return Reading(matched.claims, [*reading.said, *matched.said], [*reading.faults, *matched.faults])


def substitute(tape: Trace, claim: Claim) -> None:
    """Let what follows be computed from what is claimed; blank cells stay as they come out."""
    step = tape[claim.name]
    with np.errstate(all="ignore"):
        values = np.where(claim.there, claim.values, step.values)
    step._values = values.astype(step.dtype)


def ancestors(step: Step) -> set[str]:
    found: set[str] = set()
    todo = list(step.operands)
    while todo:
        s = todo.pop()
        if s.name not in found:
            found.add(s.name)
            todo += s.operands
    return found


def digits(claim: Claim) -> int | None:
    """How many decimals a claim is written with; None for one in full precision."""
    halves = claim.half[claim.there & (claim.half > 0)]
    return None if not halves.size else max(0, round(-math.log10(2 * float(halves.min()))))


def fits(claim: Claim, values: Array, extra: Array | float) -> Array:
    """Which cells of a claim are `values`, to the digits given and `extra` more; blank ones are."""
    values = values.astype(np.float64)
    with np.errstate(all="ignore"):
        near = np.abs(claim.values - values) <= claim.half * (1 + 1e-9) + extra
        same = (claim.values == values) | (np.isnan(claim.values) & np.isnan(values))
    return np.asarray(near | same | ~claim.there)


def around(claim: Claim, values: Array) -> Array:
    """What rounding on the way to the digits of the claim may add, roughly: one unit of them."""
    return np.asarray(2 * claim.half + np.abs(values) * 1e-9 + 1e-12)


def slack(step: Step, start: Mapping[str, Array], unit: float) -> Array:
    """How far a step may be off when those in `start` are off by so much, and every other one is rounded to `unit`."""
    errors: dict[str, Array] = {name: error for name, error in start.items() if name != step.name}
    with np.errstate(all="ignore"):
        for s in lineage(step, lambda s: s.name in errors):
            own = tolerance(s) + (0.0 if s.given or s is step else unit / 2)
            errors[s.name] = own if s.given else spread(s, [errors[o.name] for o in s.operands]) + own
    return errors[step.name]


def nearest(claim: Claim, scored: Sequence[tuple[Mistake, Array]], plain: int) -> Finding | None:
    """The mistakes that explain most of a step, if they explain nearly all and more than none at all does."""
    cells = int(claim.there.sum())
    best = max((int((found & claim.there).sum()) for _, found in scored), default=0)
    if best <= plain or best < NEAR * cells:
        return None
    chosen = [(m, found) for m, found in scored if int((found & claim.there).sum()) == best]
    left = tuple(tuple(map(int, at)) for at in np.argwhere(~chosen[0][1]))
    return Finding(claim.name, tuple((m,) for m, _ in chosen), best, cells, left)
