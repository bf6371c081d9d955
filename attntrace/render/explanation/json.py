"""JSON, for scripts: every number with the expression that it comes from, to be evaluated again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from attntrace.arithmetic import Carry, Line, Notation, called, text
from attntrace.explaining import Explanation, Paragraph
from attntrace.render import json
from attntrace.render.explanation.layout import title


def write(e: Explanation, out: BinaryIO) -> None:
    """One object, a paragraph a line, the one that was asked for last.

    {"attntrace": {version, format}, "title", "changes" (where there are any), "config", "cell", "depth", "precision",
     "paragraphs": [{"cells": "weights[0]", "step", "symbol", "formula", "axes", "row", "columns",
                     "origin" (of an input that says where it is from),
                     "lines": [{"symbol", "formula", "axis" (null for a number by itself), "columns", "note",
                                "numbers": [{"name", "symbols", "expression", "value"}]}],
                     "values": [what the trace has]}]}

    `expression` has the numbers that are put in, in Python's notation (`exp(2.302)`, `sqrt(4)`, `max(…)`, `pi`, `inf`, `nan`
    as the math module has them); rounded to `precision` decimals, or digits of an exponent, it is `value`. A line that only
    says what its numbers are has them as expressions.
    """
    out.writelines(map(str.encode, document(e)))


def document(e: Explanation) -> Iterator[str]:
    yield f'{{"attntrace": {json.text({"version": json.version(), "format": json.FORMAT})},\n'
    yield f'"title": {json.text(e.trace.title)},\n'
    if e.trace.changes:
        yield f'"changes": {json.text(e.trace.changes)},\n'
    yield '"config": '
    yield from json.config(e.trace.config)
    yield f',\n{json.text({"cell": e.cell, "depth": e.depth, "precision": e.carry.decimals})[1:-1]},\n"paragraphs": '
    yield from json.listed([json.text(json.data(paragraph(p, e.carry)))] for p in e.paragraphs)
    yield "}\n"


def paragraph(p: Paragraph, carry: Carry) -> dict[str, Any]:
    s = p.step
    told: dict[str, Any] = {"cells": title(p), "step": s.name, "symbol": s.symbol, "formula": s.formula, "axes": s.axes}
    told |= {"row": p.run.row, "columns": list(p.run.columns)}
    if s.origin:
        told["origin"] = s.origin
    return {**told, "lines": [line(each, carry) for each in p.lines], "values": p.values}


def line(each: Line, carry: Carry) -> dict[str, Any]:
    numbers = [
        {"name": each.name(at), "symbols": text(term, called), "expression": python(term, carry), "value": value}
        for at, (term, (value, _)) in enumerate(zip(each.terms, carry.results(each), strict=True))
    ]
    about = {"symbol": each.symbol, "formula": each.formula, "axis": each.axis or None, "columns": list(each.columns)}
    return {**about, "note": each.note, "numbers": numbers}


def python(term: Any, carry: Carry) -> str:
    written = text(term, lambda e: carry.write(e).replace("−", "-").replace("∞", "inf").replace("NaN", "nan"), PYTHON)
    return written.replace("π", "pi")


def function(name: str, arguments: Sequence[str]) -> str:
    return f"{'sqrt' if name == '√' else name}({', '.join(arguments)})"


PYTHON = Notation({"+": " + ", "−": " - ", "×": " * ", "/": " / "}, function, lambda base, exponent: f"{base} ** {exponent}")
