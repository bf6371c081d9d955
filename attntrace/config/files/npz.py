"""`.npz`: a zip archive of `.npy` entries, as numpy.savez writes it."""

from __future__ import annotations

import io
import zipfile
from functools import partial
from pathlib import Path

from attntrace.config.files.block import Array, ArrayFile, Block
from attntrace.config.files.npy import npy_block
from attntrace.config.files.opening import bad, exactly, expect, pick, quoted, size, stamp

# What numpy writes, each with the most bytes that one compressed byte can become (RFC 1951: 258 bytes for two bits).
EXPANSION = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: 1032}
ENCRYPTED = 0x1


def open_npz(file: io.BufferedReader, path: Path, key: str | None) -> ArrayFile:
    expect(b"PK", file.read(64), str(path), "a zip archive of .npy arrays")
    with zipfile.ZipFile(file) as archive:
        entries = [e for e in archive.infolist() if e.filename.endswith(".npy")]
        key = pick(path, [e.filename.removesuffix(".npy") for e in entries], key)
        entry = archive.getinfo(f"{key}.npy")
        name = f"{quoted(key)} in {path}"
        honest(entry, size(file), name)
        with archive.open(entry) as stream:
            block = npy_block(stream, entry.file_size, name)
    return ArrayFile(path, key, block.shape, str(block.dtype), partial(load_npz, key=key, block=block), stamp(file))


def honest(entry: zipfile.ZipInfo, total: int, name: str) -> None:
    """Refuse an entry that is locked, or cannot become what it promises, before any of it is unpacked."""
    if entry.flag_bits & ENCRYPTED:
        raise bad(name, "is encrypted, expected an entry that can be read without a password")
    if entry.compress_type not in EXPANSION:
        raise bad(name, f"is compressed by method {entry.compress_type}, expected 0 (stored) or 8 (deflated)")
    packed = min(entry.compress_size, total)
    if entry.file_size > EXPANSION[entry.compress_type] * packed:
        raise bad(name, f"promises {entry.file_size} bytes, more than its {packed} packed bytes can hold")


def load_npz(file: io.BufferedReader, key: str, block: Block) -> Array:
    """Reads up to the numbers, since zipfile stops checking the CRC of an entry in which one seeks."""
    with zipfile.ZipFile(file) as archive, archive.open(f"{key}.npy") as stream:
        exactly(stream, block.start)
        return block.numbers(stream)
