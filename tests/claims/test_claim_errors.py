"""What is said of claims that cannot be read, word for word; and that one bad claim leaves the others as they are."""

from __future__ import annotations

import io

import numpy as np
import pytest

import attntrace
from attntrace import claims
from attntrace.claims import brackets, claim, tables, trees
from attntrace.claims.claim import CELLS
from attntrace.errors import AttnTraceError

NUMPY = "print it whole, with np.set_printoptions(threshold=np.inf) or torch.set_printoptions(profile='full')"
ERRORS = {
    # a text, the kind of its file, and the first line of what is said
    ("weights = [[0.5, 0.5], [0.3]]", ""): "claims:1:11: weights: row 1 has 1 number; expected 2, as before it",
    ("weights = [[0.5, 0.5],\n[0.3, half]]", ""): 'claims:1:11: weights: [1, 1] is "half", expected a number',
    ("weights = [[0.5, 0.5], 0.3]", ""): 'claims:1:11: weights: row 1 is "0.3"; expected a list of 2',
    ("weights = [0.5, [0.5]]", ""): "claims:1:11: weights: row 1 is a list; expected a number",
    ("weights = [[0.5, 0.5]", ""): "claims:1:11: weights: the bracket that opens here is never closed",
    ("weights = [[[[[0.5]]]]]", ""): "claims:1:11: weights: lists nested more than 4 deep",
    ("weights = [0.5 ... 0.5]", ""): f"claims:1:16: weights: numbers are left out (…): {NUMPY}",
    ("weights = [0.5, …, 0.5]", ""): f"claims:1:17: weights: numbers are left out (…): {NUMPY}",
    ("weights = [0.5, '0.5]", ""): "claims:1:17: weights: found ' among numbers",
    ("weights = [1e999]", ""): "claims:1:11: weights: [0] is beyond 1.8e308, the largest number of float64",
    (f"weights = [{'1' * 401}, 2]", ""): "claims:1:11: weights: [0] is a number of 401 characters, expected at most 400",
    ("weights\n| a | b |\n|-|-|\n| 0.5 | 0.5 |\n| 0.3 |", ""): "claims:5:1: weights: a row of 1 cell; expected 2, as in line 4",
    ("weights\n0.5 0.5\n0.3 0.3 0.3", ""): "claims:3:1: weights: a row of 3 cells; expected 2, as in line 2",
    ("weights\n| a | b |\n|---|---|\n| 0.5 | so |", ""): 'claims:4:1: weights: [0, 1] is "so", expected a number',
    ("no numbers at all", ""): "claims: holds no numbers, expected claims such as weights = [[0.2, 0.8], [0.5, 0.5]]",
    ("", ""): "claims: holds no numbers, expected claims such as weights = [[0.2, 0.8], [0.5, 0.5]]",
    ("", ".csv"): "claims is empty, expected a table of numbers",
    ("0.5,0.5\n0.3,half\n", ".csv"): 'claims:1:1: a claim without a name: [1, 1] is "half", expected a number',
    ("0.5,0.5\n0.3\n", ".csv"): "claims:2:1: a claim without a name: a row of 1 cell; expected 2, as in line 1",
    ("step,query,value\nweights,-1,0.5\n", ".csv"): 'claims:2:1: weights: "-1" is no position, expected 0, 1, 2, …',
    ("step,query,value\nweights,0,0.5\nweights,0,0.6\n", ".csv"): "claims:3:1: weights: [0] twice, first in line 2",
    ("step,a,b,value\nweights,9999,9999,0.5\n", ".csv"): "claims:2:1: weights: its positions span 100000000 numbers, "
    f"expected at most {CELLS}",
    ('{"weights": [[0.5, 0.5], [0.3]]}', ".json"): "claims:1:2: weights: row 1 has 1 number; expected 2, as before it",
    ('{"weights": {"a": 1}}', ".json"): "claims:1:2: weights: expected numbers in lists, found a mapping",
    ('{"weights": 0.5}', ".json"): "claims:1:2: weights: expected numbers in lists",
    ('{"weights": []}', ".json"): "claims:1:2: weights: expected numbers in lists, found nothing",
    ('{"weights": [true, "so"]}', ".json"): 'claims:1:2: weights: [1] is "so", expected a number',
    ('{"weights": [0.5,', ".json"): "claims:1:18: no JSON from here on: expecting value",
    ('{"steps": [{"name": "weights"}]}', ".json"): "claims:1:13: entry 0 of the steps has no values",
    ("[" * 100_000, ".json"): "claims: lists or mappings nested too deep",
    ("weights: [[0.5, 0.5], [0.3]]", ".yaml"): "claims:1:1: weights: row 1 has 1 number; expected 2, as before it",
    ("weights: [0.5", ".yaml"): 'claims:1:14: expected "," or "]" in the list that starts on line 1, found the end of the text',
    ("weights: [!!python/name:os.system '']", ".yaml"): "claims:1:11: the tag !!python/name:os.system is refused and "
    "nothing is executed: expected !!int, !!float, !!bool, !!null, !!str or none, or quotes if it is text",
    ("just words", ".yaml"): "claims:1:1: expected a mapping of step names to numbers in lists",
}  # fmt: skip


