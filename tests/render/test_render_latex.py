"""LaTeX: formulas as a mathematician writes them, tables that hold the numbers, untrusted text that is only text."""

from __future__ import annotations

import io
import pathlib
import re
import shutil
import string
import subprocess
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attntrace.errors import plain
from attntrace.ops import MatMul, Merge, Softmax
from attntrace.render import latex
from attntrace.render.view import View, select
from attntrace.tape import Array, Note, Trace

HOSTILE = [
    *(
        "[bold red]x[/]",
        "=1+1",
        "<script>",
        "a|b",
        "a&b",
        "\x1b[31mred",
        "\\input{/etc/passwd}",
        "$x$",
        "two\nlines",
        "%c",
    ),
    *(
        "^^5cinput",
        "~",
        "{",
        "}",
        "{}",
        "\\",
        "\\\\",
        "#1",
        "_",
        "--",
        "---",
        "''",
        ",,",
        "``",
        "*",
        "[2pt]",
        '"a',
        "−∞ ≤ …",
    ),
    "0 where key ≤ query, −∞ elsewhere",
]
TEXT = st.text(string.printable + "…−∞×ᵀ′″₀é日\x1b", max_size=15)

FORMULAS = {
    "S = Q Kᵀ": r"S = Q K^{\top}",
    "S = Q K′ᵀ": r"S = Q K'^{\top}",
    "S′ = S / √d_k": r"S' = S / \sqrt{d_k}",
    "S / √d_model": r"S / \sqrt{d_{model}}",
    "A = softmax(S″)": r"A = \operatorname{softmax}(S'')",
    "S′ = c tanh(S / c)": r"S' = c \operatorname{tanh}(S / c)",
    "Q = X W_QKV[0:16] + b_QKV[0:16]": r"Q = X W_{QKV}[0{:}16] + b_{QKV}[0{:}16]",
    "K = X_kv W_Kᵀ + b_K": r"K = X_{kv} W_K^{\top} + b_K",
    "Q = X W_QKV[q of each head]ᵀ": r"Q = X W_{QKV}[q\text{ of each head}]^{\top}",
    "A′ = A ∘ D / (1 − 0.1)": r"A' = A \circ D / (1 - 0.1)",
    "H = heads of C side by side": r"H = \text{heads of }C\text{ side by side}",
    "K′ = K, head h reads h // 2": r"K' = K,\text{ head }h\text{ reads }h \mathbin{//} 2",
    "Q = Q₀, split into heads": r"Q = Q_0,\text{ split into heads}",
    "Y = H W_Oᵀ + b_O": r"Y = H W_O^{\top} + b_O",
    "S′ = S × 0.25": r"S' = S \times 0.25",
    "S′ = S × 1e-05": r"S' = S \times 1 \times 10^{-5}",
    "[K_past; K]": r"[K_{past}; K]",
}


def tape(array: Array, labels: Mapping[str, Sequence[str]] | None = None, title: str = "", origin: str = "inline") -> Trace:
    axes = ("batch", "head", "query", "key")[4 - array.ndim :]
    t = Trace(dict(zip(axes, array.shape, strict=True)), array.dtype, labels, title)
    x = t.given("x", "X", axes, lambda: array, origin)
    t("weights", "A = softmax(X)", axes, Softmax(), x)
    return t


def heads() -> Trace:
    t = Trace({"head": 2, "query": 3, "key": 3, "d_k": 2, "head*key": 6}, np.dtype(np.float64), title="Two heads")
    q = t.given("q", "Q", ("head", "query", "d_k"), lambda: np.arange(12.0).reshape(2, 3, 2) - 5)
    m = t.given(
        "mask", "M", ("query", "key"), lambda: np.triu(np.full((3, 3), -np.inf), 1), "0 where key ≤ query, −∞ elsewhere"
    )
    s = t("scores", "S = Q Qᵀ", ("head", "query", "key"), MatMul(transpose=True), q, q)
    t("weights", "A = softmax(S)", s.axes, Softmax(), s)
    t("concat", "H = heads of S side by side", ("query", "head*key"), Merge(), s)
    assert m.given
    return t


def written(t: Trace, index: Mapping[str, int] | None = None, notes: Sequence[Note] = ()) -> str:
    out = io.BytesIO()
    latex.write(View(t, select(t, None, index or {}), notes), out)
    return out.getvalue().decode("utf-8")


# ------------------------------------------------------------------ reading it back

