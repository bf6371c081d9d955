"""What `check` found: a verdict on each claimed step, wrong numbers beside the right ones, and the mistake behind them."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from attntrace.claims import Reading
from attntrace.errors import Fault, plain
from attntrace.ledger import listed
from attntrace.marking import WORK, Finding, Marked, Verdict, digits
from attntrace.mistakes import Mistake
from attntrace.render.canvas import Canvas, table
from attntrace.render.grid import named
from attntrace.render.json import data
from attntrace.render.labels import legible
from attntrace.tape import Array, Trace

MARKS = {"right": "✓", "rounded": "✓", "carried over": "→", "wrong here": "✗"}
STYLES = {"right": "bold green", "rounded": "bold green", "carried over": "yellow", "wrong here": "bold red"}
MATRICES = 4  # of one step that are printed
SIDE = 12  # rows and columns of a matrix that is printed whole
CELLS = 8  # wrong cells that are listed
FEW = 0.4  # of the cells of a step: fewer wrong ones are slips
DECIMALS = 12  # of a number, at most
MANY = 1000  # wrong cells that are looked at to find out how many decimals tell them from right ones
OTHERS = 6  # mistakes that are named beside the first


def write(marked: Marked, reading: Reading, trace: Trace, out: BinaryIO, width: int | None, colour: bool) -> None:
    canvas = Canvas(out, colour, width)
    for sentence in reading.said:
        canvas.paragraph("", plain(sentence), "dim")
    for fault in reading.faults:
        canvas.paragraph(("not read: ", "bold yellow"), plain(fault.message))
    if reading.said or reading.faults:
        canvas.line()
    verdicts(canvas, marked.verdicts)
    for v in marked.verdicts:
        if v.status == "rounded" and v.last_digit and v.off.sum() <= CELLS:
            canvas.paragraph((f"{v.name}: ", "bold"), by_one(v))
    canvas.line()
    labels = {axis: legible(names) for axis, names in trace.labels.items()}
    told: set[tuple[str, ...]] = set()
    for v in marked.verdicts:
        if v.status == "wrong here":
            wrong(canvas, v, trace, labels)
            for head, text, style in story(marked, v, trace, told):
                canvas.paragraph(head, text, style)
            canvas.line()
    canvas.paragraph("", verdict(marked), "bold green" if marked.right else "bold red")


def verdicts(canvas: Canvas, found: Sequence[Verdict]) -> None:
    rows = [(MARKS[v.status], v.name, v.claim.title, said(v)) for v in found]
    styles = [(STYLES[v.status], "bold", "dim", "") for v in found]
    table(canvas, ("", "step", "claimed as", "verdict"), rows, styles, (False,) * 4)


def said(v: Verdict) -> str:
    """The verdict on one step, in words."""
    written, cells = digits(v.claim), int(v.claim.there.sum())
    given = "in full precision" if written is None else f"to the {written} {plural(written, 'decimal')} given"
    share = f"{int(v.off.sum())} of {cells} {plural(cells, 'cell')}"
    digit = ", off by one in the last digit" if v.last_digit else ""
    if v.status == "right":
        return f"right {given}" + (f", though the claimed {listed(v.astray)} {leads(v.astray)} elsewhere" if v.astray else "")
    if v.status == "rounded":
        rounding = f"{v.decimals} {plural(v.decimals or 0, 'decimal')}"
        return f"right, if the steps before it were rounded to {rounding} ({share} off{digit.removeprefix(', off')})"
    if v.status == "carried over":
        return f"carried over: it follows from the claims before it ({share} off)"
    return f"wrong here: {share}{digit}"


def leads(names: Sequence[str]) -> str:
    return "leads" if len(names) == 1 else "lead"


def plural(n: int, word: str) -> str:
    return word if n == 1 else f"{word}s"


def verdict(marked: Marked) -> str:
    """`2 of 3 steps are right; the first wrong one is weights`."""
    right, total = sum(v.status in ("right", "rounded") for v in marked.verdicts), len(marked.verdicts)
    text = f"{right} of {total} {plural(total, 'step')} {'is' if right == 1 or total == 1 else 'are'} right"
    return text if marked.first_wrong is None else f"{text}; the first wrong one is {marked.first_wrong.name}"


# ------------------------------------------------------------------ wrong numbers beside the right ones


def wrong(canvas: Canvas, v: Verdict, trace: Trace, labels: Mapping[str, Sequence[str]]) -> None:
    """The matrices of a step that have wrong cells: claimed numbers, and in brackets what should stand there."""
    step = trace[v.name]
    basis = "" if np.array_equal(v.expected, v.truth, equal_nan=True) else ", as it follows from the claims before it"
    canvas.line((f"━━ {v.name} ━━", "bold cyan"), f"  {step.formula}", (f"  ·  claimed [right{basis}]", "dim"))
    canvas.line()
    bad = np.argwhere(v.wrong.reshape(-1, *v.wrong.shape[-2:]).any(axis=(-1, -2))) if v.wrong.ndim > 2 else [0]
    leads = list(itertools.product(*map(range, v.wrong.shape[:-2])))
    chosen = [leads[int(i)] for i in np.ravel(bad)]
    for lead in chosen[:MATRICES]:
        if lead:
            canvas.line((f"   {v.name}[{', '.join(map(str, lead))}]", "bold"))
        matrix(canvas, v, lead, step.axes, labels)
    if chosen[MATRICES:]:
        canvas.line(f"   … and {len(chosen) - MATRICES} more matrices with wrong cells")
        canvas.line()


def matrix(canvas: Canvas, v: Verdict, lead: tuple[int, ...], axes: Sequence[str], labels: Mapping[str, Sequence[str]]) -> None:
    parts = [np.atleast_2d(a[lead]) for a in (v.claim.values, v.claim.there, v.expected, v.wrong)]
    claimed, there, right, off = parts
    if max(claimed.shape) > SIDE:
        cells(canvas, v, lead, claimed, right, off)
        return
    write_ = writer(v, claimed[there & off], right[there & off])
    rows = named(axes[-2], range(len(claimed)), labels) if len(axes) > 1 else [""]
    columns = named(axes[-1], range(claimed.shape[1]), labels)
    texts = [[cell(write_, *each) for each in zip(*row, strict=True)] for row in zip(claimed, there, right, off, strict=True)]
    styles = [("dim", *("bold red" if bad else "" for bad in row)) for row in off]
    table(
        canvas,
        ("", *columns),
        [(name, *row) for name, row in zip(rows, texts, strict=True)],
        styles,
        (False, *(True,) * len(columns)),
    )
    canvas.line()


def cell(write_: Any, claimed: float, there: bool, right: float, off: bool) -> str:
    if not there:
        return "_"
    return f"{write_(claimed)} [{write_(right)}]" if off else write_(claimed)


def cells(canvas: Canvas, v: Verdict, lead: tuple[int, ...], claimed: Array, right: Array, off: Array) -> None:
    """Of a large matrix, the first wrong cells one by one."""
    write_ = writer(v, claimed[off], right[off])
    places = np.argwhere(off)
    for at in places[:CELLS].tolist():
        index = ", ".join(map(str, (*lead, *at)))
        canvas.line(f"   {v.name}[{index}]  {write_(claimed[tuple(at)])} [{write_(right[tuple(at)])}]")
    if len(places) > CELLS:
        canvas.line(f"   … and {len(places) - CELLS} more")
    canvas.line()


def writer(v: Verdict, claimed: Array, right: Array) -> Any:
    """Numbers with the decimals of the claim, or as many more as tell the wrong from the right."""
    decimals = digits(v.claim)
    decimals = 6 if decimals is None else decimals
    pairs = [(a, b) for a, b in zip(claimed.tolist(), right.tolist(), strict=True) if a != b and np.isfinite([a, b]).all()]
    while decimals < DECIMALS and any(f"{a:.{decimals}f}" == f"{b:.{decimals}f}" for a, b in pairs[:MANY]):
        decimals += 1

    def number(value: float) -> str:
        value = float(value)  # a float16 has no 1e12
        if not np.isfinite(value):
            return "NaN" if np.isnan(value) else "∞" if value > 0 else "−∞"
        return f"{value:.{decimals}f}" if abs(value) < 1e12 else f"{value:.6e}"

    return number


# ------------------------------------------------------------------ the mistake behind them


Paragraph = tuple[Any, str, str]  # what stands before it, the text, its style


def story(marked: Marked, v: Verdict, trace: Trace, told: set[tuple[str, ...]]) -> Iterator[Paragraph]:
    """What is behind a wrong step, and what becomes of it in the steps after it. `told` are mistakes that were explained."""
    finding = marked.finding(v)
    if finding is None:
        yield (f"{v.name}: ", "bold"), unexplained(v, trace), ""
    else:
        yield from explained(v, finding, told)
    after = " ".join(aftermath(marked, v))
    if after:
        yield "   ", after, ""


def explained(v: Verdict, finding: Finding, told: set[tuple[str, ...]]) -> Iterator[Paragraph]:
    first, *others = finding.alternatives
    keys = tuple(m.key for m in first)
    if keys in told:
        yield (f"{v.name}: ", "bold"), f"the same again: {' and '.join(m.says for m in first)} {how_far(finding)}", ""
        return
    told.add(keys)
    yield (f"{v.name}: ", "bold"), f"{' and '.join(m.says for m in first)} {how_far(finding)}", ""
    for mistake in first:
        yield ("   used   ", "dim"), mistake.used, ""
        yield ("   right  ", "dim"), mistake.right, ""
        yield "   ", mistake.teach, ""
    if others:
        same = "; ".join(" and ".join(m.says for m in each) for each in others[:OTHERS])
        more = f"; and {len(others) - OTHERS} more" if len(others) > OTHERS else ""
        yield "   ", f"on this input these come to the same, to the digits given: {same}{more}", "dim"


def how_far(finding: Finding) -> str:
    """`explains 15 of 16 cells of scaled; [3, 3] fits neither`."""
    what = f"{finding.cells} {plural(finding.cells, 'cell')} of {finding.step}"
    if finding.complete:
        return f"explains all {what}" if finding.cells > 1 else f"explains the one cell of {finding.step}"
    left = ", ".join(f"[{', '.join(map(str, at))}]" for at in finding.open[:CELLS])
    more = f" and {len(finding.open) - CELLS} more" if len(finding.open) > CELLS else ""
    return f"explains {finding.explained} of {what}; {left}{more} {'fits' if len(finding.open) == 1 else 'fit'} neither"


def unexplained(v: Verdict, trace: Trace) -> str:
    """Which cells are wrong, where no known mistake makes them so."""
    places = np.argwhere(v.off).tolist()
    cells, shown = int(v.claim.there.sum()), enumeration(v, places)
    if trace[v.name].given:
        return f"copied wrong: {shown}. It is an input of this layer"
    if v.last_digit:
        what = "is" if len(places) == 1 else "are"
        cut = ", cut off and not rounded" if truncated(v) else ""
        return f"{shown} {what} off by one in the last digit given{cut}; the other {cells - len(places)} are right"
    if slip(v):
        what = f"{plural(cells, 'cell')} {'is' if len(places) == 1 else 'are'}"
        others = cells - len(places)
        rest = f"The other {others} are right, so this is a slip and no wrong formula"
        return f"exactly {len(places)} of its {cells} {what} wrong: {shown}. {rest}"
    first = f"{v.name}[{','.join(map(str, places[0]))}]" if places else v.name
    how = f"attntrace explain '{first}' shows how the right number comes about"
    large = sum(math.prod(step.shape) for step in trace) > WORK
    why = "this trace is too large to look for mistakes in" if large else "no known mistake explains it"
    return f"{why}; wrong are {shown}. {how}"


def by_one(v: Verdict) -> str:
    """What is said of cells of a right claim that are not rounded as the exact numbers are."""
    places = np.argwhere(v.off).tolist()
    what = "is" if len(places) == 1 else "are"
    why = "cut off and not rounded" if truncated(v) else "as rounding on the way may have it"
    return f"{enumeration(v, places)} {what} off by one in the last digit given, {why}"


def slip(v: Verdict) -> bool:
    """Whether only a few cells are wrong, or all by very little."""
    return v.last_digit or int(v.off.sum()) <= min(CELLS, FEW * v.claim.there.sum())


def enumeration(v: Verdict, places: Sequence[Sequence[int]]) -> str:
    """`[0, 1] (0.5000, should be 0.7000)`; of many cells the first, without their numbers."""
    write_ = writer(v, v.claim.values[v.off], v.expected[v.off])
    few = len(places) <= CELLS
    shown = [
        f"[{', '.join(map(str, at))}]"
        + (f" ({write_(v.claim.values[tuple(at)])}, should be {write_(v.expected[tuple(at)])})" if few else "")
        for at in places[:CELLS]
    ]
    return ", ".join(shown) + ("" if few else f" and {len(places) - CELLS} more")


def truncated(v: Verdict) -> bool:
    """Whether the wrong cells are the right numbers without their further digits."""
    claimed, right, unit = v.claim.values[v.off], v.expected[v.off], 2 * v.claim.half[v.off]
    return bool((np.abs(np.trunc(right / unit) * unit - claimed) < unit * 1e-6).all())


def aftermath(marked: Marked, v: Verdict) -> Iterator[str]:
    """How a wrong step hangs together with the claims before it and after it."""
    if v.after and marked.finding(v) is None and v.off.sum() > FEW * v.claim.there.sum():
        good = [name for name in v.after if name not in v.astray]
        if v.astray:
            yield f"It is neither right nor what the claimed {listed(v.astray)} {leads(v.astray)} to."
        elif good:
            yield f"It does not follow from the claimed {good[-1]}, which is right: it may come from another run."
        yield from sums(v)
    later = marked.consequences(v)
    follow = [w.name for w in later if w.status == "carried over"]
    right = [w.name for w in later if w.right]
    wrong = [w.name for w in later if w.status == "wrong here"]
    if follow and len(follow) == len(later):
        yield f"Everything claimed after it follows from it: {listed(follow)} {be(follow)} carried over, with no other error."
    elif follow:
        yield f"{listed(follow)} {'follows' if len(follow) == 1 else 'follow'} from it."
    if right:
        why = "a slip of the pen" if slip(v) else "what comes before and after is from different runs"
        do = "does" if len(right) == 1 else "do"
        yield f"{listed(right)} {do} not follow from the claimed {v.name}, but {be(right)} right for the true {v.name}: {why}."
    if wrong and not follow and not right and marked.finding(v) is None:
        yield f"{listed(wrong)} {'does' if len(wrong) == 1 else 'do'} not follow from it either."


def be(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def sums(v: Verdict) -> Iterator[str]:
    """Whether weights that nothing explains are a softmax of anything."""
    if v.name != "weights" or not v.claim.there.all():
        return
    off = np.abs(v.claim.values.sum(axis=-1) - v.truth.sum(axis=-1))
    if (off <= v.claim.half.sum(axis=-1) * (1 + 1e-9) + 1e-9).all():
        yield "Its rows have the right sums, so it may be a softmax of other scores."
    elif np.isfinite(off).all():
        row = tuple(int(i) for i in np.unravel_index(int(np.argmax(off)), off.shape))
        total = float(v.claim.values.sum(axis=-1)[row])
        yield f"Row [{', '.join(map(str, row))}] sums to {total:.4g}, so it is no softmax."


# ------------------------------------------------------------------ JSON


def write_json(marked: Marked, reading: Reading, trace: Trace, out: BinaryIO, width: int | None, colour: bool) -> None:
    """`right`, `first_wrong`, `steps` (a verdict each, with `wrong` cells, `claimed` and `right` numbers), `findings`."""
    document = {
        "right": marked.right,
        "first_wrong": marked.first_wrong.name if marked.first_wrong else None,
        "verdict": verdict(marked),
        "steps": [entry(v) for v in marked.verdicts],
        "findings": [finding_entry(f) for f in marked.findings],
        "understood": reading.said,
        "not_read": [message(fault) for fault in reading.faults],
    }
    out.write((json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "replace"))


def message(fault: Fault) -> str:
    return f"{fault.place}: {fault.message}" if fault.place else fault.message


def entry(v: Verdict) -> dict[str, Any]:
    places = np.argwhere(v.wrong & v.claim.there).tolist()
    return {
        "name": v.name,
        "claimed_as": v.claim.title,
        "status": v.status,
        "decimals": digits(v.claim),
        "last_digit": v.last_digit,
        "after": list(v.after),
        "after_wrong": list(v.astray),
        "wrong": places,
        "claimed": [data(float(v.claim.values[tuple(at)])) for at in places],
        "expected": [data(float(v.expected[tuple(at)])) for at in places],
        "right": [data(float(v.truth[tuple(at)])) for at in places],
    }


def finding_entry(f: Finding) -> dict[str, Any]:
    return {
        "step": f.step,
        "explained": f.explained,
        "cells": f.cells,
        "open": [list(at) for at in f.open],
        "alternatives": [[mistake_entry(m) for m in each] for each in f.alternatives],
    }


def mistake_entry(m: Mistake) -> dict[str, str]:
    return {"key": m.key, "says": m.says, "used": m.used, "right": m.right, "teaches": m.teach}


def lines(marked: Marked) -> Iterator[str]:
    """The findings as sentences, for feedback."""
    for f in marked.findings:
        yield f"{f.step}: {' and '.join(m.says for m in f.alternatives[0])} {how_far(f)}"
