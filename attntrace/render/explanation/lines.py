"""An equation as lines of text: on one line where it fits; else each side has lines of its own, broken before a sign."""

from __future__ import annotations

import re
from collections.abc import Iterator

from attntrace.arithmetic import Carry, Leaf, Number, called, text
from attntrace.errors import cells
from attntrace.render.explanation.layout import Equation

WIDE = 100  # where equations are broken when there is no terminal that says how wide it is
BREAKS = re.compile(r" (?=[+−] )|(?<=,) (?![^\[]*\])")  # not within the index of a cell
FACTORS = re.compile(r" (?=[×/] )")


def lines(e: Equation, carry: Carry, width: int) -> Iterator[str]:
    """`S[0, 1] = Q[0, 0] × K[1, 0] + … = 0.5 × 0.25 + … = 0.8`."""
    symbols = e.said if e.symbols is None else text(e.symbols, called)
    numbers = None if e.numbers is None else text(e.numbers, lambda leaf: put_in(leaf, carry))
    sides = [side for side in (symbols, numbers, e.value) if side is not None]
    whole = " = ".join([e.name, *sides])
    if cells(whole) <= width:
        yield whole
        return
    start = f"{e.name} = "
    for side in sides:
        for part in broken(side, width - cells(start)):
            yield f"{start}{part}"
            start = " " * cells(start)
        start = f"{start[:-2]}= "


def put_in(e: Leaf, carry: Carry) -> str:
    return carry.write(e) + (f" {e.symbol}" if isinstance(e, Number) and e.more else "")


def broken(side: str, width: int) -> Iterator[str]:
    """Lines of at most `width` cells, as far as there are places to break at."""
    line = ""
    pieces = [part for piece in BREAKS.split(side) for part in ([piece] if cells(piece) <= width else FACTORS.split(piece))]
    for piece in pieces:
        if line and cells(line) + 1 + cells(piece) > width:
            yield line
            line = piece
        else:
            line = f"{line} {piece}" if line else piece
    yield line
