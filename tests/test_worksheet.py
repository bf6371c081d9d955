"""Sheets to fill in: what is printed on them is read back and worked out again in NumPy, as a student would."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import attntrace
from attntrace import worksheet as sheets
from attntrace.cli import commands  # noqa: F401 - registers them
from attntrace.cli.app import app
from attntrace.cli.worksheet import file_names
from attntrace.config.bundled import names
from attntrace.config.yaml import parse
from attntrace.errors import AttnTraceError
from attntrace.render.latex import PREAMBLE as LATEX_FRAGMENT
from attntrace.render.worksheet import BLANK, WRITERS, written
from attntrace.worksheet import MOST, SHEETS, TRIES, Sheet, seeds, students, worksheet

EXAMPLES = names()
Numbers = dict[str, np.ndarray]

HEADS: dict[str, Any] = {
    "heads": 2,
    "mask": "causal",
    "tokens": ["the", "cat", "sat", "down"],
    "x": {"draw": "normal", "shape": [4, 4], "seed": 1},
    "w_q": {"draw": "normal", "shape": [4, 4], "seed": 2},
    "w_k": {"draw": "normal", "shape": [4, 4], "seed": 3},
    "w_v": {"draw": "normal", "shape": [4, 4], "seed": 4},
    "w_o": {"draw": "normal", "shape": [4, 4], "seed": 5},
}
ONE_HEAD: dict[str, Any] = {key: value for key, value in HEADS.items() if key not in ("heads", "w_o")}
DIRECT: dict[str, Any] = {key: {"draw": "uniform", "shape": [3, 2], "seed": 1} for key in "qkv"}
CAUSAL_TOY: dict[str, Any] = {
    "x": [[1, 0], [0, 1], [1, 1]],
    "w_q": np.eye(2),
    "w_k": np.eye(2),
    "w_v": np.eye(2),
    "mask": "causal",
}


def made(config: Any, *blank: str, seed: int | None = None, decimals: int = 3, **more: Any) -> Sheet:
    options = {key: more.pop(key) for key in ("sets", "permute", "queries") if key in more}
    return worksheet(attntrace.load(config, **options), blank or None, decimals, seed, **more)


def text(sheet: Sheet, form: str = "markdown", key: bool = False) -> str:
    out = BytesIO()
    WRITERS[form](sheet, key, out)
    return out.getvalue().decode()


def config_of(yaml: str) -> dict[str, Any]:
    return dict(parse(yaml, "the sheet", ("tokens", "kv_tokens", "title", "source")).data)


def run(*arguments: str, **more: Any) -> Any:
    return CliRunner().invoke(app, ["worksheet", *arguments], **more)


# ------------------------------------------------------------------ reading a sheet, and working it out


def tables(markdown: str) -> dict[str, np.ndarray]:
    """The cells of each step of a Markdown sheet by its heading, without labels; matrices one below the other."""
    found = {}
    for section in re.split(r"^## ", markdown, flags=re.MULTILINE)[1:]:
        rows = [line.strip("| \n").split("|") for line in section.splitlines() if line.startswith("|")]
        cells = [[cell.strip() for cell in row] for row in rows]
        body = [row for row, after in zip(cells, [*cells[1:], [""]], strict=True) if ":--" not in row[0] + after[0]]
        found[section.splitlines()[0]] = np.array([row[-len(cells[1]) + 1 :] for row in body])
    return found


def number(cell: str) -> float:
    return float(cell.replace("−", "-").replace("∞", "inf"))


def numbers(markdown: str, without: tuple[str, ...] = ()) -> Numbers:
    return {name: np.vectorize(number)(cells) for name, cells in tables(markdown).items() if name not in without}


def softmax(scores: np.ndarray) -> np.ndarray:
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def attention(given: Numbers, heads: int = 1, causal: bool = False) -> Numbers:
    """The layer as the textbook has it; heads are stacked, as their tables are on the sheet."""
    q, k, v = (given["x"] @ given[w] for w in ("w_q", "w_k", "w_v")) if "x" in given else (given[name] for name in "qkv")
    parts = []
    for q_h, k_h, v_h in zip(*(np.split(m, heads, axis=1) for m in (q, k, v)), strict=True):
        scores = q_h @ k_h.T
        scaled = scores / np.sqrt(q_h.shape[1])
        masked = np.where(np.tri(*scores.shape) > 0, scaled, -np.inf) if causal else scaled
        weights = softmax(masked)
        parts.append({"q": q_h, "k": k_h, "v": v_h, "scores": scores, "scaled": scaled, "masked": masked, "weights": weights})
        parts[-1]["context"] = weights @ v_h
    found = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    concat = np.concatenate([part["context"] for part in parts], axis=1)
    return found | {"concat": concat, "output": concat @ given["w_o"] if "w_o" in given else concat}


CASES: dict[str, tuple[Any, int, bool]] = {
    "toy": ("toy", 1, False),
    "module05": ("module05", 1, False),
    "six-tokens": ("six-tokens", 1, False),
    "heads": (HEADS, 2, True),
    "one head": (ONE_HEAD, 1, True),
    "direct": (DIRECT, 1, False),
}


@pytest.mark.parametrize("seed", [None, 0, 7])
@pytest.mark.parametrize("case", CASES)
def test_the_key_is_what_the_printed_inputs_give(case: str, seed: int | None) -> None:
    config, heads, causal = CASES[case]
    sheet = made(config, seed=seed)
    given = numbers(text(sheet), without=sheet.blank)
    key = numbers(text(sheet, key=True))
    expected = attention(given, heads, causal)
    assert len(sheet.blank) >= 4
    for name in sheet.blank:
        np.testing.assert_allclose(key[name], expected[name], rtol=0, atol=0.5e-3 + 1e-9)


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("example", [name for name in EXAMPLES if name != "end-to-end"])
def test_the_key_is_what_run_gives_for_the_sheet(example: str, seed: int | None) -> None:
    """The YAML of a sheet is a config of its own, in every example."""
    sheet = made(example, seed=seed)
    config = config_of(text(sheet, "yaml", key=True))
    answers = config.pop("expect")
    t = attntrace.trace(config)
    assert list(answers) == list(sheet.blank)
    for name, claimed in answers.items():
        found = t[name].values.astype(float)
        np.testing.assert_allclose(np.array(claimed, float), found, rtol=1e-9, atol=0.5e-3, err_msg=name)


@pytest.mark.parametrize("example", EXAMPLES)
def test_without_a_seed_it_is_the_trace_of_the_config(example: str) -> None:
    ours, theirs = made(example).trace, attntrace.trace(example)
    assert [s.name for s in ours] == [s.name for s in theirs]
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a.values, b.values)
        assert a.formula == b.formula
        assert a.dtype == b.dtype
    assert ours.labels == theirs.labels


def test_what_is_not_blank_stands_there() -> None:
    sheet = made("toy", "weights", "output", seed=7)
    cells = tables(text(sheet))
    assert list(cells) == ["x", "w_q", "w_k", "w_v", "q", "k", "v", "scores", "scaled", "weights", "output"]
    expected = attention(numbers(text(sheet), without=sheet.blank))
    for name in ("q", "k", "v", "scores", "scaled"):
        np.testing.assert_allclose(np.vectorize(number)(cells[name]), expected[name], rtol=0, atol=0.5e-5 + 1e-12)
    assert set(cells["weights"].ravel()) == set(cells["output"].ravel()) == {BLANK}
    assert cells["weights"].shape == (4, 4)


def test_what_comes_after_the_last_blank_step_is_left_out() -> None:
    """The weights would tell on the scores."""
    assert list(tables(text(made("toy", "scores")))) == ["x", "w_q", "w_k", "q", "k", "scores"]


def test_a_sheet_does_not_hold_its_answers() -> None:
    sheet = made(HEADS, "weights", "output", seed=2)
    key = tables(text(sheet, key=True))
    for form in WRITERS:
        page = text(sheet, form)
        for answer in {cell for name in ("weights", "output") for cell in key[name].ravel()} - {"0.000", "1.000"}:
            assert not re.search(rf"(?<![\d.]){re.escape(answer)}(?!\d)", page), (form, answer)
    assert text(sheet, "yaml").count("null,") + text(sheet, "yaml").count("null]") == 2 * 4 * 4 + 4 * 4


@pytest.mark.parametrize("form", WRITERS)
def test_a_sheet_and_its_key_differ_in_the_blanks_and_the_heading_alone(form: str) -> None:
    sheet = made("toy", "weights", seed=1)
    page, key = text(sheet, form).splitlines(), text(sheet, form, key=True).splitlines()
    assert len(page) == len(key)
    changed = [i for i, (a, b) in enumerate(zip(page, key, strict=True)) if a != b]
    assert 5 <= len(changed) <= 9
    assert any("Key: " in key[i] for i in changed)


# ------------------------------------------------------------------ numbers of a seed


def test_a_seed_is_a_sheet() -> None:
    for form in WRITERS:
        assert text(made("module05", seed=5), form) == text(made("module05", seed=5), form)


def test_other_seeds_are_other_sheets() -> None:
    found = {made("module05", seed=seed).problem.arrays["x"].tobytes() for seed in range(50)}
    assert len(found) == 50


def qualities(weights: np.ndarray, seen: np.ndarray, decimals: int) -> Iterator[str]:
    """What is wrong with a matrix of weights, of which `seen` are not masked."""
    rows = [(row[there], there.sum()) for row, there in zip(weights, seen, strict=True) if there.sum() > 1]
    for row, count in rows:
        shown = [f"{w:.{decimals}f}" for w in row]
        if row.max() >= 0.95:
            yield "saturated"
        if row.max() - row.min() < 0.1 / count:
            yield "even"
        if len(set(shown)) < count or float(min(shown)) == 0:
            yield "not told apart"
    if len({tuple(np.round(row, decimals)) for row in weights}) < len(weights):
        yield "rows alike"


@pytest.mark.parametrize("first", [0, 50, 100, 150])
@pytest.mark.parametrize("case", CASES)
def test_numbers_that_can_be_done_by_hand(case: str, first: int) -> None:
    config, heads, causal = CASES[case]
    p = attntrace.load(config)
    for seed in range(first, first + (10 if case in ("heads", "six-tokens") else 50)):  # those take longer to find
        sheet = worksheet(p, ["output"], 3, seed)
        given = {name: array for name, array in sheet.config.items() if isinstance(array, np.ndarray)}
        assert set(given) == set(p.sources)
        assert not sheet.lacks
        for name, array in given.items():
            assert array.shape == p.arrays[name].shape
            assert (np.abs(array) <= 2).all()
            np.testing.assert_array_equal(array, np.round(array, 1))
            assert (array == 0).mean() <= 0.2
            assert array.shape[1] == 1 or len(np.unique(array, axis=0)) == len(array)
        found = attention(given, heads, causal)
        assert all(np.abs(found[name]).max() < 1000 for name in ("q", "k", "v", "scores", "output"))
        seen = np.tri(*found["weights"].shape[-2:]) if causal else np.ones(found["weights"].shape)
        for weights in np.split(found["weights"], heads):
            assert not list(qualities(weights, seen[: len(weights)] > 0, 3)), seed


def test_simple_numbers_are_preferred() -> None:
    """Whole numbers, where they will do."""
    found = [made(DIRECT, seed=seed).config for seed in range(20)]
    assert sum((config["q"] % 1 == 0).all() for config in found) > 15


def test_weights_are_told_apart_at_the_decimals_that_are_asked_for() -> None:
    for seed in range(20):
        sheet = made("toy", "weights", seed=seed, decimals=2)
        assert not sheet.lacks
        for row in numbers(text(sheet, key=True))["weights"]:
            assert len({*row}) == 4


def test_the_search_ends_and_says_what_it_did_not_find(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    judge = sheets.flaws
    monkeypatch.setattr(sheets, "flaws", lambda *a: calls.append(1) or judge(*a))
    sheet = made("six-tokens", "weights", seed=1, decimals=1)
    assert 100 < len(calls) <= TRIES
    assert any(re.fullmatch(r"weights that are alike at 1 decimal in \d+ rows?", what) for what in sheet.lacks)
    assert sheets.remark(sheet).startswith(
        f"seed 1: no good numbers were found in {TRIES} tries; the best have weights that are "
    )


def test_scale_heads_and_masks_are_those_of_the_config() -> None:
    sheet = made("multi-head-causal", seed=3, sets=["scale=0.25"])
    theirs = attntrace.trace("multi-head-causal", sets=["scale=0.25"])
    assert [s.formula for s in sheet.trace] == [s.formula for s in theirs]
    assert [s.shape for s in sheet.trace] == [s.shape for s in theirs]
    np.testing.assert_array_equal(sheet.trace["mask"].values, theirs["mask"].values)
    assert not sheet.lacks


@pytest.mark.parametrize(
    ("config", "stay"),
    [
        ("toy", ()),
        ("llama-block", ("w_norm1", "w_norm2")),
        ("rope-half", ("rope.positions",)),
        ("paged", ("cache.table",)),
        ("sinks", ()),
        (
            {**CAUSAL_TOY, "mask": [{"add": [[0, -np.inf, 0.5]] * 3}, {"keep": [[1, 0, 1]] * 3}]},
            ("mask[0].add", "mask[1].keep"),
        ),
    ],
)
def test_what_says_what_the_layer_is_stays(config: Any, stay: tuple[str, ...]) -> None:
    before, after = attntrace.load(config).arrays, made(config, seed=1).problem.arrays
    assert set(before) == set(after)
    for name in set(before) & set(stay):
        np.testing.assert_array_equal(before[name], after[name])
    changed = {name for name in before if not np.array_equal(before[name], after[name], equal_nan=True)}
    assert changed == set(before) - {name for name in before if name in stay or name.partition(".")[0] in ("rope", "qk_norm")}


def test_files_and_what_the_user_sets_stay(tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", np.array([[0.5, 1.5], [1.25, -1]]))
    (tmp_path / "c.yaml").write_text("x: [[1, 2], [3, 4]]\nw_q: {file: w.npy}\nw_k: [[1, 2], [3, 4]]\nw_v: [[1, 2], [3, 4]]\n")
    config = str(tmp_path / "c.yaml")
    arrays = made(config, seed=1, sets=["w_k=[[1, 0], [0, 1]]", "w_v[0, 0]=7"]).problem.arrays
    assert arrays["w_q"].tolist() == [[0.5, 1.5], [1.25, -1]]
    assert arrays["w_k"].tolist() == [[1, 0], [0, 1]]
    assert arrays["w_v"].tolist() == [[7, 2], [3, 4]]
    assert arrays["x"].tolist() != [[1, 2], [3, 4]]
    kept = made(config, seed=1, keep=["x"]).problem.arrays
    assert kept["x"].tolist() == [[1, 2], [3, 4]]
    assert kept["w_v"].tolist() != [[1, 2], [3, 4]]


def test_another_shape_or_draw_is_drawn_all_the_same() -> None:
    sheet = made("module05", seed=1, sets=["x.shape=[5, 4]", "w_q.std=0.5"])
    arrays = sheet.problem.arrays
    assert arrays["x"].shape == (5, 4)
    assert all((np.round(arrays[name], 1) == arrays[name]).all() for name in ("x", "w_q", "w_k", "w_v"))


def test_permuted_tokens_keep_their_labels() -> None:
    config = {**HEADS, "mask": None}
    theirs = attntrace.trace(config, permute="2,0,1,3")
    sheet = made(config, permute="2,0,1,3")
    assert sheet.config["tokens"] == ["sat", "the", "cat", "down"]
    np.testing.assert_array_equal(sheet.trace["output"].values, theirs["output"].values)
    assert made(config, permute="2,0,1,3", seed=1).config["tokens"] == ["sat", "the", "cat", "down"]


def test_some_queries_alone() -> None:
    sheet = made("toy", "weights", queries="1:3")
    assert tables(text(sheet))["weights"].shape == (2, 4)
    assert "--queries 1:3" in text(sheet, "yaml")
    config = config_of(text(sheet, "yaml", key=True))
    assert attntrace.check(config, queries="1:3").right


def test_dropout_keeps_what_the_config_keeps() -> None:
    """Its draws follow those of the tensors in one stream, which is why these stay draws."""
    config = config_of(text(made("multi-head-dropout"), "yaml"))
    assert config["w_qkv"]["draw"] == "normal"
    np.testing.assert_array_equal(attntrace.trace(config)["keep"].values, attntrace.trace("multi-head-dropout")["keep"].values)
    kept = [made("multi-head-dropout", "dropped", seed=seed).trace["keep"].values for seed in (1, 2)]
    assert (kept[0] != kept[1]).any()


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_printed_numbers_are_the_numbers_in_every_dtype(dtype: str) -> None:
    for seed in (None, 1):
        sheet = made("module05", "weights", seed=seed, sets=[f"dtype={dtype}", "w_k[0, 0]=1e-9", "w_k[0, 1]=123456789.125"])
        given = numbers(text(sheet), without=sheet.blank)
        for name in ("x", "w_q", "w_k"):
            printed = given[name].astype(sheet.problem.options.dtype)
            np.testing.assert_array_equal(printed, sheet.problem.arrays[name])


def test_numbers_are_written_as_short_as_can_be() -> None:
    def plainly(v: float) -> str:
        return {np.inf: "∞", -np.inf: "−∞"}.get(v, "" if v == v else "NaN")

    assert written(np.array([1.0, -2.0, 0.0, -0.0]), plainly) == ["1", "-2", "0", "0"]
    assert written(np.array([0.1, 2.0]), plainly) == ["0.1", "2.0"]
    assert written(np.array([0.1, 2.0], np.float16), plainly) == ["0.1", "2.0"]
    assert written(np.array([np.inf, -np.inf, np.nan, 0.5]), plainly) == ["∞", "−∞", "NaN", "0.5"]
    assert written(np.array([1 / 3, 0.5]), plainly) == ["0.3333333333333333", "0.5"]
    assert written(np.array([1 / 3], np.float32), plainly) == ["0.33333334"]


def test_many_digits_are_told_of() -> None:
    with_many = sheets.remark(made("multi-head-causal"))
    assert with_many == "x, w_qkv and w_o have numbers with many digits: --seed 1 draws some to do by hand"
    assert not sheets.remark(made("module05"))
    assert not sheets.remark(made("multi-head-causal", seed=1))


# ------------------------------------------------------------------ handing it in


@pytest.mark.parametrize("example", ["toy", "multi-head-causal", "direct-qkv", "fully-masked-row", "flash"])
def test_every_format_of_a_key_is_a_right_claim(example: str, tmp_path: Path) -> None:
    sheet = made(example, seed=4)
    (tmp_path / "key.yaml").write_text(text(sheet, "yaml", key=True))
    assert attntrace.check(str(tmp_path / "key.yaml")).right
    for form, suffix in (("yaml", "yaml"), ("markdown", "md"), ("latex", "tex")):
        file = tmp_path / f"claims.{suffix}"
        file.write_text(text(sheet, form, key=True))
        marked = attntrace.check(str(tmp_path / "key.yaml"), str(file))
        assert marked.right
        assert {v.name for v in marked.verdicts} >= {name for name in sheet.blank if form != "latex" or "[" not in name}


def filled_in(sheet: Sheet) -> str:
    """A YAML sheet with numbers from NumPy, typed in the place of each null."""
    truth = attention(numbers(text(sheet), without=sheet.blank))
    cells = iter([cell for name in sheet.blank for cell in truth[name].ravel()])
    page = re.sub(r"null(?=[,\]])", lambda _: f"{next(cells):.3f}", text(sheet, "yaml"))
    assert next(cells, None) is None
    return page


def with_a_wrong_weight(page: str) -> str:
    wrong = re.sub(r"(weights:\n *- \[)0\.\d", r"\g<1>9.9", page)
    assert wrong != page
    return wrong


def test_a_filled_in_sheet_is_checked(tmp_path: Path) -> None:
    page = filled_in(made("toy", "weights", "output", seed=9))
    file = tmp_path / "anna.yaml"
    file.write_text(page)
    assert attntrace.check(str(file)).right
    file.write_text(with_a_wrong_weight(page))
    marked = attntrace.check(str(file))
    assert not marked.right
    assert marked.first_wrong is not None
    assert marked.first_wrong.name == "weights"


def test_filled_in_sheets_are_graded_by_the_key(tmp_path: Path) -> None:
    """The steps of the key's expect are marked, and of what was handed in only the claims are read."""
    sheet = made("toy", "weights", "output", seed=9)
    page = filled_in(sheet)
    (tmp_path / "key.yaml").write_text(text(sheet, "yaml", key=True))
    for name, content in {"anna": page, "bob": with_a_wrong_weight(page), "carla": text(sheet, "yaml")}.items():
        (tmp_path / f"{name}.yaml").write_text(content)
    files = [str(tmp_path / f"{name}.yaml") for name in ("anna", "bob", "carla")]
    done = CliRunner().invoke(app, ["grade", str(tmp_path / "key.yaml"), *files, "--format", "csv"])
    rows = list(csv.DictReader(done.stdout.splitlines()))
    assert [(row["weights"], row["output"]) for row in rows] == [("1", "1"), ("0", "1"), ("0", "0")]


