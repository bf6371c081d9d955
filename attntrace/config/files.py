"""Arrays and texts that lie in files, read in two stages: first look, then take.

`open_array` reads the header and says what shape and dtype the numbers would have, so that a caller can refuse them
while nothing is allocated; `ArrayFile.read` brings the numbers. Files are untrusted: none can execute code, hang the
reader, or make it take more memory than the bytes that are really there. Every message has the file as its subject.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import stat
import sys
import warnings
import zipfile
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from attntrace.errors import AttnTraceError, MissingPackage, nearest

Array = npt.NDArray[Any]
Stamp = tuple[int, int, int]

TEXT_LIMIT = 64 << 20
LINE_LIMIT = 4 << 20  # of a .csv: 150 000 numbers of full precision; all cells of a line are in memory at once
CHUNK = 1 << 20
NPY_HEADER = 16 << 10  # numpy refuses a header above 10 000 bytes, but reads it first: up to 4 GiB in format 2.0
SAFETENSORS_HEADER = 16 << 20  # names and shapes of some 100 000 tensors
MOST_AXES = 32  # of an array in numpy 1
SHOWN_KEYS = 10
SHOWN_TEXT = 40  # characters of a key or a cell in a message

SEPARATORS = ";,\t"  # in this order, since the numbers of a file with semicolons may have decimal commas

PICKLED = "holds pickled Python objects, which can execute code; save plain numbers"
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

SIGNATURES = (
    (re.compile(rb"\x93NUMPY"), "a .npy array"),
    (re.compile(rb"PK\x03\x04|PK\x05\x06"), "a zip archive"),
    (re.compile(rb".{7}\0\{", re.DOTALL), "a safetensors archive"),
    (re.compile(rb"\x80[\x02-\x05]"), "a pickle"),
    (re.compile(rb"\x1f\x8b"), "gzip-compressed bytes"),
    (re.compile(rb"\x89HDF"), "an HDF5 archive"),
    (re.compile(rb"\xff\xfe|\xfe\xff"), "UTF-16 text"),
    (re.compile(rb"version https://git-lfs"), "a Git LFS pointer (`git lfs pull` brings the file)"),
    (re.compile(rb"\s*<"), "a web page"),
    (re.compile(rb"[\t\n\r -~]+\Z"), "text"),
)

KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}

NPY_HEADERS = {
    (1, 0): npy.read_array_header_1_0,
    (2, 0): npy.read_array_header_2_0,
    (3, 0): npy.read_array_header_2_0,  # only its field names differ, and arrays with fields are refused
}

# What numpy writes, each with the most bytes that one compressed byte can become (RFC 1951: 258 bytes for two bits).
EXPANSION = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: 1032}
ENCRYPTED = 0x1

SAFETENSORS = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8",
    "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8", "BF16": "<u2",
}  # fmt: skip


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


def open_array(path: Path, key: str | None) -> ArrayFile:
    """Look at the array in `path`; `key` names one where a file may hold several."""
    look = OPENERS.get(path.suffix.lower())
    if look is None:
        found = f'the extension "{clip(path.suffix)}"' if path.suffix else "no extension"
        raise bad(path, f"has {found}, expected .npy, .npz, .csv or .safetensors")
    with opened(path) as file, sound(path):
        if size(file) == 0:
            raise bad(path, f"is empty, expected a {path.suffix.lower()} file")
        return look(file, path, key)


def read_text(path: Path, limit: int = TEXT_LIMIT) -> str:
    """The UTF-8 text in `path`, without a byte-order mark, its line ends as they are."""
    with opened(path) as file:
        return text(file, path, limit)


# Files


@contextmanager
def opened(path: Path) -> Iterator[io.BufferedReader]:
    """`path`, open for reading, if it is a regular file; what the system has against it becomes a sentence."""
    try:
        regular(path)
        with open(path, "rb", opener=at_once) as file:
            yield file
    except FileNotFoundError as error:
        raise bad(path, "does not exist") from error
    except OSError as error:
        raise bad(path, f"cannot be read: {error.strerror or error}") from error


def regular(path: Path) -> None:
    """Refuse what is not a regular file before opening it: a pipe would hang, and opening a device can do things."""
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
    except ValueError as error:  # a NUL or a lone surrogate
        raise bad(path, "is not a possible file name") from error
    if kind != stat.S_IFREG:
        raise bad(path, f"is {KINDS.get(kind, 'something else')}, expected a file")


def at_once(path: str, flags: int) -> int:
    """Open without waiting, should a pipe have taken the file's place meanwhile. Windows has no such flag."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def size(file: io.BufferedReader) -> int:
    return os.fstat(file.fileno()).st_size


