"""Claims are hostile input: whatever the text, there are claims or an AttnTraceError, in time that grows with its length."""

from __future__ import annotations

import contextlib
import json
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import attntrace
from attntrace import claims
from attntrace.errors import AttnTraceError

TRACE = attntrace.trace("toy")
SIGNS = [*"[](),;|│▸…=:#`$\\&{}'\"?_–", "[[", "]]", "...", "**", "\\\\", "━━"]
WORDS = [
    *(" ", "\n", "\t", "\0", "\x1b[3m", "\n|---|---|\n", "━━ weights ━━\n", "```\n", "- ", "step,query,value\n"),
    *("\\begin{bmatrix}", "\\end{bmatrix}", "\\begin{tabular}{l|r}", "array(", "tensor(", "dtype=float32", "grad_fn=<"),
    *("0.5", "1", "-1e-3", "1e999", "−∞", "nan", "weights", "scores", "x", "q[0]", "head 1", '{"weights": ', "weights: "),
    *("&a ", "*a", "!!python/x"),
]
PIECES = [*SIGNS, *WORDS]
GARBAGE = st.lists(st.sampled_from(PIECES), max_size=40).map("".join) | st.text(max_size=80)
SUFFIXES = ["", ".json", ".yaml", ".csv", ".tex", ".md"]


def survive(text: str, suffix: str) -> None:
    """Read and match: shapes belong together, blanks are NaN, and everything said is harmless."""
    try:
        reading = claims.read_text(text, "page", TRACE.names, suffix)
    except AttnTraceError as error:
        assert str(error).startswith("error: ")
        return
    matched = claims.match(reading.claims, TRACE)
    for claim in (*reading.claims, *matched.claims):
        assert claim.values.shape == claim.there.shape == claim.half.shape
        assert np.isnan(claim.values[~claim.there]).all()
        assert (claim.half >= 0).all()
        assert np.isfinite(claim.half).all()
    for claim in matched.claims:
        assert claim.shape == TRACE[claim.name].shape
    for words in [*reading.said, *matched.said, *map(str, [*reading.faults, *matched.faults])]:
        assert not set(words) & set("\x1b\0\r")


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(GARBAGE, st.sampled_from(SUFFIXES))
def test_any_text(text, suffix):
    survive(text, suffix)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_sound_files_with_a_piece_changed(data):
    good = data.draw(st.sampled_from(sorted(GOOD)))
    at = data.draw(st.integers(0, len(GOOD[good])))
    cut = data.draw(st.integers(0, 6))
    survive(GOOD[good][:at] + data.draw(st.sampled_from(PIECES)) + GOOD[good][at + cut :], good.partition(" ")[0])


WEIGHTS = np.round(TRACE["weights"].values, 3)
GOOD = {
    ".json": json.dumps({"weights": WEIGHTS.tolist()}),
    ".yaml": f"expect:\n  weights: {WEIGHTS.tolist()}\n",
    ".csv": "weights\n" + "\n".join(",".join(map(str, row)) for row in WEIGHTS.tolist()),
    ".csv long": "step,query,key,value\n" + "".join(f"weights,{i},{j},{WEIGHTS[i, j]}\n" for i in range(4) for j in range(4)),
    ".txt": f"weights = {WEIGHTS!r}",
    ".md": "## weights\n\n| | a | b | c | d |\n|-|-|-|-|-|\n"
    + "".join(f"| t | {' | '.join(map(str, row))} |\n" for row in WEIGHTS),
    ".tex": r"\begin{bmatrix}" + r" \\ ".join(" & ".join(map(str, row)) for row in WEIGHTS.tolist()) + r"\end{bmatrix}",
}


def nested(inner: st.SearchStrategy) -> st.SearchStrategy:
    return st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["weights", "values", "steps", "name"]), inner)


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.recursive(LEAVES, nested, max_leaves=20))
def test_any_tree(tree):
    survive(json.dumps(tree), ".json")
    if isinstance(tree, dict):
        with contextlib.suppress(AttnTraceError):
            claims.match(claims.read_mapping(tree, TRACE.names).claims, TRACE)


LONG = [
    *(
        "[",
        "[ ",
        "[#",
        "['",
        "|",
        "|\n",
        "|\n|-|\n",
        "1 ",
        "1\n",
        "a\n",
        "[1,2]\n",
        "x: 1 2\n",
        "-",
        "- ",
        '"',
        "(",
        "a(",
        "=",
        "$",
    ),
    *(
        "\\begin{array}\n",
        "\\\\",
        "&",
        "━━ a ━━\n",
        "[1]dtype=<",
        "head 1 ",
        "# a\n",
        "[1, ",
        "1;2\n",
        "a: ",
        "# a[1\n",
        "`a` ",
    ),
]
OF_FILES = [
    (".csv", "1,"),
    (".csv", "1\n"),
    (".csv", '"'),
    (".csv", "a\n"),
    (".json", '{"a":'),
    (".json", "["),
    (".yaml", "a: 1\n"),
]


@pytest.mark.parametrize(("suffix", "piece"), [*(("", piece) for piece in LONG), *OF_FILES])
def test_work_grows_with_length(piece, suffix):
    """Eight times the text takes about eight times the calls; quadratic work would take 64 times."""
    short, long = (calls(piece * (n // len(piece)), suffix) for n in (2_000, 16_000))
    assert long < 16 * short + 2000


def calls(text: str, suffix: str) -> int:
    """How many functions are called while a text is read."""
    count = 0

    def called(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        survive(text, suffix)
    finally:
        sys.setprofile(before)
    return count
