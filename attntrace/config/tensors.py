"""Tensors of a config as sources: numbers written out, a file, a draw. Each knows its shape before it is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

import numpy as np

from attntrace.cell import Index
from attntrace.config.draw import DEFAULTS, Drawn, Streams
from attntrace.errors import AttnTraceError, Fault, Path
from attntrace.problem import Source
from attntrace.tape import Array

MANY = 3  # faults reported for one tensor
RANK = 4


@dataclass(frozen=True)
class Inline:
    """Numbers written in the config, or handed over as an array."""

    array: Array
    origin: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def read(self) -> Array:
        return self.array


@dataclass(frozen=True)
class FromFile:
    """An array in a file, opened but not read."""

    array: Any  # an ArrayFile
    origin: str

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    def read(self) -> Array:
        return np.asarray(self.array.read())


@dataclass(frozen=True)
class Edited:
    """A tensor with some cells replaced after it was read."""

    source: Source
    index: Index
    value: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.source.shape

    @property
    def origin(self) -> str:
        return f"{self.source.origin}, then changed" if self.source.origin else "changed"

    def read(self) -> Array:
        array = self.source.read()
        array = np.array(array, dtype=np.result_type(array, self.value) if array.dtype.kind in "fiub" else None)
        array[self.index] = self.value
        return array


@dataclass(frozen=True)
class Permuted:
    """A tensor with its tokens (the last axis but one) in another order."""

    source: Source
    order: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.source.shape

    @property
    def origin(self) -> str:
        return f"{self.source.origin}, reordered" if self.source.origin else "reordered"

    def read(self) -> Array:
        return self.source.read()[..., list(self.order), :]


@dataclass
class Maker:
    """Makes sources out of the tensors of one config; draws take its seed and generator, and share its streams."""

    folder: FilePath
    seed: int | None = None
    generator: str = "numpy"
    streams: Streams = field(default_factory=Streams)
    used_seed: bool = False

    def source(self, value: Any, path: Path, binary: bool = False) -> Source:
        """The source for a config value that has passed the schema. Raises AttnTraceError with faults at `path`."""
        if isinstance(value, Mapping):
            return self._file(value, path) if "file" in value else self._draw(value, path)
        return Inline(numbers(value, path, binary))

    def _file(self, value: Mapping[str, Any], path: Path) -> Source:
        from attntrace.config.files import open_array

        key = value.get("key")
        try:
            array = open_array(self.folder / value["file"], key)
        except AttnTraceError as error:
            error.faults = tuple(Fault(f"{called(path)}: {f.message}", (*path, "file")) for f in error.faults)
            raise
        return FromFile(array, f"from {value['file']}" + (f" [{key}]" if key else ""))

    def _draw(self, value: Mapping[str, Any], path: Path) -> Source:
        faults = list(draw_faults(value, path))
        if faults:
            raise AttnTraceError(*faults)
        generator, seed = self.stream(value, path)
        kind = value["draw"]
        parameters = {name: value.get(name, default) for name, default in (DEFAULTS[kind] | {"high": 1.0}).items()}
        wanted = ("mean", "std") if kind == "normal" else ("low", "high")
        parameters = {name: parameters[name] for name in wanted}
        shape = tuple(value["shape"])
        return Drawn(self.streams, generator, seed, kind, parameters, shape, value.get("decimals"), value.get("dtype"))

    def stream(self, value: Mapping[str, Any], path: Path) -> tuple[str, int]:
        """The generator and seed of a draw or dropout: its own, or the config's."""
        seed = value.get("seed")
        if seed is None:
            seed, self.used_seed = self.seed, True
        if seed is None:
            message = f"{called(path)}: draws random numbers, but there is no seed; give seed: 42 here or at the top"
            raise AttnTraceError(Fault(message, path))
        generator = value.get("generator") or self.generator
        if generator == "numpy-legacy" and seed >= 2**32:
            raise AttnTraceError(Fault(f"{called(path)}: numpy-legacy takes seeds below 4294967296, found {seed}", path))
        return generator, seed


def draw_faults(value: Mapping[str, Any], path: Path) -> Iterator[Fault]:
    kind = value["draw"]
    wanted = ("mean", "std") if kind == "normal" else ("low", "high")
    for name in ("mean", "std", "low", "high"):
        if name in value and name not in wanted:
            yield Fault(f"{called(path)}: {name} does not go with draw: {kind}, which takes {' and '.join(wanted)}", (*path, name))
    low, high = value.get("low", 0), value.get("high", 1 if kind == "uniform" else None)
    if kind == "integers":
        yield from integer_faults(low, high, path)
    elif kind == "uniform" and not low < high < float("inf"):
        yield Fault(f"{called(path)}: expected low below high, both finite, found low {low} and high {high}", path)


