"""`.npy`: one array, as numpy.save writes it."""

from __future__ import annotations

import io
import warnings
from functools import partial
from pathlib import Path
from typing import IO

from numpy.lib import format as npy

from attntrace.config.files.block import ArrayFile, Block, filled, load, numeric, possible
from attntrace.config.files.opening import expect, keyless, size, stamp

NPY_HEADER = 16 << 10  # numpy refuses a header above 10 000 bytes, but reads it first: up to 4 GiB in format 2.0
NPY_HEADERS = {
    (1, 0): npy.read_array_header_1_0,
    (2, 0): npy.read_array_header_2_0,
    (3, 0): npy.read_array_header_2_0,  # only its field names differ, and arrays with fields are refused
}


def open_npy(file: io.BufferedReader, path: Path, key: str | None) -> ArrayFile:
    keyless(path, key)
    block = npy_block(file, size(file), str(path))
    return ArrayFile(path, None, block.shape, str(block.dtype), partial(load, block=block), stamp(file))


def npy_block(stream: IO[bytes], total: int, name: str) -> Block:
    """Where the numbers of a .npy stream lie. The header is parsed from a copy, which bounds what is read."""
    head = io.BytesIO(stream.read(NPY_HEADER))
    expect(npy.MAGIC_PREFIX, head.getvalue(), name, "a .npy array")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy and ast warn of headers as Python 2 wrote them
        shape, fortran, dtype = NPY_HEADERS[npy.read_magic(head)](head)
    numeric(dtype, name)
    block = Block(head.tell(), tuple(map(int, shape)), dtype, "F" if fortran else "C")
    return filled(possible(block, name), total - block.start, name)