def stamp(file: io.BufferedReader) -> Stamp:
    """What changes when a file is rewritten or replaced."""
    found = os.fstat(file.fileno())
    return found.st_size, found.st_mtime_ns, found.st_ino


@contextmanager
def sound(path: Path) -> Iterator[None]:
    """Whatever a parser trips over is damage: numpy, zipfile, csv and json answer hostile bytes with any exception."""
    try:
        yield
    except AttnTraceError:
        raise
    except Exception as error:
        why = clip((str(error) or type(error).__name__).splitlines()[0], 100)
        raise bad(path, f"is damaged, expected a sound {path.suffix.lower()} file ({why})") from error


# Text


def text(file: IO[bytes], path: Path | str, limit: int = TEXT_LIMIT) -> str:
    data = bytes(at_most(file, limit + 1))
    if len(data) > limit:
        raise bad(path, f"is larger than {limit} bytes, the most that is read as text")
    if (at := data.find(b"\0")) >= 0:
        raise not_text(path, data, at, "a NUL byte")
    try:
        return data.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise not_text(path, data, error.start, f"the byte 0x{data[error.start]:02x}") from error


def not_text(path: Path | str, data: bytes, at: int, what: str) -> AttnTraceError:
    """Names the format when it is a known one, and otherwise the first byte that is not text."""
    found = signature(data) or f"{what} at offset {at} (line {data.count(10, 0, at) + 1})"
    return bad(path, f"holds {found}, expected UTF-8 text")


# Numbers that lie in one piece: what all binary formats come down to


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


def exactly(stream: IO[bytes], count: int) -> bytearray:
    """`count` bytes, gathered as they come: a promise of more than there is costs no memory."""
    data = at_most(stream, count)
    if len(data) < count:
        raise EOFError(f"it ends after {len(data)} of {count} bytes of numbers")
    return data


def at_most(stream: IO[bytes], count: int) -> bytearray:
    """`count` bytes, or what there is; a stream asked for all of them at once would make room for all of them."""
    data = bytearray()
    while len(data) < count and (chunk := stream.read(min(CHUNK, count - len(data)))):
        data += chunk
    return data


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


# .npy


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


def numeric(dtype: np.dtype[Any], name: str) -> None:
    """Refuse what is not booleans, integers or real numbers of at most 64 bits."""
    if dtype.hasobject:
        raise bad(name, PICKLED)
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise bad(name, NOT_NUMBERS.get(dtype.kind, "holds something other than numbers"))


# .npz


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


# .safetensors


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


# .csv


def open_csv(file: io.BufferedReader, path: Path, key: str | None) -> ArrayFile:
    """A text says its shape only once it is parsed, so its numbers are at hand from here on."""
    keyless(path, key)
    table = parse_csv(text(file, path, TEXT_LIMIT), path)
    return ArrayFile(path, None, table.shape, str(table.dtype), lambda _: table.copy(), stamp(file))


def parse_csv(source: str, path: Path) -> Array:
    """The table in `source`: two axes, always."""
    values, first, width = array("d"), 0, 0
    for line, cells in body(rows(source, path)):
        first, width = first or line, width or len(cells)
        if len(cells) != width:
            found = "1 cell" if len(cells) == 1 else f"{len(cells)} cells"
            raise bad(f"line {line} of {path}", f"holds {found}, expected {width} as in line {first}")
        values.extend(numbers(cells, line, path))
    if not values:
        raise bad(path, "holds no numbers, expected rows of them, separated by commas, semicolons or tabs")
    return np.frombuffer(values).reshape(-1, width)


