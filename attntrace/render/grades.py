"""What `grade` found: a table of the pile, CSV for spreadsheets, JSON, and Markdown for each student.

Names of files and students are untrusted text. Control characters are written out everywhere; a CSV cell that a spreadsheet
would take for a formula gets an apostrophe before it; Markdown is escaped; a name becomes a file name only once it is harmless.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from attntrace.errors import plain
from attntrace.grading import ALIKE, FEEDBACK, HEADER, JSON, Grades, Judged, Review, Row, named
from attntrace.marking import Finding, Verdict, digits
from attntrace.render.canvas import Canvas, table
from attntrace.render.grid import named as entries
from attntrace.render.json import data
from attntrace.render.labels import legible
from attntrace.render.markdown import escape
from attntrace.render.marks import finding_entry, how_far, plural
from attntrace.tape import Trace

COMMON = 5  # mistakes of the pile that are told
PLACES = 6  # decimals of a number that was not written with so many
WIDE = 60  # characters of a student's name in the table
SIGNS = {"right": "✓", "rounded": "✓", "carried over": "→", "wrong here": "✗"}
STYLES = {"right": "green", "rounded": "green", "carried over": "yellow", "wrong here": "red"}


def amount(marks: float) -> str:
    """1.5 as `1.5`, 2.0 as `2`, a third as `0.333`."""
    return f"{marks:.3f}".rstrip("0").rstrip(".")


# ------------------------------------------------------------------ sentences


def remark(row: Row) -> str:
    """The mistakes of a student in a sentence each, what was left out, and what could not be read."""
    return "; ".join([*mistakes(row.review, 1), *lacking(row), *unread(row.review)])


def mistakes(review: Review, alike: int) -> Iterator[str]:
    """A sentence for each step that is wrong in itself, with up to so many mistakes that come to the same there."""
    for step in review.own_errors:
        finding = review.finding(step.name)
        if step.inputs:
            yield f"{step.name} follows from {' and '.join(step.inputs)} as copied"
        elif finding is None:
            what = "copied wrong" if step.given else "no known mistake explains it" if step.sought else "wrong too"
            yield f"{step.name}: {what} ({step.wrong} of {cells(step.cells)} wrong)"
        else:
            yield f"{step.name}: {' or '.join(ways(finding)[:alike])} ({how_far(finding)})"


def lacking(row: Row) -> Iterator[str]:
    found = row.review.by_step
    missing = [name for name in row.marks or () if name not in found]
    if missing:
        yield f"not handed in: {', '.join(missing)}"
    for step in (found[name] for name in row.marks or () if name in found):
        if step.blank:
            yield f"{step.name}: {cells(step.blank)} left blank"
        if step.coarse:
            yield f"{step.name}: {cells(step.coarse)} rounded to fewer decimals than allowed"


def ways(finding: Finding) -> list[str]:
    return [" and ".join(m.says for m in each) for each in finding.alternatives]


def unread(review: Review) -> Iterator[str]:
    head = "not read" if review.readable else "could not be read"
    yield from (plain(f"{head}: {fault}") for fault in review.faults)


def cells(n: int) -> str:
    return f"{n} {plural(n, 'cell')}"


def verdict(step: Judged | None) -> str:
    """The verdict on a step, as the student is told it."""
    if step is None:
        return "not handed in"
    if step.status == "wrong here":
        text = f"wrong here: {step.wrong} of {cells(step.cells)}"
    elif step.status == "carried over":
        text = "follows from the steps before it, as they were handed in"
    else:
        text = "right" if step.status == "right" else "right, with the rounding on the way to it"
    blank = [f"{cells(step.blank)} left blank"] if step.blank else []
    coarse = [f"{cells(step.coarse)} rounded to fewer decimals than allowed"] if step.coarse else []
    return "; ".join([text, *blank, *coarse])


# ------------------------------------------------------------------ the terminal


def write(grades: Grades, out: BinaryIO, width: int | None, colour: bool) -> None:
    canvas = Canvas(out, colour, width)
    head = ("", "student", *grades.steps, "total", "remarks")
    lines = [line(row, grades) for row in grades.rows]
    numeric = (False, False, *(True,) * (len(grades.steps) + 1), False)
    table(canvas, head, [texts for texts, _ in lines], [styles for _, styles in lines], numeric)
    canvas.line()
    summary(canvas, grades)


def line(row: Row, grades: Grades) -> tuple[list[str], list[str]]:
    """The cells of a row, and their styles."""
    name = plain(row.student)
    name = name if len(name) <= WIDE else f"{name[: WIDE - 1]}…"
    if row.marks is None:
        texts = ["?", name, *("–" for _ in grades.steps), "–", remark(row)]
        return texts, ["bold yellow", "bold", *("dim" for _ in grades.steps), "dim", "yellow"]
    found = [row.review.by_step.get(step) for step in grades.steps]
    whole = row.total == grades.out_of
    texts = ["✓" if whole else "✗", name, *map(amount, row.marks.values()), amount(row.total or 0.0), remark(row)]
    styles = [STYLES[step.status] if step else "dim" for step in found]
    return texts, ["bold green" if whole else "bold red", "bold", *styles, "bold", ""]


def summary(canvas: Canvas, grades: Grades) -> None:
    for sentence in sentences(grades):
        canvas.paragraph("", sentence, "bold" if sentence.startswith(f"{len(grades.rows)} ") else "")


def sentences(grades: Grades) -> Iterator[str]:
    """How many files, how many marks, which mistakes."""
    n, lost = len(grades.rows), len(grades.rows) - len(grades.read)
    yield f"{n} {plural(n, 'file')}" + (f", {lost} of which could not be read" if lost else ", all of them read")
    if grades.mean is not None:
        yield f"mean: {amount(grades.mean)} of {amount(grades.out_of)} {plural(1 if grades.out_of == 1 else 2, 'mark')}"
    if grades.first_wrong:
        yield f"first wrong step: {', '.join(f'{step} ({count})' for step, count in grades.first_wrong[:COMMON])}"
    if grades.mistakes:
        yield f"most common: {'; '.join(f'{says} ({count})' for says, count in grades.mistakes[:COMMON])}"


# ------------------------------------------------------------------ CSV


def write_csv(grades: Grades, out: BinaryIO, width: int | None, colour: bool) -> None:
    """`student,file`, the marks of each step, `total,out_of,first_wrong,mistake,not_read`. No marks where nothing was read."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*HEADER, *grades.steps, "total", "out_of", "first_wrong", "mistake", "not_read"])
    for row in grades.rows:
        marks = ["" for _ in grades.steps] if row.marks is None else [amount(m) for m in row.marks.values()]
        total = "" if row.total is None else amount(row.total)
        said = "; ".join(mistakes(row.review, ALIKE))
        words = [row.first_wrong or "", said, "; ".join(row.review.faults)]
        names = [harmless(row.student), harmless(row.review.file)]
        writer.writerow([*names, *marks, total, amount(grades.out_of), *map(harmless, words)])
    out.write(text.getvalue().encode("utf-8", "replace"))