# ------------------------------------------------------------------ what is shown


def test_golden_markdown(file_regression: Any) -> None:
    sheet = made(HEADS, "weights", "output", seed=7, student="Anna Müller")
    file_regression.check(text(sheet), basename="heads", encoding="utf-8", extension=".md")


def test_golden_latex(file_regression: Any) -> None:
    sheet = made("toy", "weights", "output", seed=7)
    file_regression.check(text(sheet, "latex"), basename="toy", encoding="utf-8", extension=".tex")


def test_golden_yaml_key(file_regression: Any) -> None:
    sheet = made("toy", "weights", seed=7)
    file_regression.check(text(sheet, "yaml", key=True), basename="toy-key", encoding="utf-8", extension=".yaml")


def test_rows_and_columns_have_the_labels_of_tokens() -> None:
    page = text(made(HEADS, "weights", seed=1))
    assert re.search(r"^\| +\| +the \| +cat \| +sat \| +down \|$", page, re.MULTILINE)
    assert re.search(r"^\| down \| ________ \| ________ \| ________ \| ________ \|$", page, re.MULTILINE)
    assert "**weights[1]  head 1**" in page.replace("\\", "")
    assert "`A = softmax(S″)` · head 2 × query 4 × key 4 · **fill in, to 3 decimals**" in page


