"""Tensors of a config as sources: numbers written out, a file, a draw. Each knows its shape before it is read."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

import numpy as np

from attntrace.cell import Index
from attntrace.config.draw import DEFAULTS, Drawn, Streams
from attntrace.errors import AttnTraceError, Fault, Path
from attntrace.ledger import amount, listed
from attntrace.parts.mask import not_binary
from attntrace.problem import Source, called
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
        shape: tuple[int, ...] = self.array.shape
        return shape

    def read(self) -> Array:
        return self.array


@dataclass(frozen=True)
class FromFile:
    """An array in a file, opened but not read."""

    array: Any  # an ArrayFile
    origin: str

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(int(n) for n in self.array.shape)

    def read(self) -> Array:
        return np.asarray(self.array.read())


@dataclass(frozen=True)
class Placed:
    """A source that may fail when it is read, long after the config was: its faults know their place all the same."""

    source: Source
    path: Path
    locate: Callable[[Fault], Fault]
    binary: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return self.source.shape

    @property
    def origin(self) -> str:
        return self.source.origin

    def read(self) -> Array:
        try:
            array = self.source.read()
        except AttnTraceError as error:
            error.faults = tuple(self.locate(Fault(f"{called(self.path)}: {f.message}", self.path)) for f in error.faults)
            raise
        if self.binary and (odd := array[(array != 0) & (array != 1)]).size:
            raise AttnTraceError(self.locate(Fault(not_binary(self.path, float(odd[0])), self.path)))
        return array


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
    """Makes sources out of the tensors of one config; draws take its seed and generator, and share its streams.

    `seedless` are the paths of draws that found no seed."""

    folder: FilePath
    seed: int | None = None
    generator: str = "numpy"
    locate: Callable[[Fault], Fault] = lambda fault: fault
    streams: Streams = field(default_factory=Streams)
    used_seed: bool = False
    seedless: list[Path] = field(default_factory=list)

    def source(self, value: Any, path: Path, binary: bool = False) -> Source:
        """The source for a config value that has passed the schema. Raises AttnTraceError with faults at `path`."""
        if not isinstance(value, Mapping):
            return Inline(numbers(value, path, binary))
        source = self._file(value, path) if "file" in value else self._draw(value, path)
        return Placed(source, path, self.locate, binary) if binary or "file" in value else source

    def _file(self, value: Mapping[str, Any], path: Path) -> Source:
        from attntrace.config.files.arrays import open_array

        key, name = value.get("key"), value["file"]
        if not name:
            raise AttnTraceError(Fault(f"{called(path)}: expected the name of a file, found ''", (*path, "file")))
        try:
            array = open_array(self.folder / name, key)
        except AttnTraceError as error:
            error.faults = tuple(Fault(f"{called(path)}: {f.message}", (*path, "file")) for f in error.faults)
            raise
        return FromFile(array, f"from {name}" + (f" [{key}]" if key else ""))

    def _draw(self, value: Mapping[str, Any], path: Path) -> Source:
        kind = value["draw"]
        given = {name: value[name] for name in PARAMETERS[kind] if name in value and value[name] is not None}
        parameters = {**DEFAULTS[kind], **({"high": 1.0} if kind == "uniform" else {}), **given}
        generator, seed = self.stream(value, path)
        wide = generator != "torch" or value.get("dtype") == "float64"
        faults = [*strangers(value, path), *draw_faults(kind, parameters, wide, path)]
        if faults:
            raise AttnTraceError(*faults)
        shape = tuple(value["shape"])
        return Drawn(self.streams, generator, seed, kind, parameters, shape, value.get("decimals"), value.get("dtype"))

    def stream(self, value: Mapping[str, Any], path: Path) -> tuple[str, int]:
        """The generator and seed of a draw or dropout: its own, or the config's."""
        seed, path_of_seed = value.get("seed"), (*path, "seed")
        if seed is None:
            seed, path_of_seed, self.used_seed = self.seed, ("seed",), True
        if seed is None:
            self.seedless.append(path)
            seed = 0
        generator = value.get("generator") or self.generator
        if generator == "numpy-legacy" and seed >= 2**32:
            message = f"{called(path_of_seed)}: expected less than {2**32} for numpy-legacy, found {seed}"
            raise AttnTraceError(Fault(message, path_of_seed))
        return generator, seed

    def seed_faults(self) -> Iterator[Fault]:
        """One for all draws that found no seed, since one line mends them all."""
        for path in self.seedless[:1]:
            others = [called(p) for p in self.seedless[1:]]
            so = f", and so {'do' if len(others) > 1 else 'does'} {listed(others)}" if others else ""
            yield Fault(f"{called(path)}: draws random numbers{so}, but there is no seed: give seed: 42 at the top", path)


