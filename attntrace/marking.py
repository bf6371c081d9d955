"""Claims held against a trace: right, wrong here, or carried over from an earlier wrong step; and which mistake it was.

A claim has the precision of its text: 0.124 claims ±0.0005. Whoever rounds on the way to it may come out a little further off
and be right all the same: how far is worked out by sending half a unit of every step through the tape (`Operation.spread`).

A mistake explains a claim when the layer, replayed with it, gives every number that is claimed to the digits that are claimed:
from the inputs on, or from the claims before it. Two mistakes made together are tried when no single one does.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from functools import cached_property
from itertools import combinations, islice, product
from typing import Any, Literal

import numpy as np

from attntrace import layer
from attntrace.claims import Claim, Reading, match, read, read_expect, read_mapping
from attntrace.compare import accumulated, spread, tolerance
from attntrace.dtypes import epsilon
from attntrace.errors import AttnTraceError
from attntrace.mistakes import Mistake, known, observed, replay, without_core
from attntrace.mistakes.base import Instead
from attntrace.ops import Operation
from attntrace.problem import Problem
from attntrace.tape import Array, Step, Trace, lineage

Status = Literal["right", "rounded", "carried over", "wrong here"]
Mistakes = tuple[Mistake, ...]
Source = str | os.PathLike[str] | Mapping[str, Any]

NEAR = 0.7  # of the cells of a step that a mistake must explain to be offered
STRAY = 0.3  # of the wrong cells that it may leave open
LOOSE = 3.0  # times the errors of one computation in a dtype that another one may have
ALIKE = 0.6  # of the wrong cells that a coarser dtype must come to exactly
PAIRS = 3000  # of mistakes that are tried together
OTHERS = 50  # pairs that are tried beside one that fits
KEPT = {1: 100_000, 2: 2_000}  # cells of a step whose numbers are kept for each mistake, and for each pair
WORK = 5_000_000  # cells of a trace beyond which no mistake is looked for
SMALL = 20_000  # cells of a trace up to which all pairs are tried
SURE = 6, 2  # cells that a mistake must explain, and wrong ones among them, where rounding alone might do it too
MODELS = 6  # steps of which every choice is rounded, to see whether rounding alone does it
TRIALS = 8  # of how far rounded claims move what follows from them


@dataclass(frozen=True)
class Verdict:
    """What is to be said of the claim about one step.

    `expected` is what the claimed steps before it lead to (the truth, where those are right), `wrong` the cells that are not
    that. `decimals` is how far the author seems to have rounded on the way, where the status is "rounded". `after` names the
    claimed steps that it is computed from, `astray` the wrong ones of them.
    """

    claim: Claim
    status: Status
    truth: Array
    expected: Array
    wrong: Array
    decimals: int | None = None
    after: tuple[str, ...] = ()
    astray: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.claim.name

    @property
    def right(self) -> bool:
        return self.status in ("right", "rounded")

    @property
    def off(self) -> Array:
        """The cells that are claimed and are not what is expected."""
        return self.wrong & self.claim.there

    @property
    def last_digit(self) -> bool:
        """Whether every wrong cell is off by one in the last digit given."""
        claimed, right, half = self.claim.values[self.off], self.expected[self.off], self.claim.half[self.off]
        with np.errstate(all="ignore"):
            return bool(claimed.size and ((np.abs(claimed - right) <= 3 * half * (1 + 1e-9)) & (half > 0)).all())


@dataclass(frozen=True)
class Finding:
    """Mistakes that explain a wrong step: alternatives, each of one mistake or of two made together.

    They explain `explained` of `cells` claimed cells; `open` are those that they do not.
    """

    step: str
    alternatives: tuple[Mistakes, ...]
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
        return all(v.right for v in self.verdicts)

    @property
    def first_wrong(self) -> Verdict | None:
        return next((v for v in self.verdicts if v.status == "wrong here"), None)

    def finding(self, v: Verdict) -> Finding | None:
        return next((f for f in self.findings if f.step == v.name), None)

    def consequences(self, v: Verdict) -> list[Verdict]:
        """The verdicts on what is claimed of steps that are computed from this one."""
        return [w for w in self.verdicts if v.name in w.after]


@dataclass
class Marker:
    """Marks claims about one layer. What does not depend on them is worked out once: the truth, each mistake's numbers."""

    problem: Problem
    _values: dict[tuple[str, ...], dict[str, Array | None]] = field(default_factory=dict)
    _slack: dict[str, Array] = field(default_factory=dict)

    @cached_property
    def truth(self) -> Trace:
        return layer.trace(self.problem)

    @cached_property
    def plain(self) -> Problem:
        """The layer that mistakes are made in: all scores at once."""
        return without_core(self.problem)

    @cached_property
    def whole(self) -> Trace:
        """The right numbers of that layer."""
        return self.truth if self.plain is self.problem else layer.trace(self.plain)

    @cached_property
    def known(self) -> Mistakes:
        return tuple(known(self.plain))

    @cached_property
    def work(self) -> int:
        """The cells of a trace, which is what a replay costs."""
        return sum(math.prod(step.shape) for step in self.truth)

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
        tape, before, wrong = layer.trace(self.problem), list[Claim](), set[str]()
        for claim in claims:
            above = ancestors(tape[claim.name])
            chain = [c for c in before if c.name in above]
            verdict = self.verdict(claim, tape, chain, wrong)
            names = tuple(c.name for c in chain)
            yield replace(verdict, after=names, astray=tuple(n for n in names if n in wrong))
            if not verdict.right:
                wrong.add(claim.name)
            substitute(tape, claim)
            before.append(claim)

    def verdict(self, claim: Claim, tape: Trace, before: Sequence[Claim], wrong: set[str]) -> Verdict:
        truth, here, decimals = self.truth[claim.name].values, tape[claim.name], digits(claim)
        unit = 0.0 if decimals is None else 10.0**-decimals
        exact = fits(claim, truth, self.slack(claim.name))
        if exact.all():
            return Verdict(claim, "right", truth, truth, ~exact)
        start = {c.name: np.maximum(c.half, unit / 2) * c.there for c in before}
        follows = fits(claim, here.values, slack(here, start, decimals))
        astray = any(c.name in wrong for c in before)
        rounded = fits(claim, truth, slack(self.truth[claim.name], {}, decimals)) if astray else follows
        if rounded.all() and unit and not self.suspect(claim, before):
            return Verdict(claim, "rounded", truth, truth, ~exact, decimals)
        if follows.all() and astray:
            return Verdict(claim, "carried over", truth, here.values, ~exact, decimals)
        if follows.all() or count(exact, claim) > count(follows, claim):
            return Verdict(claim, "wrong here", truth, truth, ~exact)
        return Verdict(claim, "wrong here", truth, here.values, ~follows)

    def slack(self, name: str) -> Array:
        """How far two right implementations may be apart."""
        if name not in self._slack:
            self._slack[name] = slack(self.truth[name], {}, None)
        return self._slack[name]

    def suspect(self, claim: Claim, before: Sequence[Claim]) -> bool:
        """Whether a claim that rounding might lead to is rather what a mistake leads to.

        A mistake gives every cell to the digits claimed; the truth does not, nor does any choice of steps that are rounded.
        """
        off = ~fits(claim, self.truth[claim.name].values, 0.0)
        if int(claim.there.sum()) < SURE[0] or int(off.sum()) < SURE[1] or self.work > WORK:
            return False
        suspects = [m for m in self.known if not m.loose and m.kind != "rounded"]
        if not any(self.exactly((m,), claim, before) for m in suspects):
            return False
        return not any(fits(claim, values, around(values)).all() for values in self.roundings(claim, before))

    def roundings(self, claim: Claim, before: Sequence[Claim]) -> Iterator[Array]:
        """The numbers of a step when its author rounds some of the steps before it, or all, and perhaps the inputs: to as many
        digits, or to one more."""
        decimals, steps = digits(claim) or 0, lineage(self.truth[claim.name], lambda s: False)[:-1]
        inputs = tuple(s.name for s in steps if s.given)
        for given in ([], before) if before else ([],):
            for n in (decimals, decimals + 1):
                for chosen in choices([s.name for s in steps if not s.given]):
                    for more in ((), inputs):
                        yield self.rounded(claim.name, (*chosen, *more), n, given)

    def rounded(self, name: str, chosen: Sequence[str], decimals: int, before: Sequence[Claim]) -> Array:
        """A step whose author rounds the chosen ones."""
        tape = layer.trace(self.problem)
        for step in (tape[name] for name in chosen):
            if step.operation is None:
                step._values = np.round(step.values, decimals)
            else:
                step.operation = Instead(then_round(step.operation, decimals))
        for other in before:
            substitute(tape, other)
        return tape[name].values

    # -------------------------------------------------------------- which mistake

    def diagnose(self, claim: Claim, claims: Sequence[Claim]) -> Finding | None:
        """The mistakes that lead to what is claimed of a step: one, or two together, or nearly."""
        if self.work > WORK:
            return None
        above = ancestors(self.truth[claim.name])
        before = [c for c in claims if c is not claim and c.name in above]
        cells = int(claim.there.sum())
        for look in (self.singles, self.from_claims, self.suggested, self.with_rounding, self.in_dtype, self.pairs):
            if found := list(look(claim, before)):
                return Finding(claim.name, tuple(self.ranked(found, claims)), cells, cells)
        return self.nearest(claim, claims)

    def singles(self, claim: Claim, before: Sequence[Claim]) -> Iterator[Mistakes]:
        """One mistake, made in the layer as it is. To round on the way to the digits of a claim, or to more, is none."""
        return ((m,) for m in self.known if not fair(m, claim) and self.exactly((m,), claim, before))

    def from_claims(self, claim: Claim, before: Sequence[Claim]) -> Iterator[Mistakes]:
        """One mistake, made after the claims before it, whatever those are; if their digits alone do not explain this one."""
        if not before or self.after((), claim, before):
            return iter(())
        return ((m,) for m in self.known if m.kind != "rounded" and self.after((m,), claim, before))

    def suggested(self, claim: Claim, before: Sequence[Claim]) -> Iterator[Mistakes]:
        """What the claimed numbers themselves suggest, of the right step or of what follows from the claims before it."""
        claimed = np.where(claim.there, claim.values, np.nan)
        for given in ([], before) if before else ([],):
            tape = layer.trace(self.problem)
            for other in given:
                substitute(tape, other)
            for mistake in observed(tape[claim.name], claimed, claim.half):
                values = self.replayed((mistake,), claim.name, given)
                if values is not None and explains(claim, values):
                    yield (mistake,)

    def with_rounding(self, claim: Claim, before: Sequence[Claim]) -> Iterator[Mistakes]:
        """One mistake, and every step rounded to the digits of the claim on the way."""
        key = f"rounded-{digits(claim)}"
        for rounded in (m for m in self.known if m.key == key):
            for mistake in self.known:
                pair = (mistake, rounded)
                if mistake.kind != "rounded" and (
                    self.exactly(pair, claim, ()) or (before and self.after(pair, claim, before))
                ):
                    yield pair

    def in_dtype(self, claim: Claim, before: Sequence[Claim]) -> Iterator[Mistakes]:
        """The finest of the coarser dtypes that will do."""
        for mistake in (m for m in self.known if m.loose):
            tape = replay(self.plain if claim.name in self.whole else self.problem, mistake)
            if tape is not None and rounds_to(claim, self.truth[claim.name].values, tape[claim.name]):
                yield (mistake,)
                return

    def pairs(self, claim: Claim, before: Sequence[Claim]) -> Iterator[Mistakes]:
        """Two mistakes made together, out of those that change this step at all; of one kind only where two may be made.

        Of mistakes that are alike here one is tried for all of them, and the others when it fits.
        """
        alike = self.alike(claim.name)
        pairs = [pair for pair in combinations(alike, 2) if pair[0].kind != pair[1].kind or pair[0].kind in SEVERAL]
        room = PAIRS if self.work <= SMALL else PAIRS * SMALL // self.work
        for a, b in sorted(pairs, key=rank)[:room]:
            if self.exactly((a, b), claim, before):
                yield (a, b)
                others = islice(product(alike[a], alike[b]), 1, OTHERS)
                yield from (pair for pair in others if self.exactly(pair, claim, before))

    def alike(self, name: str) -> dict[Mistake, list[Mistake]]:
        """The mistakes that change a step: the first of those of one kind that change it alike, and all of them."""
        groups: dict[tuple[str, bytes], list[Mistake]] = {}
        for mistake in self.known:
            values, truth = self.values((mistake,), name), self.truth[name].values
            if values is not None and not (values.shape == truth.shape and np.array_equal(values, truth, equal_nan=True)):
                with np.errstate(all="ignore"):
                    key = (np.round(values.astype(np.float64), 9) + 0.0).tobytes()
                groups.setdefault((mistake.kind, key), []).append(mistake)
        return {group[0]: group for group in groups.values()}

    def ranked(self, found: Iterable[Mistakes], claims: Sequence[Claim]) -> list[Mistakes]:
        """First what explains most of the claims."""
        return sorted(found, key=lambda each: -sum(self.exactly(each, c, ()) for c in claims))

    def nearest(self, claim: Claim, claims: Sequence[Claim]) -> Finding | None:
        """The mistakes that explain most of a step: nearly all of its cells, and most of those that are wrong without them."""
        scored = [(m, values) for m in self.known if (values := self.values((m,), claim.name)) is not None]
        found: dict[Mistakes, Array] = {
            (m,): fits(claim, v, around(v)) for m, v in scored if v.shape == claim.values.shape and not m.loose
        }
        wrong = ~fits(claim, self.truth[claim.name].values, 0.0)
        best = max((count(fitting, claim) for fitting in found.values()), default=0)
        cells, wrongs = int(claim.there.sum()), int(wrong.sum())
        if best < NEAR * cells or cells - best > STRAY * wrongs:
            return None
        ranked = self.ranked((each for each, fitting in found.items() if count(fitting, claim) == best), claims)
        alike = tuple(each for each in ranked if np.array_equal(found[each], found[ranked[0]]))
        left = tuple(tuple(map(int, at)) for at in np.argwhere(~found[ranked[0]]))
        return Finding(claim.name, alike, best, cells, left)

    # -------------------------------------------------------------- what a mistake leads to

    def exactly(self, mistakes: Mistakes, claim: Claim, before: Sequence[Claim]) -> bool:
        """Whether a claim, and those before it, are what comes out when mistakes are made in the layer as it is.

        What is known already is looked at first.
        """
        at_hand = self._values.get(tuple(m.key for m in mistakes), {})
        return all(self.gives(mistakes, c) for c in sorted((claim, *before), key=lambda c: c.name not in at_hand))

    def gives(self, mistakes: Mistakes, claim: Claim) -> bool:
        values = self.values(mistakes, claim.name)
        return values is not None and explains(claim, values)

    def after(self, mistakes: Mistakes, claim: Claim, before: Sequence[Claim]) -> bool:
        """Whether a claim is what follows from the claims before it, to the digits of all of them, when mistakes are made."""
        values = self.replayed(mistakes, claim.name, before)
        if values is None or values.shape != claim.values.shape:
            return False
        if explains(claim, values):
            return True
        coarse = max((float(c.half.max()) for c in (claim, *before)), default=0.0)
        if not coarse or not fits(claim, values, 100 * coarse * (1 + np.abs(values))).all():
            return False
        rough = self.room(mistakes, claim.name, before, values, 1)
        if not fits(claim, values, 10 * (rough + coarse)).all():
            return False
        return bool(fits(claim, values, around(values) + self.room(mistakes, claim.name, before, values, TRIALS)).all())

    def room(self, mistakes: Mistakes, name: str, before: Sequence[Claim], values: Array, trials: int) -> Array:
        """How far a step moves, when mistakes are made, with the roundings of the claims before it: by trial.

        Rounding itself is left out, since it makes steps of small moves.
        """
        rng, most = np.random.default_rng(0), np.zeros(values.shape)
        mistakes = tuple(m for m in mistakes if m.kind != "rounded")
        start = self.replayed(mistakes, name, before)
        for _ in range(trials):
            moved = [replace(c, values=c.values + c.half * rng.choice((-1.0, 1.0), c.shape)) for c in before]
            other = self.replayed(mistakes, name, moved)
            with np.errstate(all="ignore"):
                most = most if other is None or start is None else np.fmax(most, np.abs(other - start))
        return np.asarray(np.where(np.isfinite(most), 1.5 * most, 0.0))

    def replayed(self, mistakes: Mistakes, name: str, before: Sequence[Claim] = ()) -> Array | None:
        """The numbers of a step when mistakes are made, and the claims before it are taken as they are.

        None when the mistakes cannot be made here, or not together: then shapes clash.
        """
        plain = name in self.whole
        tape = replay(self.plain if plain else self.problem, *mistakes)
        if tape is None or name not in tape:
            return None
        for other in before:
            if other.name in tape and tape[other.name].shape == other.shape:
                substitute(tape, other)
        try:
            with np.errstate(all="ignore"):
                share(self.whole if plain else self.truth, tape[name])
                return tape[name].values
        except (AssertionError, ValueError):
            return None

    def values(self, mistakes: Mistakes, name: str) -> Array | None:
        """The numbers of a step when mistakes are made, worked out once."""
        key = tuple(m.key for m in mistakes)
        if key in self._values and name in self._values[key]:
            return self._values[key][name]
        values = self.replayed(mistakes, name)
        if math.prod(self.truth[name].shape) <= KEPT[len(mistakes)]:
            self._values.setdefault(key, {})[name] = values
        return values


