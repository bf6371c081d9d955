"""CSV: one row per number, exact, for spreadsheets and data frames.

The columns are the step, one for each axis that a shown step has (in order of first appearance, empty where a step
lacks it), and the value. Entries are counted from 0; a batch item or head that was picked fills its column. No label,
title or other text of the user's is written, so no cell can be a formula, and nothing needs quotes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import BinaryIO

import numpy as np

from attntrace.render.view import Shown, View

CHUNK = 1 << 14  # rows made at a time


def write(view: View, out: BinaryIO) -> None:
    """Write the rows of all steps below one header."""
    columns = list(dict.fromkeys(axis for s in view.shown for axis in s.step.axes))
    out.write(f"{','.join(['step', *columns, 'value'])}\n".encode())
    for s in view.shown:
        out.writelines(map(str.encode, chunks(s, columns)))


def chunks(s: Shown, columns: Sequence[str]) -> Iterator[str]:
    """The rows of one step. `%r` of a Python float is the shortest text that reads back as the same number."""
    row, values = template(s, columns), s.values
    order = [s.axes.index(axis) for axis in columns if axis in s.axes]
    for start in range(0, values.size, CHUNK):
        chunk = values.flat[start : start + CHUNK].astype(np.float64).tolist()
        positions = np.unravel_index(np.arange(start, start + len(chunk)), s.shape)
        yield "".join(map(row.__mod__, zip(*(positions[i].tolist() for i in order), chunk, strict=True)))


def template(s: Shown, columns: Sequence[str]) -> str:
    """A row with holes for the positions, in the order of the columns, and the value: `scores,,2,%d,%d,%r`."""
    cells = (str(s.index[axis]) if axis in s.index else "%d" if axis in s.axes else "" for axis in columns)
    return ",".join([s.name, *cells, "%r\n"])
