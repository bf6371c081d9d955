"""Arrays in brackets: Python lists, and what `print` and `repr` show for NumPy, torch, JAX and TensorFlow.

Nothing is evaluated: brackets, commas and cells are told apart, and the words around them are left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from attntrace.claims import number
from attntrace.claims.claim import CELLS, DEPTH, Found, flat, shown, untitled
from attntrace.claims.text import Text
from attntrace.errors import AttnTraceError, Fault

# A keyword of a printed array, as `dtype=torch.float32` or `grad_fn=<SoftmaxBackward0>`.
KEYWORD = (
    r"\b(?:dtype|device|grad_fn|requires_grad|shape|size|names|layout|weak_type|is_leaf)\s?=\s?"
    r"(?:<[^>\n]{0,200}>|'[^'\n]{0,200}'|\([^()\n]{0,200}\)|[\w.:]{1,60})"
)
TOKEN = re.compile(
    rf"(?P<open>\[)|(?P<close>\])|(?P<comma>,)|(?P<keyword>{KEYWORD})|(?P<skip>\s+|#[^\n]*|[A-Za-z_][\w.]{{0,60}}\(|\))"
    r"""|"(?P<double>[^"\n]{0,200})"|'(?P<single>[^'\n]{0,200})'|(?P<cell>[^\s,\[\]()"']+)|(?P<stray>.)"""
)
TAIL = re.compile(rf"(?:[\s,]{{0,200}}{KEYWORD})*[ \t]*\)*[ \t]*[,;}}>]*")  # behind the last bracket of a printed array
# What comes before the first cell of an array. Bounded, since it is tried at every bracket of a text.
LEAD = re.compile(
    r"[\s\[]{0,80}(?:#[^\n]{0,80}\n[\s\[]{0,80})?(?:[A-Za-z_][\w.]{0,60}\([\s\[]{0,80})?[\"']?([^\s,\[\]()\"']{0,400})"
)
CITED = re.compile(r"\[\s{0,20}\d{1,20}\s{0,20}\]")  # [1], as in a text


class Broken(AttnTraceError):
    """An array that cannot be read, and where the text goes on behind it; None when nobody knows."""

    def __init__(self, fault: Fault, end: int | None = None) -> None:
        super().__init__(fault)
        self.end = end


@dataclass
class Level:
    """A list whose end is still to come."""

    items: list[object] = field(default_factory=list)
    separated: bool = True  # nothing, or a comma, stands before what comes next


def starts(text: str, at: int) -> bool:
    """Whether the bracket at `at` opens an array, and not an index (`q[0]`), a citation, a shape or words."""
    if at and (text[at - 1].isalnum() or text[at - 1] in "_])\\" or text.endswith("Size(", 0, at)):
        return False
    cited = CITED.match(text, at) and not text[max(0, at - 20) : at].rstrip().endswith(("=", ":", "("))
    match = None if cited else LEAD.match(text, at)
    return match is not None and (number.is_cell(match[1]) or number.is_gap(match[1]))


def scan(text: Text, at: int, called: str, whole: bool) -> tuple[Found, int]:
    """The array whose bracket opens at `at`, and where the text goes on behind it.

    `whole` tells that the word before it was `array(`, which is NumPy's. Raises Broken.
    """
    tree, end, commas = Scanner(text, at, called).tree()
    try:
        cells, shape = flat(tree)
    except ValueError as error:
        raise Broken(Fault(f"{untitled(called)}: {error}", place=text.spot(at)), end) from None
    uniform = len(cells) > 1 and (whole or (not commas and any("." in cell for cell in cells)))
    tail = TAIL.match(text.text, end)
    origin = text.origin(text.line_of(at))
    return Found(called, cells, shape, text.spot(at), origin, uniform=uniform), tail.end() if tail else end


class Scanner:
    """Brackets in, lists out. What is open is kept in a list of its own, so that nesting costs no Python frames."""

    def __init__(self, text: Text, at: int, called: str) -> None:
        self.text, self.at, self.called = text, at, called
        self.stack = [Level()]
        self.count = 0
        self.commas = False  # between cells

    def tree(self) -> tuple[list[object], int, bool]:
        """The lists in lists, where they end, and whether commas stand between their cells."""
        position = self.at
        while token := TOKEN.match(self.text.text, position):
            position = token.end()
            self.take(token)
            if len(self.stack) == 1:
                inner = self.stack[0].items[0]
                assert isinstance(inner, list)
                return inner, position, self.commas
        raise self.broken("the bracket that opens here is never closed")

    def take(self, token: re.Match[str]) -> None:
        kind, level = token.lastgroup, self.stack[-1]
        if kind == "open":
            self.enter(level)
        elif kind == "close":
            self.stack.pop()
            self.stack[-1].separated = False
        elif kind == "comma":
            level.items.extend([""] if level.separated else [])  # [0.1, , 0.3]
            level.separated = self.commas = True
        elif kind == "keyword":
            level.separated = False
        elif kind == "stray":
            raise self.broken(f"found {shown(token[0])} among numbers", token.start())
        elif kind is not None and kind != "skip":
            self.cell(token[kind], level, token.start())

    def enter(self, level: Level) -> None:
        if len(self.stack) > DEPTH:
            raise self.broken(f"lists nested more than {DEPTH} deep")
        self.stack.append(Level())
        level.items.append(self.stack[-1].items)

    def cell(self, cell: str, level: Level, at: int) -> None:
        self.count += 1
        if number.is_gap(cell):
            raise self.broken(number.elided(), at)
        if self.count > CELLS:
            raise self.broken(f"holds more than {CELLS} numbers")
        level.items.append(cell)
        level.separated = False

    def broken(self, message: str, at: int | None = None) -> Broken:
        return Broken(Fault(f"{untitled(self.called)}: {message}", place=self.text.spot(self.at if at is None else at)))