# What starts a formula, at the start of a cell or behind what a spreadsheet of another country takes for the end of one.
FORMULA = re.compile(r"(^|[;\t|])([\s'\"]*)(?=[=+\-@\uff0b\uff0d\uff1d\uff20\u2212])")


def harmless(text: str) -> str:
    """`text` as a CSV cell that no spreadsheet takes for a formula, on one line and without control characters."""
    return FORMULA.sub(r"\1'\2", plain(text))


# ------------------------------------------------------------------ JSON


def write_json(grades: Grades, out: BinaryIO, width: int | None, colour: bool) -> None:
    """`steps` with the marks that there are, a `rows` entry for each file, and a `summary`."""
    document = {
        "attntrace": "grades",
        "steps": {name: native(marks) for name, marks in grades.steps.items()},
        "out_of": native(grades.out_of),
        "rows": [entry(row) for row in grades.rows],
        "summary": {
            "files": len(grades.rows),
            "read": len(grades.read),
            "mean": native(grades.mean),
            "first_wrong": dict(grades.first_wrong),
            "mistakes": dict(grades.mistakes),
        },
    }
    text = json.dumps(document, indent=2, ensure_ascii=False)
    assert text.startswith(JSON)
    out.write((text + "\n").encode("utf-8", "replace"))