def rows(source: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and cells, without blank lines and comments. The first separator to occur is that of the file."""
    separator = None
    for line, content in enumerate(io.StringIO(source, newline=None), 1):
        if len(content) > LINE_LIMIT:
            raise bad(f"line {line} of {path}", f"is longer than {LINE_LIMIT} characters")
        if content.strip() and not content.lstrip().startswith("#"):
            separator = separator or next((s for s in SEPARATORS if s in content), None)
            yield line, next(csv.reader([content.strip(" \n")], delimiter=separator or ",", skipinitialspace=True))


def body(table: Iterator[tuple[int, list[str]]]) -> Iterator[tuple[int, list[str]]]:
    """The rows below the header, which is a first row in which no cell is a number; one odd cell is a mistake."""
    for line, cells in table:
        if any(number(cell) is not None for cell in cells):
            yield line, cells
        break
    yield from table


def numbers(cells: list[str], line: int, path: Path) -> Iterator[float]:
    for column, cell in enumerate(cells, 1):
        value = number(cell)
        if value is None:
            raise bad(f"line {line}, column {column} of {path}", f"holds {quoted(cell)}, expected a number")
        yield value


def number(cell: str) -> float | None:
    """What `cell` says, or None. float() alone would also take 1_000 and the digits of every script."""
    if "_" in cell or not cell.isascii():
        return None
    try:
        return float(cell)
    except ValueError:
        return None


# Which array, and what is wrong


def pick(path: Path, keys: list[str], key: str | None) -> str:
    """The key of the array that is meant: the given one, or the only one."""
    if key is None and len(keys) == 1:
        return keys[0]
    if not keys:
        raise bad(path, "holds no arrays, expected one at least")
    if key is None:
        raise bad(path, f"holds {len(keys)} arrays, expected a key to choose one: {listed(keys)}")
    if keys.count(key) > 1:
        raise bad(path, f"holds {keys.count(key)} arrays named {quoted(key)}, expected one")
    if key not in keys:
        raise bad(path, f"holds no array {quoted(key)}{nearest(clip(key), keys) or '; it holds ' + listed(keys)}")
    return key


def keyless(path: Path, key: str | None) -> None:
    if key is not None:
        raise bad(path, f"holds one array, which has no name: leave out the key {quoted(key)}")


def listed(keys: list[str]) -> str:
    more = len(keys) - SHOWN_KEYS
    return ", ".join(map(quoted, keys[:SHOWN_KEYS])) + (f" and {more} more" if more > 0 else "")


def quoted(key: str) -> str:
    return f'"{clip(key)}"'


def clip(words: str, width: int = SHOWN_TEXT) -> str:
    return words if len(words) <= width else words[:width] + "…"


def expect(magic: bytes, head: bytes, name: str, what: str) -> None:
    """Refuse a file whose first bytes are not those of its format."""
    if not head.startswith(magic):
        raise unlike(head, name, what)


def unlike(head: bytes, name: str, what: str) -> AttnTraceError:
    found = signature(head[:64]) or "bytes of another format"
    return bad(name, PICKLED if found == "a pickle" else f"holds {found}, expected {what}")


def signature(data: bytes) -> str | None:
    """The format that `data` starts like, if it is a known one."""
    return next((what for pattern, what in SIGNATURES if pattern.match(data)), None)


def bad(subject: Path | str, predicate: str) -> AttnTraceError:
    return AttnTraceError(f"{subject} {predicate}")


OPENERS: dict[str, Callable[[io.BufferedReader, Path, str | None], ArrayFile]] = {
    ".npy": open_npy,
    ".npz": open_npz,
    ".csv": open_csv,
    ".safetensors": open_safetensors,
}