def faults(text: str, suffix: str) -> list[str]:
    try:
        reading = claims.read_text(text, "claims", ["weights"], suffix)
    except AttnTraceError as error:
        return [str(fault) for fault in error.faults]
    assert reading.claims == []
    return [str(fault) for fault in reading.faults]


@pytest.mark.parametrize(("text", "suffix", "message"), [(*key, message) for key, message in ERRORS.items()])
def test_what_is_said(text, suffix, message):
    (found,) = faults(text, suffix)
    assert found.splitlines()[0] == f"error: {message}"


MATCHES = {
    "weights = [[0.5, 0.5]]": "claims:1:11: weights: weights is query 4 × key 4; found 1 × 2",
    "masked scores = [[0.5]]": 'claims:1:17: masked scores: this trace has no step masked; did you mean "scaled"?',
    "[[0.5, 0.5]]": "claims:1:1: a claim without a name: no step of this trace has the shape 1 × 2",
    "outpt_x = [[7, 7, 7], [7, 7, 7], [7, 7, 7], [7, 7, 7]]": 'claims:1:11: "outpt_x" is no step of this trace; '
    'did you mean "output"?',
    "weights[7] = [0.5, 0.5, 0.1, 0.1]": "claims:1:14: weights[7]: weights is query 4 × key 4; found 4 for a part of it",
}  # fmt: skip


@pytest.mark.parametrize(("text", "message"), MATCHES.items())
def test_what_is_said_of_claims_about_no_step(text, message):
    trace = attntrace.trace("toy")
    matched = claims.match(claims.read_text(text, "claims", trace.names).claims, trace)
    assert matched.claims == []
    (fault,) = matched.faults
    assert str(fault).splitlines()[0] == f"error: {message}"


@pytest.mark.parametrize("form", ["{}", "weights = {}", "weights\n{}"])
def test_what_numpy_and_torch_left_out_is_told(form):
    torch = pytest.importorskip("torch")
    for printed in (
        np.zeros((2000, 2)),
        repr(np.zeros((2000, 2))),
        np.zeros((2, 2000)),
        torch.zeros(2000, 2),
        torch.zeros(2, 2000),
    ):
        (found,) = faults(form.format(printed), "")
        assert f"numbers are left out (…): {NUMPY}" in found


def test_what_attntrace_left_out_is_told():
    from attntrace.render import latex, markdown, rich
    from attntrace.render.view import View, select

    trace = attntrace.trace(sets=["x={draw: normal, seed: 1, shape: [40, 4]}"])
    for module, cure in ((rich, "attntrace run --full"), (markdown, NUMPY), (latex, NUMPY)):
        out = io.BytesIO()
        module.write(View(trace, select(trace, ["weights"], {})), out)
        (found,) = faults(out.getvalue().decode(), "")
        assert f"weights: numbers are left out (…): {cure if ' it whole' in cure else 'print it whole, with ' + cure}" in found