def native(marks: float | None) -> float | int | None:
    return marks if marks is None else int(marks) if float(marks).is_integer() else round(marks, 9)


def entry(row: Row) -> dict[str, Any]:
    return {
        "student": plain(row.student),
        "file": plain(row.review.file),
        "marks": None if row.marks is None else {name: native(marks) for name, marks in row.marks.items()},
        "total": native(row.total),
        "first_wrong": row.first_wrong,
        "mistake": "; ".join(mistakes(row.review, 1)) or None,
        "steps": [step_entry(step) for step in row.review.steps],
        "findings": [finding_entry(f) for f in row.review.findings],
        "understood": list(row.review.said),
        "not_read": list(row.review.faults),
    }


def step_entry(step: Judged) -> dict[str, Any]:
    counts = {key: getattr(step, key) for key in ("cells", "right", "wrong", "blank", "coarse")}
    return {"name": step.name, "claimed_as": step.title, "status": step.status, **counts, "follows_from": list(step.inputs)}


# ------------------------------------------------------------------ feedback


def feedback_names(grades: Grades) -> list[str]:
    """A file name for each student: no paths, no hidden files, no two alike on any file system."""
    taken: set[str] = set()
    names = []
    for row in grades.rows:
        name = base = safe(row.student)
        number = itertools.count(2)
        while name.casefold() in taken:
            name = f"{base}-{next(number)}"
        taken.add(name.casefold())
        names.append(f"{name}.md")
    return names


RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)  # as Windows has it
LONGEST = 50  # characters of a file name, of four bytes each at most


def safe(student: str) -> str:
    """A student's name out of letters, digits, dots and dashes."""
    name = re.sub(r"[^\w.-]+", "-", unicodedata.normalize("NFC", student))[:LONGEST].strip(".-_")
    return f"{name}-" if RESERVED.fullmatch(name) else name or "student"


def feedback(row: Row, grades: Grades, trace: Trace) -> bytes:
    """What one student is told, as Markdown."""
    return ("\n".join([FEEDBACK, *told(row, grades, trace)]).rstrip("\n") + "\n").encode("utf-8", "replace")


def told(row: Row, grades: Grades, trace: Trace) -> Iterator[str]:
    yield f"# {escape(row.student) or 'Feedback'}"
    yield ""
    if trace.title:
        yield from (escape(trace.title), "")
    if row.marks is None:
        yield "**No marks: the file could not be read.**"
        yield ""
    else:
        yield f"**{amount(row.total or 0.0)} of {amount(grades.out_of)} marks**"
        yield ""
        yield from scores(row, grades)
        yield from others(row, grades)
        labels = {axis: legible(names) for axis, names in trace.labels.items()}
        for step in row.review.own_errors:
            yield from section(step, row.review.finding(step.name), trace, labels)
    yield from listing("What could not be read", row.review.faults)
    yield from listing("How the file was read", row.review.said)


def scores(row: Row, grades: Grades) -> Iterator[str]:
    yield "| | step | marks | verdict |"
    yield "| --- | --- | ---: | --- |"
    assert row.marks is not None
    for name, full in grades.steps.items():
        step = row.review.by_step.get(name)
        sign = "–" if step is None else SIGNS[step.status]
        yield f"| {sign} | `{name}` | {amount(row.marks[name])} / {amount(full)} | {verdict(step)} |"
    yield ""


def others(row: Row, grades: Grades) -> Iterator[str]:
    """Steps that were handed in and bring no marks."""
    extra = [step for step in row.review.steps if step.name not in grades.steps]
    for step in extra:
        yield f"- `{step.name}` brings no marks: {verdict(step)}"
    if extra:
        yield ""