@pytest.mark.parametrize(("decimals", "words"), [(0, "to the nearest whole number"), (1, "to 1 decimal"), (2, "to 2 decimals")])
def test_how_many_decimals_are_asked(decimals: int, words: str) -> None:
    sheet = made("toy", "weights", "output", decimals=decimals)
    for form in WRITERS:
        assert f"Fill in weights and output, {words}." in text(sheet, form)
    cells = tables(text(sheet, key=True))["output"].ravel()
    assert {len(cell.partition(".")[2]) for cell in cells} == {decimals}


def test_a_step_that_is_computed_is_given_with_the_decimals_it_has() -> None:
    cells = tables(text(made("toy", "weights")))
    assert set(cells["q"].ravel()) == {"0", "1"}
    assert {len(cell.partition(".")[2]) for cell in cells["scaled"].ravel()} == {5}


def test_wide_tables_go_on_in_another_one() -> None:
    tex = text(made("multi-head-causal", "q", seed=1), "latex")
    assert [len(columns) for columns in re.findall(r"\\begin\{tabular\}\{\|l\|((?:r\|)+)\}", tex)][2:5] == [32, 32, 32]


HOSTILE = [
    *("[bold]x[/]", "\x1b[31m", "a\nexpect: {weights: [[1]]}", "| a |", "$x$", "\\input{/etc/passwd}", "<script>", "%", "#"),
    *("*a*", "_a_", "]: [", '"', "'", "null", "yes", "1.0", "-", "...", "\u202eabc", "=1+1", "```", "& b", "^", "~", "é"),
    *("日本", "a: b", "", " ", "a  # b", "\\", "\x85", "\U0001f600"),
]


