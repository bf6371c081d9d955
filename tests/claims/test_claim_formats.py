"""Every form in which numbers are handed over, and every format that attntrace writes, comes back as the same numbers."""

from __future__ import annotations

import importlib
import io
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

import attntrace
from attntrace import claims
from attntrace.config import bundled
from attntrace.errors import AttnTraceError
from attntrace.render.view import View, select

TABLE = np.array([[0.25, -1.5, 3.125], [0.0, 100.75, -0.0625]])  # exact in any precision
WEIGHTS = ["scores", "weights", "output"]


def one(text: str, name: str = "page.txt", suffix: str = "") -> claims.Claim:
    reading = claims.read_text(text, name, WEIGHTS, suffix)
    assert reading.faults == []
    (claim,) = reading.claims
    return claim


def holds(claim: claims.Claim, expected: np.ndarray) -> bool:
    """Whether each number of a claim is what it was written from, within half a unit of its last digit."""
    with np.errstate(all="ignore"):
        near = np.abs(claim.values - expected) <= claim.half * (1 + 1e-9) + 2 * np.spacing(np.abs(expected))
    same = (claim.values == expected) | (np.isnan(claim.values) & np.isnan(expected)) | near
    return claim.shape == expected.shape and bool(same.all() and claim.there.all())


# ------------------------------------------------------------------ what attntrace writes


def printed(name: str, *options: str, width: int | None = None) -> bytes:
    """What the command writes, as a user gets it."""
    command = [sys.executable, "-c", "from attntrace.cli.app import main; main()", "run", name, *options]
    environment = os.environ | ({"COLUMNS": str(width)} if width else {})
    return subprocess.run(command, capture_output=True, check=True, env=environment).stdout


@pytest.mark.parametrize("form", ["json", "csv", "npz", "rich", "markdown", "latex"])
def test_the_command_line_comes_back(form, tmp_path):
    file = tmp_path / f"claims.{'txt' if form in ('rich', 'latex', 'markdown') else form}"
    file.write_bytes(printed("multi-head-causal", "--format", form, "--full", "--steps", "mask,weights,concat,output"))
    comes_back(file, attntrace.trace("multi-head-causal"), ["mask", "weights", "concat", "output"])


@pytest.mark.parametrize("form", ["json", "csv", "npz", "markdown", "latex"])
@pytest.mark.parametrize("name", bundled.names())
def test_every_example_in_every_format(name, form, tmp_path):
    trace = attntrace.trace(name)
    file = tmp_path / f"claims.{'txt' if form in ('latex', 'markdown') else form}"
    file.write_bytes(rendered(trace, form))
    comes_back(file, trace, trace.names)


@pytest.mark.parametrize("colour", [False, True])
@pytest.mark.parametrize("width", [None, 60, 80])
@pytest.mark.parametrize("name", ["toy", "flash", "llama-block", "multi-head-causal", "fully-masked-row", "paged", "kv-cache"])
def test_what_a_terminal_shows(name, width, colour, tmp_path):
    """Narrow terminals show a matrix some columns at a time; colours are copied with the text."""
    trace = attntrace.trace(name)
    file = tmp_path / "claims.txt"
    file.write_bytes(rendered(trace, "rich", width, colour))
    comes_back(file, trace, trace.names)


def rendered(trace, form, width=None, colour=False):
    out = io.BytesIO()
    view = View(trace, select(trace, None, {}), (), 4, True, width, colour)
    importlib.import_module(f"attntrace.render.{form}").write(view, out)
    return out.getvalue()


def comes_back(file, trace, names):
    """All steps, under their names, to the digits written, with nothing that would need saying."""
    reading = claims.read(file, trace.names)
    matched = claims.match(reading.claims, trace)
    assert (reading.said, reading.faults, matched.said, matched.faults) == ([], [], [], [])
    assert [claim.name for claim in matched.claims] == [name for name in trace.names if name in names]
    for claim in matched.claims:
        values = trace[claim.name].values.astype(np.float64)
        assert holds(claim, values), claim.name
        if file.suffix in (".json", ".csv", ".npz"):
            np.testing.assert_array_equal(claim.values, values)
            plain = any((np.round(claim.values, n) == claim.values).all() for n in range(2, 9))
            assert plain or not claim.half.any()


