"""Numbers that lie in one piece of a file: what all binary formats come down to."""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import numpy.typing as npt

from attntrace.config.files.opening import PICKLED, Stamp, bad, exactly, opened, sound, stamp

Array = npt.NDArray[Any]
MOST_AXES = 32  # of an array in numpy 1
NOT_NUMBERS = {
    "O": PICKLED,
    "V": "holds raw bytes or records, expected plain numbers (numpy saves bfloat16 as raw bytes: save it as float32)",
    "S": "holds text, expected numbers",
    "U": "holds text, expected numbers",
    "M": "holds dates, expected numbers",
    "m": "holds spans of time, expected numbers",
    "c": "holds complex numbers, expected real ones",
    "f": "holds long doubles, expected float64 or smaller",
}


@dataclass(frozen=True)
class ArrayFile:
    """An array that lies in a file: its shape and dtype are known from the header, its numbers are read on demand.

    `dtype` is what `read` returns: the machine's byte order, and float32 for bfloat16, which it holds exactly.
    """

    path: Path
    key: str | None
    shape: tuple[int, ...]
    dtype: str
    load: Callable[[io.BufferedReader], Array] = field(repr=False, compare=False)
    stamp: Stamp = field(repr=False, compare=False)

    def read(self) -> Array:
        """The numbers, in an array of the caller's own. A file that is no longer the one looked at is refused."""
        with opened(self.path) as file, sound(self.path):
            if stamp(file) != self.stamp:
                raise bad(self.path, "has changed since it was first looked at")
            try:
                return self.load(file)
            except MemoryError as error:  # not `sound`'s: over a hostile header, Python's parser raises it too
                raise bad(self.path, f"does not fit in memory: shape {self.shape} of {self.dtype}") from error


@dataclass(frozen=True)
class Block:
    """Numbers in one piece: how many bytes of a stream lie before them, and how they are stored."""

    start: int
    shape: tuple[int, ...]
    stored: np.dtype[Any]
    order: Literal["C", "F"] = "C"
    bfloat16: bool = False  # stored as uint16, since numpy has no such type

    @property
    def size(self) -> int:
        return math.prod(self.shape) * self.stored.itemsize

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float32) if self.bfloat16 else self.stored.newbyteorder("=")

    def numbers(self, stream: IO[bytes]) -> Array:
        """The array, from a stream that stands at its first number."""
        found = np.ndarray(self.shape, self.stored, exactly(stream, self.size), order=self.order)
        return widen(found) if self.bfloat16 else found.astype(self.dtype, copy=False)


def widen(halves: Array) -> Array:
    """bfloat16 is the upper half of a float32."""
    whole = halves.astype(np.uint32)
    whole <<= np.uint32(16)  # numpy 1 makes an int64 of a single number and a Python int
    return whole.view(np.float32)


def possible(block: Block, name: str) -> Block:
    """Refuse a shape that no array has. Zeros count as ones: numpy objects to (2**62, 0) too."""
    if len(block.shape) > MOST_AXES:
        raise bad(name, f"holds an array of {len(block.shape)} axes, expected at most {MOST_AXES}")
    if any(n < 0 for n in block.shape):
        raise bad(name, "holds an array with an axis of negative length, expected 0 or more")
    if math.prod(max(n, 1) for n in block.shape) * block.stored.itemsize > sys.maxsize:
        raise bad(name, "holds an array larger than any memory")
    return block


def filled(block: Block, found: int, name: str) -> Block:
    """Refuse an array whose numbers take more or fewer bytes than are there."""
    if found != block.size:
        what = f"shape {block.shape} of {block.dtype}"
        raise bad(name, f"holds {found} bytes of numbers, expected {block.size} for {what}")
    return block


def load(file: io.BufferedReader, block: Block) -> Array:
    file.seek(block.start)
    return block.numbers(file)


def numeric(dtype: np.dtype[Any], name: str) -> None:
    """Refuse what is not booleans, integers or real numbers of at most 64 bits."""
    if dtype.hasobject:
        raise bad(name, PICKLED)
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise bad(name, NOT_NUMBERS.get(dtype.kind, "holds something other than numbers"))
