"""NPZ: one array per step, under its name, for `numpy.load`.

The arrays keep their dtype, except that bfloat16, which NumPy itself does not know, is widened to float32. Equal traces
give equal bytes: zipfile dates such entries 1980.
"""

from __future__ import annotations

import zipfile
from typing import BinaryIO

import numpy as np

from attntrace.render.view import View
from attntrace.tape import Array


def write(view: View, out: BinaryIO) -> None:
    """Write one step after the other, where `numpy.savez` would want all arrays at once."""
    with zipfile.ZipFile(Stream(out), "w") as archive:
        for s in view.shown:
            with archive.open(f"{s.name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, portable(s.values), allow_pickle=False)


class Stream:
    """The part of a file that a pipe has too.

    Given no more, zipfile puts the size of an entry behind it and does not go back to its header, which would fail in a
    pipe, and write to the wrong place of a file opened for appending (>> trace.npz).
    """

    def __init__(self, out: BinaryIO) -> None:
        self.out = out

    def write(self, data: bytes) -> int:
        return self.out.write(data)

    def flush(self) -> None:
        self.out.flush()

    def close(self) -> None:
        """Whoever opened the file closes it."""


def portable(values: Array) -> Array:
    """The values in a dtype that every NumPy can read."""
    return values if values.dtype.kind == "f" else values.astype(np.float32)