def integer_faults(low: Any, high: Any, path: Path) -> Iterator[Fault]:
    if high is None:
        yield Fault(f"{called(path)}: draw: integers needs high, the first whole number that is not drawn", path)
    elif low != int_or_none(low) or high != int_or_none(high):
        yield Fault(f"{called(path)}: draw: integers takes whole numbers below 2⁶², found low {low} and high {high}", path)
    elif not low < high:
        yield Fault(f"{called(path)}: expected low below high, found low {low} and high {high}", path)


def int_or_none(value: float) -> int | None:
    return int(value) if abs(value) < 2**62 else None


# ------------------------------------------------------------------ numbers written out


def called(path: Path) -> str:
    """A config path as a person writes it: mask[1].window.left."""
    return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path).removeprefix(".")


def numbers(value: Any, path: Path, binary: bool = False) -> Array:
    """Nested lists as an array of float64. Raises AttnTraceError naming the cells that are not numbers and ragged rows.

    `binary` allows true and false, as masks may have them.
    """
    if isinstance(value, np.ndarray):
        return of_array(value, path)
    if not isinstance(value, list):
        raise AttnTraceError(Fault(f"{called(path)}: expected numbers in lists, file: or draw:, found {found(value)}", path))
    faults = list(misshapen(value, path)) or list(not_numbers(value, path, binary))
    if faults:
        more = len(faults) - MANY
        last = [Fault(f"{called(path)}: and {more} more such cells", path)] if more > 0 else []
        raise AttnTraceError(*faults[:MANY], *last)
    return as_array(value, path)


def as_array(value: list[Any], path: Path) -> Array:
    try:
        return np.array(value, dtype=np.float64)
    except OverflowError:
        raise AttnTraceError(Fault(f"{called(path)}: holds a whole number beyond 1.8e308, the largest of float64", path)) from None


def of_array(value: Array, path: Path) -> Array:
    if value.dtype.kind not in "fiub" and value.dtype.name != "bfloat16":
        raise AttnTraceError(Fault(f"{called(path)}: expected an array of numbers, found dtype {value.dtype}", path))
    return value


def sizes_of(value: Any) -> tuple[int, ...]:
    """The lengths of a list and of the lists that begin it."""
    sizes = []
    while isinstance(value, list):
        sizes.append(len(value))
        value = value[0] if value else None
    return tuple(sizes)


def ragged(value: Any, sizes: tuple[int, ...], path: Path) -> Iterator[Fault]:
    """Every list that is not as long as the first one beside it, and every number that stands where a list should."""
    if isinstance(value, list) and sizes and len(value) == sizes[0]:
        if len(sizes) > 1 or any(isinstance(v, list) for v in value):
            for i, row in enumerate(value):
                yield from ragged(row, sizes[1:], (*path, i))
    else:
        length = f"has {count(value)}" if isinstance(value, list) else f"is {found(value)}"
        expected = f"{sizes[0]}, as the rows before it" if sizes else "a number, as the cells before it"
        yield Fault(f"{called(path[:-1])}: row {path[-1]} {length}; expected {expected}", path)


def count(row: list[Any]) -> str:
    unit = "row" if any(isinstance(v, list) for v in row) else "number"
    return f"{len(row)} {unit}{'' if len(row) == 1 else 's'}"


def misshapen(value: list[Any], path: Path) -> Iterator[Fault]:
    """Empty lists, too many axes, ragged rows."""
    sizes = sizes_of(value)
    if 0 in sizes:
        yield Fault(f"{called(path)}: holds an empty list; every axis needs at least one entry", path)
    elif len(sizes) > RANK:
        yield Fault(f"{called(path)}: has {len(sizes)} axes; expected at most {RANK}", path)
    else:
        yield from ragged(value, sizes, path)


def not_numbers(value: list[Any], path: Path, binary: bool) -> Iterator[Fault]:
    """Cells that are not numbers."""
    kinds = set(map(type, value))
    if kinds <= {int, float} or (binary and kinds <= {int, float, bool}):
        return
    for i, cell in enumerate(value):
        if isinstance(cell, list):
            yield from not_numbers(cell, (*path, i), binary)
        elif type(cell) not in (int, float) and not (binary and type(cell) is bool):
            yield Fault(f"{called((*path, i))}: expected a number, found {found(cell)}", (*path, i))


def found(value: Any) -> str:
    """A value as an error message shows it."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return "a huge whole number" if isinstance(value, int) and abs(value) > 1e300 else clipped(str(value))
    if isinstance(value, str):
        return repr(clipped(value))
    return {"dict": "a mapping", "list": "a list"}.get(type(value).__name__, f"a {type(value).__name__}")


def clipped(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:39]}…"
