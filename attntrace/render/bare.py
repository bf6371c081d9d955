"""Numbers and nothing else, for `$(…)` in a shell: exact, one row a line."""

from __future__ import annotations

from json import dumps
from typing import BinaryIO

import numpy as np

from attntrace.render.grid import positive_zero
from attntrace.render.json import data
from attntrace.tape import Array


def write(values: Array, out: BinaryIO, json: bool = False, precision: int | None = None) -> None:
    """A number, a row, or rows; exact unless `precision` says how many decimals. As JSON: nested lists."""
    text = dumps(data(np.asarray(values, dtype=np.float64))) if json else lines(values, precision)
    out.write(f"{text}\n".encode())


def lines(values: Array, precision: int | None) -> str:
    rows = np.atleast_2d(np.asarray(values, dtype=np.float64))
    rows = rows.reshape(-1, rows.shape[-1])
    return "\n".join(" ".join(number(v, precision) for v in row) for row in rows.tolist())


def number(v: float, precision: int | None) -> str:
    return repr(v) if precision is None else positive_zero(f"{v:.{precision}f}")