def claims_about(problem: Problem, source: Source | None = None, text: str | None = None, name: str = "") -> Reading:
    """The claims about a layer's steps, in their order: those of `source`, or of the config's `expect`.

    `source` is a file, a text, `-` or a mapping; `text` is that of the config, in which the digits of `expect` stand. Raises
    AttnTraceError when there is nothing to read.
    """
    tape = layer.trace(problem)
    if source is not None:
        reading = read(source, tape.names)
    elif problem.config.get("expect") is None:
        raise AttnTraceError("nothing is claimed: give a file of claims, or expect: in the config")
    elif text is not None:
        reading = read_expect(text, name, tape.names)
    else:
        reading = read_mapping(problem.config["expect"], tape.names)
    matched = match(reading.claims, tape)
    filled = [claim for claim in matched.claims if claim.there.any()]
    blank = [f"{claim.title} is left blank" for claim in matched.claims if not claim.there.any()]
    return Reading(filled, [*reading.said, *matched.said, *blank], [*reading.faults, *matched.faults])


SEVERAL = ("transposed", "swapped", "without", "mask", "rope")  # kinds of which two may be made together


def rank(pair: Mistakes) -> tuple[bool, bool, bool]:
    """What comes last when there are too many pairs: a coarser dtype, rounding along the way, two of one kind."""
    kinds = {m.kind for m in pair}
    return "dtype" in kinds, "rounded" in kinds, len(kinds) == 1


