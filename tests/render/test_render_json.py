"""JSON: every number comes back, nothing but strict JSON is written, and listing steps computes nothing."""

from __future__ import annotations

import datetime
import importlib.metadata
import io
import itertools
import json
import pathlib
import tracemalloc
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, cast

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import attntrace
from attntrace.ops import MatMul, Softmax
from attntrace.render import json as json_format
from attntrace.render.view import View, select
from attntrace.tape import Array, Note, Trace

AXES = ("batch", "head", "query", "key")
EDGES = [np.nan, np.inf, -np.inf, -0.0, 0.1, 1e300, -1e300, 5e-324, 2**53 + 2.0]
HOSTILE = [
    *("[bold red]x[/]", "=1+1", "<script>alert(1)</script>", "a|b", "\x1b[31mred", "\x9b31m", "\x7f", "\x00"),
    *(
        "\\input{/etc/passwd}",
        "$x$",
        "two\nlines",
        '"',
        "\\",
        "\\u0041",
        "\u202egnp.exe",
        "\u2028",
        "\ud800",
        "😀",
        "−∞ ≤ ′",
    ),
]
SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, max_side=4)


def tape(arrays: Mapping[str, Array], labels: Mapping[str, Sequence[str]] | None = None, **more: Any) -> Trace:
    """A trace of inputs that share the last of AXES."""
    shape = next(iter(arrays.values())).shape
    axes = AXES[len(AXES) - len(shape) :]
    t = Trace(dict(zip(axes, shape, strict=True)), next(iter(arrays.values())).dtype, labels, **more)
    for name, array in arrays.items():
        t.given(name, name.upper(), axes, lambda array=array: array, "inline")  # type: ignore[misc]
    return t


def attention() -> Trace:
    """Two heads with whole numbers, so that sums are exact."""
    q = np.array([[[1, 2], [3, -1]], [[0, 5], [2, 2]]], dtype=np.float64)
    t = Trace({"head": 2, "query": 2, "key": 2, "d_k": 2}, np.dtype(np.float64))
    a = t.given("q", "Q", ("head", "query", "d_k"), lambda: q, "inline")
    b = t.given("k", "K", ("head", "key", "d_k"), lambda: q[:, ::-1], "k.npy")
    s = t("scores", "S = Q Kᵀ", ("head", "query", "key"), MatMul(transpose=True), a, b)
    t("weights", "A = softmax(S)", s.axes, Softmax(), s)
    return t


def written(view: View, write: Any = json_format.write) -> str:
    out = io.BytesIO()
    write(view, out)
    return out.getvalue().decode("utf-8")


def strict(text: str) -> Any:
    def refuse(token: str) -> None:
        raise AssertionError(f"{token} is not JSON")

    return json.loads(text, parse_constant=refuse)


def document(t: Trace, index: Mapping[str, int] | None = None, notes: Sequence[Note] = ()) -> Any:
    return strict(written(View(t, select(t, None, index or {}), notes)))


def numbers(nested: Any) -> Any:
    return [numbers(item) for item in nested] if isinstance(nested, list) else float(nested)


def assert_same(read: Any, array: Array) -> None:
    """Equal as float64, signs of zero included."""
    got, wanted = np.array(numbers(read)), array.astype(np.float64)
    assert got.shape == wanted.shape
    np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(np.signbit(got[~np.isnan(got)]), np.signbit(wanted[~np.isnan(wanted)]))


# ------------------------------------------------------------------ numbers


@settings(deadline=None)
@given(st.sampled_from([np.float64, np.float32, np.float16]).flatmap(lambda d: hnp.arrays(d, SHAPES)))
def test_numbers_come_back(array: Array) -> None:
    step = document(tape({"x": array}))["steps"][0]
    assert_same(step["values"], array)
    assert step["dtype"] == array.dtype.name
    assert step["shape"] == list(array.shape)


@settings(deadline=None)
@given(hnp.arrays(np.float32, SHAPES, elements=st.floats(width=32)))
def test_bfloat16_comes_back(array: Array) -> None:
    with np.errstate(all="ignore"):
        half = array.astype(ml_dtypes.bfloat16)
    step = document(tape({"x": half}))["steps"][0]
    assert_same(step["values"], half)
    assert step["dtype"] == "bfloat16"


def test_numbers_that_are_hard_to_write() -> None:
    values = document(tape({"x": np.array(EDGES)}))["steps"][0]["values"]
    assert values[:3] == ["NaN", "Infinity", "-Infinity"]
    assert_same(values, np.array(EDGES))


def test_float32_is_widened_exactly() -> None:
    values = document(tape({"x": np.array([0.1], dtype=np.float32)}))["steps"][0]["values"]
    assert values == [0.100000001490116119384765625]