def hostile(label: str) -> Sheet:
    config = {**HEADS, "tokens": [label, "b", "c", "d"], "title": label or "t"}
    return made(config, "weights", seed=1, student=label)


@pytest.mark.parametrize("label", HOSTILE)
def test_labels_are_text_in_yaml(label: str) -> None:
    """They come back as they were, and what stands in a comment ends with its line."""
    sheet = hostile(label)
    config = config_of(text(sheet, "yaml"))
    assert config["tokens"] == [label, "b", "c", "d"]
    assert config["title"] == (label or "t")
    assert set(config) == {"title", "tokens", "weight_layout", "heads", "mask", "x", "w_q", "w_k", "w_v", "w_o", "expect"}
    assert np.array(config["expect"]["weights"]).tolist() == np.full((2, 4, 4), None).tolist()
    np.testing.assert_array_equal(config["x"], sheet.problem.arrays["x"])


@pytest.mark.parametrize("form", WRITERS)
@pytest.mark.parametrize("label", HOSTILE)
def test_labels_send_no_control_characters(label: str, form: str) -> None:
    for key in (False, True):
        page = text(hostile(label), form, key)
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\u2028]", page)


@pytest.mark.parametrize("label", HOSTILE)
def test_labels_are_text_in_markdown_and_latex(label: str) -> None:
    sheet = hostile(label)
    page, harmless = text(sheet), text(hostile("a"))
    assert len(page.splitlines()) == len(harmless.splitlines())
    for a, b in zip(page.splitlines(), harmless.splitlines(), strict=True):
        assert a.count("|") == b.count("|")
    assert "<script>" not in page
    tex, harmless = text(sheet, "latex"), text(hostile("a"), "latex")
    assert len(tex.splitlines()) == len(harmless.splitlines())
    assert tex.count(" & ") == harmless.count(" & ")
    assert r"\input" not in tex
    assert len(re.findall(r"(?<!\\)[{]", tex)) == len(re.findall(r"(?<!\\)[}]", tex))


