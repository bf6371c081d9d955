"""Markdown, read back by a Markdown parser: the tables hold the numbers, and untrusted text is nothing but text."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

import attntrace
from attntrace.errors import plain
from attntrace.ops import MatMul, Softmax
from attntrace.render import markdown
from attntrace.render.labels import legible
from attntrace.render.view import View, select
from attntrace.tape import Array, Note, Trace

PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])  # GitHub's, but for its links without brackets
HOSTILE = [
    *(
        "[bold red]x[/]",
        "=1+1",
        "<script>alert(1)</script>",
        "<b>",
        "a|b",
        "\\|",
        "|",
        "\x1b[31mred",
        "\\input{/etc/passwd}",
    ),
    *(
        "$x$",
        "two\nlines",
        "\n# h",
        "*b*",
        "**",
        "_i_",
        "__b__",
        "a_b_",
        "`c`",
        "``",
        "&amp;",
        "&",
        "# h",
        "#",
        "a\\",
        "\\",
    ),
    *(
        "~~s~~",
        "![i](u)",
        "[a](b)",
        "<http://a.b>",
        "- x",
        "+ x",
        "1. x",
        "2) x",
        "---",
        "===",
        "> q",
        "[^1]",
        "@octocat",
        "#12",
        "&#124;",
        ":tada:",
        "https://x.y",
        "www.x.y",
        "$",
        "<span>",
        "!",
        "é_ü",
        "日本",
    ),
]
TEXT = st.text("@w2\\`*_{}[]()<>#+-.!|~$&:=;'\"/ \n\tab1é日😀\x1b\u202e", max_size=12)


def tape(array: Array, labels: Mapping[str, Sequence[str]] | None = None, title: str = "", origin: str = "inline") -> Trace:
    axes = ("batch", "head", "query", "key")[4 - array.ndim :]
    t = Trace(dict(zip(axes, array.shape, strict=True)), array.dtype, labels, title)
    x = t.given("x", "X", axes, lambda: array, origin)
    t("weights", "A = softmax(X)", axes, Softmax(), x)
    return t


def written(t: Trace, index: Mapping[str, int] | None = None, notes: Sequence[Note] = (), full: bool = False) -> str:
    out = io.BytesIO()
    markdown.write(View(t, select(t, None, index or {}), notes, full=full), out)
    return out.getvalue().decode("utf-8")


# ------------------------------------------------------------------ reading it back


@dataclass
class Table:
    head: list[str] = field(default_factory=list)
    align: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    bold: list[list[bool]] = field(default_factory=list)


def inline(token: Token) -> str:
    """What a reader sees of an inline token; `code`, **bold** and bare spans are the only markup that there may be."""
    allowed = {"text", "text_special", "code_inline", "strong_open", "strong_close", "em_open", "em_close", "html_inline"}
    children = token.children or []
    found = {child.type for child in children}
    assert found <= allowed, f"{token.content!r} has {found - allowed}"
    assert {child.content for child in children if child.type == "html_inline"} <= {"<span>", "</span>"}
    return "".join(child.content for child in children if child.type != "html_inline")


def pieces(text: str) -> list[str]:
    """The runs of text that a reader of the HTML finds, such as GitHub's search for names and links."""
    children = PARSER.parseInline(text)[0].children or []
    between = "".join("\0" if child.type == "html_inline" else child.content for child in children)
    return [piece for piece in between.split("\0") if piece]


def tables(text: str) -> list[Table]:
    found: list[Table] = []
    for before, token in zip([None, *PARSER.parse(text)], PARSER.parse(text), strict=False):
        if token.type == "table_open":
            found.append(Table())
        elif token.type == "tr_open":
            found[-1].rows.append([])
            found[-1].bold.append([])
        elif before is not None and before.type in ("th_open", "td_open"):
            found[-1].rows[-1].append(inline(token))
            found[-1].bold[-1].append("strong_open" in {child.type for child in token.children or []})
            if before.type == "th_open":
                found[-1].align.append(str(before.attrs.get("style", "")).removeprefix("text-align:"))
    for table in found:
        table.head = table.rows.pop(0)
        del table.bold[0]
    return found


def headings(text: str) -> list[tuple[str, str]]:
    return [(heading.tag, inline(body)) for heading, body in blocks(text, "heading_open")]


def paragraphs(text: str) -> list[str]:
    return [inline(body) for _, body in blocks(text, "paragraph_open")]


def blocks(text: str, kind: str) -> Iterator[tuple[Token, Token]]:
    tokens = PARSER.parse(text)
    return ((token, after) for token, after in itertools.pairwise(tokens) if token.type == kind)