PARAMETERS = {"normal": ("mean", "std"), "uniform": ("low", "high"), "integers": ("low", "high")}


def strangers(value: Mapping[str, Any], path: Path) -> Iterator[Fault]:
    """Parameters of another distribution."""
    kind = value["draw"]
    for name in ("mean", "std", "low", "high"):
        if name in value and name not in PARAMETERS[kind]:
            wanted = " and ".join(PARAMETERS[kind])
            yield Fault(f"{called(path)}: {name} does not go with draw: {kind}, which takes {wanted}", (*path, name))


def draw_faults(kind: str, given: Mapping[str, Any], wide: bool, path: Path) -> Iterator[Fault]:
    """Parameters that the generators refuse, or answer with an error of their own. `wide` draws are made in float64."""
    low: Any = given.get("low")
    high: Any = given.get("high")
    most = sys.float_info.max if wide else float(np.finfo(np.float32).max)
    if kind == "integers":
        yield from integer_faults(low, high, path)
    elif kind == "uniform" and not (-most <= low < high <= most and high - low <= most):
        limit = "" if low >= high else f" and no more than {most:.2g} apart"
        yield Fault(f"{called(path)}: expected low below high{limit}, found low {found(low)} and high {found(high)}", path)


def integer_faults(low: Any, high: Any, path: Path) -> Iterator[Fault]:
    numbers = f"found low {found(low)} and high {found(high)}"
    if high is None:
        yield Fault(f"{called(path)}: high is missing, the first whole number that draw: integers does not draw", path)
    elif low != int_or_none(low) or high != int_or_none(high):
        yield Fault(f"{called(path)}: expected whole numbers below 2⁶² for draw: integers, {numbers}", path)
    elif not low < high:
        yield Fault(f"{called(path)}: expected low below high, {numbers}", path)


def int_or_none(value: float) -> int | None:
    return int(value) if abs(value) < 2**62 else None


# ------------------------------------------------------------------ numbers written out


def numbers(value: Any, path: Path, binary: bool = False) -> Array:
    """Nested lists as an array of float64. Raises AttnTraceError naming the cells that are not numbers and ragged rows.

    `binary` allows 0, 1, true and false, and nothing else.
    """
    array = of_array(value, path) if isinstance(value, np.ndarray) else of_lists(value, path, binary)
    if binary:
        few(path, list(odd_cells(array, path)))
    return array


def of_lists(value: Any, path: Path, binary: bool) -> Array:
    if not isinstance(value, list):
        raise AttnTraceError(Fault(f"{called(path)}: expected {FORMS}, found {found(value)}", path))
    few(path, list(misshapen(value, path)) or list(not_numbers(value, path, bool if binary else int)))
    return as_array(value, path)


FORMS = "numbers in lists, {file: …} or {draw: …}"


def few(path: Path, faults: list[Fault]) -> None:
    """Raise the faults of one tensor, if there are any: the first ones, and how many more."""
    more = len(faults) - MANY
    last = [Fault(f"{called(path)}: and {more} more like these", faults[MANY].path)] if more > 0 else []
    if faults:
        raise AttnTraceError(*faults[:MANY], *last)


def odd_cells(array: Array, path: Path) -> Iterator[Fault]:
    """Where a mask holds something other than 0 and 1."""
    for index in np.argwhere((array != 0) & (array != 1)).tolist():
        at = (*path, *index)
        yield Fault(not_binary(at, float(array[tuple(index)])), at)