def substitute(tape: Trace, claim: Claim) -> None:
    """Let what follows be computed from what is claimed; blank cells stay as they come out."""
    step = tape[claim.name]
    with np.errstate(all="ignore"):
        values = claim.values if claim.there.all() else np.where(claim.there, claim.values, step.values)
        step._values = values.astype(step.dtype)


def share(right: Trace, step: Step) -> None:
    """Let a step and those before it have the numbers of the right trace, as far as no mistake has touched them."""
    alike = set[str]()
    for s in lineage(step, lambda s: s.computed):
        if s.name in right and same(s, right[s.name], alike):
            alike.add(s.name)
            s._values = right[s.name].values


def same(s: Step, other: Step, alike: Collection[str]) -> bool:
    """Whether two steps are given the same numbers, or do the same with operands that are `alike`."""
    if s.shape != other.shape or s.dtype != other.dtype:
        return False
    if s.given or other.given:
        return s.given and other.given and (s.values is other.values or np.array_equal(s.values, other.values, equal_nan=True))
    operands = [o.name for o in s.operands]
    if operands != [o.name for o in other.operands] or not all(name in alike for name in operands):
        return False
    a, b = s.operation, other.operation
    return a == b or (type(a) is type(b) and not is_dataclass(a))


def ancestors(step: Step) -> set[str]:
    return {s.name for s in lineage(step, lambda s: False)} - {step.name}


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


