"""Sheets to fill in: a layer of which some steps are left blank, with numbers of their own for each student.

The numbers of a seed are searched for: the simplest that make a layer worth doing by hand, no row of weights nearly all on one
key, none even, no two weights alike at the decimals that are asked for. The search has an end; where it finds no such numbers
it takes the best, and says what they lack.

What is drawn anew are the tensors that a config writes out or draws. Those that say what the layer is stay: masks, positions,
slopes, tables and the gains of normalisations. So does what is read from a file, and what --set has given numbers.

A sheet has a config of its own, in which every number stands as it is printed. Its key is the trace of that config.
"""

from __future__ import annotations

import copy
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np

from attntrace import layer
from attntrace.config.changes import path_of, put
from attntrace.config.draft import SHOWN, Request
from attntrace.config.draw import Drawn
from attntrace.config.load import load
from attntrace.config.tensors import Edited, FromFile, Inline
from attntrace.errors import AttnTraceError, Fault, nearest, plain
from attntrace.ledger import amount, listed
from attntrace.mistakes.base import without_core
from attntrace.problem import Problem
from attntrace.tape import Array, Step, Trace

DECIMALS = 3  # that are asked for
MOST = 5000  # numbers on a sheet
SHEETS = 10_000  # made at a time
WIDEST = 2**32  # seeds that every generator takes, dropout's too
KEPT = "keep"  # the weights that dropout keeps: drawn, and no key of a config

TOKENS = ("x", "x_kv", "q", "k", "v", "cache.k", "cache.v", "cache.blocks.k", "cache.blocks.v")
WEIGHTS = (
    *("w_q", "w_k", "w_v", "w_qkv", "b_q", "b_k", "b_v", "b_qkv", "w_o", "b_o", "sinks"),
    *("w_gate", "b_gate", "w_up", "b_up", "w_down", "b_down"),
)


@dataclass(frozen=True)
class Sheet:
    """A layer to trace by hand. `config` is the whole of it, with every number written out; `trace` is what comes out.

    `blank` names the steps to fill in, to so many `decimals`. `seed` says which numbers these are, where they were drawn for
    the sheet, and `lacks` what they are not.
    """

    problem: Problem
    config: Mapping[str, Any]
    blank: tuple[str, ...]
    decimals: int
    seed: int | None = None
    student: str = ""
    lacks: tuple[str, ...] = ()

    @cached_property
    def trace(self) -> Trace:
        return layer.trace(self.problem)

    @property
    def steps(self) -> list[Step]:
        """What the blank steps are computed from, and they themselves, in order. What comes after them would tell on them."""
        return self.trace.needed(self.blank)


def worksheet(
    p: Problem,
    blank: Sequence[str] | None = None,
    decimals: int = DECIMALS,
    seed: int | None = None,
    keep: Collection[str] = (),
    student: str = "",
) -> Sheet:
    """A sheet about the layer `p`, with its own numbers, or with those of a seed. Without `blank` every step is blank.

    `keep` names inputs that a seed leaves as they are. Raises AttnTraceError for a step that is not there or is an input, for
    more numbers than fit a sheet, and for a seed that has nothing to draw.
    """
    names = blanks(layer.trace(p), blank)
    lacks: tuple[str, ...] = ()
    if seed is not None:
        p, lacks = search(p, drawn_anew(p, keep), seed, decimals)
    config = config_of(p, seed)
    return Sheet(reloaded(p, config), config, names, decimals, seed, student, lacks)


def blanks(t: Trace, names: Sequence[str] | None) -> tuple[str, ...]:
    """The steps to leave blank, each once and in the order of the trace."""
    wanted = {t[name].name for name in names} if names is not None else {s.name for s in t if not s.given}
    for step in (t[name] for name in wanted if t[name].given):
        raise AttnTraceError(f"{step.name} is given: leave blank what is computed from it{example(t, step)}")
    count = sum(int(np.prod(s.shape, dtype=object)) for s in {*t.needed(wanted), *(s for s in t if s.given)})
    if count > MOST:
        raise AttnTraceError(
            f"this sheet would hold {count} numbers, expected at most {MOST}: use fewer tokens, heads or features"
        )
    return tuple(s.name for s in t if s.name in wanted)


def example(t: Trace, of: Step) -> str:
    """The first step that an input goes into."""
    into = next((s.name for s in t if of in s.operands), None)
    return f", such as {into}" if into else ""


# ------------------------------------------------------------------ the config of a sheet