def section(step: Judged, finding: Finding | None, trace: Trace, labels: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """A wrong step: its numbers beside the right ones, and what they come from."""
    yield f"## {escape(step.name)}"
    yield ""
    yield f"`{trace[step.name].formula}`" if not step.given else "An input, as it was copied."
    yield ""
    yield from numbers(step, trace, labels)
    if step.inputs:
        yield f"These numbers follow from {' and '.join(f'`{name}`' for name in step.inputs)}, where they go wrong: see there."
        yield ""
    elif finding is not None:
        yield from taught(finding)
    elif not step.given and step.sought:
        how = f"work out one of the wrong cells by hand, and compare each term of `{trace[step.name].formula}`"
        yield f"No known mistake explains these numbers: {how}."
        yield ""


def numbers(step: Judged, trace: Trace, labels: Mapping[str, Sequence[str]]) -> Iterator[str]:
    v = step.verdict
    if v is None:
        yield "| cell | yours | right |"
        yield "| --- | ---: | ---: |"
        for at, claimed, right in step.listed:
            yield f"| `{step.name}[{', '.join(map(str, at))}]` | {' | '.join(pair(claimed, right, step.digits))} |"
        if step.wrong > len(step.listed):
            yield f"\n… and {step.wrong - len(step.listed)} more."
        yield ""
        return
    basis = "" if np.array_equal(v.expected, v.truth, equal_nan=True) else ", as it follows from your steps before it"
    yield f"Your numbers; where one is wrong, the right one beside it in bold{basis}."
    yield ""
    for lead in itertools.product(*map(range, v.wrong.shape[:-2])):
        if v.wrong[lead].any():
            yield from matrix(v, lead, trace[step.name].axes, labels)


def matrix(v: Verdict, lead: tuple[int, ...], axes: Sequence[str], labels: Mapping[str, Sequence[str]]) -> Iterator[str]:
    parts = [np.atleast_2d(a[lead]) for a in (v.claim.values, v.claim.there, v.expected, v.wrong)]
    rows = entries(axes[-2], range(len(parts[0])), labels) if len(axes) > 1 else [""]
    columns = entries(axes[-1], range(parts[0].shape[1]), labels) if axes else [""]
    if lead:
        yield f"`{v.name}[{', '.join(map(str, lead))}]`"
        yield ""
    yield f"| | {' | '.join(map(escape, columns))} |"
    yield f"| --- |{' ---: |' * len(columns)}"
    for name, *row in zip(rows, *parts, strict=True):
        texts = [cell(a, there, b, wrong, v) for a, there, b, wrong in zip(*row, strict=True)]
        yield f"| {escape(name)} | {' | '.join(texts)} |"
    yield ""


def cell(claimed: float, there: bool, right: float, wrong: bool, v: Verdict) -> str:
    decimals = digits(v.claim)
    if not there:
        return "\\_"
    if not wrong:
        return number(claimed, PLACES if decimals is None else decimals)
    mine, other = pair(claimed, right, decimals)
    return f"{mine} **[{other}]**"


def pair(claimed: float, right: float, decimals: int | None) -> tuple[str, str]:
    """Two numbers with the decimals of the claim, or as many more as tell them apart."""
    apart = abs(claimed - right)
    shown = PLACES if decimals is None else decimals
    if np.isfinite(apart) and apart > 0:
        shown = max(shown, min(12, int(np.ceil(-np.log10(apart)))))
    return number(claimed, shown), number(right, shown)


def number(value: float, decimals: int) -> str:
    if not np.isfinite(value):
        return str(data(float(value))).replace("Infinity", "∞").replace("-", "−")
    return f"{value:.{decimals}f}" if abs(value) < 1e12 else f"{value:.6e}"


def taught(finding: Finding) -> Iterator[str]:
    first, *same = finding.alternatives
    yield f"**{escape(named(finding))}** {escape(how_far(finding))}."
    yield ""
    for mistake in first:
        yield f"- used: `{mistake.used}`"
        yield f"- right: `{mistake.right}`"
        yield ""
        yield escape(mistake.teach)
        yield ""
    if same:
        yield f"On these numbers it comes to the same as: {escape('; '.join(ways(finding)[1:]))}."
        yield ""


def listing(title: str, items: Sequence[str]) -> Iterator[str]:
    if items:
        yield f"## {title}"
        yield ""
        yield from (f"- {escape(item)}" for item in items)
        yield ""