# ------------------------------------------------------------------ numbers


@pytest.mark.parametrize("shape", [(2, 3), (1, 1), (3, 2, 4), (2, 2, 3, 2)])
def test_numbers_sums_and_the_largest(shape: tuple[int, ...]) -> None:
    t = tape(np.random.default_rng(6).normal(size=shape))
    values = t["weights"].values.reshape(-1, *shape[-2:])
    found = tables(written(t))[len(values) :]
    assert len(found) == len(values)
    for table, matrix in zip(found, values, strict=True):
        assert table.head == ["", *(f"t{j}" for j in range(shape[-1])), "sum"]
        assert table.align == ["left"] + ["right"] * (shape[-1] + 1)
        for i, row in enumerate(matrix):
            assert table.rows[i] == [f"t{i}", *(f"{v:.4f}" for v in row), "1.0000"]
            assert [j for j, bold in enumerate(table.bold[i]) if bold] == [1 + int(np.argmax(row))]


def test_a_vector_is_a_row_without_a_name() -> None:
    table = tables(written(tape(np.array([0.5, 2.25]))))[0]
    assert (table.head, table.rows) == (["", "t0", "t1", "sum"], [["", "0.50", "2.25", "2.75"]])


def test_equals_of_the_largest_are_marked() -> None:
    table = tables(written(tape(np.array([[2.0, 1.0, 2.0]]))))[0]
    assert table.rows == [["t0", "2", "1", "=2", "5"]]
    assert table.bold == [[False, True, False, False, False]]


def test_infinities_and_nan() -> None:
    table = tables(written(tape(np.array([[0.5, -np.inf], [np.nan, 1.0]]))))[0]
    assert [row[1:] for row in table.rows] == [["0.5", "−∞", "−∞"], ["NaN", "1.0", "NaN"]]


def test_a_large_matrix_is_elided_and_says_so() -> None:
    values = np.arange(40.0 * 30).reshape(40, 30)
    text = written(tape(values))
    table = tables(text)[0]
    assert table.head == ["", "t0", "t1", "t2", "…", "t27", "t28", "t29", "sum", "largest"]
    assert [row[0] for row in table.rows] == ["t0", "t1", "t2", "…", "t37", "t38", "t39"]
    assert table.rows[1][-2:] == [str(sum(range(30, 60))), "59 at t29"]
    line = next(line for line in paragraphs(text) if line.startswith("left out"))
    assert "34 of 40 along query" in line
    assert "24 of 30 along key" in line
    assert f"\n*{line}*\n" in text
    assert len(tables(written(tape(values), full=True))[0].rows) == 40


# ------------------------------------------------------------------ layout


def test_sections() -> None:
    t = Trace({"head": 2, "query": 1, "d_k": 2, "key": 3}, np.dtype(np.float32), title="Two heads")
    q = t.given("q", "Q", ("head", "query", "d_k"), lambda: np.ones((2, 1, 2), dtype=np.float32), "q.npy")
    k = t.given("k_all", "K", ("head", "key", "d_k"), lambda: np.ones((2, 3, 2), dtype=np.float32), "")
    t("scores", "S = Q Kᵀ", ("head", "query", "key"), MatMul(transpose=True), q, k)
    text = written(t)
    assert headings(text) == [("h1", "Two heads"), ("h2", "q"), ("h2", "k_all"), ("h2", "scores")]
    lines = paragraphs(text)
    assert lines[0] == "Q given · head 2 × query 1 × d_k 2 · float32 · q.npy"
    assert "K given · head 2 × key 3 × d_k 2 · float32" in lines
    assert "S = Q Kᵀ · head 2 × query 1 × key 3 · float32" in lines
    assert "`S = Q Kᵀ`" in text
    assert [line for line in lines if line.startswith("scores")] == ["scores[0]  head 0", "scores[1]  head 1"]


def test_one_head() -> None:
    t = tape(np.random.default_rng(7).normal(size=(2, 2, 3, 2)))
    text = written(t, {"batch": 1, "head": 0})
    assert "A = softmax(X) · query 3 × key 2 · float64" in paragraphs(text)
    assert tables(text)[1].rows[2][1] == f"{t['weights'].values[1, 0, 2, 0]:.4f}"


def test_notes_are_a_list() -> None:
    notes = [Note("tie", "weights", "row 0: a tie"), Note("odd", None, "oddly made")]
    text = written(tape(np.ones((1, 2))), notes=notes)
    assert headings(text)[-1] == ("h2", "Notes")
    assert [token.type for token in PARSER.parse(text)].count("list_item_open") == 2
    assert paragraphs(text)[-2:] == ["row 0: a tie", "oddly made"]


