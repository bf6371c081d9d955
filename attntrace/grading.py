"""A pile of claims marked by a rubric: what each file is worth, its first wrong step, the mistake behind it.

A step loses marks for what is wrong in it and for what is left blank; what follows from an earlier wrong step is right, and so
is what was rounded on the way. Inputs are nobody's to change: what follows from an input that was copied wrong is wrong in the
first step that is computed from it, and right from there on.

Files are untrusted. Each is read by itself, bounded in size, and whatever is wrong with one stands in its row.
"""

from __future__ import annotations

import math
import os
import signal
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from attntrace.claims import Claim, Reading, match, read_file
from attntrace.claims.claim import shown
from attntrace.config.files.opening import read_text
from attntrace.config.tensors import found
from attntrace.config.yaml import EXAMPLE, Document, parse
from attntrace.errors import AttnTraceError, Fault, KeyFault, nearest
from attntrace.marking import Finding, Marker, Status, Verdict, claims_about, digits
from attntrace.mistakes import Mistake
from attntrace.problem import Problem, called
from attntrace.tape import Array, Trace

FILE = 1 << 20  # bytes that are read of one file, or more where all numbers of a trace take more
NUMBER = 40  # bytes of one, with what stands around it
FILES = 100_000  # of a pile
FAULTS = 6  # of one file that are told
SENTENCE = 400  # characters of one that are told
KEPT = 256  # cells of a wrong step that are kept whole, to be shown beside the right ones
LISTED = 12  # wrong cells of a larger one
UNEXPLAINED = 2  # wrong steps of one file after which no more mistakes are looked for
ALIKE = 8  # mistakes that come to the same, of which one is named first
FEW = 40  # files that are not worth another process
PROCESSES = 8
CHUNK = 8  # files that a process takes at a time

# How the files begin that grading writes itself; they are no claims when they lie in a pile.
FEEDBACK = "<!-- attntrace grade: feedback -->"
HEADER = ("student", "file")
JSON = '{\n  "attntrace": "grades"'
OWN = tuple(text.encode() for text in (FEEDBACK, ",".join(HEADER) + ",", JSON))

Tick = Callable[[int, int], None]


# ------------------------------------------------------------------ the rubric


@dataclass(frozen=True)
class Rubric:
    """Marks for each step. `partial` gives a step marks in proportion to its right cells, instead of all or nothing.

    `decimals` are the fewest that numbers may be rounded to. `marks` is None where the steps are not chosen by a rubric.
    """

    marks: Mapping[str, float] | None = None
    partial: bool = False
    decimals: int | None = None


SAMPLE = '"steps: {scores: 2, weights: 1}"'
KEYS = ("steps", "partial", "rounding")


def read_rubric(file: str, trace: Trace) -> Rubric:
    """A rubric in YAML or JSON. Raises AttnTraceError with every fault, each with its place."""
    path, faults = Path(file), list[Fault]()
    try:
        document = parse(read_text(path), file, faults=faults)
    except AttnTraceError as error:
        raise AttnTraceError(*(replace(f, message=f.message.replace(EXAMPLE, SAMPLE)) for f in error.faults)) from None
    found_ = list(rubric_faults(document.data, trace))
    if faults or found_:
        raise AttnTraceError(*sorted([*faults, *(located(f, document) for f in found_)], key=by_place))
    steps = document.data["steps"]
    marks = dict.fromkeys(steps, 1.0) if isinstance(steps, list) else {name: float(n) for name, n in steps.items()}
    return Rubric(marks, document.data.get("partial", False), document.data.get("rounding", {}).get("allowed"))


def located(fault: Fault, document: Document) -> Fault:
    place = (document.key_place if isinstance(fault, KeyFault) else document.place)(fault.path)
    return replace(fault, place=place)


def by_place(fault: Fault) -> tuple[int, int]:
    return (fault.place.line, fault.place.column) if fault.place else (0, 0)


def rubric_faults(data: Mapping[str, Any], trace: Trace) -> Iterator[Fault]:
    yield from strangers(data, KEYS, ())
    if "steps" in data:
        yield from step_faults(data["steps"], trace)
    else:
        yield Fault(f"steps is missing: say which steps are marked, such as {SAMPLE}")
    if not isinstance(data.get("partial", False), bool):
        yield Fault(f"partial: expected true or false, found {found(data['partial'])}", ("partial",))
    yield from rounding_faults(data.get("rounding", {}))


