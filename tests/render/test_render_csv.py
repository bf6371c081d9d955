"""CSV: every number comes back to its place, and no text of the user's is written."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from attntrace.ops import MatMul, Merge
from attntrace.render import csv as csv_format
from attntrace.render.view import View, select
from attntrace.tape import Array, Note, Trace

AXES = ("batch", "head", "query", "key")
SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, max_side=4)
HOSTILE = ("[bold red]x[/]", "=1+1", '=HYPERLINK("http://x")', "@SUM(A1)", "\x1b[31m", 'a,"b"\n')


def tape(array: Array, **more: Any) -> Trace:
    axes = AXES[len(AXES) - array.ndim :]
    t = Trace(dict(zip(axes, array.shape, strict=True)), array.dtype, **more)
    t.given("x", "X", axes, lambda: array, "=inline")
    return t


def heads() -> Trace:
    """Steps with different axes, one of them (q) with axes in another order than they first appear in."""
    rng = np.random.default_rng(5)
    q, k = rng.normal(size=(2, 3, 4)), rng.normal(size=(2, 5, 4))
    t = Trace({"head": 2, "query": 3, "key": 5, "d_k": 4, "head*key": 10}, np.dtype(np.float64))
    b = t.given("k", "K", ("head", "key", "d_k"), lambda: k)
    a = t.given("q", "Q", ("head", "query", "d_k"), lambda: q)
    s = t("scores", "S = Q Kᵀ", ("head", "query", "key"), MatMul(transpose=True), a, b)
    t("concat", "H = heads of S side by side", ("query", "head*key"), Merge(), s)
    return t


def written(t: Trace, index: Mapping[str, int] | None = None) -> str:
    out = io.BytesIO()
    csv_format.write(View(t, select(t, None, index or {}), [Note("code", "x", "=note")]), out)
    return out.getvalue().decode("utf-8")


def rows(t: Trace, index: Mapping[str, int] | None = None) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(written(t, index), newline=""), strict=True))


def rebuilt(found: list[dict[str, str]], name: str, axes: tuple[str, ...], shape: tuple[int, ...]) -> Array:
    """The array of a step, each number put where its index columns say; every place must be filled once."""
    result, filled = np.zeros(shape), np.zeros(shape, dtype=int)
    for row in found:
        if row["step"] == name:
            place = tuple(int(row[axis]) for axis in axes)
            result[place] = float(row["value"])
            filled[place] += 1
    assert (filled == 1).all()
    return result


def assert_same(got: Array, wanted: Array) -> None:
    np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(np.signbit(got[~np.isnan(got)]), np.signbit(wanted[~np.isnan(wanted)]))


@settings(deadline=None)
@given(st.sampled_from([np.float64, np.float32, np.float16]).flatmap(lambda d: hnp.arrays(d, SHAPES)))
def test_numbers_come_back(array: Array) -> None:
    t = tape(array)
    assert_same(rebuilt(rows(t), "x", t["x"].axes, array.shape), array.astype(np.float64))


def test_bfloat16_comes_back() -> None:
    array = np.array([[0.1, -0.0], [np.inf, 3e38]], dtype=ml_dtypes.bfloat16)
    assert_same(rebuilt(rows(tape(array)), "x", ("query", "key"), (2, 2)), array.astype(np.float64))


@pytest.mark.parametrize("chunk", [1, 2, 7, 12, 1000])
def test_where_the_chunks_end_does_not_show(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(csv_format, "CHUNK", chunk)
    t = heads()
    found = rows(t)
    for step in t:
        assert_same(rebuilt(found, step.name, step.axes, step.shape), step.values)


def test_numbers_as_python_writes_them() -> None:
    array = np.array([0.1, 1e300, 5e-324, -0.0, 3.0, np.inf, -np.inf, np.nan])
    assert [row["value"] for row in rows(tape(array))] == [
        "0.1",
        "1e+300",
        "5e-324",
        "-0.0",
        "3.0",
        "inf",
        "-inf",
        "nan",
    ]


def test_the_first_lines() -> None:
    array = np.arange(6.0).reshape(2, 3)
    assert written(tape(array)).startswith("step,query,key,value\nx,0,0,0.0\nx,0,1,1.0\nx,0,2,2.0\nx,1,0,3.0\n")


def test_columns_in_order_of_first_appearance_empty_where_a_step_lacks_the_axis() -> None:
    found = rows(heads())
    assert list(found[0]) == ["step", "head", "key", "d_k", "query", "head*key", "value"]
    empty = {name: {axis for row in found if row["step"] == name for axis in row if not row[axis]} for name in ("q", "concat")}
    assert empty == {"q": {"key", "head*key"}, "concat": {"head", "key", "d_k"}}


def test_one_head_fills_its_column() -> None:
    t = heads()
    found = rows(t, {"head": -1})
    assert {row["head"] for row in found if row["step"] != "concat"} == {"1"}
    assert_same(rebuilt(found, "scores", ("query", "key"), (3, 5)), t["scores"].values[1])
    assert len([row for row in found if row["step"] == "scores"]) == 15


def test_one_batch_item_and_one_head() -> None:
    array = np.random.default_rng(2).normal(size=(2, 3, 2, 2))
    found = rows(tape(array), {"batch": 1, "head": 2})
    assert {(row["batch"], row["head"]) for row in found} == {("1", "2")}
    assert_same(rebuilt(found, "x", ("query", "key"), (2, 2)), array[1, 2])


def test_no_text_of_the_users() -> None:
    n = len(HOSTILE)
    t = tape(np.ones((n, n)), labels={"query": HOSTILE, "key": HOSTILE}, title="=1+1", config={"=a": "=b"})
    assert re.fullmatch(r"step,query,key,value\n(x,\d,\d,1\.0\n)+", written(t))


def test_nothing_shown_is_a_header() -> None:
    out = io.BytesIO()
    csv_format.write(View(heads(), []), out)
    assert out.getvalue() == b"step,value\n"