def config_of(p: Problem, seed: int | None) -> dict[str, Any]:
    """The config of `p`, its tensors as arrays of what is printed, its labels in the order of --permute, no claims.

    With dropout, tensors that share its stream are drawn as the config says, or it would keep other weights.
    """
    gone = {"expect", *({"source"} if seed is not None else ()), *({"seed", "generator"} if "dropout" not in p.config else ())}
    data = {key: copy.deepcopy(value) for key, value in p.config.items() if value is not None and key not in gone}
    shared = "dropout" in data and seed is None
    for name in p.sources:
        if name != KEPT and not (shared and isinstance(p.sources[name], Drawn)):
            put(data, path_of(name, ""), p.arrays[name], "")
    data |= {key: list(labels) for key, labels in (("tokens", p.options.tokens), ("kv_tokens", p.options.kv_tokens)) if labels}
    data |= {"seed": seed} if "dropout" in data and seed is not None else {}
    data |= {"weight_layout": "in_out"} if p.projected and not p.options.transposed else {}  # square weights do not tell
    return {key: data[key] for key in sorted(data, key=lambda key: FIRST.index(key) if key in FIRST else len(FIRST))}


FIRST = ("title", "source", "tokens", "kv_tokens", "weight_layout")  # the rest stays in its order, which is that of draws


def reloaded(p: Problem, config: Mapping[str, Any]) -> Problem:
    """The problem that somebody poses who has nothing but the sheet."""
    return load(Request(config, queries=queries(p)))


def queries(p: Problem) -> str | None:
    """--queries as it was typed."""
    part = p.options.queries
    return part and f"{'' if part.start is None else part.start}:{'' if part.stop is None else part.stop}"


# ------------------------------------------------------------------ which numbers are drawn anew


def drawn_anew(p: Problem, keep: Collection[str]) -> list[str]:
    """The inputs that get other numbers, in the order in which they are shown."""
    for name in keep:
        if name not in p.sources:
            raise AttnTraceError(f"--keep {plain(name[:SHOWN])}: there is no such input{nearest(name, p.sources)}")
    names = [name for name in p.sources if name in (*TOKENS, *WEIGHTS) and name not in keep and not stays(p, name)]
    if not names:
        raise AttnTraceError("there is nothing to draw: what comes from a file or --set, or is named by --keep, stays as it is")
    return names


def stays(p: Problem, name: str) -> bool:
    """Whether an input comes from a file, or --set has given it numbers; to give a draw another shape is not that."""
    source: Any = p.sources[name]
    kinds = {type(source)}
    while not isinstance(source, Drawn | Inline | FromFile) and hasattr(source, "source"):
        source = source.source
        kinds.add(type(source))
    return Edited in kinds or FromFile in kinds or (Drawn not in kinds and name in set_by(p))


def set_by(p: Problem) -> set[str]:
    """The keys that --set has changed."""
    texts = (text.removeprefix("--set ") for text in p.changes if text.startswith("--set "))
    return {re.split(r"[=\[]", text, maxsplit=1)[0].strip() for text in texts}


# ------------------------------------------------------------------ good numbers


@dataclass(frozen=True)
class Level:
    """How simple numbers are: the largest and the step of what tokens are made of, and of weights."""

    tokens: tuple[float, float]
    weights: tuple[float, float]

    def of(self, name: str) -> Array:
        """The numbers that an input may have, but for 0."""
        largest, step = self.tokens if name in TOKENS else self.weights
        sizes = np.arange(1, round(largest / step) + 1) * step
        return np.round(np.concatenate([-sizes, sizes]), 1)


# From the simplest on. The wider the layer, the smaller its numbers must be for scores that softmax does not saturate.
LEVELS = (
    Level((2, 1), (1, 1)),
    Level((2, 1), (1, 0.5)),
    Level((2, 1), (0.5, 0.5)),
    Level((2, 1), (0.5, 0.1)),
    Level((1, 0.5), (0.5, 0.1)),
    Level((1, 0.1), (0.3, 0.1)),
)
DRAWS, CHANGES = 10, 40  # at each level: of all numbers, and then of one number after the other
LAST = 400  # changes to the best numbers of all levels
TRIES = len(LEVELS) * (DRAWS + CHANGES) + LAST
FEW = 8  # numbers for each zero among them

SATURATED = 0.95  # a weight beyond which the others hardly count
EVEN = 1.2  # times the mean of its row, that the largest weight should reach
LARGE = 1000.0  # beyond which nobody likes to multiply by hand


