"""NPZ: one array per step, under its name, for `numpy.load`.

The arrays keep their dtype, except that bfloat16, which NumPy itself does not know, is widened to float32. Equal traces
give equal bytes: the entries carry no date.
"""

from __future__ import annotations

import zipfile
from typing import BinaryIO

import numpy as np

from attntrace.render.view import View
from attntrace.trace import Array


def write(view: View, out: BinaryIO) -> None:
    """Write one step after the other (`numpy.savez` would want all arrays at once). A pipe will do: nothing seeks."""
    with zipfile.ZipFile(out, "w") as archive:
        for s in view.shown:
            entry = zipfile.ZipInfo(f"{s.name}.npy")  # dated 1980
            with archive.open(entry, "w", force_zip64=True) as file:
                np.lib.format.write_array(file, portable(s.values), allow_pickle=False)


def portable(values: Array) -> Array:
    """The values in a dtype that every NumPy can read."""
    return values if values.dtype.kind == "f" else values.astype(np.float32)