@pytest.mark.parametrize("chunk", [1, 2, 5, 12, 13, 1000])
@pytest.mark.parametrize("shape", [(1,), (7,), (7, 1), (1, 7), (3, 5), (2, 3, 4), (4, 1, 3), (2, 3, 2, 5), (1, 1, 1, 30)])
def test_where_the_chunks_end_does_not_show(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], chunk: int) -> None:
    monkeypatch.setattr(json_format, "CHUNK", chunk)
    array = np.random.default_rng(1).normal(size=shape)
    array.flat[::3] = list(itertools.islice(itertools.cycle([np.inf, -np.inf, np.nan]), len(array.flat[::3])))
    assert_same(document(tape({"x": array}))["steps"][0]["values"], array)


def test_row_sums_and_the_first_of_the_largest() -> None:
    scores = document(attention())["steps"][2]
    assert scores["values"] == [[[1.0, 5.0], [10.0, 1.0]], [[10.0, 25.0], [8.0, 10.0]]]
    assert scores["row_sums"] == [[6.0, 11.0], [35.0, 18.0]]
    assert scores["argmax"] == [[1, 0], [1, 1]]
    flat = document(tape({"x": np.array([3.0, 7.0, 7.0])}))["steps"][0]
    assert (flat["row_sums"], flat["argmax"]) == (17.0, 1)


def test_sums_that_are_not_finite_are_strings() -> None:
    step = document(tape({"x": np.array([[-np.inf, 0], [np.inf, -np.inf], [np.inf, 1]])}))["steps"][0]
    assert step["row_sums"] == ["-Infinity", "NaN", "Infinity"]


# ------------------------------------------------------------------ the document


def test_keys_in_their_order() -> None:
    t = attention()
    t.title = "Two heads"
    read = document(t, notes=[Note("tie", "weights", "row 0: a tie"), Note("odd", None, "oddly made")])
    assert list(read) == ["attntrace", "title", "config", "steps", "notes"]
    assert read["attntrace"]["format"] == 1
    assert read["title"] == "Two heads"
    described = ["name", "symbol", "formula", "axes", "shape", "dtype", "operands"]
    assert list(read["steps"][2]) == [*described, "values", "row_sums", "argmax"]
    assert list(read["steps"][0]) == [*described, "origin", "values", "row_sums", "argmax"]
    assert read["notes"] == [
        {"code": "tie", "step": "weights", "message": "row 0: a tie"},
        {"code": "odd", "step": None, "message": "oddly made"},
    ]


def test_what_a_step_says_of_itself() -> None:
    steps = {step["name"]: step for step in document(attention())["steps"]}
    scores = steps["scores"]
    assert (scores["symbol"], scores["formula"], scores["operands"]) == ("S", "S = Q Kᵀ", ["q", "k"])
    assert (scores["axes"], scores["shape"]) == (["head", "query", "key"], [2, 2, 2])
    assert (steps["k"]["formula"], steps["k"]["origin"]) == ("given", "k.npy")
    assert "index" not in scores


def test_origin_is_there_when_there_is_one_to_tell() -> None:
    t = Trace({"query": 1}, np.dtype(np.float64))
    t.given("told", "A", ("query",), lambda: np.ones(1), "told.npy")
    t.given("untold", "B", ("query",), lambda: np.ones(1))
    assert [step.get("origin") for step in document(t)["steps"]] == ["told.npy", None]
    assert "origin" not in document(t)["steps"][1]


def test_one_head_says_which() -> None:
    whole, head = document(attention())["steps"], document(attention(), {"head": -1})["steps"]
    assert [step["index"] for step in head] == [{"head": 1}] * 4
    assert head[3]["axes"] == ["query", "key"]
    assert head[3]["shape"] == [2, 2]
    for key in ("values", "row_sums", "argmax"):
        assert head[2][key] == whole[2][key][1]


def test_a_step_is_a_line() -> None:
    t = attention()
    lines = written(View(t, select(t, None, {}))).splitlines()
    found = [json.loads(line.rstrip(","))["name"] for line in lines if line.startswith('{"name": ')]
    assert found == ["q", "k", "scores", "weights"]


def test_a_trace_of_nothing() -> None:
    read = strict(written(View(attention(), [])))
    assert (read["steps"], read["notes"], read["config"]) == ([], [], {})


def test_the_version_of_a_checkout_is_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: f"{name} 1.2")
    assert document(attention())["attntrace"]["version"] == "attntrace 1.2"

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert document(attention())["attntrace"]["version"] == "0"


