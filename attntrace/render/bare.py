"""Numbers and nothing else, for `$(…)` in a shell: exact, one row a line."""

from __future__ import annotations

import json as json_module
from typing import Any, BinaryIO

import numpy as np

from attntrace.render.grid import positive_zero
from attntrace.tape import Array

STRINGS = {np.inf: "Infinity", -np.inf: "-Infinity"}


def write(values: Array, out: BinaryIO, json: bool = False, precision: int | None = None) -> None:
    """A number, a row, or rows; exact unless `precision` says how many decimals. As JSON: nested lists."""
    text = json_module.dumps(strict(np.asarray(values, dtype=np.float64).tolist())) if json else lines(values, precision)
    out.write(f"{text}\n".encode())


def lines(values: Array, precision: int | None) -> str:
    rows = np.atleast_2d(np.asarray(values, dtype=np.float64))
    rows = rows.reshape(-1, rows.shape[-1])
    return "\n".join(" ".join(number(v, precision) for v in row) for row in rows.tolist())


def number(v: float, precision: int | None) -> str:
    return repr(v) if precision is None else positive_zero(f"{v:.{precision}f}")


def strict(values: Any) -> Any:
    """Infinities and NaN as strings, since JSON has no other way to say them."""
    if isinstance(values, list):
        return [strict(v) for v in values]
    return values if np.isfinite(values) else STRINGS.get(values, "NaN")