def claim_faults(value: Any, path: Path) -> Iterator[Fault]:
    """What keeps a claim from being numbers in lists, of which any may be blank."""
    if isinstance(value, np.ndarray):
        return
    if not isinstance(value, list):
        yield Fault(f"{called(path)}: expected numbers in lists, found {found(value)}", path)
    else:
        yield from list(misshapen(value, path))[:MANY] or list(not_numbers(value, path, type(None)))[:MANY]


def as_array(value: list[Any], path: Path) -> Array:
    try:
        return np.array(value, dtype=np.float64)
    except OverflowError:
        message = f"{called(path)}: holds a whole number beyond 1.8e308, the largest of float64"
        raise AttnTraceError(Fault(message, path)) from None


def of_array(value: Array, path: Path) -> Array:
    if value.dtype.kind not in "fiub" and value.dtype.name != "bfloat16":
        raise AttnTraceError(Fault(f"{called(path)}: expected an array of numbers, found dtype {value.dtype}", path))
    return value


def sizes_of(value: Any) -> tuple[int, ...]:
    """The lengths of a list and of the lists that begin it."""
    sizes = []
    while isinstance(value, list):
        sizes.append(len(value))
        value = next((v for v in value if v is not None), None)
    return tuple(sizes)


def ragged(value: Any, sizes: tuple[int, ...], path: Path) -> Iterator[Fault]:
    """Every list that is not as long as the first one beside it, and every number that stands where a list should."""
    if value is None or not (sizes or isinstance(value, list)):  # what stands in a cell is a matter of `not_numbers`
        return
    if not isinstance(value, list):
        yield Fault(f"{called(path[:-1])}: row {path[-1]} is {found(value)}; expected a list of {sizes[0]}, as before it", path)
    elif not sizes:
        yield Fault(f"{called(path[:-1])}: entry {path[-1]} is a list; expected a number, as before it", path)
    elif len(value) != sizes[0]:
        yield Fault(f"{called(path[:-1])}: row {path[-1]} has {count(value)}; expected {sizes[0]}, as the rows before it", path)
    elif len(sizes) > 1 or any(isinstance(v, list) for v in value):
        for i, row in enumerate(value):
            yield from ragged(row, sizes[1:], (*path, i))


def count(row: list[Any]) -> str:
    return amount(len(row), "rows" if any(isinstance(v, list) for v in row) else "numbers")


def misshapen(value: list[Any], path: Path) -> Iterator[Fault]:
    """Empty lists, too many axes, ragged rows."""
    sizes = sizes_of(value)
    if 0 in sizes:
        yield Fault(f"{called(path)}: holds an empty list; every axis needs at least one entry", path)
    elif len(sizes) > RANK:
        yield Fault(f"{called(path)}: has {len(sizes)} axes; expected at most {RANK}", path)
    else:
        yield from ragged(value, sizes, path)


def not_numbers(value: list[Any], path: Path, besides: type) -> Iterator[Fault]:
    """Cells that are neither numbers nor of the type `besides`."""
    fine = {int, float, besides}
    if set(map(type, value)) <= fine:
        return
    for i, cell in enumerate(value):
        if isinstance(cell, list):
            yield from not_numbers(cell, (*path, i), besides)
        elif type(cell) not in fine:
            yield Fault(f"{called((*path, i))}: expected a number, found {found(cell)}", (*path, i))


def found(value: Any) -> str:
    """A value as an error message shows it."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and abs(value) > 10**40:
        return "a huge whole number"
    if isinstance(value, (int, float)):
        return SPECIAL.get(str(value), str(value))
    if isinstance(value, str):
        return repr(clipped(value))
    if isinstance(value, list):
        return f"a list of {len(value)}" if value else "an empty list"
    return "a mapping" if isinstance(value, Mapping) else f"a {type(value).__name__}"


SPECIAL = {"nan": ".nan", "inf": ".inf", "-inf": "-.inf"}  # as YAML writes them


def clipped(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:39]}…"
