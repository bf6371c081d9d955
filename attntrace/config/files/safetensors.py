"""`.safetensors`: the package checks the header, the numbers are read here (it has no bfloat16 for NumPy)."""

from __future__ import annotations

import io
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from attntrace.config.files.block import ArrayFile, Block, filled, load, possible
from attntrace.config.files.opening import bad, clip, pick, quoted, size, stamp, unlike
from attntrace.errors import MissingPackage

SAFETENSORS_HEADER = 16 << 20  # names and shapes of some 100 000 tensors
SAFETENSORS = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8",
    "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8", "BF16": "<u2",
}  # fmt: skip


def open_safetensors(file: io.BufferedReader, path: Path, key: str | None) -> ArrayFile:
    """The package vouches for the header: every byte belongs to one tensor, each of its right size.

    The numbers are read without it. Its numpy side knows no bfloat16, and it maps the file into memory, where a file
    that another program cuts short ends ours.
    """
    start, header = safetensors_header(file, path)
    key = pick(path, safetensors_keys(path), key)
    block = safetensors_block(start, header[key], f"{quoted(key)} in {path}")
    return ArrayFile(path, key, block.shape, str(block.dtype), partial(load, block=block), stamp(file))


def safetensors_header(file: io.BufferedReader, path: Path) -> tuple[int, dict[str, Any]]:
    """Where the data starts, and what the header says: 8 bytes hold its length, little-endian, then comes JSON."""
    head = file.read(64)
    if head[8:9] != b"{":
        raise unlike(head, str(path), "a safetensors archive")
    length, there = int.from_bytes(head[:8], "little"), size(file) - 8
    if length > there:
        raise bad(path, f"promises a header of {length} bytes, and holds {there}")
    if length > SAFETENSORS_HEADER:
        raise bad(path, f"holds a header of {length} bytes, expected at most {SAFETENSORS_HEADER}")
    file.seek(8)
    return 8 + length, json.loads(file.read(length))


def safetensors_keys(path: Path) -> list[str]:
    try:
        from safetensors import safe_open
    except ImportError:
        raise MissingPackage("reading .safetensors files", "safetensors", "safetensors") from None
    with safe_open(path, framework="numpy") as archive:
        return list(archive.keys())


def safetensors_block(start: int, entry: dict[str, Any], name: str) -> Block:
    code, (begin, end) = entry["dtype"], entry["data_offsets"]
    if code not in SAFETENSORS:
        raise bad(name, f"holds numbers of type {clip(code)}, expected one of {', '.join(SAFETENSORS)}")
    block = Block(start + begin, tuple(entry["shape"]), np.dtype(SAFETENSORS[code]), bfloat16=code == "BF16")
    return filled(possible(block, name), end - begin, name)