def test_latex_is_a_document() -> None:
    tex = text(made("toy", "weights", seed=1), "latex")
    assert LATEX_FRAGMENT not in tex
    assert tex.index(r"\documentclass") < tex.index(r"\begin{document}") < tex.index(r"\end{document}")
    assert tex.isascii()
    assert tex.count("p{3.2em}|") == 4


# ------------------------------------------------------------------ many sheets


def test_seeds() -> None:
    assert seeds("1:4") == [1, 2, 3, 4]
    assert seeds("9, 2:3 ,2") == [9, 2, 3]
    assert seeds("0") == [0]


def test_names_have_seeds_of_their_own() -> None:
    found = students("Anna\n\n  Bob \nAnna-Lena\n", "names.txt")
    assert list(found) == ["Anna", "Bob", "Anna-Lena"]
    assert len(set(found.values())) == 3
    assert students("Carla\nBob\nAnna\n", "names.txt")["Anna"] == found["Anna"], "whoever joins changes nobody's numbers"
    assert students("Anna\n", "names.txt", seed=1) != {"Anna": found["Anna"]}
    assert students("Ju\u0308rgen\n", "n") == students("J\u00fcrgen\n", "n")


def test_seeds_that_meet_part_again() -> None:
    assert list(sheets.distinct([5, 5, 6, 5])) == [5, 6, 7, 8]