def strangers(data: Mapping[str, Any], known: Sequence[str], path: tuple[str, ...]) -> Iterator[Fault]:
    where = f"{called(path)}: " if path else ""
    for key in data:
        if key not in known:
            hint = nearest(key[:40], known) or f"; expected {' or '.join(known)}"
            yield KeyFault(f"{where}unknown key {shown(key)!r}{hint}", (*path, key))


def step_faults(steps: Any, trace: Trace) -> Iterator[Fault]:
    if not isinstance(steps, dict | list) or not steps:
        yield Fault(f"steps: expected marks for each step, such as {SAMPLE}, found {found(steps)}", ("steps",))
        return
    if isinstance(steps, list):
        for i, name in enumerate(steps):
            yield from (Fault(f"steps: {why}", ("steps", i)) for why in unmarkable(name, trace))
        return
    for name, marks in steps.items():
        yield from (KeyFault(f"steps: {why}", ("steps", name)) for why in unmarkable(name, trace))
        if isinstance(marks, bool) or not isinstance(marks, int | float) or not 0 <= marks < 1e6:
            what = "expected a number of marks from 0 on"
            yield Fault(f"{shown(called(('steps', name)))}: {what}, found {found(marks)}", ("steps", name))


def unmarkable(name: Any, trace: Trace) -> Iterator[str]:
    """Why a step cannot be marked, if it cannot."""
    if not isinstance(name, str):
        yield f"expected the name of a step, found {found(name)}"
    elif name not in trace:
        computed = [s.name for s in trace if not s.given]
        hint = nearest(name[:40], computed) or f"; its steps are {', '.join(computed[:20])}"
        yield f"there is no step {shown(name)!r} in this trace{hint}"
    elif trace[name].given:
        yield f"{name} is given, and not computed: there is nothing to mark"


def rounding_faults(rounding: Any) -> Iterator[Fault]:
    if not isinstance(rounding, dict):
        yield Fault(f"rounding: expected a mapping such as {{allowed: 3}}, found {found(rounding)}", ("rounding",))
        return
    yield from strangers(rounding, ("allowed",), ("rounding",))
    allowed = rounding.get("allowed", 0)
    if type(allowed) is not int or not 0 <= allowed <= 15:
        what = "expected a number of decimals from 0 to 15"
        yield Fault(f"rounding.allowed: {what}, found {found(allowed)}", ("rounding", "allowed"))


def chosen_steps(problem: Problem, trace: Trace, rubric: Rubric, only: Sequence[str] | None) -> dict[str, float] | None:
    """The steps that are marked, and for how much; None when that depends on what the files claim."""
    marks = rubric.marks
    for name in only or ():
        for why in unmarkable(name, trace):
            raise AttnTraceError(f"--steps: {why}")
        if marks is not None and name not in marks:
            raise AttnTraceError(f"--steps: the rubric gives no marks for {name}")
    if marks is None and only is None:
        only = expected(problem, trace)
    names = marks if only is None else only
    return None if names is None else {s.name: 1.0 if marks is None else marks[s.name] for s in trace if s.name in names}


def expected(problem: Problem, trace: Trace) -> list[str] | None:
    """The computed steps that the config's own `expect` claims."""
    if not problem.config.get("expect"):
        return None
    return [claim.name for claim in claims_about(problem).claims if not trace[claim.name].given] or None


# ------------------------------------------------------------------ the pile


def pile(files: Iterable[str], leave: Collection[str] = ()) -> list[str]:
    """The files to read, each once: as given, and those in directories sorted by name, with what is below them.

    In a directory, hidden files, what grading wrote itself, and the files and directories in `leave` are no claims. One that
    has nothing to read stands for itself, so that it is told of.
    """
    kept: dict[str, str] = {}
    left = {os.path.realpath(name) for name in leave}
    for given in files:
        for file in within(given, left) if os.path.isdir(given) else (given,):
            kept.setdefault(os.path.abspath(file) if "\0" not in file else file, file)
            if len(kept) > FILES:
                raise AttnTraceError(f"more than {FILES} files to grade")
    return list(kept.values())


