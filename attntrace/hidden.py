"""Why a mask hides what it hides: which of its conditions fails, with the positions put in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import numpy as np

from attntrace.arithmetic import place
from attntrace.ops import Take
from attntrace.ops.cells import Run
from attntrace.parts.place import positions
from attntrace.problem import Mask, Problem, Tile
from attntrace.tape import Array, Step, Trace


def reasons(p: Problem, t: Trace, mask: Step, run: Run) -> Iterator[str]:
    """Of each cell of a run of the effective mask that is −∞: the condition that fails, of the first mask that hides it."""
    query, key = (start(t, axis) for axis in mask.axes[-2:])
    for c in run.columns:
        index = dict(zip(mask.axes, (*run.row, c), strict=True))
        item, head = index.get("batch", 0), index.get("head", 0)
        i, j = p.rows[query + run.row[-1]], key + c
        at = Tile(range(i, i + 1), range(j, j + 1))
        hiding = [m for m in p.masks if np.isneginf(pick(m.bias(p, at), item, head))]
        if hiding:
            yield reason(p, hiding[0], at, item, head) or f"the mask has −∞ at {place(mask.symbol, (*run.row, c))}"


def start(t: Trace, axis: str) -> int:
    """The first query or key of a tile, told by the step that takes it out of all."""
    kind, _, n = axis.partition("_")
    cut = t[f"{kind[0]}_{n}"].operation if n else None
    return cut.start if isinstance(cut, Take) else 0


def reason(p: Problem, m: Mask, at: Tile, item: int, head: int) -> str:
    stand = positions(p, at, getattr(m, "align", None))
    numbers = dict(zip(("query", "key"), (int(pick(a, item, head)) for a in stand), strict=True))
    lengths = {"length": m.lengths[item % len(m.lengths)]} if m.lengths else {}
    return broken(m.formula, numbers | lengths)


def pick(a: Array, item: int, head: int) -> float:
    """One number of what is broadcastable to (batch, head, 1, 1)."""
    return float(a[item % a.shape[0], head % a.shape[1], 0, 0])


def broken(formula: str, numbers: Mapping[str, int]) -> str:
    """The part of a mask's condition that does not hold: `key 2 > query 0` of `key ≤ query`."""
    terms = re.split(r" ([≤<]) ", re.sub(r" [(\[].*", "", formula))
    for left, sign, right in zip(terms[0::2], terms[1::2], terms[2::2], strict=False):
        a, b = amount(left, numbers), amount(right, numbers)
        if a > b or (a == b and sign == "<"):
            return f"{said(left, numbers)} {'>' if sign == '≤' else '≥'} {said(right, numbers)}"
    return formula.replace(" is ", " is not ")


def amount(term: str, numbers: Mapping[str, int]) -> int:
    """`query − 2`, with the number of the query put in."""
    word, sign, n = (*term.split(" "), "+", "0")[:3]
    return numbers[word] - int(n) if sign == "−" else numbers[word] + int(n)


def said(term: str, numbers: Mapping[str, int]) -> str:
    word, *more = term.split(" ")
    return " ".join([word, str(numbers[word]), *more])
