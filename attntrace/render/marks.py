"""What `check` found: a verdict on each claimed step, wrong numbers beside the right ones, and the mistake behind them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from attntrace.claims import Reading
from attntrace.errors import Fault, plain
from attntrace.marking import Finding, Marked, Verdict, digits
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


def write(marked: Marked, reading: Reading, trace: Trace, out: BinaryIO, width: int | None, colour: bool) -> None:
    canvas = Canvas(out, colour, width)
    for sentence in reading.said:
        canvas.paragraph("", plain(sentence), "dim")
    for fault in reading.faults:
        canvas.paragraph(("not read: ", "bold yellow"), plain(fault.message))
    if reading.said or reading.faults:
        canvas.line()
    verdicts(canvas, marked.verdicts)
    canvas.line()
    labels = {axis: legible(names) for axis, names in trace.labels.items()}
    for v in marked.verdicts:
        if v.status == "wrong here":
            wrong(canvas, v, trace, labels)
            explained(canvas, v, next((f for f in marked.findings if f.step == v.name), None))
    canvas.paragraph("", verdict(marked), "bold green" if marked.right else "bold red")


def verdicts(canvas: Canvas, found: Sequence[Verdict]) -> None:
    rows = [(MARKS[v.status], v.name, v.claim.title, said(v)) for v in found]
    styles = [(STYLES[v.status], "bold", "dim", "") for v in found]
    table(canvas, ("", "step", "claimed as", "verdict"), rows, styles, (False,) * 4)


def said(v: Verdict) -> str:
    """The verdict on one step, in words."""
    written = digits(v.claim)
    given = "in full precision" if written is None else f"to the {written} {plural(written, 'decimal')} given"
    if v.status == "right":
        return f"right {given}"
    if v.status == "rounded":
        return f"right, if the steps before it were rounded to {v.decimals} {plural(v.decimals or 0, 'decimal')}"
    count, total = int((v.wrong & v.claim.there).sum()), int(v.claim.there.sum())
    if v.status == "carried over":
        return f"carried over: it follows from the claims before it ({count} of {total} {plural(total, 'cell')} off)"
    return f"wrong here: {count} of {total} {plural(total, 'cell')}"


def plural(n: int, word: str) -> str:
    return word if n == 1 else f"{word}s"


def verdict(marked: Marked) -> str:
    """`2 of 3 steps are right; the first wrong one is weights`."""
    right, total = sum(v.status in ("right", "rounded") for v in marked.verdicts), len(marked.verdicts)
    text = f"{right} of {total} {plural(total, 'step')} {'is' if right == 1 else 'are'} right"
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
    apart = np.abs(claimed - right)
    apart = apart[np.isfinite(apart) & (apart > 0)]
    if apart.size:
        decimals = max(decimals, min(12, int(np.ceil(-np.log10(float(apart.min()))))))

    def number(value: float) -> str:
        if not np.isfinite(value):
            return "NaN" if np.isnan(value) else "∞" if value > 0 else "−∞"
        return f"{value:.{decimals}f}" if abs(value) < 1e12 else f"{value:.6e}"

    return number


# ------------------------------------------------------------------ the mistake behind them


def explained(canvas: Canvas, v: Verdict, finding: Finding | None) -> None:
    if finding is None:
        canvas.paragraph("", unexplained(v), "")
        canvas.line()
        return
    first, *others = finding.alternatives
    canvas.paragraph((f"{v.name}: ", "bold"), f"{' and '.join(m.says for m in first)} {how_far(finding)}")
    for mistake in first:
        canvas.paragraph(("   used   ", "dim"), mistake.used)
        canvas.paragraph(("   right  ", "dim"), mistake.right)
        canvas.paragraph("   ", mistake.teach)
    if others:
        same = "; ".join(" and ".join(m.says for m in each) for each in others[:6])
        more = f"; and {len(others) - 6} more" if len(others) > 6 else ""
        canvas.paragraph("   ", f"on this input these come to the same, to the digits given: {same}{more}", "dim")
    canvas.line()


def how_far(finding: Finding) -> str:
    """`explains 15 of 16 cells of scaled; [3, 3] fits neither`."""
    what = f"{finding.cells} {plural(finding.cells, 'cell')} of {finding.step}"
    if finding.complete:
        return f"explains all {what}" if finding.cells > 1 else f"explains the one cell of {finding.step}"
    left = ", ".join(f"[{', '.join(map(str, at))}]" for at in finding.open[:CELLS])
    more = f" and {len(finding.open) - CELLS} more" if len(finding.open) > CELLS else ""
    return f"explains {finding.explained} of {what}; {left}{more} {'fits' if len(finding.open) == 1 else 'fit'} neither"


def unexplained(v: Verdict) -> str:
    places = np.argwhere(v.wrong & v.claim.there).tolist()
    shown = ", ".join(f"[{', '.join(map(str, at))}]" for at in places[:CELLS])
    more = f" and {len(places) - CELLS} more" if len(places) > CELLS else ""
    first = f"{v.name}[{','.join(map(str, places[0]))}]" if places else v.name
    how = f"attntrace explain '{first}' shows how the right number comes about"
    return f"{v.name}: no known mistake explains it; wrong are {shown}{more}. {how}"


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