def explains(claim: Claim, values: Array) -> bool:
    return values.shape == claim.values.shape and bool(fits(claim, values, around(values)).all())


def around(values: Array) -> Array:
    """How far apart two ways of computing the same may be, roughly."""
    size = np.abs(values.astype(np.float64))
    return np.where(np.isfinite(size), size, 0) * 1e-9 + 1e-12


def fair(mistake: Mistake, claim: Claim) -> bool:
    """Whether it is rounding on the way, but to no fewer digits than are claimed."""
    decimals = digits(claim)
    return mistake.kind == "rounded" and decimals is not None and int(mistake.key.split("-")[1]) >= decimals


def rounds_to(claim: Claim, truth: Array, coarse: Step) -> bool:
    """Whether a claim is what a coarser dtype makes of the truth. How it rounds hangs on the order of sums, so not every cell
    need be what this trace has in that dtype. But all are within its roundings and not off by much more than those here, and
    either they are numbers of that dtype, or most of the wrong ones are as here."""
    wrong = ~fits(claim, truth, 0.0)
    start = {s.name: tolerance(s) for s in lineage(coarse, lambda s: False) if s.given}
    with np.errstate(all="ignore"):
        bound = accumulated(coarse, start) + epsilon(coarse.dtype) * np.abs(claim.values)
        own = typical(coarse.values - truth) + float(claim.half.max())
        near = fits(claim, truth, bound).all() and typical((claim.values - truth)[claim.there]) <= LOOSE * own
    as_here = fits(claim, coarse.values, around(coarse.values)) & wrong
    return bool(near and (numbers_of(claim, coarse) or as_here.sum() >= ALIKE * wrong.sum()))


