"""JSON: the whole trace, exact, for scripts.

A step is one line. So `diff` names the steps in which two traces differ, `grep '"name": "weights"'` cuts one out, and
the file can be paged through. JSON has no infinities and no NaN; they are the strings "Infinity", "-Infinity", "NaN".
Every other number comes back as it was, float32 and smaller ones widened (which is exact).
"""

from __future__ import annotations

import importlib.metadata
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np

from attntrace.dtypes import DType
from attntrace.errors import harmless
from attntrace.render.view import Shown, View
from attntrace.tape import Array

FORMAT = 1  # raised when a reader of the format before would misread it
CHUNK = 1 << 14  # numbers made into text at a time


def write(view: View, out: BinaryIO) -> None:
    """Write the trace with all its numbers."""
    out.writelines(map(str.encode, document(view, values=True)))


def without_values(view: View, out: BinaryIO) -> None:
    """Write the same document without values, row_sums and argmax; nothing is computed."""
    out.writelines(map(str.encode, document(view, values=False)))


def document(view: View, values: bool) -> Iterator[str]:
    """The document in pieces, so that it never is in memory as a whole."""
    yield f'{{"attntrace": {text({"version": version(), "format": FORMAT})},\n'
    yield f'"title": {text(view.trace.title)},\n'
    if view.trace.changes:
        yield f'"changes": {text(view.trace.changes)},\n'
    if view.trace.labels:
        yield f'"labels": {text({axis: list(labels) for axis, labels in view.trace.labels.items()})},\n'
    yield '"config": '
    yield from config(view.trace.config)
    yield ',\n"steps": '
    yield from listed(step(s, values) for s in view.shown)
    yield ',\n"notes": '
    yield from listed([text({"code": n.code, "step": n.step, "message": n.message})] for n in view.notes)
    yield "}\n"


def version() -> str:
    try:
        return importlib.metadata.version("attntrace")
    except importlib.metadata.PackageNotFoundError:  # run from a checkout
        return "0"


def listed(items: Iterable[Iterable[str]]) -> Iterator[str]:
    """A JSON array of items that come in pieces, an item a line."""
    yield "["
    for i, item in enumerate(items):
        yield ",\n" if i else "\n"
        yield from item
    yield "\n]"


def step(s: Shown, values: bool) -> Iterator[str]:
    """One step; what is known without computing comes first."""
    head = text(described(s))
    if not values:
        yield head
        return
    yield head.removesuffix("}")
    for name, array in (("values", s.values), ("row_sums", s.row_sums), ("argmax", s.argmax)):
        yield f', "{name}": '
        yield from numbers(array)
    yield "}"


def described(s: Shown) -> dict[str, Any]:
    """`index` is there when a batch item or head was picked, `origin` when the step is given and says where it is from."""
    entry: dict[str, Any] = {
        "name": s.name,
        "symbol": s.step.symbol,
        "formula": s.step.formula,
        "axes": s.axes,
        "shape": s.shape,
        "dtype": s.step.dtype.name,
        "operands": [o.name for o in s.step.operands],
    }
    if s.index:
        entry["index"] = dict(s.index)
    if s.step.given and s.step.origin:
        entry["origin"] = s.step.origin
    return entry


# ------------------------------------------------------------------ numbers


def numbers(array: Array) -> Iterator[str]:
    """A nested JSON array, at most CHUNK numbers in a piece."""
    if array.size <= CHUNK:
        yield exact(array)
        return
    yield "["
    rows = max(1, CHUNK * len(array) // array.size)
    for start in range(0, len(array), rows):
        yield ", " if start else ""
        yield from bare(array[start : start + rows])
    yield "]"


def bare(rows: Array) -> Iterator[str]:
    """The rows without the brackets around all of them; a row that is too long for one piece is taken apart."""
    if rows.size <= CHUNK:
        yield exact(rows)[1:-1]
    else:  # then it is a single one: see `rows` in `numbers`
        yield from numbers(rows[0])


def exact(array: Array) -> str:
    """JSON of a small array. `json` writes the shortest text that reads back as the same float64."""
    if array.dtype.kind in "biu":
        return json.dumps(array.tolist())
    wide = array.astype(np.float64, copy=False)
    written = json.dumps(wide.tolist())
    return written if np.isfinite(wide).all() else quoted(written)


def quoted(written: str) -> str:
    """The bare NaN, Infinity and -Infinity of `json` as strings; a regular expression would take four times as long."""
    written = written.replace("NaN", '"NaN"').replace("Infinity", '"Infinity"')
    return written.replace('-"Infinity"', '"-Infinity"')


# ------------------------------------------------------------------ everything else


def text(value: Any) -> str:
    """JSON on one line, letters left legible. What a terminal would obey is escaped, even where JSON lets it be."""
    written = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if written.isprintable():
        return written
    return "".join(c if harmless(c) else f"\\u{ord(c):04x}" for c in written)


def config(value: Any) -> Iterator[str]:
    """A config in pieces, since its arrays may be as large as those of the steps."""
    if isinstance(value, Mapping):
        yield "{"
        for i, (key, item) in enumerate(value.items()):
            yield f"{', ' if i else ''}{text(str(key))}: "
            yield from config(item)
        yield "}"
    elif isinstance(value, np.ndarray) and real(value.dtype):
        yield from numbers(value)
    else:
        yield text(data(value))


def real(dtype: DType) -> bool:
    """Whether float64 can hold its numbers; a long double is rounded, as it is in a trace."""
    return np.can_cast(dtype, np.float64, "same_kind")


def data(value: Any) -> Any:
    """A value of a config as plain JSON data: arrays as lists, what JSON does not know as its text."""
    if isinstance(value, Mapping):
        return {str(key): data(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return data(native(value))
    if isinstance(value, list | tuple):
        return [data(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value if isinstance(value, str | int | float | None) else str(value)


def native(value: Array | np.generic) -> Any:
    """A NumPy value as Python's own; `tolist` leaves what Python lacks, such as a long double, as it is."""
    if value.dtype.kind in "biu" or not real(value.dtype):
        own = value.tolist()
        return str(own) if isinstance(own, np.generic) else own
    return value.astype(np.float64).tolist()
