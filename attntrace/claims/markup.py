"""Tables in Markdown and in LaTeX."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from attntrace.claims import number
from attntrace.claims.tables import Table, is_header, unmarked
from attntrace.claims.text import Text

RULE = re.compile(r"\s{0,20}\|?(?:\s{0,200}:?-{1,1000}:?\s{0,200}\|)*\s{0,200}(?::?-{1,1000}:?)?\s*")
PIPE = re.compile(r"(?<!\\)\|")
ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")
TAGS = re.compile(r"</?(?:span|b|strong|i|em|sub|sup|code|td|tr)>|<br ?/?>")

OPENING = re.compile(r"\\begin\{(tabular|array|[bpvBV]?matrix|smallmatrix)\*?\}")
WRAPPERS = re.compile(r"\\(?:mathbf|boldsymbol|textbf|mathrm|text|textit|mathit|emph|bm|num|operatorname)\s?\{([^{}]*)\}")
POWER = re.compile(r"\s*(?:\\times|\\cdot)\s*10\s*\^\s*\{?\s*([-+]?\d{1,4})\s*\}?")
SIGNS = {"\\infty": "∞", "\\dots": "…", "\\ldots": "…", "\\cdots": "…", "\\vdots": "…", "\\ddots": "…", "\\_": "_", "{=}": ""}
TEXT_SIGNS = {"{[}": "[", "{]}": "]", "\\textbackslash{}": "\\", "\\%": "%", "\\&": "&", "\\#": "#", "\\{": "{", "\\}": "}"}
SECTION = re.compile(r"\\(?:paragraph|subparagraph|(?:sub){0,2}section|caption|textbf)\*?\{((?:[^{}]|\{[^{}]*\}){0,300})\}")


# ------------------------------------------------------------------ Markdown


def is_rule(line: str) -> bool:
    """Whether a line is the one that stands between the head and the rows of a table."""
    return "|" in line and "-" in line and not line.strip("|:- \t") and RULE.fullmatch(line) is not None


def markdown(text: Text, line: int, called: str) -> tuple[Table, int]:
    """The table whose head is in `line`, and the line after it."""
    header = row(text.lines[line])
    table = Table(called, header)
    at = line + 2
    if is_data(header):
        table.header = None
        table.rows.append((line, header))
    while at < len(text.lines) and "|" in text.lines[at]:
        table.rows.append((at, row(text.lines[at])))
        at += 1
    return table, at


def is_data(header: Sequence[str]) -> bool:
    """Whether numbers were put into the head of a table: Markdown has no tables without one."""
    return all(map(number.is_number, header)) and any("." in cell for cell in header)


def row(line: str) -> list[str]:
    cells = PIPE.split(line.strip())
    cells = cells[1:] if not cells[0].strip() else cells
    cells = cells[:-1] if cells and line.rstrip().endswith("|") else cells
    return [cell(part) for part in cells] or [""]


def cell(part: str) -> str:
    words = unescaped(part).strip()
    bare = unmarked(words.strip("$`"))
    return bare if number.is_number(bare) else words


def unescaped(words: str) -> str:
    return ESCAPED.sub(r"\1", html.unescape(TAGS.sub("", words)))


# ------------------------------------------------------------------ LaTeX


def latex(text: Text, at: int, called: str) -> tuple[Table, int]:
    """The tabular or matrix that begins at `at`, and where the text goes on behind it."""
    match = OPENING.match(text.text, at)
    assert match is not None
    end = text.text.find("\\end{" + match[1], match.end())
    stop = len(text.text) if end < 0 else end
    start = match.end()
    if match[1] in ("tabular", "array"):
        start = after_columns(text.text, start)
    table = Table(called)
    line = text.line_of(start)
    for part in text.text[start:stop].split("\\\\"):
        words = part.replace("\\hline", "").replace("\\midrule", "").replace("\\toprule", "").replace("\\bottomrule", "")
        here = line + part[: len(part) - len(part.lstrip())].count("\n")
        line += part.count("\n")
        if words.strip(" \n*"):
            table.rows.append((here, [tex_cell(word) for word in re.split(r"(?<!\\)&", words)]))
    if len(table.rows) > 1 and is_header(table.rows[0][1]):
        table.header = table.rows.pop(0)[1]
    after = text.text.find("}", stop)
    return table, len(text.text) if end < 0 or after < 0 else after + 1


def after_columns(text: str, at: int) -> int:
    """Behind the {lrr|r} of a tabular."""
    if not text.startswith("{", at):
        return at
    depth = 0
    for i in range(at, min(len(text), at + 1000)):
        depth += (text[i] == "{") - (text[i] == "}")
        if not depth:
            return i + 1
    return at


def tex_cell(words: str) -> str:
    words = words.strip().strip("$").strip()
    words = POWER.sub(r"e\1", unwrapped(words))
    return tex_text(words).replace("{", "").replace("}", "").strip().strip("$")


def unwrapped(words: str) -> str:
    for _ in range(3):
        words = WRAPPERS.sub(r"\1", words)
    return words


def tex_text(words: str) -> str:
    for sign, meaning in {**SIGNS, **TEXT_SIGNS}.items():
        words = words.replace(sign, meaning)
    return words.strip()