def within(folder: str, left: Collection[str]) -> list[str]:
    unread: list[str] = []
    files: list[str] = []
    for where, folders, names in os.walk(folder, onerror=lambda error: unread.append(str(error.filename))):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and real(where, f) not in left)
        paths = [os.path.join(where, name) for name in sorted(names) if not name.startswith(".") and not name.endswith("~")]
        files += [path for path in paths if os.path.realpath(path) not in left and not ours(path)]
        if len(files) > FILES:
            break
    return [*files, *unread] or [folder]


def real(where: str, name: str) -> str:
    return os.path.realpath(os.path.join(where, name))


def ours(path: str) -> bool:
    """Whether grading has written a file: a table of grades, or feedback."""
    try:
        if not os.path.isfile(path):
            return False
        with open(path, "rb") as file:
            return file.read(64).startswith(OWN)
    except OSError:
        return False


def students(files: Sequence[str]) -> list[str]:
    """What each file is called: its name without extension; with it, or with folders too, where that tells two apart."""
    level = [0] * len(files)
    while True:
        names = [tail(file, n) for file, n in zip(files, level, strict=True)]
        count = Counter(names)
        alike = [i for i, name in enumerate(names) if count[name] > 1 and level[i] <= len(Path(files[i]).parts)]
        if not alike:
            return names
        for i in alike:
            level[i] += 1


def tail(file: str, level: int) -> str:
    """The stem of a path, its name, its name with one folder, and so on."""
    path = Path(file)
    return path.stem if level == 0 else "/".join(path.parts[-level:]) if level <= len(path.parts) else file


# ------------------------------------------------------------------ one file


@dataclass(frozen=True)
class Judged:
    """The verdict on a step of one file, small enough to be kept for a whole pile.

    Of its `cells`, `right` ones were right, `wrong` ones wrong here, `blank` ones left out and `coarse` ones rounded to fewer
    decimals than allowed; `digits` are those it was written with. `inputs` are those that were copied wrong, and that it
    follows from; it is `sought` unless no mistake was looked for. `verdict` is there for a small step that is wrong here;
    `listed` are wrong cells of a large one: where, claimed, expected.
    """

    name: str
    title: str
    status: Status
    given: bool
    cells: int
    right: int
    wrong: int
    blank: int
    coarse: int
    digits: int | None = None
    inputs: tuple[str, ...] = ()
    sought: bool = True
    verdict: Verdict | None = None
    listed: tuple[tuple[tuple[int, ...], float, float], ...] = ()


@dataclass(frozen=True)
class Review:
    """What there is to say of one file, before marks: nothing but `faults` where it could not be read."""

    file: str
    steps: tuple[Judged, ...] = ()
    findings: tuple[Finding, ...] = ()
    said: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()

    @property
    def readable(self) -> bool:
        return bool(self.steps)

    @cached_property
    def by_step(self) -> dict[str, Judged]:
        return {step.name: step for step in self.steps}

    @property
    def own_errors(self) -> list[Judged]:
        return [step for step in self.steps if step.status == "wrong here"]

    def finding(self, step: str) -> Finding | None:
        return next((f for f in self.findings if f.step == step), None)