def test_no_title_and_no_notes_leave_no_heading() -> None:
    assert headings(written(tape(np.ones((1, 2))))) == [("h2", "x"), ("h2", "weights")]


# ------------------------------------------------------------------ untrusted text


def seen(text: str) -> str:
    return plain(text).strip()


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text(text: str) -> None:
    assert_shown_as_it_is(text)


@settings(deadline=None)
@given(TEXT)
def test_any_text(text: str) -> None:
    assert_shown_as_it_is(text)


def assert_shown_as_it_is(text: str) -> None:
    """In every place where text of the user's goes: title, origin, row and column label, note."""
    labels = {"query": [text, "down"], "key": ["left", text]}
    t = tape(np.array([[1.0, 2.0], [4.0, 3.0]]), labels, title=text, origin=text)
    raw = written(t, notes=[Note("code", None, text), Note("code", "x", text)])
    if seen(text):
        assert headings(raw)[0] == ("h1", seen(text))
        assert paragraphs(raw)[0] == f"X given · query 2 × key 2 · float64 · {seen(text)}"
    assert [heading for heading in headings(raw) if heading[0] == "h2"] == [
        ("h2", "x"),
        ("h2", "weights"),
        ("h2", "Notes"),
    ]
    table = tables(raw)[0]
    assert table.head == ["", *legible(labels["key"]), "sum"]
    assert [row[0] for row in table.rows] == legible(labels["query"])
    assert [row[1:] for row in table.rows] == [["1", "2", "3"], ["4", "3", "7"]]
    found = [token.type for token in PARSER.parse(raw) if token.level == 0 and token.nesting >= 0]
    assert found.count("bullet_list_open") == 1
    assert set(found) <= {"heading_open", "paragraph_open", "table_open", "bullet_list_open", "inline"}
    shown = [inline(body) for _, body in blocks(raw, "paragraph_open")]
    if seen(text):
        assert shown[-2:] == [seen(text), seen(text)]


@pytest.mark.parametrize(
    "parts",
    [
        *(["https", ":", "//x.y"], ["HTTP", ":", "//x.y"], ["www", ".", "x.y"], ["WWW", ".", "x.y"]),
        *(["@", "octocat"], ["a", "@", "b.c"], ["#", "12"], ["owner/name", "#", "12"], [":", "tada:"]),
        *(["$", "x", "$"], ["$", "$", "x", "$", "$"]),
    ],
)
def test_what_github_looks_for_in_the_text_is_taken_apart(parts: list[str]) -> None:
    """Links, people, issues, emoji and maths are found after escapes are gone, so a backslash would not do."""
    assert pieces(markdown.escape("".join(parts))) == parts


def test_prose_is_left_legible() -> None:
    prose = "row 2 of d_model may attend to nothing: weights are 0 (see w_q), 1.5 at most; x @ W at 10:30:00, a: b."
    assert markdown.escape(prose) == prose


def test_a_title_of_nothing_is_no_heading() -> None:
    assert headings(written(tape(np.ones((1, 2)), title=" \u3000"))) == [("h2", "x"), ("h2", "weights")]


def test_an_infinite_largest_is_bold() -> None:
    table = tables(written(tape(np.array([[np.inf, 1.0], [-np.inf, -np.inf]]))))[0]
    assert table.rows[0][1] == "∞"
    assert table.bold[0][1]


def test_a_layer_from_its_config() -> None:
    config = {"x": np.eye(2), "w_q": np.eye(2), "w_k": np.eye(2), "w_v": np.eye(2), "tokens": ["|", "<b>"], "mask": "causal"}
    t = attntrace.trace(config)
    text = written(t, notes=attntrace.notes(t))
    assert [name for tag, name in headings(text) if tag == "h2"] == [*t.names, "Notes"]
    weights = tables(text)[t.names.index("weights")]
    assert weights.head == ["", "|", "<b>", "sum"]
    e = math.exp(1 / math.sqrt(2))
    assert weights.rows == [["|", "1.0000", "0.0000", "1.0000"], ["<b>", f"{1 / (1 + e):.4f}", f"{e / (1 + e):.4f}", "1.0000"]]


def test_a_label_in_the_largest_column() -> None:
    values = np.arange(1200.0).reshape(2, 600)
    labels = {"key": [f"<{j}|*" for j in range(600)]}
    assert tables(written(tape(values, labels)))[0].rows[0][-1] == "599 at <599|*"
