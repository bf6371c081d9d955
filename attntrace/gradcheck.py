"""Gradients held against finite differences, and where torch is installed against its autograd.

Always in float64, whatever the dtype of the trace: the formulas are the same there, and differences of a loss are precise
enough to tell a wrong one. What is allowed follows from the problem itself: from how well the differences converge, and from
how far rounding moves the loss and the gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attntrace import layer
from attntrace.backward import Upstream, Weighted, last, moving, reverse
from attntrace.errors import MissingPackage
from attntrace.problem import Problem
from attntrace.tape import Array, Step

CELLS = 300  # that are moved, of all inputs together
WORK = 2e9  # numbers that are computed for it, roughly
STEP = 20_000  # numbers that could be computed while NumPy is called once
LEVELS = 60  # halvings of the distance
COLUMNS = 6  # orders that are extrapolated
FIRST = 2.0**-4  # the first distance, relative to the size of an input
EPS, EPS32 = float(np.finfo(np.float64).eps), float(np.finfo(np.float32).eps)
NUDGE = 2.0**-36  # by which all numbers are moved, to see what rounding does
SAFETY = 64  # how many times farther rounding may move a number than it was seen to
FEWEST = 2  # probes of an input
DIFFERENCES = "finite differences"

Tick = Callable[[int, int], None]  # (done, of): how far a long check is


@dataclass(frozen=True)
class Check:
    """The gradient of one input, held against something: `cells` of its `size` cells were compared one by one, and where
    `together` is set all of them at once (see `Bench.probes`).

    `error`, `tolerance` and `worst` belong to the cell that comes nearest to its tolerance, or is farthest beyond it; with
    `worst` None to all cells at once.
    """

    step: str
    against: str
    cells: int
    size: int
    error: float
    tolerance: float
    worst: tuple[int, ...] | None
    agrees: bool
    together: bool = False


@dataclass(frozen=True)
class Checks:
    """All checks of a trace's gradients, and why something was not asked."""

    rows: tuple[Check, ...]
    silent: Mapping[str, str]

    @property
    def agrees(self) -> bool:
        return all(row.agrees for row in self.rows)

    @property
    def verdict(self) -> str:
        """`4 of 4 gradients agree with finite differences (39 of 39 cells) and torch 2.13.0's autograd, in float64`."""
        if not self.rows:
            return f"nothing was checked: {'; '.join(self.silent.values())}"
        wrong = list(dict.fromkeys(row.step for row in self.rows if not row.agrees))
        steps = list(dict.fromkeys(row.step for row in self.rows))
        moved = [row for row in self.rows if row.against == DIFFERENCES]
        done, of = sum(row.cells for row in moved), sum(row.size for row in moved)
        cells = f"{DIFFERENCES} ({done} of {of} cells{', then all at once' if any(row.together for row in moved) else ''})"
        others = dict.fromkeys(row.against for row in self.rows if row.against != DIFFERENCES)
        told = f"{len(steps) - len(wrong)} of {len(steps)} gradients agree with {' and '.join([cells, *others])}, in float64"
        return f"{told}; wrong: {', '.join(wrong)}" if wrong else told


def check(problem: Problem, upstream: Upstream, tick: Tick = lambda done, of: None) -> Checks:
    """Hold the gradient of every input against finite differences and against autograd.

    Raises AttnTraceError when the trace in float64 does not fit in memory.
    """
    bench = Bench(in_dtype(problem, np.float64), upstream)
    if not bench.sound:
        return Checks((), {"gradients": "the output or a gradient is NaN or infinite, and so has no differences"})
    with np.errstate(all="ignore"):
        bench.see_rounding(in_dtype(problem, np.float32))
        rows, silent = ask_autograd(bench)
        return Checks((*differences(bench, tick), *rows), silent)


def in_dtype(p: Problem, dtype: type[np.floating[Any]]) -> Problem:
    """The same problem, with the same numbers, in float64 or float32 throughout."""
    found = replace(p, options=replace(p.options, dtype=np.dtype(dtype), softmax_dtype=None))
    found.__dict__["arrays"] = {name: array.astype(dtype) for name, array in p.arrays.items()}  # what is drawn, is drawn once
    return found


