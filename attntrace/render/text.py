"""What the formats made of text lines have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import BinaryIO

from attntrace.render.view import Shown


def axes_line(shown: Shown) -> str:
    """The named axes and their lengths, `query 3 × key 3`. Computes nothing."""
    return " × ".join(f"{axis} {size}" for axis, size in zip(shown.axes, shown.shape, strict=True))


def write_lines(lines: Iterable[str], out: BinaryIO) -> None:
    """Write each line as it comes, so that a large trace is never one string."""
    out.writelines(f"{line}\n".encode() for line in lines)


def write_text(text: str, out: BinaryIO) -> None:
    out.write(text.encode())