@pytest.mark.parametrize("form", ["json", "csv"])
def test_one_head_of_a_trace(form, tmp_path):
    file = tmp_path / f"claims.{form}"
    file.write_bytes(printed("multi-head-causal", "--format", form, "--steps", "weights", "--batch", "1", "--head", "2"))
    trace = attntrace.trace("multi-head-causal")
    (claim,) = claims.match(claims.read(file, trace.names).claims, trace).claims
    assert claim.there.sum() == 25
    np.testing.assert_array_equal(claim.values[1, 2], trace["weights"].values[1, 2])


def test_steps_without_the_zeros_of_an_exact_file_stay_exact(tmp_path):
    """0.0 in a file of full precision is 0.0, and not something near it."""
    file = tmp_path / "claims.csv"
    file.write_text("step,query,key,value\nweights,0,0,0.0\nweights,0,1,1.0\noutput,0,0,0.333333333333333\n")
    assert not any(claim.half.any() for claim in claims.read(file).claims)
    file.write_text("step,query,key,value\nweights,0,0,0.25\nweights,0,1,0.75\n")
    assert claims.read(file).claims[0].half.tolist() == [[0.005, 0.005]]


# ------------------------------------------------------------------ what NumPy and torch print


def draws(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    shape = rng.integers(1, 8, rng.integers(1, 5))
    values = rng.normal(size=shape) * 10.0 ** rng.integers(-3, 4)
    if seed % 3 == 0:
        values[rng.random(shape) < 0.2] = rng.choice([0.0, 1.0, np.inf, -np.inf, np.nan])
    if seed % 5 == 0:
        values *= 10.0 ** rng.integers(-9, 9, shape)
    return values


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("precision", [2, 3, 4, 8])
@pytest.mark.parametrize("linewidth", [20, 75, 200])
def test_numpy_arrays(precision, linewidth, dtype):
    for seed in range(40):
        values = draws(seed).astype(dtype)
        with np.printoptions(precision=precision, linewidth=linewidth, threshold=10**9, suppress=seed % 2 == 0):
            texts = [f"weights\n{values}\n", f"weights = {values!r}\n", str({"weights": values}), f">>> weights\n{values!r}"]
        for text in texts:
            claim = one(text)
            assert holds(claim, values.astype(np.float64)), text
            finite = np.isfinite(values) & (values != 0)
            if seed % 5 and finite.any() and values.size > 1:  # in fixed notation: no coarser than its finest number
                assert (claim.half[finite] <= np.maximum(finest(text), np.abs(values[finite]) * 2.0**-23) * 1.001).all(), text


def finest(text: str) -> float:
    """Half a unit of the last digit of the number with most decimals; what ends in a point has two at least."""
    if re.search(r"\d[eE][-+]?\d", text):
        return np.inf
    return 0.5 * 10.0 ** -max([2, *(len(found) for found in re.findall(r"\.(\d*)", text))])


@pytest.mark.parametrize("precision", [2, 4, 8])
@pytest.mark.parametrize("linewidth", [20, 80, 200])
def test_torch_tensors(precision, linewidth):
    torch = pytest.importorskip("torch")
    torch.set_printoptions(precision=precision, linewidth=linewidth, threshold=10**9)
    try:
        for seed in range(40):
            values = torch.tensor(draws(seed))
            texts = [f"weights: {values}", f"weights\n{values.clone().requires_grad_() * 1}", f"weights = {values.float()}"]
            for text, truth in zip(texts, (values, values, values.float()), strict=True):
                assert holds(one(text), truth.double().numpy()), text
    finally:
        torch.set_printoptions(profile="default")


def test_torch_parameters_and_devices():
    torch = pytest.importorskip("torch")
    text = (
        "weights\nParameter containing:\ntensor([[0.25, 0.75]], device='cuda:0',\n       dtype=torch.half, requires_grad=True)"
    )
    assert holds(one(text), np.array([[0.25, 0.75]]))
    assert holds(one(f"weights = {torch.nn.Parameter(torch.tensor([[0.25, 0.75]]))}"), np.array([[0.25, 0.75]]))


@pytest.mark.parametrize(
    "text",
    [
        "weights = {}",
        "weights: {}",
        '"weights": {}',
        "weights\n{}",
        "weights:\n\n{}",
        "# weights\n\n```\n{}\n```",
        "**weights**\n{}",
        "print(weights)\n{}",
        "In [3]: weights\nOut[3]: {}",
        ">>> weights\n{}",
        "weights = np.array({}, dtype=np.float32)",
        "weights = torch.tensor({}, device='cuda:0')",
        "weights = jnp.array({})",
        "weights = Array({}, dtype=float32)",
        "weights\ntf.Tensor(\n{}, shape=(2, 3), dtype=float32)",
        "weights\n<tf.Tensor: shape=(2, 3), dtype=float32, numpy=\narray({}, dtype=float32)>",
        "{{'weights': array({}), }}",
        "{{'weights': tensor({}, grad_fn=<SoftmaxBackward0>)}}",
        "See [1], section [2].\nThe tokens are ['the', 'cat'].\nweights\n{}\ntorch.Size([2, 3])\n",
        "q[0] is a row.\nweights =\n{}",
    ],
)
def test_the_words_around_an_array(text):
    claim = one(text.format(TABLE.tolist()))
    np.testing.assert_array_equal(claim.values, TABLE)
    assert (claim.name, claim.called) == ("weights", "weights")


def test_several_arrays_on_one_line():
    reading = claims.read_text(f"{{'scores': {TABLE.tolist()}, 'weights': array([0.5, 0.25]), 'output': [[1.5]]}}", "page")
    assert [(claim.called, claim.shape) for claim in reading.claims] == [
        ("scores", (2, 3)),
        ("weights", (2,)),
        ("output", (1, 1)),
    ]


def test_lists_of_numpy_scalars_and_of_tensors():
    torch = pytest.importorskip("torch")
    assert one(f"weights = {[np.float64(0.25), np.float64(0.5)]!r}").values.tolist() == [0.25, 0.5]
    assert one(f"weights = {[torch.tensor([0.25, 0.5]), torch.tensor([1.0, 2.0])]}").values.tolist() == [[0.25, 0.5], [1, 2]]


def test_rows_that_stand_alone_are_stacked():
    rows = "weights\n[0.25, -1.5, 3.125]  # the\n[0.0, 100.75, -0.0625]  # cat\n"
    np.testing.assert_array_equal(one(rows).values, TABLE)
    labelled = "weights:\nthe: [0.25, -1.5, 3.125]\ncat: [0.0, 100.75, -0.0625]\n"
    np.testing.assert_array_equal(one(labelled).values, TABLE)
    apart = claims.read_text("weights = [0.25, 0.75]\noutput = [0.25, 0.75]\n", "page")
    assert [claim.called for claim in apart.claims] == ["weights", "output"]


# ------------------------------------------------------------------ tables


TABLES = {
    "spaces": "weights\n0.25 -1.5 3.125\n0.0 100.75 -0.0625\n",
    "labels": "weights\n     the   cat    sat\nthe  0.25  -1.5   3.125\ncat  0.0   100.75 -0.0625\n",
    "rows in words": "weights:\nrow 1: 0.25 -1.5 3.125\nrow 2: 0.0 100.75 -0.0625\n",
    "tabs": "weights\n\tthe\tcat\tsat\nthe\t0.25\t-1.5\t3.125\ncat\t0.0\t100.75\t-0.0625\n",
    "decimal commas": "weights\n0,25;-1,5;3,125\n0,0;100,75;-0,0625\n",
    "decimal commas and tabs": "weights\n0,25\t-1,5\t3,125\n0,0\t100,75\t-0,0625\n",
    "decimal commas and spaces": "weights\n0,25 -1,5 3,125\n0,0 100,75 -0,0625\n",
    "commas": "weights\n0.25, -1.5, 3.125\n0.0, 100.75, -0.0625\n",
    "minus signs": "weights\n0.25 −1.5 3.125\n0.0 100.75 −0.0625\n",
    "markdown": "## weights\n\n| | a | b | c |\n|:--|--:|--:|--:|\n"
    "| the | **0.25** | -1.5 | 3.125 |\n| cat | 0.0 | 100.75 | -0.0625 |\n",
    "markdown without labels": "weights\n\n| a | b | c |\n|---|---|---|\n| 0.25 | -1.5 | 3.125 |\n| 0.0 | 100.75 | -0.0625 |\n",
    "markdown without bars": "weights\n\n a | b | c \n---|---|---\n 0.25 | -1.5 | 3.125 \n 0.0 | 100.75 | -0.0625 \n",
    "markdown with sums": "weights\n\n| | 0 | 1 | 2 | sum |\n|-|-|-|-|-|\n"
    "| 0 | 0.25 | -1.5 | 3.125 | 9 |\n| 1 | 0.0 | 100.75 | -0.0625 | 9 |\n",
    "markdown with numbers for a head": "weights\n\n| 0.25 | -1.5 | 3.125 |\n|---|---|---|\n| 0.0 | 100.75 | -0.0625 |\n",
    "latex": r"weights = \begin{bmatrix} 0.25 & -1.5 & 3.125 \\ 0.0 & 100.75 & -0.0625 \end{bmatrix}",
    "latex on lines": "$$\nweights = \\begin{pmatrix}\n0.25 & -1.5 & 3.125 \\\\\n0.0 & 100.75 & -0.0625\n\\end{pmatrix}\n$$\n",
    "tabular": "\\paragraph{weights}\n\\begin{tabular}{l|rrr}\n"
    " & a & b & c \\\\ \\hline\nthe & $\\mathbf{0.25}$ & $-1.5$ & $3.125$ \\\\\n"
    "cat & $0.0$ & $100.75$ & $-6.25 \\times 10^{-2}$ \\\\\n\\end{tabular}\n",
    "yaml": "weights:\n  - [0.25, -1.5, 3.125]\n  - [0.0, 100.75, -0.0625]\n",
    "json": '{"weights": [[0.25, -1.5, 3.125],\n [0.0, 100.75, -0.0625]]}',
    "json of steps": '{"steps": [{"name": "weights", "values": [[0.25, -1.5, 3.125], [0.0, 100.75, -0.0625]]}]}',
    "long": "step,query,key,value\n"
    + "".join(f"weights,{i},{j},{TABLE[i, j]}\n" for i in range(2) for j in range(3)),
}  # fmt: skip


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("form", TABLES)
def test_tables_of_text(form, line_end):
    claim = one(TABLES[form].replace("\n", line_end))
    np.testing.assert_array_equal(claim.values, TABLE)
    assert claim.there.all()
    assert claim.called == "weights"


SHEETS = {
    "plain": "0.25,-1.5,3.125\n0.0,100.75,-0.0625\n",
    "header": "a,b,c\n0.25,-1.5,3.125\n0.0,100.75,-0.0625\n",
    "label column": ",a,b,c\nthe,0.25,-1.5,3.125\ncat,0.0,100.75,-0.0625\n",
    "pandas": ",0,1,2\n0,0.25,-1.5,3.125\n1,0.0,100.75,-0.0625\n",
    "sums": "token,a,b,c,sum\nthe,0.25,-1.5,3.125,7\ncat,0.0,100.75,-0.0625,7\n",
    "semicolons": "0,25;-1,5;3,125\n0,0;100,75;-0,0625\n",
    "tabs": "0,25\t-1,5\t3,125\n0,0\t100,75\t-0,0625\n",
    "quotes": '"0.25","-1.5","3.125"\n"0.0","100.75","-0.0625"\n',
    "quoted commas": '"0,25","-1,5","3,125"\n"0,0","100,75","-0,0625"\n',
    "named": "weights\n0.25,-1.5,3.125\n0.0,100.75,-0.0625\n",
    "comment": "# weights\n0.25,-1.5,3.125\n0.0,100.75,-0.0625\n",
    "spreadsheet": "weights,,,\n,a,b,c\nthe,0.25,-1.5,3.125\ncat,0.0,100.75,-0.0625\n,,,\n,,,\n",
    "byte-order mark": "\ufeff0.25,-1.5,3.125\n0.0,100.75,-0.0625\n",
}


@pytest.mark.parametrize("form", SHEETS)
def test_table_files(form, tmp_path):
    file = tmp_path / "sheet.csv"
    file.write_text(SHEETS[form], encoding="utf-8")
    (claim,) = claims.read(file, WEIGHTS).claims
    np.testing.assert_array_equal(claim.values, TABLE)
    assert claim.name == ("weights" if "weights" in SHEETS[form] else "")


def test_several_blocks_of_a_table_file(tmp_path):
    file = tmp_path / "sheet.csv"
    file.write_text("weights,,\n,t0,t1\nt0,,\nt1,0.5,0.5\n\noutput\n0.25,0.75\n\n1,2\n")
    reading = claims.read(file, WEIGHTS)
    assert [(claim.name, claim.shape) for claim in reading.claims] == [("weights", (2, 2)), ("output", (1, 2)), ("", (1, 2))]
    assert reading.claims[0].there.tolist() == [[False, False], [True, True]]
    assert [claim.origin.partition(":")[2] for claim in reading.claims] == ["3", "7", "9"]


# ------------------------------------------------------------------ files and other sources


def test_npy_and_npz_are_exact_unless_all_their_numbers_are_rounded(tmp_path):
    for table, half in ((TABLE / 3, 0), (np.round(TABLE / 3, 4), 0.00005), (np.round(TABLE, 1), 0), (np.eye(2), 0)):
        np.save(tmp_path / "a.npy", table)
        (claim,) = claims.read(tmp_path / "a.npy").claims
        assert (claim.half == half).all()
        np.testing.assert_array_equal(claim.values, table)
    np.savez(
        tmp_path / "a.npz", weights=TABLE.astype(np.float32), output=TABLE.T, empty=np.zeros((0, 3)), words=np.array(["a"])
    )
    reading = claims.read(tmp_path / "a.npz", WEIGHTS)
    assert [(claim.name, claim.shape) for claim in reading.claims] == [("weights", (2, 3)), ("output", (3, 2))]
    assert len(reading.faults) == 2


def test_content_tells_what_an_extension_does_not(tmp_path):
    np.savez(tmp_path / "claims.dat", weights=TABLE)
    os.rename(tmp_path / "claims.dat.npz", tmp_path / "claims.dat")
    assert claims.read(tmp_path / "claims.dat", WEIGHTS).claims[0].shape == (2, 3)
    np.save(tmp_path / "claims.npy", TABLE)
    os.rename(tmp_path / "claims.npy", tmp_path / "claims.txt")
    assert claims.read(tmp_path / "claims.txt").claims[0].shape == (2, 3)
    (tmp_path / "claims").write_text(json.dumps({"weights": TABLE.tolist()}))
    assert claims.read(tmp_path / "claims", WEIGHTS).claims[0].name == "weights"


def test_a_pickle_is_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(AttnTraceError, match="can execute code"):
        claims.read(tmp_path / "a.npy")


def test_standard_input(monkeypatch):
    class Stdin:
        buffer = io.BytesIO(b"weights = [[0.25, 0.75]]")

    monkeypatch.setattr(sys, "stdin", Stdin)
    (claim,) = claims.read("-", WEIGHTS).claims
    assert (claim.name, claim.origin) == ("weights", "standard input:1")


def test_a_text_and_the_name_of_a_file_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("weights = [[0.25, 0.75]]")
    assert claims.read("a.txt").claims[0].origin == "a.txt:1"
    assert claims.read("weights = [[0.25, 0.75]]").claims[0].origin == "the text:1"
    with pytest.raises(AttnTraceError, match=r"nowhere\.txt does not exist"):
        claims.read("nowhere.txt")


CONFIG = """\
x: [[1, 0], [0, 1]]
expect:
  scaled: &s
    - [0.70, 1]   # two decimals
    - [~, -.inf]
  attn: *s
tokens: [on, off]
"""


def test_the_expect_mapping_of_a_config():
    reading = claims.read_expect(CONFIG, "mine.yaml", ["scaled", "weights"])
    one, two = reading.claims
    assert (one.name, one.origin, two.name, two.origin) == ("scaled", "mine.yaml:3", "weights", "mine.yaml:6")
    assert one.half.tolist() == [[0.005, 0.5], [0.0, 0.0]]
    assert one.there.tolist() == [[True, True], [False, True]]
    assert reading.said == ['"attn" (mine.yaml:6) is read as weights']
    assert claims.read_expect("x: [[1]]\n", "mine.yaml").claims == []
    whole = claims.read_text(CONFIG, "mine.yaml", ["scaled"], ".yaml")
    assert [claim.called for claim in whole.claims] == ["scaled", "attn"]


def test_aliases_that_grow_are_refused():
    lines = ["a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"] + [
        f"{c}: &{c} [{', '.join([f'*{p}'] * 10)}]" for p, c in zip("abcdef", "bcdefg", strict=True)
    ]
    with pytest.raises(AttnTraceError, match="aliases expand"):
        claims.read_text("\n".join(lines), "bomb.yaml", suffix=".yaml")