@dataclass
class Reviewer:
    """Reads files and judges what they claim. Whatever happens, a review comes of it."""

    problem: Problem
    decimals: int | None = None

    @cached_property
    def marker(self) -> Marker:
        return Marker(self.problem)

    @cached_property
    def limit(self) -> int:
        """How large a file may be: what no honest one is, since reading hostile text takes seconds for each megabyte."""
        return max(FILE, NUMBER * sum(math.prod(step.shape) for step in self.marker.truth))

    def review(self, file: str) -> Review:
        try:
            with np.errstate(all="ignore"):
                return self.judge(file, self.read(file))
        except AttnTraceError as error:
            return Review(file, faults=told(error.faults, file))
        except MemoryError:
            return Review(file, faults=("takes more memory than there is",))
        except Exception as error:  # a mistake of ours: the other files are not to suffer for it
            return Review(file, faults=(f"attntrace itself failed ({shown(f'{type(error).__name__}: {error}')})",))

    def read(self, file: str) -> Reading:
        """The claims of a file, and what was wrong with some of them. Raises AttnTraceError where there are none."""
        trace = self.marker.truth
        if os.path.isdir(file):
            raise AttnTraceError(unlisted(file))
        if "\0" not in file and os.path.isfile(file) and os.path.getsize(file) > self.limit:
            raise AttnTraceError(f"is larger than {self.limit} bytes, the most that is read of one file")
        reading = read_file(Path(file), trace.names)
        matched = match(reading.claims, trace)
        reading = Reading(matched.claims, [*reading.said, *matched.said], [*reading.faults, *matched.faults])
        if not reading.claims:
            raise AttnTraceError(*(reading.faults or [Fault("no claim is about a step of this trace")]))
        return reading

    def judge(self, file: str, reading: Reading) -> Review:
        spoilt = {v.name for v in self.verdicts(c for c in reading.claims if self.given(c)) if v.status != "right"}
        verdicts = self.verdicts(claim for claim in reading.claims if claim.name not in spoilt)
        because = self.following(reading.claims, verdicts) if spoilt else set()
        copied = self.verdicts(claim for claim in reading.claims if claim.name in spoilt)
        findings, unsought = self.findings([*copied, *verdicts], because)
        order = {name: i for i, name in enumerate(self.marker.truth.names)}
        inputs = tuple(sorted(spoilt, key=order.__getitem__))
        steps = (self.judged(v, inputs if v.name in because else (), v.name not in unsought) for v in (*copied, *verdicts))
        said = tuple(clipped(sentence.replace(file, Path(file).name)) for sentence in reading.said[:FAULTS])
        in_order = tuple(sorted(steps, key=lambda step: order[step.name]))
        return Review(file, in_order, tuple(map(bare, findings)), said, told(reading.faults, file))

    def given(self, claim: Claim) -> bool:
        return self.marker.truth[claim.name].given

    def verdicts(self, claims: Iterable[Claim]) -> list[Verdict]:
        order = {name: i for i, name in enumerate(self.marker.truth.names)}
        return list(self.marker.verdicts(sorted(claims, key=lambda claim: order[claim.name])))

    def following(self, claims: Sequence[Claim], verdicts: Sequence[Verdict]) -> set[str]:
        """The steps that are wrong, but follow from the inputs as they were copied."""
        wrong = {v.name for v in verdicts if v.status == "wrong here"}
        return {v.name for v in self.verdicts(claims) if v.name in wrong and v.status == "carried over"}

    def findings(self, verdicts: Sequence[Verdict], leave: Collection[str]) -> tuple[list[Finding], set[str]]:
        """The mistakes behind wrong steps, and the steps that are left when UNEXPLAINED ones were: what is made up takes
        longest, and its last steps tell no more than its first."""
        claims, found_, open_, unsought = [v.claim for v in verdicts], list[Finding](), 0, set[str]()
        for v in verdicts:
            if v.status != "wrong here" or v.name in leave:
                continue
            if open_ == UNEXPLAINED:
                unsought.add(v.name)
            else:
                finding = self.diagnose(v.claim, claims)
                found_ += [finding] if finding else []
                open_ += finding is None or not finding.complete
        return found_, unsought

    def diagnose(self, claim: Claim, claims: Sequence[Claim]) -> Finding | None:
        try:
            return self.marker.diagnose(claim, claims)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            return None  # a mistake of ours in a mistake of theirs is no reason to lose the marks

    def judged(self, v: Verdict, inputs: tuple[str, ...], sought: bool) -> Judged:
        there = v.claim.there
        wrong = there & v.wrong if v.status == "wrong here" else np.zeros(there.shape, bool)
        coarse = there & ~wrong & self.too_coarse(v)
        right = int((there & ~wrong & ~coarse).sum())
        whole = v.status == "wrong here" and there.size <= KEPT
        places = [] if whole else np.argwhere(wrong)[:LISTED].tolist()
        return Judged(
            v.name,
            v.claim.title,
            v.status,
            self.marker.truth[v.name].given,
            int(there.size),
            right,
            int(wrong.sum()),
            int((~there).sum()),
            int(coarse.sum()),
            digits(v.claim),
            inputs,
            sought,
            v if whole else None,
            tuple((tuple(at), float(v.claim.values[tuple(at)]), float(v.expected[tuple(at)])) for at in places),
        )

    def too_coarse(self, v: Verdict) -> Array:
        """The cells that were written to fewer decimals than allowed, and are not right to those that are: 0.5 for 0.500 is."""
        if self.decimals is None:
            return np.zeros(v.claim.there.shape, bool)
        half = 0.5 * 10.0**-self.decimals * (1 + 1e-9)
        off = np.abs(v.claim.values - v.expected.astype(np.float64)) > half
        return np.asarray((v.claim.half > half) & off)


