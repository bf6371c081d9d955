"""What goes wrong, said so that a reader can mend it.

`AttnTraceError` is the only exception a user meets. It carries faults; a fault says what was found and what was expected.
A fault names the config key it is about (`path`); the file, line and caret (`place`) are added once, where the file is known.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

Path = tuple[str | int, ...]

WIDTH = 76  # of a quoted source line
CONTROLS = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}


@dataclass(frozen=True)
class Place:
    """A spot in a text: file name, line and column (from 1), and that line of the source."""

    file: str
    line: int
    column: int
    source: str

    def __str__(self) -> str:
        return f"{plain(self.file)}:{self.line}:{self.column}"

    def excerpt(self) -> str:
        """The source line with a caret below the column; a long line is cut around it."""
        start = max(0, min(self.column - 1 - WIDTH // 2, len(self.source) - WIDTH))
        before = plain(self.source[start : self.column - 1])
        after = plain(self.source[self.column - 1 : start + WIDTH])
        head = "…" if start else ""
        tail = "…" if start + WIDTH < len(self.source) else ""
        margin = " " * len(str(self.line))
        return f"  {self.line} | {head}{before}{after}{tail}\n  {margin} | {' ' * (len(head) + cells(before))}^"


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong: the sentence, the config key it is about, and the place in a file once that is known."""

    message: str
    path: Path = ()
    place: Place | None = None

    def __str__(self) -> str:
        if self.place is None:
            return f"error: {plain(self.message)}"
        return f"error: {self.place}: {plain(self.message)}\n{self.place.excerpt()}"


@dataclass(frozen=True)
class KeyFault(Fault):
    """A fault of a key, and not of its value; `meant` is the key that was probably meant."""

    meant: str | None = None


@dataclass(frozen=True)
class Clash(Fault):
    """A key that does not fit others, which set what was expected of it."""

    others: tuple[str, ...] = ()


class AttnTraceError(Exception):
    """Bad usage or bad input (exit code 2). `faults` holds every problem found, in the order of the file."""

    exit_code = 2

    def __init__(self, *faults: Fault | str) -> None:
        self.faults = tuple(f if isinstance(f, Fault) else Fault(f) for f in faults)
        super().__init__("\n".join(f.message for f in self.faults))

    def __str__(self) -> str:
        return "\n".join(map(str, self.faults))


class MissingPackage(AttnTraceError):
    """An optional package is not installed (exit code 3); the message names the one command that brings it."""

    exit_code = 3

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(f"{what} needs {package}, which is not installed: pip install 'attntrace[{extra}]'")


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean "…"?` with the known word most like `word`, whatever its case, or nothing when none is."""
    lower = {name.lower(): name for name in known}
    match = difflib.get_close_matches(word.lower(), list(lower), n=1, cutoff=0.5)
    return f'; did you mean "{lower[match[0]]}"?' if match else ""


def plain(text: str) -> str:
    """`text` with control characters (escapes, bells, direction overrides, line breaks) written out, as `\\x1b`."""
    return "".join(c if harmless(c) else CONTROLS.get(c, escape(c)) for c in text)


def harmless(c: str) -> bool:
    """Whether a terminal shows `c` as a character and does nothing else."""
    code = ord(c)
    if code < 0x20 or 0x7F <= code < 0xA0 or 0xD800 <= code < 0xE000:  # C0, DEL, C1, lone surrogates
        return False
    # U+200E/F, U+202A-E and U+2066-9 turn the direction of text; U+2028/9 break lines; U+FEFF is a byte-order mark.
    return not (code in (0x200E, 0x200F, 0x2028, 0x2029, 0xFEFF) or 0x202A <= code <= 0x202E or 0x2066 <= code <= 0x2069)


def escape(c: str) -> str:
    code = ord(c)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def cells(text: str) -> int:
    """The number of terminal cells that `text` takes; wide characters take two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