NAMES = {
    "textbackslash": "\\",
    "textasciicircum": "^",
    "textasciitilde": "~",
    "textasciigrave": "`",
    "textless": "<",
    "textgreater": ">",
    "textbar": "|",
    "char34": '"',
    "dots": "…",
}
MATH = {
    r"$\times$": "×",
    r"$\cdot$": "·",
    r"$\circ$": "∘",
    r"$\leq$": "≤",
    r"$\geq$": "≥",
    r"$\infty$": "∞",
    r"$\surd$": "√",
    r"$^{\top}$": "ᵀ",
    "$-$": "−",
    "$'$": "′",
    "$''$": "″",
    **{f"$_{i}$": digit for i, digit in enumerate("₀₁₂₃₄₅₆₇₈₉")},
}
TOKEN = re.compile(
    r"\\(?P<name>textbackslash|textascii\w+|textless|textgreater|textbar|char34|dots)\{\}"
    r"|\\(?P<special>[#$%&_{}])"
    r"|\{(?P<group>[\[\]*])\}"
    r"|(?P<math>\$[^$]+\$)"
    r"|(?P<apart>(?P<first>[-,'])\{\}(?=(?P=first)))"
    r"|(?P<text>[^\\#$%&_{}^~`<>|\"\[\]*…])"  # what LaTeX sets as it is
)


def seen(tex: str) -> str:
    """What a reader sees of text; anything that LaTeX would obey and `escape` does not use is an error."""
    result, position = "", 0
    while position < len(tex):
        match = TOKEN.match(tex, position)
        assert match, f"LaTeX obeys {tex[position:]!r}"
        position = match.end()
        name, special, group, math, apart, first, text = match.groups()
        result += NAMES[name] if name else MATH[math] if math else special or group or (first if apart else text)
    return result


def tabulars(tex: str) -> list[list[list[str]]]:
    """The cells of each tabular, its heading first."""
    found = re.findall(r"\\begin\{tabular\}\{([lr|]+)\}\n(.*?)\n\\end\{tabular\}", tex, re.DOTALL)
    result = []
    for columns, body in found:
        lines = body.split("\n")
        assert lines[0].endswith(r" \\ \hline")
        assert all(line.endswith(r" \\") for line in lines[1:])
        rows = [re.split(r" & |^& ", re.sub(r" \\\\( \\hline)?$", "", line)) for line in lines]
        assert {len(row) for row in rows} == {len(columns.replace("|", ""))}
        result.append(rows)
    return result


def balanced(tex: str) -> bool:
    depth = 0
    for brace in re.findall(r"(?<!\\)(?:\\\\)*([{}])", tex):
        depth += 1 if brace == "{" else -1
        if depth < 0:
            return False
    return depth == 0


# ------------------------------------------------------------------ formulas


@pytest.mark.parametrize(("formula", "tex"), FORMULAS.items())
def test_formulas(formula: str, tex: str) -> None:
    assert latex.math(formula) == tex


@settings(deadline=None)
@given(st.text("ABSQKd_k √ᵀ′″×−∘≤∞₀[]():;,/+=.0123456789e-#$%&~^{}\\é", max_size=20))
def test_a_formula_never_leaves_its_braces(formula: str) -> None:
    assert balanced(latex.math(formula))


def test_formulas_stand_in_math_mode() -> None:
    tex = written(heads())
    assert r"\paragraph{scores} $S = Q Q^{\top}$; head 2 $\times$ query 3 $\times$ key 3; float64" in tex
    assert r"\paragraph{q} $Q$ given; head 2 $\times$ query 3 $\times$ d\_k 2; float64" in tex
    assert tex.splitlines()[4:6] == ["", r"\paragraph{q} $Q$ given; head 2 $\times$ query 3 $\times$ d\_k 2; float64"]


def test_only_letters_are_left_to_the_fonts() -> None:
    """All of the tool's own characters are translated, so pdflatex will do."""
    assert written(heads()).isascii()


# ------------------------------------------------------------------ tables


def test_numbers_sums_and_the_largest() -> None:
    t = tape(np.random.default_rng(8).normal(size=(2, 3, 4)))
    found = tabulars(written(t))[2:]
    for rows, matrix in zip(found, t["weights"].values, strict=True):
        assert rows[0] == ["", "t0", "t1", "t2", "t3", "sum"]
        for i, (cells, row) in enumerate(zip(rows[1:], matrix, strict=True)):
            wanted = [rf"$\mathbf{{{v:.4f}}}$" if j == np.argmax(row) else f"${v:.4f}$" for j, v in enumerate(row)]
            assert cells == [f"t{i}", *wanted, "$1.0000$"]


