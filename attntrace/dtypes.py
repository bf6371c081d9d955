"""The four dtypes of a trace, and what is known of each."""

from __future__ import annotations

from typing import Any

import numpy as np

from attntrace.errors import MissingPackage

DType = np.dtype[Any]


def dtype(name: str) -> DType:
    """The NumPy dtype of that name; bfloat16 comes from ml-dtypes."""
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        raise MissingPackage("dtype: bfloat16", "ml-dtypes", "bfloat16") from None
    bfloat16: DType = np.dtype(ml_dtypes.bfloat16)
    return bfloat16


def working(d: DType) -> DType:
    """The dtype to compute in: half precision is summed in float32 and rounded once a step, as hardware does."""
    return d if d.itemsize >= 4 else np.dtype(np.float32)


def epsilon(d: DType) -> float:
    """The distance from 1 to the next number."""
    return float(np.finfo(d).eps) if d.kind == "f" else 2.0**-7


def smallest(d: DType) -> float:
    """The smallest positive number (subnormal): below it, everything is 0."""
    return float(np.finfo(d).smallest_subnormal) if d.kind == "f" else 2.0**-133


def largest(d: DType) -> float:
    """The largest finite number: beyond it, everything is infinite."""
    return float(np.finfo(d).max) if d.kind == "f" else (2 - 2.0**-7) * 2.0**127
