"""Text as it was copied from somewhere: arrays, tables and plain rows of numbers, each below or behind its name."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial

from attntrace.claims import brackets, delimited, markup, names, number, run, tables
from attntrace.claims.claim import CLAIMS, Found, Reading, claim_of
from attntrace.claims.tables import Table
from attntrace.claims.text import Text
from attntrace.errors import AttnTraceError, Fault

PROMPT = re.compile(r"^\s{0,40}(?:(?:In|Out) ?\[\d{0,9}\]:|>>>|\.\.\.(?=\s)|\$)\s?")
CALLERS = re.compile(r"(?:<tf\.Tensor.{0,200}numpy=\s?)?(?:[A-Za-z_][\w.]{0,60}\(\s?){0,4}$")
NUMPY = re.compile(r"(?:^|[^\w.]|n(?:um)?p(?:y)?\.)[aA]rray\(\s{0,9}$|numpy=\s?(?:array\()?\s{0,9}$")
ASSIGNED = re.compile(r"\s{0,40}([^:=]{1,100})[:=]\s{0,40}(\S.*)")
RULER = re.compile(r"[-=_*~─━═\s|+]*")
TITLE = re.compile(
    r"\s{0,9}#{1,6}\s[^\[]{0,200}[^\s\[=:][ \t]{0,20}\["
)  # `## input [3, 4]` says a shape, `# x = [3, 4]` numbers
SUMMARY = re.compile(r"`[^`]{1,150}`(?: given)? · ")  # what attntrace writes below the name of a step
CAPTION = re.compile(r"\w{1,100}\[[\d, ]{1,60}\] {2}\w")  # and above one of its matrices
PROSE = 8  # words; a line with more is no name
NOISE = ("parameter containing", "tf.tensor", "<tf.", "import ", "device(")
LONGEST = 200  # characters of a line that may name something


def read(text: Text, steps: Collection[str], reading: Reading) -> None:
    """Every array and table of a text."""
    walker = Walker(text, steps)
    walker.walk()
    for found in walker.found:
        reading.collect(partial(claim_of, found))
    reading.faults += walker.faults


@dataclass
class Words:
    """The lines since the last numbers that may be the name of the next ones."""

    steps: Collection[str]
    title: str = ""  # the last heading that stands out
    lines: list[str] = field(default_factory=list)
    last: int = -1  # the line of the last of them

    def hear(self, content: str, line: int) -> None:
        content = PROMPT.sub("", content)[:LONGEST]
        heading = re.match(r"\s{0,9}#{1,6}\s+(.*)", content) or ("\\" in content and markup.SECTION.search(content)) or None
        words = names.tidy(heading[1] if heading else content)
        if not words or SUMMARY.match(content) or RULER.fullmatch(content) or words.lower().startswith(NOISE):
            return
        if heading:
            self.title, self.lines = words, []
        self.lines.append(words)
        self.last = line

    def name(self) -> str:
        """What the next numbers are called: by the last line that is a name of a step, else by the heading that stands out,
        else by the last line if it is short."""
        lines, title = self.lines[-50:], self.title
        self.forget()
        known = next((words for words in reversed(lines) if CAPTION.match(words) or names.known(words, self.steps)), "")
        return known or title or (lines[-1] if lines and len(lines[-1].split()) <= PROSE else "")

    def header(self, line: int, width: int) -> list[str] | None:
        """The words right above a first row, where they name its columns; they are then no name of the whole."""
        if self.last != line - 1 or width < 2 or not self.lines or names.known(self.lines[-1], self.steps):
            return None
        cells = delimited.cells_of(self.lines[-1], delimited.separator_of(self.lines[-1:]))
        return delimited.cells_of(self.lines.pop(), " ") if len(cells) in (width, width - 1) else None

    def forget(self) -> None:
        self.title, self.lines, self.last = "", [], -1


class Walker:
    """Goes through a text line by line; what it does not know for numbers may be the name of the numbers below."""

    def __init__(self, text: Text, steps: Collection[str]) -> None:
        self.text, self.steps = text, steps
        self.found: list[Found] = []
        self.faults: list[Fault] = []
        self.words = Words(steps)
        self.table = Table("")  # plain rows, while they go on
        self.rows_end: int | None = None  # the line of the last row in brackets that another one may follow

    def walk(self) -> None:
        line = run.start(self.text)
        while line < len(self.text.lines):
            line = self.step(line)
            if len(self.found) > CLAIMS:
                raise AttnTraceError(f"{self.text.name}: holds more than {CLAIMS} arrays")
        self.close()

    def step(self, line: int) -> int:
        """Take what begins in a line; returns the line after it."""
        content = self.text.lines[line]
        following = self.text.lines[line + 1] if line + 1 < len(self.text.lines) else ""
        if not content.strip() or content.lstrip().startswith("```"):
            return self.ended(line + 1)
        if run.HEADING.match(content):
            return self.run(line)
        if "|" in content and markup.is_rule(following):
            return self.markdown(line)
        if "\\" in content and (match := markup.OPENING.search(content)):
            return self.latex(line, match.start())
        if "[" in content and not TITLE.match(content) and (after := self.arrays(line)):
            return after
        if not self.row(line):
            self.close()
            self.words.hear(content, line)
        return line + 1

    # ------------------------------------------------------------------ tables

    def run(self, line: int) -> int:
        self.close()
        self.words.forget()
        found, after = run.section(self.text, line)
        for table in found:
            self.take(table)
        return max(after, line + 1)

    def markdown(self, line: int) -> int:
        self.close()
        table, after = markup.markdown(self.text, line, self.words.name())
        self.take(table)
        return after

    def latex(self, line: int, column: int) -> int:
        self.close()
        self.words.hear(self.text.lines[line][:column].replace("$", "").rstrip("=[ "), line)
        table, end = markup.latex(self.text, self.text.starts[line] + column, self.words.name())
        self.take(table)
        return self.text.line_of(end) + 1

    def take(self, table: Table) -> None:
        if not table.rows:
            return
        try:
            self.found.append(tables.found(table, self.text))
        except AttnTraceError as error:
            self.faults.extend(error.faults)

    # ------------------------------------------------------------------ plain rows

    def row(self, line: int) -> bool:
        """Whether a line is a plain row of numbers, with a label before it or without; then it is taken."""
        cells = row_of(PROMPT.sub("", self.text.lines[line])) or self.labelled(line)
        if cells is None or (len(cells) == 1 and not self.stacked(line)):
            return False
        if not self.table.rows:
            self.table.header = self.words.header(line, len(cells))
            self.table.called = self.words.name()
        self.table.rows.append((line, cells))
        return True

    def labelled(self, line: int) -> list[str] | None:
        """The cells of `weights: 0.5 0.5` and of `row 1: 0.5 0.5`. A name of a step begins a new claim."""
        match = ASSIGNED.fullmatch(self.text.lines[line])
        cells = row_of(match[2]) if match else None
        if match is None or cells is None or number.is_cell(match[1]):
            return None
        if len(cells) < 2:
            return None  # `d_k = 3`
        if not names.known(match[1], self.steps):
            return [match[1].strip(), *cells]
        self.close()
        self.words.hear(match[1], line)
        return cells

    def stacked(self, line: int) -> bool:
        """Whether a lone number has another one above or below it, and so is a column's and no page number."""
        near = [self.text.lines[i] for i in (line - 1, line + 1) if 0 <= i < len(self.text.lines)]
        return any(number.is_number(content) for content in near)

    def close(self) -> None:
        """The plain rows are complete."""
        table, self.table = self.table, Table("")
        if table.header is None and len(table.rows) > 1 and tables.is_header(table.rows[0][1]):
            table.header = table.rows.pop(0)[1]
        self.take(table)

    def ended(self, line: int) -> int:
        self.close()
        return line

    # ------------------------------------------------------------------ brackets

    def arrays(self, line: int) -> int | None:
        """Take all arrays that begin in a line, or in the line in which one of them ends; None if there are none."""
        source = self.text
        start = at = source.starts[line]
        end = start + len(source.lines[line])
        taken = False
        while (opening := source.text.find("[", at, end)) >= 0:
            at = opening + 1
            if brackets.starts(source.text, opening):
                taken = True
                start = at = self.array(start, opening)
                line = source.line_of(at)
                end = source.starts[line] + len(source.lines[line])
        return line + 1 if taken else None

    def array(self, start: int, opening: int) -> int:
        """The array whose bracket is at `opening`; its name may stand before it, from `start` on. Returns where it ends."""
        self.close()
        before = PROMPT.sub("", self.text.text[start:opening][-LONGEST:])
        own = names.tidy(CALLERS.sub("", before).strip().lstrip("{(,; "))
        line = self.text.line_of(opening)
        known = names.known(own, self.steps)
        follows = self.rows_end is not None and self.rows_end == line - 1 and not self.words.lines and not known
        above = "" if known else self.words.name()
        called = above if names.known(above, self.steps) else own or above
        try:
            found, end = brackets.scan(self.text, opening, called, NUMPY.search(before) is not None)
        except brackets.Broken as error:
            self.faults.extend(error.faults)
            return self.skipped(opening) if error.end is None else error.end
        self.words.forget()
        self.add(found, self.text.line_of(end - 1), follows)
        return end

    def skipped(self, at: int) -> int:
        """The end of the paragraph in which an array is broken."""
        blank = self.text.text.find("\n\n", at)
        return len(self.text.text) if blank < 0 else blank

    def add(self, found: Found, last: int, follows: bool) -> None:
        """Take an array. One row right below others, without the name of a step, is the next row of theirs."""
        flat = len(found.shape) == 1
        above = self.found[-1] if self.found else found
        if follows and flat and above.shape[-1:] == found.shape:
            above.cells += found.cells
            above.shape = (len(above.cells) // found.shape[0], found.shape[0])
        else:
            self.found.append(found)
        self.rows_end = last if flat else None


def row_of(content: str) -> list[str] | None:
    """The cells of a line of numbers; None if it is none. The first one may be a label."""
    if RULER.fullmatch(content):
        return None
    separator = delimited.separator_of([content])
    cells = [delimited.point(cell) for cell in delimited.cells_of(content.strip().rstrip(","), separator)]
    numbers = [number.is_cell(cell) or not cell for cell in cells]
    if not cells or not all(numbers[1:]) or not any(map(number.is_cell, cells[1:] or cells)):
        return None
    return cells if numbers[0] or len(cells) > 2 else None