def search(p: Problem, names: Sequence[str], seed: int, decimals: int) -> tuple[Problem, tuple[str, ...]]:
    """`p` with the first good numbers for the inputs called `names`, or the best; and what is wrong with those.

    What stays is read once: a draw would go on in its stream.
    """
    fixed = replace(p, sources={name: Inline(p.arrays[name], s.origin) for name, s in p.sources.items()})
    found = []
    for i, level in enumerate(LEVELS):
        here = Search(names, decimals, level, stream(seed, i))
        found.append((here.improved(here.drawn(fixed), CHANGES), here))
        if not found[-1][0].flaws:
            break
    best, where = min(found, key=lambda pair: pair[0].poverty)
    best = where.improved(best, LAST)
    return best.problem, tuple(f"{what} in {amount(count, 'rows')}" for what, count in best.flaws.items())


def stream(*key: int) -> np.random.RandomState:
    """A stream that NumPy has promised never to change, so that a seed means the same sheet in every version."""
    return np.random.RandomState(np.random.MT19937(np.random.SeedSequence(key)))


@dataclass(frozen=True)
class Candidate:
    problem: Problem
    flaws: Counter[str]

    @property
    def poverty(self) -> int:
        return sum(self.flaws.values())


@dataclass(frozen=True)
class Search:
    """The search for numbers at one level: first of all numbers at once, then of one after the other."""

    names: Sequence[str]
    decimals: int
    level: Level
    random: np.random.RandomState

    def drawn(self, p: Problem) -> Candidate:
        """The best of some draws, or the first good one."""
        best = self._judged(p, self._draw(p))
        for _ in range(DRAWS - 1):
            if not best.flaws:
                break
            found = self._judged(p, self._draw(p))
            best = found if found.poverty < best.poverty else best
        return best

    def improved(self, best: Candidate, changes: int) -> Candidate:
        """A candidate of which numbers are changed until it is good; a change that makes it worse is taken back."""
        for _ in range(changes):
            if not best.flaws:
                break
            found = self._judged(best.problem, self._change(best.problem))
            best = found if found.poverty <= best.poverty else best
        return best

    def _draw(self, p: Problem) -> dict[str, Array]:
        """Other numbers for some inputs of `p`."""
        return {name: numbers(p.sources[name].shape, self.level.of(name), self.random) for name in self.names}

    def _change(self, p: Problem) -> dict[str, Array]:
        """An input with one number changed."""
        name = self.names[self.random.randint(len(self.names))]
        array = p.sources[name].read().copy()
        array.flat[self.random.randint(array.size)] = self.random.choice(self.level.of(name))
        return {name: array}

    def _judged(self, p: Problem, new: Mapping[str, Array]) -> Candidate:
        candidate = replace(p, sources={**p.sources, **{name: Inline(array) for name, array in new.items()}})
        return Candidate(candidate, flaws(candidate, self.names, self.decimals))