def unlisted(folder: str) -> str:
    try:
        os.listdir(folder)
    except OSError as error:
        return f"is a directory that cannot be read: {(error.strerror or str(error)).lower()}"
    return "is a directory without files to read claims from"


def bare(f: Finding) -> Finding:
    """A finding without the functions of its mistakes, which cannot go from one process to another."""
    return replace(f, alternatives=tuple(tuple(map(words, each)) for each in f.alternatives[:ALIKE]))


def words(m: Mistake) -> Mistake:
    return replace(m, pose=None, edit=None)


def told(faults: Sequence[Fault], file: str) -> tuple[str, ...]:
    """Faults as sentences that go below the name of their file: `line 3: …`, without the path."""
    sentences = []
    for fault in faults[:FAULTS]:
        message = fault.message.removeprefix(f"{file}: ").removeprefix(f"{file} ").replace(file, Path(file).name)
        sentences.append(clipped(f"line {fault.place.line}: {message}" if fault.place else message))
    more = len(faults) - FAULTS
    return (*sentences, *([f"and {more} more"] if more > 0 else []))


def clipped(sentence: str) -> str:
    return sentence if len(sentence) <= SENTENCE else f"{sentence[: SENTENCE - 1]}…"


# ------------------------------------------------------------------ many files


def reviews(problem: Problem, files: Sequence[str], decimals: int | None, processes: int, tick: Tick) -> list[Review]:
    """A review of each file, in their order; the same by one process or by many."""
    tick(0, len(files))
    if processes > 1:
        return pooled(problem, files, decimals, processes, tick)
    reviewer, found_ = Reviewer(problem, decimals), list[Review]()
    for file in files:
        found_.append(reviewer.review(file))
        tick(len(found_), len(files))
    return found_


def pooled(problem: Problem, files: Sequence[str], decimals: int | None, processes: int, tick: Tick) -> list[Review]:
    """Processes that are started anew take files in turn. Those that a dying process leaves behind are tried one by one."""
    chunks = [tuple(files[i : i + CHUNK]) for i in range(0, len(files), CHUNK)]
    done: dict[int, list[Review]] = {}
    for i, result in together(problem, chunks, decimals, processes):
        done[i] = result
        tick(sum(map(len, done.values())), len(files))
    for i, chunk in enumerate(chunks):
        if i not in done:
            done[i] = [alone(problem, file, decimals) for file in chunk]
            tick(sum(map(len, done.values())), len(files))
    return [review for i in range(len(chunks)) for review in done[i]]


Chunk = tuple[str, ...]


def together(
    problem: Problem, chunks: Sequence[Chunk], decimals: int | None, processes: int
) -> Iterator[tuple[int, list[Review]]]:
    """Chunks of reviews as they come, by number; those that were lost do not."""
    pool = ProcessPoolExecutor(processes, get_context("spawn"), begin, (problem, decimals))
    try:
        futures = submitted(pool, chunks)
        for future in as_completed(futures):
            if not isinstance(future.exception(), BrokenProcessPool):
                yield futures[future], future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def submitted(pool: ProcessPoolExecutor, chunks: Sequence[Chunk]) -> dict[Future[list[Review]], int]:
    futures: dict[Future[list[Review]], int] = {}
    try:
        for i, chunk in enumerate(chunks):
            futures[pool.submit(several, chunk)] = i
    except BrokenProcessPool:
        pass
    return futures