class Bench:
    """One tape whose inputs can be moved; what does not depend on them stays computed."""

    def __init__(self, problem: Problem, upstream: Upstream) -> None:
        self.problem, self.upstream = problem, upstream
        self.tape = layer.trace(problem)
        self.out = last(self.tape)
        self.steps = moving(self.tape)
        self.inputs = [step for step in self.steps if step.given]
        reverse(self.tape, upstream)
        self.tape.fits()
        self.y, self.found = self.read()
        self.at = {step.name: np.array(step.values) for step in self.inputs}
        self.noise, self.roundoff = 0.0, dict.fromkeys(self.found, 0.0)  # how far rounding moves the loss, and each gradient

    @property
    def sound(self) -> bool:
        return all(np.isfinite(a).all() for a in (self.y, *self.found.values()))

    def gradient(self, step: Step) -> Step:
        return self.tape[f"d_{step.name}"]

    def read(self) -> tuple[Array, dict[str, Array]]:
        """The output and the gradient of every input."""
        return np.array(self.out.values), {step.name: np.array(self.gradient(step).values) for step in self.inputs}

    def below(self, step: Step) -> list[Step]:
        """An input and the steps that depend on it."""
        found = {step.name}
        for s in self.steps:
            found |= {s.name} if any(o.name in found for o in s.operands) else set()
        return [s for s in self.steps if s.name in found]

    def put(self, step: Step, values: Array, below: list[Step]) -> None:
        step.read = lambda: values
        for s in below:
            s.forget()

    def see_rounding(self, narrow: Problem) -> None:
        """See what rounding does, in three ways, and believe the one that does most. In float32 it does the same as in float64,
        2²⁹ times as much; but numbers may be exact there by chance, or overflow. So every number is moved by a little, too. And
        where all gradients cancel, as those of a sum of normalised rows, roundings are left of what they would be otherwise."""
        for unit, (y, gradients) in ((EPS32, Bench(narrow, self.upstream).read()), (NUDGE, self.nudged())):
            self.noise = max(self.noise, rounded(self.upstream.terms(y), self.upstream.terms(self.y), together, unit))
            for name, there in self.found.items():
                self.roundoff[name] = max(self.roundoff[name], rounded(gradients[name], there, largest, unit))
        for name, otherwise in Bench(self.problem, self.shuffled()).found.items():
            self.roundoff[name] = max(self.roundoff[name], SAFETY * EPS * largest(otherwise))

    def shuffled(self) -> Weighted:
        """A loss whose gradient for the output is as large as this one's, with random signs."""
        size = np.abs(self.gradient(self.out).values)
        return Weighted(size * np.random.default_rng(1).choice((-1.0, 1.0), size.shape), "")

    def nudged(self) -> tuple[Array, dict[str, Array]]:
        """The output and the gradients when every number of every step, there and back, is off by a little."""
        rng, moved = np.random.default_rng(0), [step for step in self.tape if not step.given or step in self.inputs]
        for step in moved:
            step.forget()
        for step in moved:
            step._values = step.values * (1 + NUDGE * rng.uniform(-1, 1, step.shape))
        found = self.read()
        for step in moved:
            step.forget()
        return found

    def terms(self) -> Array:
        """What the loss is the sum of."""
        return self.upstream.terms(self.out.values)

    def loss(self, step: Step, below: list[Step], way: Array) -> Callable[[float], float]:
        """L as a function of how far an input goes along a way."""
        at = self.at[step.name]

        def moved(h: float) -> float:
            self.put(step, at + h * way, below)
            return float(self.terms().sum())

        return moved

    def probes(self, step: Step, most: int) -> Iterator[tuple[tuple[int, ...] | None, Array]]:
        """The ways that an input is moved along: cell by cell, or if there are more than `most` along some of its cells and
        then once along all of them, each with a random sign. (The cell, or None), the way."""
        at, rng = self.at[step.name], np.random.default_rng(len(step.name))
        typical = size(at)
        some = rng.permutation(at.size)[: most - 1] if at.size > most else np.arange(at.size)
        for flat in np.sort(some):
            cell = tuple(map(int, np.unravel_index(flat, at.shape)))
            way = np.zeros(at.shape)
            way[cell] = max(typical, abs(at[cell]))
            yield cell, way
        if at.size > most:
            yield None, typical * rng.choice((-1.0, 1.0), at.shape)


def size(a: Array) -> float:
    """How large the numbers of an array are, as a mean; 1 where all are 0."""
    return float(np.abs(a).mean()) or 1.0


def rounded(off: Array, right: Array, measure: Callable[[Array], float], unit: float) -> float:
    """How far rounding may move numbers in float64 that are `off` where it is done to `unit`, relative to their size. What is
    not finite says nothing."""
    moved = measure(off.astype(np.float64) - right)
    return (SAFETY * moved * EPS / unit if np.isfinite(moved) else 0.0) + 2 * EPS * measure(right)


def largest(errors: Array) -> float:
    return float(np.abs(errors).max())


def together(errors: Array) -> float:
    """How far a sum is off whose terms are: as far as they happen to be, and as far as they would be one by one at random."""
    return float(abs(errors.sum()) + np.linalg.norm(errors))


# ------------------------------------------------------------------ finite differences


def differences(bench: Bench, tick: Tick) -> Iterator[Check]:
    """One check for each input, by moving some of its cells."""
    shares = shared(bench)
    done, of = 0, sum(min(share, bench.at[name].size) for name, share in shares.items())
    for step in bench.inputs:
        below, found = bench.below(step), []
        for cell, way in bench.probes(step, shares[step.name]):
            compared = probe(bench, step, below, way)
            found += [] if compared is None else [(*compared, cell)]
            done += 1
            tick(done, of)
        bench.put(step, bench.at[step.name], below)
        if found:
            yield worst(bench.gradient(step), DIFFERENCES, found)


