"""Opening files that nobody vouches for: regular ones only, never hanging; a failure is a sentence about the file."""

from __future__ import annotations

import io
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from attntrace.errors import AttnTraceError, nearest

Stamp = tuple[int, int, int]
TEXT_LIMIT = 64 << 20
CHUNK = 1 << 20
PICKLED = "holds pickled Python objects, which can execute code; save plain numbers"
SHOWN_KEYS = 10
SHOWN_TEXT = 40  # characters of a key or a cell in a message
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


def read_text(path: Path, limit: int = TEXT_LIMIT) -> str:
    """The UTF-8 text in `path`, without a byte-order mark, its line ends as they are."""
    with opened(path) as file:
        return text(file, path, limit)


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