def alone(problem: Problem, file: str, decimals: int | None) -> Review:
    for _, found_ in together(problem, [(file,)], decimals, 1):
        return found_[0]
    return Review(file, faults=("ended the process that read it: it takes more memory than there is, perhaps",))


_reviewer: list[Reviewer] = []  # of this process


def begin(problem: Problem, decimals: int | None) -> None:
    """Get a process ready. An interrupt is the affair of the one that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _reviewer[:] = [Reviewer(problem, decimals)]


def several(files: Chunk) -> list[Review]:
    return [_reviewer[0].review(file) for file in files]


def enough(files: int) -> int:
    """How many processes are worth their start."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(available, PROCESSES, files // FEW))


# ------------------------------------------------------------------ marks


@dataclass(frozen=True)
class Row:
    """One student: marks for each step, or None for a file that could not be read."""

    student: str
    review: Review
    marks: Mapping[str, float] | None

    @property
    def total(self) -> float | None:
        return None if self.marks is None else round(math.fsum(self.marks.values()), 9)

    @property
    def first_wrong(self) -> str | None:
        return next((step.name for step in self.review.own_errors), None)


@dataclass(frozen=True)
class Grades:
    """The rows of a pile, in its order; `steps` has the marks that each step can bring."""

    rows: tuple[Row, ...]
    steps: Mapping[str, float]
    rubric: Rubric = field(default_factory=Rubric)

    @property
    def out_of(self) -> float:
        return round(math.fsum(self.steps.values()), 9)

    @property
    def read(self) -> list[Row]:
        return [row for row in self.rows if row.marks is not None]

    @property
    def complete(self) -> bool:
        """Whether all of every file could be read."""
        return not any(row.review.faults for row in self.rows)

    @property
    def mean(self) -> float | None:
        totals = [row.total or 0.0 for row in self.read]
        return math.fsum(totals) / len(totals) if totals else None

    @property
    def mistakes(self) -> list[tuple[str, int]]:
        """Each mistake and how many files make it, the most common one first."""
        made = Counter(name for row in self.rows for name in sorted({named(f) for f in row.review.findings}))
        return sorted(made.items(), key=lambda item: (-item[1], item[0]))

    @property
    def first_wrong(self) -> list[tuple[str, int]]:
        """Each step and for how many files it is the first wrong one."""
        made = Counter(row.first_wrong for row in self.rows if row.first_wrong)
        return sorted(made.items(), key=lambda item: (-item[1], item[0]))


def named(f: Finding) -> str:
    """A finding in a sentence, by the first of the mistakes that come to the same."""
    return " and ".join(m.says for m in f.alternatives[0])


def grade(
    problem: Problem,
    files: Sequence[str],
    rubric: Rubric | None = None,
    steps: Sequence[str] | None = None,
    processes: int | None = 1,
    tick: Tick = lambda done, of: None,
) -> Grades:
    """Mark files by a rubric, or a mark a step: those in `steps`, those of the config's `expect`, or all that a file claims.

    `processes` above 1 starts others, None as many as are worth it. Raises AttnTraceError for a step that cannot be marked.
    """
    rubric = rubric or Rubric()
    trace = Reviewer(problem).marker.truth
    marks = chosen_steps(problem, trace, rubric, steps)
    assert problem.arrays is not None  # read here and once, so that no process draws or opens anything again
    found_ = reviews(problem, files, rubric.decimals, enough(len(files)) if processes is None else processes, tick)
    if marks is None:
        claimed = {step.name for review in found_ for step in review.steps if not step.given}
        marks = {s.name: 1.0 for s in trace if s.name in claimed}
    rows = (
        Row(student, review, earned(review, marks, rubric.partial) if review.readable else None)
        for student, review in zip(students(files), found_, strict=True)
    )
    return Grades(tuple(rows), marks, rubric)


def earned(review: Review, marks: Mapping[str, float], partial: bool) -> dict[str, float]:
    return {name: full * share(review.by_step.get(name), partial) for name, full in marks.items()}


def share(step: Judged | None, partial: bool) -> float:
    """The part of a step's marks that is earned. A cell that was left blank is not right."""
    if step is None:
        return 0.0
    return step.right / step.cells if partial else float(step.right == step.cells)