def test_the_config_as_data() -> None:
    config = {
        "x": np.array([[1, np.nan], [np.inf, -np.inf]], dtype=np.float32),
        "scale": float("-inf"),
        "seed": np.int64(7),
        "mask": ("causal", {"padding": [4, None, True]}),
        "half": np.array([1.5, np.inf], dtype=ml_dtypes.bfloat16),
        "long": np.longdouble(2),
        "longs": (np.array([2, np.inf], dtype=np.longdouble),),
        "flags": np.array([True, False]),
        "complex": np.clongdouble(1),
        "scalar": np.array(0.5),
        "nothing": np.array([]),
        "words": np.array(["a", "b"]),
        "nested": {"add": np.array([[-np.inf, 2**53]])},
        "when": datetime.date(2024, 2, 29),
        "file": pathlib.PurePosixPath("a/b.npy"),
        3: "a number for a key",
    }
    assert document(tape({"x": np.ones(1)}, config=config))["config"] == {
        "x": [[1.0, "NaN"], ["Infinity", "-Infinity"]],
        "scale": "-Infinity",
        "seed": 7,
        "mask": ["causal", {"padding": [4, None, True]}],
        "half": [1.5, "Infinity"],
        "long": 2.0,
        "longs": [[2.0, "Infinity"]],
        "flags": [True, False],
        "complex": "(1+0j)",
        "scalar": 0.5,
        "nothing": [],
        "words": ["a", "b"],
        "nested": {"add": [["-Infinity", 2.0**53]]},
        "when": "2024-02-29",
        "file": "a/b.npy",
        "3": "a number for a key",
    }


@pytest.mark.parametrize("text", HOSTILE)
def test_text_comes_back_and_does_nothing_to_a_terminal(text: str) -> None:
    t = tape({"x": np.ones(2)}, title=text, config={text: [text]})
    raw = written(View(t, select(t, None, {}), [Note("code", None, text)]))
    read = strict(raw)
    assert (read["title"], read["config"], read["notes"][0]["message"]) == (text, {text: [text]}, text)
    assert not set(raw) & set("\x00\x1b\x7f\x9b\u202e\u2028\ud800")
    assert len(raw.splitlines()) == raw.count("\n")  # nothing else that some reader takes for the end of a line


def test_letters_stay_legible() -> None:
    assert '"formula": "S = Q Kᵀ"' in written(View(attention(), select(attention(), None, {})))


# ------------------------------------------------------------------ without values


def test_without_values_computes_nothing() -> None:
    def read() -> Array:
        raise AssertionError("computed")

    t = Trace({"query": 2, "key": 2}, np.dtype(np.float64))
    x = t.given("x", "X", ("query", "key"), read)
    t("weights", "A = softmax(X)", x.axes, Softmax(), x)
    steps = strict(written(View(t, select(t, None, {})), json_format.without_values))["steps"]
    assert [step["name"] for step in steps] == ["x", "weights"]


def test_without_values_is_the_rest_of_the_document() -> None:
    t = attention()
    view = View(t, select(t, None, {"head": 1}), [Note("odd", None, "oddly made")])
    whole = strict(written(view))
    for step in whole["steps"]:
        del step["values"], step["row_sums"], step["argmax"]
    assert strict(written(view, json_format.without_values)) == whole


# ------------------------------------------------------------------ cost


class Sink(io.RawIOBase):
    """Counts what is written and keeps nothing."""

    size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.size += len(data)
        return len(data)


def test_memory_does_not_grow_with_the_document() -> None:
    t = tape({"x": np.random.default_rng(0).normal(size=(500, 1000))})
    view, out = View(t, select(t, None, {})), Sink()
    assert view.shown[0].values.size == 500_000  # read before measuring
    tracemalloc.start()
    json_format.write(view, cast(BinaryIO, out))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert out.size > 9e6
    assert peak < 4e6


def test_nor_with_the_arrays_of_the_config() -> None:
    array = np.random.default_rng(0).normal(size=(500, 1000))
    t = tape({"x": np.ones(1)}, config={"x": array, "mask": {"add": array}})
    view, out = View(t, select(t, None, {})), Sink()
    tracemalloc.start()
    json_format.write(view, cast(BinaryIO, out))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert out.size > 18e6
    assert peak < 4e6


def test_no_longer_than_half_more_than_plain_json() -> None:
    values = np.random.default_rng(0).normal(size=(300, 1000))
    t, out = tape({"x": values}), Sink()
    json_format.write(View(t, select(t, None, {})), cast(BinaryIO, out))
    assert out.size < 1.1 * len(json.dumps(values.tolist()))


# ------------------------------------------------------------------ a whole layer


def test_a_layer_from_its_config() -> None:
    x = np.array([[1.0, np.nan], [-np.inf, 5e-324]])
    t = attntrace.trace({"title": "One", "x": x, "w_q": [[1, 0], [0, 1]], "w_k": np.eye(2), "w_v": np.eye(2), "mask": "causal"})
    read = document(t, notes=attntrace.notes(t))
    assert [step["name"] for step in read["steps"]] == t.names
    assert (read["title"], read["config"]["mask"], read["config"]["w_q"]) == ("One", "causal", [[1, 0], [0, 1]])
    assert read["config"]["x"] == read["steps"][0]["values"] == [[1.0, "NaN"], ["-Infinity", 5e-324]]
    assert {"code", "step", "message"} == set(read["notes"][0])
    for step in read["steps"]:
        assert_same(step["values"], t[step["name"]].values)