def test_file_names_are_safe_and_distinct() -> None:
    names = ["Anna", "anna", "../../etc/passwd", "..", "con", "a/b", "a b", "é" * 300, "\x1b[31m", "="]
    found = list(file_names([(name, 1) for name in names]))
    assert len({name.casefold() for name in found}) == len(names)
    for name in found:
        assert not name.startswith(".")
        assert not re.search(r"[/\\\x00-\x1f]", name)
        assert 0 < len(name) < 100
    assert list(file_names([("", 1), ("", 2)])) == ["sheet-1", "sheet-2"]


def test_a_sheet_for_each_student(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("Anna Müller\nBob/../x\n")
    folder = tmp_path / "sheets"
    done = run("toy", "--blank", "weights", "--students", str(tmp_path / "names.txt"), "--output-dir", str(folder))
    assert done.exit_code == 0
    assert not done.stdout
    assert done.stderr == f"note: 2 sheets in {folder}, the keys in {folder / 'keys'}\n"
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == {
        "Anna-Müller.md",
        "Bob-..-x.md",
        "keys/Anna-Müller-key.md",
        "keys/Bob-..-x-key.md",
    }
    anna, bob = (numbers((folder / f"{name}.md").read_text(), ("weights",)) for name in ("Anna-Müller", "Bob-..-x"))
    assert (anna["x"] != bob["x"]).any()
    page = (folder / "Anna-Müller.md").read_text()
    assert "Name: Anna Müller · Seed " in page
    seed = re.search(r"Seed (\d+)", page)[1]  # type: ignore[index]
    again = run("toy", "--blank", "weights", "--seed", seed)
    assert tables(again.stdout)["x"].tolist() == tables(page)["x"].tolist()


def test_a_sheet_for_each_seed_and_keys_elsewhere(tmp_path: Path) -> None:
    keys = tmp_path / "mine"
    arguments = ["--seeds", "3:5", "--output-dir", str(tmp_path / "out"), "--key", str(keys), "--format", "yaml", "--quiet"]
    done = run("toy", "--blank", "weights", *arguments)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "")
    assert sorted(path.name for path in keys.iterdir()) == ["sheet-3-key.yaml", "sheet-4-key.yaml", "sheet-5-key.yaml"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["sheet-3.yaml", "sheet-4.yaml", "sheet-5.yaml"]
    for path in keys.iterdir():
        assert attntrace.check(str(path)).right


# ------------------------------------------------------------------ files and errors


def test_a_sheet_and_its_key_are_written_together(tmp_path: Path) -> None:
    done = run("toy", "--blank", "weights", "--output", str(tmp_path / "s.tex"))
    assert done.exit_code == 0
    assert done.stderr == f"note: the key is in {tmp_path / 's-key.tex'}\n"
    sheet = made("toy", "weights")
    assert (tmp_path / "s.tex").read_text() == text(sheet, "latex")
    assert (tmp_path / "s-key.tex").read_text() == text(sheet, "latex", key=True)


def test_a_key_of_another_format(tmp_path: Path) -> None:
    run("toy", "--blank", "weights", "--output", str(tmp_path / "s.md"), "--key", str(tmp_path / "k.yaml"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["k.yaml", "s.md"]
    assert attntrace.check(str(tmp_path / "k.yaml")).right


def test_neither_is_written_when_one_cannot_be(tmp_path: Path) -> None:
    done = run("toy", "--output", str(tmp_path / "s.md"), "--key", str(tmp_path / "nowhere" / "k.md"))
    assert done.exit_code == 2
    assert done.stderr == f"error: --key {tmp_path / 'nowhere' / 'k.md'}: no such file or directory\n"
    assert not list(tmp_path.iterdir())


def test_on_the_screen() -> None:
    sheet = made("toy", "weights", "output", seed=7)
    assert run("toy", "--blank", "weights, output", "--seed", "7").stdout == text(sheet)
    assert run("toy", "--blank", "weights,output", "--seed", "7", "--format", "yaml").stdout == text(sheet, "yaml")
    assert run("toy", "--seed", "7", "--quiet").stdout == ""


def test_the_key_on_the_screen(tmp_path: Path) -> None:
    done = run("toy", "--blank", "weights", "--output", str(tmp_path / "s.md"), "--key", "-")
    assert done.stdout == text(made("toy", "weights"), key=True)
    assert [path.name for path in tmp_path.iterdir()] == ["s.md"]


def test_a_config_without_a_seed_gets_that_of_the_sheet(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    draws = "".join(f"{name}: {{draw: normal, shape: [3, 3]}}\n" for name in ("x", "w_q", "w_k", "w_v"))
    file.write_text(draws)
    assert run(str(file), "--seed", "4").exit_code == 0
    assert run("-", "--seed", "4", input=draws).stdout == run(str(file), "--seed", "4").stdout
    assert "there is no seed" in run(str(file)).stderr


def test_the_default_example_in_other_shapes() -> None:
    page = run("--tokens", "4", "--d-model", "2", "--causal", "--seed", "3", "--blank", "weights").stdout
    found = numbers(page, without=("weights",))
    assert found["x"].shape == (4, 2)
    assert found["mask"].shape == (4, 4)


ERRORS = {
    "toy --blank weigths": "there is no step 'weigths' in this trace; did you mean \"weights\"?",
    "toy --blank x": "x is given: leave blank what is computed from it, such as q",
    "toy --blank ,": "--blank: expected names of steps, such as --blank weights,output",
    "toy --seed 1 --keep ,": "--keep: expected names of inputs, such as --keep w_q,w_k",
    "toy --keep w_q": "--keep: goes with --seed, --seeds or --students, without which all inputs stay",
    "toy --seed 1 --keep w_z": '--keep w_z: there is no such input; did you mean "w_v"?',
    "toy --seed 1 --keep x,w_q,w_k,w_v": "there is nothing to draw: what comes from a file or --set, or is named by --keep, "
    "stays as it is",
    "toy --seeds 1:3": "--seeds: writes many sheets; say where to, with --output-dir DIR",
    "toy --students names.txt": "--students: writes many sheets; say where to, with --output-dir DIR",
    "toy --seeds 1:3 --output s.md": "--seeds: writes many sheets, to --output-dir DIR and not to --output",
    "toy --seeds 3:1 --output-dir d": "--seeds 3:1: expected a first seed before the last, found 3 and 1",
    "toy --seeds one --output-dir d": "--seeds one: expected seeds, such as 1:30 (1 to 30) or 1,5,9",
    "toy --seeds 1:99999 --output-dir d": f"--seeds: asks for 99999 sheets, expected at most {SHEETS}",
    "toy --seeds 1:3 --students n --output-dir d": "--seeds and --students: expected one of them",
    "toy --seeds 1:3 --seed 2 --output-dir d": "--seed and --seeds: expected one of them",
    "toy --seeds 1:2 --output-dir d --key d": "--key d: the sheets go there",
    "toy --students nothere.txt --output-dir d": "nothere.txt does not exist",
    "toy --students twice.txt --output-dir d": "twice.txt:3: 'Bob' is there twice, first in line 1",
    "toy --students blank.txt --output-dir d": "--students blank.txt: expected names, one a line, found none",
    "toy --output-dir d": "--output-dir: goes with --seeds or --students; a single sheet goes to --output FILE",
    "toy --output s.pdf": "--output s.pdf: the extension .pdf tells no format; use .md, .markdown, .tex, .latex, .yaml, .yml, "
    "or say --format",
    "toy --output s.md --key s.md": "--key s.md: the sheet goes there",
    "toy --key -": "--key -: the sheet goes to standard output; send one of the two to a file",
    "toy --seeds 1:2 --output-dir twice.txt": "--output-dir twice.txt: is not a directory",
    "--tokens 40 --d-model 64": f"this sheet would hold 29888 numbers, expected at most {MOST}: "
    "use fewer tokens, heads or features",
    "nope --seed 1": "nope: there is no such file, and no bundled example of that name (attntrace examples lists them)",
}


@pytest.mark.parametrize("arguments", ERRORS)
def test_errors(arguments: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("twice.txt").write_text("Bob\nAnna\n Bob\n")
    Path("blank.txt").write_text("\n \n")
    done = run(*arguments.split())
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", f"error: {ERRORS[arguments]}\n")
    assert sorted(path.name for path in Path().iterdir()) in (["blank.txt", "twice.txt"], ["blank.txt", "d", "twice.txt"])


def test_a_sheet_that_is_too_large_is_refused_before_anything_is_drawn() -> None:
    config = {name: {"draw": "normal", "shape": [100_000, 100_000], "seed": 1} for name in "qkv"}
    with pytest.raises(AttnTraceError, match="this sheet would hold"):
        worksheet(attntrace.load(config), None, 3, 1)


def test_too_many_names_are_refused() -> None:
    with pytest.raises(AttnTraceError, match=f"--students: asks for {SHEETS + 1} sheets, expected at most {SHEETS}"):
        students("\n".join(map(str, range(SHEETS + 1))), "names.txt")