def shared(bench: Bench) -> dict[str, int]:
    """How many probes each input gets, small inputs as many as they have cells; fewer in all where the trace is large."""
    once = sum(step.nbytes // 8 + STEP for step in bench.steps)
    left = int(min(CELLS, max(FEWEST * len(bench.inputs), WORK / (10 * once))))
    shares: dict[str, int] = {}
    for i, step in enumerate(sorted(bench.inputs, key=lambda s: s.nbytes)):
        cells = bench.at[step.name].size
        shares[step.name] = min(cells, max(FEWEST, left // (len(bench.inputs) - i)))
        left -= shares[step.name]
    return shares


def probe(bench: Bench, step: Step, below: list[Step], way: Array) -> tuple[float, float] | None:
    """How far the gradient along a way is from the difference quotient, and how far it may be, in units of the gradient.
    None where the loss has a corner, and so no derivative, or where no distance is small enough."""
    f, scale = bench.loss(step, below, way), float(np.abs(way).max())
    ours = float((bench.found[step.name] * way).sum())
    theirs, doubt = derivative(f, bench.noise)
    allowed = 4 * doubt + bench.roundoff[step.name] * float(np.linalg.norm(way))
    error = abs(ours - theirs)
    if not np.isfinite(doubt) or (error > allowed and cornered(f, bench.noise)):
        return None
    return error / scale, float(allowed / scale)


def derivative(f: Callable[[float], float], noise: float) -> tuple[float, float]:
    """f′(0) and how far off it may be: Ridders' method (1982). Central differences at smaller and smaller distances are
    extrapolated to distance 0; of all extrapolations the one is taken that differs least from those it is made of. `noise` is
    how far rounding moves f: from where it outweighs everything, no smaller distance helps. When a smaller distance leads away
    from what was found, the ones before it were too large to see what f does, and count no more."""
    best, doubt, h = np.nan, np.inf, FIRST
    before: list[float] = []
    for _ in range(LEVELS):
        quotient = (f(h) - f(-h)) / (2 * h)
        if before and abs(quotient - best) > abs(before[0] - best) + 4 * noise / h:
            best, doubt, before = np.nan, np.inf, []
        row = extrapolated(quotient, before)
        for k in range(1, len(row)):
            off = max(abs(row[k] - row[k - 1]), abs(row[k] - before[k - 1])) + noise / h
            if off < doubt:
                best, doubt = row[k], off
        h /= 2
        if noise / h >= doubt:
            break
        before = row
    return best, doubt


def extrapolated(quotient: float, before: list[float]) -> list[float]:
    """A row of Ridders' table: a central difference is off by a h² + b h⁴ + …, of which each column takes away one term."""
    row = [quotient]
    for k, old in enumerate(before[:COLUMNS]):
        row.append(row[k] + (row[k] - old) / (4.0 ** (k + 1) - 1))
    return row if np.isfinite(row).all() else []


def cornered(f: Callable[[float], float], noise: float) -> bool:
    """Whether f has a corner at 0, as relu has: its slopes to the right and to the left differ, however near they are taken."""
    gaps = [abs(f(h) - 2 * f(0) + f(-h)) / h for h in (FIRST**4, FIRST**5)]
    return gaps[1] > max(gaps[0] / 2, 8 * noise / FIRST**5)


def worst(gradient: Step, against: str, found: list[tuple[float, float, Any]]) -> Check:
    """A row of the table, of comparisons (error, tolerance, cell)."""
    error, tolerance, cell = max(found, key=lambda f: excess(f[0], f[1]))
    agrees = all(e <= t for e, t, _ in found)
    cells = [c for *_, c in found]
    count, size = len(cells) - cells.count(None), int(np.prod(gradient.shape))
    return Check(gradient.name, against, count, size, error, tolerance, cell, agrees, together=None in cells)


def excess(error: float, tolerance: float) -> float:
    return error / tolerance if tolerance > 0 else np.inf if error > 0 else 0.0


# ------------------------------------------------------------------ autograd


def ask_autograd(bench: Bench) -> tuple[list[Check], dict[str, str]]:
    """One check for each input, of all its cells; or why there is none."""
    try:
        from attntrace.reference import autograd
    except MissingPackage:
        return [], {"autograd": "torch is not installed"}
    theirs = autograd.gradients(bench.problem, bench.tape, bench.out, bench.inputs, bench.upstream)
    if isinstance(theirs, str):
        return [], {"autograd": theirs}
    return [against(bench, step, theirs[step.name], autograd.name()) for step in bench.inputs], {}


def against(bench: Bench, step: Step, theirs: Array, name: str) -> Check:
    errors = np.abs(bench.found[step.name] - theirs)
    flat = int(np.argmax(errors))
    cell = tuple(map(int, np.unravel_index(flat, errors.shape)))
    error = float(errors[cell])
    tolerance = bench.roundoff[step.name]
    row = worst(bench.gradient(step), name, [(error if np.isfinite(error) else np.inf, tolerance, cell)])
    return replace(row, cells=row.size)