def typical(errors: Array) -> float:
    """The root of the mean square of finite errors."""
    finite = errors[np.isfinite(errors)]
    return float(np.sqrt(np.mean(finite**2))) if finite.size else 0.0


def numbers_of(claim: Claim, step: Step) -> bool:
    """Whether all cells of a claim are numbers that the dtype of a step has, and few others are, to the digits given."""
    claimed, half = claim.values[claim.there], claim.half[claim.there]
    with np.errstate(all="ignore"):
        there = claimed.astype(step.dtype).astype(np.float64)
        near = (np.abs(claimed - there) <= half * (1 + 1e-9)) | (claimed == there) | ~np.isfinite(claimed)
    return bool(near.all() and (epsilon(step.dtype) * np.abs(claimed) > 4 * half).mean() > 0.5)


def count(cells: Array, claim: Claim) -> int:
    return int((cells & claim.there).sum())


def choices(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Every choice of some steps; of many, all of them, all up to one, all from one on, and each alone."""
    if len(names) <= MODELS:
        for n in range(len(names) + 1):
            yield from combinations(names, n)
        return
    yield from ((), tuple(names))
    for i in range(1, len(names)):
        yield from (tuple(names[:i]), tuple(names[i:]), (names[i],))


def then_round(op: Operation, decimals: int) -> Callable[..., Array]:
    return lambda *operands: np.round(op.forward(*operands), decimals)


def slack(step: Step, start: Mapping[str, Array], decimals: int | None) -> Array:
    """How far a step may be off when those in `start` are off by so much, and all others are rounded to so many decimals.

    Inputs too: who works by hand copies them down with as many digits as the rest.
    """
    errors: dict[str, Array] = {name: error for name, error in start.items() if name != step.name}
    half = 0.0 if decimals is None else 0.5 * 10.0**-decimals
    with np.errstate(all="ignore"):
        for s in lineage(step, lambda s: s.name in errors):
            if s.given:
                errors[s.name] = np.zeros(s.shape) if decimals is None or s is step else copied(s.values, decimals)
            else:
                errors[s.name] = spread(s, [errors[o.name] for o in s.operands]) + tolerance(s) + (half if s is not step else 0)
    return errors[step.name]


def copied(values: Array, decimals: int) -> Array:
    """How far numbers are off when they are copied down with so many decimals."""
    wide = values.astype(np.float64)
    return np.nan_to_num(np.abs(np.round(wide, decimals) - wide), nan=0.0)