def test_one_bad_claim_leaves_the_others():
    text = "weights = [[0.5, x]]\n\nscores = [[1, 2]]\n\noutput = [[1], [2, 3]]\n\nq = [[1.5]]\n"
    reading = claims.read_text(text, "claims")
    assert [claim.called for claim in reading.claims] == ["scores", "q"]
    assert [fault.place.line for fault in reading.faults if fault.place] == [1, 5]
    for suffix, text in (
        (".json", '{"weights": [[0.5, "x"]], "scores": [[1, 2]]}'),
        (".yaml", "weights: [[0.5, x]]\nscores: [[1, 2]]\n"),
        (".csv", "weights\n0.5,x\n\nscores\n1,2\n"),
        (".csv", "step,a,value\nweights,0,x\nscores,0,1\n"),
    ):
        reading = claims.read_text(text, "claims", suffix=suffix)
        assert ([claim.called for claim in reading.claims], len(reading.faults)) == (["scores"], 1)


@pytest.mark.parametrize(
    ("text", "suffix"), [('{"q": [[1.5]], "q": [[2.5]]}', ".json"), ("step,a,value\nq,0,1.5\nq,0,2.5", ".csv")]
)
def test_what_is_said_twice_is_told(text, suffix):
    reading = claims.read_text(text, "claims", suffix=suffix)
    assert len(reading.faults) == 1
    assert "twice" in str(reading.faults[0])
    reading = claims.read_text("q: [[1.5]]\nk: [[1]]\nq: [[2.5]]\n", "claims", suffix=".yaml")
    assert [claim.called for claim in reading.claims] == ["k"]
    assert [fault.message for fault in reading.faults] == ['duplicate key "q" (first on line 1)']


def test_a_page_with_a_broken_array_is_read_on_below_it():
    reading = claims.read_text("weights = [[0.5,\n\nscores = [[1, 2]]\n", "claims")
    assert [claim.called for claim in reading.claims] == ["scores"]
    assert len(reading.faults) == 1


def test_names_are_harmless_when_shown():
    trace = attntrace.trace("toy")
    evil = "\x1b[31mred\x07\u202e" + "x" * 500
    reading = claims.read_text(f"{evil} = [[0.5]]", "claims")
    matched = claims.match(reading.claims, trace)
    text = "\n".join([*reading.said, *matched.said, *map(str, matched.faults)])
    assert matched.faults
    assert not set(text) & set("\x1b\x07\u202e")
    assert len(text) < 1000


def test_too_many_numbers(monkeypatch):
    for module in (brackets, trees, claim, tables):
        monkeypatch.setattr(module, "CELLS", 1000)
    for suffix in (".json", ".yaml"):
        with pytest.raises(AttnTraceError, match="holds more than 1000 numbers"):
            claims.read_text("[" + "1," * 2001 + "1]", "claims", suffix=suffix)
    assert "holds more than 1000 numbers" in faults("[" + "1," * 1000 + "1]", "")[0]
    assert "holds more than 1000 numbers" in faults("1 2\n" * 501, "")[0]
    assert "holds 1001 numbers, expected at most 1000" in faults("[" + "1," * 1000 + "1]", ".json")[0]


def test_too_many_arrays():
    with pytest.raises(AttnTraceError, match="holds more than 1000 arrays"):
        claims.read_text("x = [1, 2]\n" * 1002, "claims")


def test_binary_that_is_text_to_nobody(tmp_path):
    (tmp_path / "claims.txt").write_bytes(b"weights\0\xff")
    with pytest.raises(AttnTraceError, match="NUL byte"):
        claims.read(tmp_path / "claims.txt")
    (tmp_path / "claims.npz").write_bytes(b"PK\x03\x04nonsense")
    with pytest.raises(AttnTraceError, match="is damaged"):
        claims.read(tmp_path / "claims.npz")
    with pytest.raises(AttnTraceError, match="is a directory"):
        claims.read(tmp_path)
