"""A text with its lines, and the place of each."""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import cached_property

from attntrace.errors import AttnTraceError, Fault, Place

BREAK = re.compile(r"\r\n?|\n")
COLOURS = re.compile(r"\x1b\[[0-9;]{0,32}m")  # of a terminal, copied with the text


class Text:
    """A text that may be anything; `name` is what messages call it. Lines are counted from 0, spots in characters."""

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self.text = BREAK.sub("\n", COLOURS.sub("", text.removeprefix("\ufeff")))

    @cached_property
    def lines(self) -> list[str]:
        return self.text.split("\n")

    @cached_property
    def starts(self) -> list[int]:
        return [0, *(match.end() for match in re.finditer("\n", self.text))]

    def line_of(self, at: int) -> int:
        return bisect_right(self.starts, at) - 1

    def place(self, line: int, column: int = 1) -> Place:
        return Place(self.name, line + 1, column, self.lines[line])

    def spot(self, at: int) -> Place:
        line = self.line_of(at)
        return self.place(line, at - self.starts[line] + 1)

    def origin(self, line: int) -> str:
        return f"{self.name}:{line + 1}"

    def error(self, message: str, line: int) -> AttnTraceError:
        """A fault of a line, shown at its first letter."""
        content = self.lines[line]
        return AttnTraceError(Fault(message, place=self.place(line, len(content) - len(content.lstrip()) + 1)))