def test_numbers_of_every_kind() -> None:
    values = [[-0.5, -np.inf, -0.5], [np.nan, 0.25, 1.0], [-np.inf, np.inf, 2.0]]
    rows = tabulars(written(tape(np.array(values))))[0][1:]
    assert rows == [
        ["t0", r"$\mathbf{-0.50}$", r"$-\infty$", "${=}{-0.50}$", r"$-\infty$"],
        ["t1", "NaN", "$0.25$", "$1.00$", "NaN"],
        ["t2", r"$-\infty$", r"$\boldsymbol{\infty}$", "$2.00$", "NaN"],
    ]


def test_exponents() -> None:
    row = tabulars(written(tape(np.array([[1.5e300, -2.5e-7]]))))[0][1]
    assert row[1:3] == [r"$\mathbf{1.5000 \times 10^{300}}$", r"$-2.5000 \times 10^{-7}$"]


def test_a_large_matrix_is_elided_and_says_so() -> None:
    tex = written(tape(np.arange(40.0 * 30).reshape(40, 30), {"key": [f"[{j}]" for j in range(30)]}))
    rows = tabulars(tex)[0]
    assert rows[0][3:5] == ["{[}2{]}", r"\dots{}"]
    assert rows[1][4] == r"$\dots$"
    assert rows[1][-2:] == ["$435$", "$29$ at {[}29{]}"]
    assert rows[4] == [r"$\vdots$"] * 4 + [r"$\ddots$"] + [r"$\vdots$"] * 5
    assert r"\noindent\emph{left out: 34 of 40 along query and 24 of 30 along key (-{}-full prints all)}" in tex


def test_captions_and_one_head() -> None:
    tex = written(heads(), {"head": -1})
    assert r"\textbf{weights{[}1{]}  head 1}\\*" in tex
    assert "head 0}" not in tex
    assert written(heads()).count(r"\textbf{weights{[}") == 2


def test_notes_are_a_list() -> None:
    tex = written(tape(np.ones((1, 1))), notes=[Note("tie", "weights", "50% of row_0"), Note("odd", None, "oddly made")])
    assert tex.endswith("\\begin{itemize}\n\\item 50\\% of row\\_0\n\\item oddly made\n\\end{itemize}\n")
    assert "itemize" not in written(tape(np.ones((1, 1))))


# ------------------------------------------------------------------ untrusted text


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text(text: str) -> None:
    assert seen(latex.escape(text)) == plain(text).strip()


@settings(deadline=None)
@given(TEXT)
def test_any_text(text: str) -> None:
    escaped = latex.escape(text)
    assert seen(escaped) == plain(text).strip()
    assert balanced(escaped)


def test_the_reader_of_these_tests_refuses_what_is_not_escaped() -> None:
    for text in ("$x", "a_b", "50%", "\\input", "a&b", "{", "[2pt]", "*", "a^b", "~", "…", "#1", "<"):
        with pytest.raises((AssertionError, KeyError)):
            seen(text)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_in_every_place(text: str) -> None:
    t = tape(np.array([[1.0, 2.0], [4.0, 3.0]]), {"query": [text, "b"], "key": ["a", text]}, title=text, origin=text)
    view = View(t, select(t, None, {}), [Note("code", None, text)])
    tex = written(t, notes=view.notes)
    shown = plain(text).strip()
    rows = tabulars(tex)[0]
    assert [seen(rows[0][2]), seen(rows[1][0])] == [view.labels["key"][1], view.labels["query"][0]]
    assert seen(tex.splitlines()[3].removeprefix(r"\subsection*{").removesuffix("}")) == shown
    assert seen(next(line for line in tex.splitlines() if "float64; " in line).partition("float64; ")[2]) == shown
    assert seen(next(line for line in tex.splitlines() if line.startswith(r"\item ")).removeprefix(r"\item ")) == shown
    assert balanced(tex)


def fragments() -> Iterator[str]:
    n = len(HOSTILE)
    yield written(heads(), notes=[Note("code", None, text) for text in HOSTILE])
    yield written(tape(np.eye(n) - 0.5, {"query": HOSTILE, "key": [text[::-1] for text in HOSTILE]}, title="".join(HOSTILE)))
    yield written(tape(np.arange(1200.0).reshape(30, 40) * -1e-9))
    yield written(tape(np.array([[np.nan, np.inf, -np.inf, -np.inf]]), origin="x_y.npz[w] & more"))
    yield "\n\n".join(f"${latex.math(formula)}$" for formula in FORMULAS)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_pdflatex_takes_it(tmp_path: pathlib.Path) -> None:
    body = "\n\n".join(fragments())
    source = f"\\documentclass{{article}}\n\\usepackage{{amsmath}}\n\\begin{{document}}\n{body}\n\\end{{document}}\n"
    (tmp_path / "trace.tex").write_text(source, encoding="utf-8")
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "-no-shell-escape", "trace.tex"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", check=False)
    assert found.returncode == 0, found.stdout[-2000:]