def numbers(shape: tuple[int, ...], choices: Array, random: np.random.RandomState) -> Array:
    """Numbers out of `choices`, a few of them 0; none where a row is so short that it might hold nothing else."""
    values = choices[random.randint(len(choices), size=shape)]
    if shape[-1] > 2:
        values.flat[random.permutation(values.size)[: values.size // FEW]] = 0
    return values


def flaws(p: Problem, names: Collection[str], decimals: int) -> Counter[str]:
    """What makes the numbers of `p` poor ones to do by hand, and in how many rows: nothing, for good ones. Inputs other than
    those called `names` are as they are.

    A row with one key to attend to, or none, is what the mask makes of it, and not looked at.
    """
    t = layer.trace(without_core(p))
    heads = list(matrices(t["weights"]))
    found = Counter(flaw for rows, there in heads for flaw in row_flaws(rows, there, decimals))
    found.update(repeated([*multiplied(t, names), *(rows for rows, _ in heads)], decimals))
    found.update([] if found else large(t))
    return found


def matrices(weights: Step) -> Iterator[tuple[Array, Array]]:
    """The weights of each head, and which of them are not masked; the rows with two of those or more."""
    scores = weights.operands[0].values
    for index in np.ndindex(weights.shape[:-2]):
        rows, there = weights.values[index].astype(np.float64), np.isfinite(scores[index].astype(np.float64))
        several = there.sum(axis=-1) > 1
        yield rows[several], there[several]


def row_flaws(rows: Array, there: Array, decimals: int) -> Iterator[str]:
    for row, seen in zip(rows, there, strict=True):
        shown = np.round(row[seen], decimals)
        if row.max() >= SATURATED:
            yield f"weights of {SATURATED} or more"
        if row.max() < EVEN * row.sum() / seen.sum():
            yield "nearly even weights"
        if len(set(shown.tolist())) < len(shown) or not shown.all():
            yield f"weights that are alike at {amount(decimals, 'decimals')}"


def multiplied(t: Trace, names: Collection[str]) -> Iterator[Array]:
    """The matrices whose rows are to differ: inputs called `names`, queries and keys; of weights the columns too."""
    for step in t:
        if (step.name in names or step.name in ("q", "k")) and len(step.shape) > 1:
            yield from step.values.reshape(-1, *step.shape[-2:])
            yield from [step.values.T] if step.name.startswith("w_") else []


def repeated(found: Iterable[Array], decimals: int) -> Iterator[str]:
    """Rows that are there twice in their matrix; single numbers may be."""
    for matrix in found:
        shown = np.round(matrix.astype(np.float64), decimals).tolist() if matrix.shape[-1] > 1 else []
        yield from ["the numbers of another"] * (len(shown) - len(set(map(tuple, shown))))


def large(t: Trace) -> Iterator[str]:
    for name in ("q", "k", "v", "scores", "scaled", "context", "output"):
        if name in t:
            beyond = np.abs(t[name].values.astype(np.float64)) >= LARGE
            yield from [f"numbers beyond {LARGE:g}"] * int(beyond.any(axis=-1).sum())


# ------------------------------------------------------------------ a sheet for each


def seeds(text: str) -> list[int]:
    """The seeds of --seeds: `1:30` is 1 to 30, both included; `1:5,9` one more."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,19})\s*(?::\s*(\d{1,19})\s*)?", part, re.ASCII)
        if not match:
            raise AttnTraceError(f"--seeds {text[:SHOWN]}: expected seeds, such as 1:30 (1 to 30) or 1,5,9")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise AttnTraceError(f"--seeds {text[:SHOWN]}: expected a first seed before the last, found {first} and {last}")
        enough(last - first + 1 + len(found), "--seeds")
        found += range(first, last + 1)
    return list(dict.fromkeys(found))


def enough(count: int, option: str) -> None:
    if count > SHEETS:
        raise AttnTraceError(f"{option}: asks for {count} sheets, expected at most {SHEETS}")


def students(text: str, name: str, seed: int = 0) -> dict[str, int]:
    """The names in a text, one a line, each with a seed of its own. It follows from the name and from `seed` alone: who comes
    later, or stands elsewhere in the list, changes nobody's numbers."""
    lines: dict[str, int] = {}
    faults = []
    for number, line in enumerate(text.splitlines(), 1):
        student = unicodedata.normalize("NFC", line).strip()
        if student in lines:
            faults.append(Fault(f"{name}:{number}: {student!r} is there twice, first in line {lines[student]}"))
        elif student:
            lines[student] = number
    enough(len(lines), "--students")
    if faults or not lines:
        raise AttnTraceError(*faults or [Fault(f"--students {name}: expected names, one a line, found none")])
    return dict(zip(lines, distinct(seed_of(student, seed) for student in lines), strict=True))


def seed_of(student: str, seed: int) -> int:
    return int.from_bytes(sha256(f"{seed} {student}".encode("utf-8", "replace")).digest()[:4], "big")


def distinct(found: Iterable[int]) -> Iterator[int]:
    """The seeds, each counted up until nobody has it: one in four thousand million is."""
    taken: set[int] = set()
    for seed in found:
        while seed in taken:
            seed = (seed + 1) % WIDEST
        taken.add(seed)
        yield seed


def remark(sheet: Sheet) -> str:
    """What is to be said of numbers that are not as good as they should be; nothing, of good ones."""
    if sheet.lacks:
        return f"seed {sheet.seed}: no good numbers were found in {TRIES} tries; the best have {listed(list(sheet.lacks))}"
    arrays = sheet.problem.arrays if sheet.seed is None else {}
    long = [name for name, array in arrays.items() if name in (*TOKENS, *WEIGHTS) and not short(array)]
    if not long:
        return ""
    return f"{listed(long)} {'have' if long[1:] else 'has'} numbers with many digits: --seed 1 draws some to do by hand"


def short(array: Array) -> bool:
    """Whether all numbers have two decimals at most."""
    values = array.astype(np.float64)
    return bool((np.round(values, 2).astype(array.dtype) == array)[np.isfinite(values)].all())
