"""Grids and labels: what is left out is what NumPy leaves out, and every number that is shown is true."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import attntrace
from attntrace.errors import cells, harmless
from attntrace.ops import Same
from attntrace.render import labels as labels_module
from attntrace.render.grid import Grid, grids
from attntrace.render.labels import GAP, clip, legible
from attntrace.render.view import View, select
from attntrace.tape import Array, Trace

AXES = ("batch", "head", "query", "d_k")
DTYPES = [np.dtype(d) for d in (np.float64, np.float32, np.float16, ml_dtypes.bfloat16)]


def shown(
    array: Array,
    step: str = "x",
    axes: Sequence[str] | None = None,
    labels: Mapping[str, Sequence[str]] | None = None,
    precision: int = 4,
    full: bool = False,
    index: Mapping[str, int] | None = None,
) -> list[Grid]:
    """The grids of an array as an input (x), or as if it had been computed (y)."""
    axes = axes or AXES[len(AXES) - array.ndim :]
    t = Trace(dict(zip(axes, array.shape, strict=True)), array.dtype, labels)
    t("y", "Y = X", axes, Same(), t.given("x", "X", axes, lambda: array))
    view = View(t, select(t, [step], index or {}))
    return list(grids(view.shown[0], view.labels, precision, full))


def one(array: Any, step: str = "x", **more: Any) -> Grid:
    (grid,) = shown(np.asarray(array), step, **more)
    return grid


def texts(grid: Grid) -> list[str]:
    """Every number of a grid as it is written."""
    largest = [where.partition(" at ")[0] for where in grid.largest]
    return [text for text in (*(n for row in grid.numbers for n in row), *grid.sums, *largest) if text != GAP]


# ------------------------------------------------------------------ what is left out


def words_of_numpy(array: Array) -> list[str]:
    """The numbers and gaps of an array of whole numbers, in the order in which NumPy prints them."""
    return re.findall(r"\d+|\.\.\.", np.array2string(array.astype(int), threshold=1000, edgeitems=3))


def words(found: Sequence[Grid]) -> list[str]:
    result: list[str] = []
    for grid in found:
        rows = [[GAP] if set(row) == {GAP} else row for row in grid.numbers] if grid.rows else [[GAP]]
        result += ["..." if cell == GAP else cell for row in rows for cell in row]
    return result


EDGES = [(1000,), (1001,), (1, 1001), (1001, 1), (2, 500), (7, 143), (143, 7), (6, 167), (167, 6), (10, 10, 10), (7, 11, 13)]


@pytest.mark.parametrize("shape", [*EDGES, (2, 501), (3, 7, 7, 7), (7, 3, 7, 7), (6, 6, 6, 6), (1, 1, 1, 1), (2000, 3)])
def test_elided_as_numpy_does_at_the_edges(shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
    assert words(shown(array)) == words_of_numpy(array)


@settings(deadline=None)
@given(hnp.array_shapes(min_dims=1, max_dims=4, max_side=13))
def test_elided_as_numpy_does(shape: tuple[int, ...]) -> None:
    assume(len(shape) < 4 or min(shape[:2]) <= 6)  # see below
    array = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
    assert words(shown(array)) == words_of_numpy(array)


def test_two_long_leading_axes_are_left_out_once() -> None:
    array = np.arange(7.0 * 7 * 5 * 5).reshape(7, 7, 5, 5)
    assert words(shown(array)) == words_of_numpy(array)


def test_what_is_left_out_is_told() -> None:
    assert one(np.zeros((40, 30))).left_out == "left out: 34 of 40 along query and 24 of 30 along d_k (--full prints all)"
    assert one(np.zeros((400, 3))).left_out == "left out: 394 of 400 along query (--full prints all)"
    assert one(np.zeros(1001)).left_out == "left out: 995 of 1001 along d_k (--full prints all)"
    assert one(np.zeros((40, 25))).left_out == ""


def test_matrices_that_are_left_out_are_told() -> None:
    found = shown(np.zeros((2, 9, 8, 8)))
    assert [grid.left_out for grid in found if not grid.rows] == [
        "batch 0, head 3 to 5 left out (3 of 9; --full prints all)",
        "batch 1, head 3 to 5 left out (3 of 9; --full prints all)",
    ]
    assert [grid.caption for grid in found if grid.rows][2:4] == ["x[0, 2]  batch 0, head 2", "x[0, 6]  batch 0, head 6"]


def test_full_leaves_nothing_out() -> None:
    array = np.arange(2.0 * 9 * 8 * 8).reshape(2, 9, 8, 8)
    found = shown(array, full=True)
    assert words(found) == [str(n) for n in range(array.size)]
    assert not any(grid.left_out or grid.largest for grid in found)


def test_what_is_picked_is_judged_by_its_own_size() -> None:
    """A head of 900 numbers is printed whole, though its tensor is elided."""
    array = np.arange(2.0 * 30 * 30).reshape(2, 30, 30)
    assert not one(array, index={"head": 1}).left_out
    assert all(grid.left_out for grid in shown(array))


# ------------------------------------------------------------------ which part it is


def test_captions() -> None:
    array = np.zeros((2, 3, 2, 2))
    assert [grid.caption for grid in shown(array)][4] == "x[1, 1]  batch 1, head 1"
    assert [grid.caption for grid in shown(array, index={"batch": 1})] == [f"x[1, {h}]  batch 1, head {h}" for h in range(3)]
    assert one(array, index={"batch": -1, "head": -1}).caption == "x[1, 2]  batch 1, head 2"
    assert [grid.caption for grid in shown(array[0])] == [f"x[{h}]  head {h}" for h in range(3)]
    assert one(array[0, 0]).caption == one(array[0, 0, 0]).caption == ""


def test_the_part_that_is_picked_is_shown() -> None:
    array = np.arange(24.0).reshape(2, 3, 2, 2)
    assert one(array, index={"batch": 1, "head": 0}).numbers == [["12", "13"], ["14", "15"]]
    assert [grid.numbers[1][1] for grid in shown(array, index={"head": 2})] == ["11", "23"]


def test_tokens_and_features_are_named() -> None:
    grid = one(np.zeros((2, 2)), axes=("token", "d_model"))
    assert (grid.rows, grid.columns) == (["t0", "t1"], ["0", "1"])
    grid = one(np.zeros((2, 2)), axes=("query", "key"), labels={"key": ["on", "mat"]})
    assert (grid.rows, grid.columns) == (["t0", "t1"], ["on", "mat"])


def test_a_vector_is_a_row_without_a_name() -> None:
    grid = one([0.5, 2.0])
    assert (grid.rows, grid.columns, grid.numbers, grid.sums) == ([""], ["0", "1"], [["0.5", "2.0"]], ["2.5"])


def test_gaps_are_named() -> None:
    labels = {"query": [f"w{i}" for i in range(40)]}
    grid = one(np.zeros((40, 30)), labels=labels)
    assert grid.rows == ["w0", "w1", "w2", "…", "w37", "w38", "w39"]
    assert grid.columns == ["0", "1", "2", "…", "27", "28", "29"]


# ------------------------------------------------------------------ how a number is written


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([[1, 0], [0, 2]], [["1", "0"], ["0", "2"]]),
        ([[0.5, 1]], [["0.5", "1.0"]]),
        ([[0.25, 1.5]], [["0.25", "1.50"]]),
        ([[1 / 3, 1]], [["0.3333", "1.0000"]]),
        ([[0.12344, 0.12346]], [["0.1234", "0.1235"]]),
        ([[0.1 + 0.2, 1]], [["0.3000", "1.0000"]]),
        ([[-np.inf, 0]], [["−∞", "0"]]),
        ([[np.nan, np.inf, 0.5]], [["NaN", "∞", "0.5"]]),
        ([[np.nan, np.nan]], [["NaN", "NaN"]]),
    ],
)
def test_given_numbers_take_as_many_decimals_as_they_need(values: Any, wanted: list[list[str]]) -> None:
    assert one(np.array(values, dtype=np.float64)).numbers == wanted


def test_computed_numbers_take_all_decimals() -> None:
    assert one([[1.0, 0.0, -2.5]], "y").numbers == [["1.0000", "0.0000", "-2.5000"]]
    assert one([[1.0, 0.0, -2.5]], "y", precision=2).numbers == [["1.00", "0.00", "-2.50"]]
    assert one([[1.0, -np.inf, np.nan]], "y").numbers == [["1.0000", "−∞", "NaN"]]


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([99999999.0, 1.0], ["99999999.0000", "1.0000"]),
        ([1e8, 1.0], ["1.0000e+08", "1.0000e+00"]),
        ([-1e8, 0.0], ["-1.0000e+08", "0"]),
        ([0.001, 0.0], ["0.0010", "0.0000"]),
        ([0.0009, 0.0], ["9.0000e-04", "0"]),
        ([1e-7, -0.0], ["1.0000e-07", "0"]),
        ([1.0, 1e-7], ["1.0000", "0.0000"]),
        ([1e300, 5e-324], ["1.0000e+300", "4.9407e-324"]),
        ([5e-324, -np.inf], ["4.9407e-324", "−∞"]),
        ([0.0, -0.0], ["0.0000", "0.0000"]),
        ([np.inf, np.nan], ["∞", "NaN"]),
    ],
)
def test_when_an_exponent_is_used(values: list[float], wanted: list[str]) -> None:
    assert one([values], "y").numbers == [wanted]


@pytest.mark.parametrize(("precision", "wanted"), [(0, ["1", "3"]), (1, ["0.6", "3.0"]), (2, ["0.60", "3.00"])])
def test_few_decimals_bring_no_exponent(precision: int, wanted: list[str]) -> None:
    assert one([[0.6, 3.0]], "y", precision=precision).numbers == [wanted]


@pytest.mark.parametrize(
    ("precision", "value", "wanted"),
    [(0, 0.6, "1"), (0, 0.4, "4e-01"), (1, 0.4, "0.4"), (2, 0.009, "0.01"), (2, 0.004, "4.00e-03"), (3, 0.009, "9.000e-03")],
)
def test_small_numbers_with_few_decimals(precision: int, value: float, wanted: str) -> None:
    assert one([[value]], "y", precision=precision).numbers == [[wanted]]


@pytest.mark.parametrize(("dtype", "wanted"), list(zip(DTYPES, ["0.1", "0.1", "0.1000", "0.1001"], strict=True)))
def test_a_tenth_in_each_dtype(dtype: np.dtype[Any], wanted: str) -> None:
    """Nothing of float32 is closer to a tenth than what it writes as 0.1; the halves differ from it in the fourth decimal."""
    assert one(np.array([[0.1]]).astype(dtype)).numbers == [[wanted]]


def test_sums_do_not_overflow_with_their_dtype() -> None:
    assert one(np.array([[60000, 60000]], dtype=np.float16)).sums == ["120000"]


@st.composite
def arrays(draw: st.DrawFn) -> Array:
    dtype = draw(st.sampled_from(DTYPES))
    wide = draw(hnp.arrays(np.float64, hnp.array_shapes(min_dims=2, max_dims=2, max_side=4), elements=st.floats() | TAME))
    with np.errstate(all="ignore"):
        return wide.astype(dtype)


TAME = st.sampled_from([0.0, -0.0, -1e-9, 0.5, -0.25, 1 / 3, -0.00004, 12.125, 1e8, 99999999.5])


def true(text: str, value: float, precision: int) -> bool:
    """Whether `text` is `value` correctly rounded to the decimals that `text` has."""
    if value - value != 0:
        return text == ("NaN" if value != value else "∞" if value > 0 else "−∞")
    mantissa, _, exponent = text.partition("e")
    decimals = len(mantissa.partition(".")[2])
    unit = Decimal(10) ** (int(exponent or 0) - decimals)
    return decimals <= precision and abs(Decimal(text) - Decimal(value)) <= unit / 2


@settings(deadline=None)
@given(arrays(), st.integers(0, 9), st.sampled_from("xy"))
@example(np.array([[-0.00001, 1.0]]), 4, "y")
@example(np.array([[-0.0, -0.0]]), 4, "x")
@example(np.array([[-0.4, 1.0]]), 0, "y")
def test_every_number_is_true_and_minus_zero_is_never_written(array: Array, precision: int, step: str) -> None:
    grid = one(array, step, precision=precision)
    exact = array.astype(np.float64).tolist()
    for row, values in zip(grid.numbers, exact, strict=True):
        assert all(true(text, value, precision) for text, value in zip(row, values, strict=True))
    assert not any(re.fullmatch(r"-0(\.0*)?(e.*)?", text) for text in texts(grid))


@settings(deadline=None)
@given(arrays(), st.integers(0, 9), st.sampled_from("xy"))
def test_the_numbers_of_a_matrix_are_written_alike(array: Array, precision: int, step: str) -> None:
    finite = [text for row in one(array, step, precision=precision).numbers for text in row if text[-1].isdigit()]
    if any("e" in text for text in finite):
        assert all("e" in text or text == "0" for text in finite)
    else:
        assert len({len(text.partition(".")[2]) for text in finite}) <= 1


# ------------------------------------------------------------------ sums, and the largest of each row


def test_sums_are_of_whole_rows() -> None:
    assert one([[1.0, 2.5], [-3.0, 0.5]]).sums == ["3.5", "-2.5"]
    assert one([[0.5, 0.5]]).sums == ["1.0"]  # as many decimals as the numbers
    assert one([[1.0, -np.inf], [np.inf, -np.inf]]).sums == ["−∞", "NaN"]
    elided = one(np.ones((4, 300)))
    assert elided.sums == ["300"] * 4


def test_the_first_of_the_largest_is_marked_and_its_equals() -> None:
    assert one([[1.0, 3.0, 3.0], [2.0, 1.0, 2.0], [-1.0, -2.0, -3.0]]).marks == [
        ["", "max", "tie"],
        ["max", "", "tie"],
        ["max", "", ""],
    ]


def test_a_tie_is_of_numbers_not_of_their_text() -> None:
    assert one([[0.5, 0.5 + 1e-9]], "y").marks == [["", "max"]]


def test_in_a_row_with_nan_nothing_is_largest() -> None:
    assert one([[1.0, np.nan, 3.0], [np.inf, 1.0, np.inf]]).marks == [["", "", ""], ["max", "", "tie"]]


def test_in_a_row_that_may_attend_to_nothing_nothing_is_largest() -> None:
    assert one([[-np.inf, -np.inf], [-np.inf, 0.0]]).marks == [["", ""], ["", "max"]]


def far() -> Array:
    """Four rows of 300: largest in a column that is left out; in one that is shown; in both; NaN in one that is left out."""
    array = np.zeros((4, 300))
    array[0, 150] = 7
    array[1, 299] = 7
    array[2, [1, 150, 298]] = 7
    array[3, 120] = np.nan
    return array


def test_where_the_largest_is_is_told_when_columns_are_left_out() -> None:
    grid = one(far(), axes=("query", "key"))
    assert grid.largest == ["7 at t150", "7 at t299", "7 at t1", "NaN at t120"]
    assert grid.marks == [
        ["", "", "", "", "", "", ""],
        ["", "", "", "", "", "", "max"],
        ["", "max", "", "", "", "tie", ""],
        ["", "", "", "", "", "", ""],
    ]
    labelled = one(far(), axes=("query", "key"), labels={"key": [f"w{j}" for j in range(300)]})
    assert labelled.largest[0] == "7 at w150"


def test_the_largest_of_rows_that_are_left_out_is_not_told() -> None:
    grid = one(np.tile(far(), (10, 1)), axes=("query", "key"))
    assert grid.largest == ["7 at t150", "7 at t299", "7 at t1", "…", "7 at t299", "7 at t1", "NaN at t120"]
    assert grid.marks[3] == [""] * 7


def test_nothing_is_told_of_the_largest_when_all_columns_are_shown() -> None:
    assert one(np.zeros((500, 3))).largest == ()


@pytest.mark.parametrize("hidden", [0.5, 1e300, 1e-7])
def test_a_largest_that_is_left_out_is_true_too(hidden: float) -> None:
    """It may need more decimals than the numbers that are shown, or an exponent."""
    array = np.zeros((4, 300))
    array[0, 150] = hidden
    text, _, where = one(array).largest[0].partition(" at ")
    assert where == "150"
    assert float(text) == hidden
    assert len(text) <= 12


# ------------------------------------------------------------------ what it costs


class Watched(np.ndarray):
    """Remembers which rows are taken out of it, and how many numbers anybody computes with at a time."""

    taken: list[Any]
    sizes: list[int]

    def __array_finalize__(self, source: Any) -> None:
        self.taken, self.sizes = getattr(source, "taken", []), getattr(source, "sizes", [])

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, list):
            self.taken.append(key)
        return super().__getitem__(key)

    def __array_ufunc__(self, ufunc: np.ufunc, method: Any, *inputs: Any, **kwargs: Any) -> Any:
        self.sizes.extend(np.size(operand) for operand in inputs)
        plain = [operand.view(np.ndarray) if isinstance(operand, Watched) else operand for operand in inputs]
        return getattr(ufunc, method)(*plain, **kwargs)


@pytest.mark.parametrize("shape", [(10**6, 4), (10**5, 50), (3, 10**5, 2), (300, 300, 70, 70)])
def test_only_rows_that_are_shown_are_read(shape: tuple[int, ...]) -> None:
    array = np.broadcast_to(np.arange(float(shape[-1])), shape).view(Watched)  # takes no memory
    tracemalloc.start()
    found = shown(array)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    matrices = sum(1 for grid in found if grid.rows)
    assert matrices <= 36
    n = shape[-2]
    assert array.taken == [[0, 1, 2, n - 3, n - 2, n - 1]] * matrices
    assert max(array.sizes) <= 6 * shape[-1]
    assert peak < 1e6


# ------------------------------------------------------------------ labels

HOSTILE = {
    "[bold red]x[/]": "[bold red]x[/]",
    "=1+1": "=1+1",
    "<script>": "<script>",
    "|": "|",
    "\x1b[31mred": r"\x1b[31mred",
    "\x9b31m": r"\x9b31m",
    r"\input{/etc/passwd}": r"\input{/etc/p…",
    "$x$": "$x$",
    "two\nlines": r"two\nlines",
    "\u202egnp": r"\u202egnp",
    "\ud800": r"\ud800",
    "\0": r"\x00",
}


@pytest.mark.parametrize(("label", "wanted"), HOSTILE.items())
def test_hostile_labels_are_plain(label: str, wanted: str) -> None:
    assert legible([label]) == [wanted]


def test_good_labels_stay() -> None:
    assert legible(["the", "cat", "日本", "−1", "a b"]) == ["the", "cat", "日本", "−1", "a b"]


def test_empty_labels_are_numbered() -> None:
    assert legible(["", "x", "\u3000", "  "]) == ["t0", "x", "t2", "t3"]


def test_labels_alike_are_told_apart() -> None:
    assert legible(["the", "cat", "the"]) == ["the(0)", "cat", "the(2)"]
    assert legible(["a", " a "]) == ["a(0)", "a(1)"]
    assert legible(["antidisestablishment", "antidisestablished"]) == ["antidisestabl…(0)", "antidisestabl…(1)"]


def test_wide_labels_are_cut_by_the_cells_they_take() -> None:
    assert legible(["fourteen cells"]) == ["fourteen cells"]
    assert legible(["fifteen cells .."]) == ["fifteen cells…"]
    assert legible(["日" * 7, "日" * 8]) == ["日" * 7, "日" * 6 + "…"]


LABELS = st.lists(st.text(st.characters() | st.sampled_from("a日 \x1b\n"), max_size=20), min_size=1, max_size=8)


@settings(deadline=None)
@given(LABELS)
def test_labels_are_harmless_short_and_distinct(given_labels: list[str]) -> None:
    assume(not any("(" in label for label in given_labels))  # see below
    found = legible(given_labels)
    assert len(set(found)) == len(found) == len(given_labels)
    for i, label in enumerate(found):
        assert label
        assert all(map(harmless, label))
        assert cells(label) <= 14 + len(f"({i})")


def test_a_label_that_looks_like_a_number_is_told_apart_too() -> None:
    assert len(set(legible(["a", "a", "a(0)"]))) == 3


def test_a_long_label_is_not_measured_again_for_each_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each measuring of a label that is not ASCII takes as long as the label."""
    measured: list[int] = []

    def measure(text: str) -> int:
        measured.append(len(text))
        return cells(text)

    monkeypatch.setattr(labels_module, "cells", measure)
    clip("é" * 3000)
    assert sum(measured) < 100 * 3000


# ------------------------------------------------------------------ a whole layer


def test_the_labels_of_a_config_reach_the_grids() -> None:
    config = {
        "q": np.zeros((2, 1)),
        "k": np.zeros((3, 1)),
        "v": np.eye(3),
        "tokens": ["", "b"],
        "kv_tokens": ["x", "x", "\x07"],
    }
    t = attntrace.trace(config)
    view = View(t, select(t, ["weights"], {}))
    (grid,) = grids(view.shown[0], view.labels, 4, False)
    assert (grid.rows, grid.columns) == (["t0", "b"], ["x(0)", "x(1)", r"\x07"])
    assert grid.numbers == [["0.3333"] * 3] * 2
    assert grid.marks == [["max", "tie", "tie"]] * 2
    assert grid.sums == ["1.0000"] * 2
