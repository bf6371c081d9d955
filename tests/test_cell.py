"""Indexes of cells and of --set: what NumPy takes out for the same text, or a sentence that says what to write."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import attntrace
from attntrace.cell import Cell, parse
from attntrace.errors import AttnTraceError

ARRAY = np.arange(4 * 3 * 5).reshape(4, 3, 5)
AXES = ("head", "query", "key")


def said(error: pytest.ExceptionInfo[AttnTraceError]) -> str:
    return error.value.faults[0].message


# ------------------------------------------------------------------ what is taken out

number = st.integers(-6, 6)
ends = st.none() | number
written = st.builds(lambda a, b: f"{'' if a is None else a}:{'' if b is None else b}", ends, ends)
stepped = st.builds(lambda run, step: f"{run}:{step}", written, st.integers(-3, 3))
items = st.one_of(number.map(str), written, stepped, st.just("..."))
spaced = st.builds(lambda item, before, after: " " * before + item + " " * after, items, st.integers(0, 2), st.integers(0, 2))
groups = st.lists(spaced, min_size=1, max_size=4).map(lambda found: f"[{','.join(found)}]")


@given(st.lists(groups, max_size=3).map("".join))
@settings(max_examples=2000, deadline=None)
def test_numpy_takes_the_same_or_refuses(text: str) -> None:
    """Python's own reading of the text is the judge. What we refuse beside what it refuses: nothing taken, and brackets
    behind a slice."""
    ours: Any
    try:
        cell = parse(f"a{text}")
        taken = cell.within(AXES, ARRAY.shape)
        ours = ARRAY[cell.index]
        assert np.shape(ours) == taken
    except AttnTraceError:
        ours = None
    try:
        theirs = eval(f"a{text}", {"a": ARRAY})
    except (IndexError, ValueError, SyntaxError):
        theirs = None
    if ours is not None:
        assert theirs is not None, text
        np.testing.assert_array_equal(ours, theirs)
    elif theirs is not None:
        assert np.size(theirs) == 0 or "][" in text


@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("a", ()),
        ("a[0]", (0,)),
        ("a[-1, 2]", (-1, 2)),
        ("a[0][1][2]", (0, 1, 2)),
        ("a[0][1:]", (0, slice(1, None))),
        ("a[:, 3:]", (slice(None), slice(3, None))),
        ("a[..., -1]", (Ellipsis, -1)),
        ("a[::-1]", (slice(None, None, -1),)),
        (" a [ 0 , 1 ] ", (0, 1)),
        ("a[0,]", (0,)),
        ("a[+1]", (1,)),
    ],
)
def test_forms(text: str, index: Any) -> None:
    assert parse(text) == Cell("a", index)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'': expected a name with an index, such as weights, weights[0,1] or x[:,3:]"),
        ("a[0", "'a[0': expected a name with an index, such as weights, weights[0,1] or x[:,3:]"),
        ("a[0]]", "'a[0]]': expected a name with an index, such as weights, weights[0,1] or x[:,3:]"),
        ("a(0)", "'a(0)': expected a name with an index, such as weights, weights[0,1] or x[:,3:]"),
        ("a[0]b", "'a[0]b': expected a name with an index, such as weights, weights[0,1] or x[:,3:]"),
        ("a[]", "'a[]': expected an index such as 0, -1, 1:3 or ..., found nothing"),
        ("a[0,,1]", "'a[0,,1]': expected an index such as 0, -1, 1:3 or ..., found nothing"),
        ("a[t0]", "'a[t0]': expected an index such as 0, -1, 1:3 or ..., found 't0'"),
        ("a[1.0]", "'a[1.0]': expected an index such as 0, -1, 1:3 or ..., found '1.0'"),
        ("a[None]", "'a[None]': expected an index such as 0, -1, 1:3 or ..., found 'None'"),
        ("a[0:1:2:3]", "'a[0:1:2:3]': expected an index such as 0, -1, 1:3 or ..., found '0:1:2:3'"),
        ("a[::0]", "'a[::0]': the step of a slice cannot be 0"),
        ("a[[0, 1]]", "'a[[0, 1]]': takes numbers and slices, such as 0, -1 or 1:3, and no lists of positions"),
        ("a[0, [1, 2]]", "'a[0, [1, 2]]': takes numbers and slices, such as 0, -1 or 1:3, and no lists of positions"),
        ("a[:][0]", "'a[:][0]': after : all axes go in the same brackets, such as x[:, 0]"),
        ("a[0][1:3][0]", "'a[0][1:3][0]': after 1:3 all axes go in the same brackets, such as x[:, 0]"),
        ("a[...][0]", "'a[...][0]': after ... all axes go in the same brackets, such as x[:, 0]"),
    ],
)
def test_what_is_no_cell(text: str, message: str) -> None:
    with pytest.raises(AttnTraceError) as error:
        parse(text)
    assert said(error) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a[4]", "a[4]: index 4 is out of range: axis head has 4 entries, numbered 0 to 3"),
        ("a[0, -4]", "a[0, -4]: index -4 is out of range: axis query has 3 entries, numbered 0 to 2"),
        ("a[..., 5]", "a[..., 5]: index 5 is out of range: axis key has 5 entries, numbered 0 to 4"),
        ("a[4:]", "a[4:]: selects nothing from shape 4 × 3 × 5"),
        ("a[1:3:-1]", "a[1:3:-1]: selects nothing from shape 4 × 3 × 5"),
        ("a[0,0,0,0]", "a[0, 0, 0, 0]: a takes one index for each axis: expected at most 3 (head, query, key), found 4"),
        ("a[...,...]", "a[..., ...]: expected at most one ..., found 2"),
    ],
)
def test_what_is_not_there(text: str, message: str) -> None:
    with pytest.raises(AttnTraceError) as error:
        parse(text).within(AXES, ARRAY.shape)
    assert said(error) == message


# ------------------------------------------------------------------ --set

RNG = np.random.default_rng(0)
LAYER = {
    "heads": 2,
    "x": RNG.normal(size=(3, 4)),
    **{name: RNG.normal(size=(4, 4)) for name in ("w_q", "w_k", "w_v", "w_o")},
    "b_q": RNG.normal(size=4),
    "sinks": [0.5, 1.5],
    "alibi": {"slopes": [0.5, 0.25]},
    "qk_norm": {"norm": "rmsnorm", "q": [1.0, 2.0], "k": [3.0, 4.0]},
}
TURNED = {
    **LAYER,
    "rope": {
        "pairs": "half",
        "cos": RNG.normal(size=(9, 1)),
        "sin": RNG.normal(size=(9, 1)),
        "positions": [0, 1, 2],
        "key_positions": [2, 3, 4],
    },
}
MASKED = {**LAYER, "mask": [{"keep": np.ones((3, 3))}, {"ignore": np.zeros((3, 3))}, {"add": np.zeros((3, 3))}]}
CACHED = {**LAYER, "cache": {"k": RNG.normal(size=(2, 2, 2)), "v": RNG.normal(size=(2, 2, 2))}}
PAGED = {
    **LAYER,
    "cache": {"blocks": {"k": RNG.normal(size=(3, 2, 2, 2)), "v": RNG.normal(size=(3, 2, 2, 2))}, "table": [2, 0]},
}
DIRECT = {"q": RNG.normal(size=(3, 2)), "k": RNG.normal(size=(3, 2)), "v": RNG.normal(size=(3, 2))}


@pytest.mark.parametrize(
    ("config", "target", "name", "index"),
    [
        (LAYER, "x[-1]", "x", (-1,)),
        (LAYER, "x[::2, 1:3]", "x", (slice(None, None, 2), slice(1, 3))),
        (LAYER, "x[..., 0]", "x", (..., 0)),
        (LAYER, "x[0][1]", "x", (0, 1)),
        (LAYER, " x [ 0 , 1 ] ", "x", (0, 1)),
        (LAYER, "w_o[:, -2:]", "w_o", (slice(None), slice(-2, None))),
        (LAYER, "b_q[-1]", "b_q", (-1,)),
        (LAYER, "sinks[0]", "sinks", (0,)),
        (LAYER, "alibi.slopes[-1]", "slopes", (-1,)),
        (LAYER, "qk_norm.q[1]", "q_norm_weight", (1,)),
        (LAYER, "qk_norm.k[:1]", "k_norm_weight", (slice(0, 1),)),
        (TURNED, "rope.cos[-1, 0]", "cos_table", (-1, 0)),
        (TURNED, "rope.sin[::3]", "sin_table", (slice(None, None, 3),)),
        (TURNED, "rope.positions[-1]", "positions", (-1,)),
        (TURNED, "rope.key_positions[0:2]", "key_positions", (slice(0, 2),)),
        (CACHED, "cache.k[0]", "k_past", (0,)),
        (CACHED, "cache.v[..., -1]", "v_past", (..., -1)),
        (PAGED, "cache.blocks.k[1, 0, :, 1]", "k_blocks", (1, 0, slice(None), 1)),
        (PAGED, "cache.blocks.v[-1]", "v_blocks", (-1,)),
        (PAGED, "cache.table[-1]", "table", (-1,)),
        (DIRECT, "q[1:, 0]", "q", (slice(1, None), 0)),
    ],
)
def test_cells_of_every_tensor(config: Any, target: str, name: str, index: Any) -> None:
    """What the trace shows is the array with these cells set, by NumPy, and no other."""
    expected = attntrace.trace(config)[name].values.copy()
    expected[index] = 1
    found = attntrace.trace(config, sets=[f"{target}=1"])[name].values
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("target", "value", "cells"),
    [
        ("mask[0].keep[0, 1]", "0", [(0, 1)]),
        ("mask[0].keep[-1][:2]", "false", [(2, 0), (2, 1)]),
        ("mask[1].ignore[1, -1]", "true", [(1, 2)]),
        ("mask[-2].ignore[::2, 1]", "1", [(0, 1), (2, 1)]),
        ("mask[-1].add[2, 0]", "-.inf", [(2, 0)]),
    ],
)
def test_cells_of_masks(target: str, value: str, cells: list[tuple[int, int]]) -> None:
    expected = np.zeros((3, 3))
    for cell in cells:
        expected[cell] = -np.inf
    np.testing.assert_array_equal(attntrace.trace(MASKED, sets=[f"{target}={value}"])["mask"].values, expected)


def test_values_are_spread_as_numpy_spreads_them() -> None:
    for value in ("7", "[1, 2, 3, 4]", "[[1], [2]]", "[[[1, 2, 3, 4]]]", "[[1, 2, 3, 4], [5, 6, 7, 8]]"):
        expected = np.array(LAYER["x"])
        expected[:2] = np.array(eval(value))
        np.testing.assert_array_equal(attntrace.trace(LAYER, sets=[f"x[:2]={value}"])["x"].values, expected)


def test_later_changes_come_after_earlier_ones() -> None:
    x = "[[1, 2, 3, 4], [5, 6, 7, 8]]"
    first = attntrace.trace(LAYER, sets=[f"x={x}", "x[0, 0]=9", "x[0]=0", "x[0, 1]=3"])["x"].values
    np.testing.assert_array_equal(first, [[0, 3, 0, 0], [5, 6, 7, 8]])
    np.testing.assert_array_equal(attntrace.trace(LAYER, sets=["x[0]=0", f"x={x}"])["x"].values, eval(x))
    keep = attntrace.trace(MASKED, sets=["mask[0].keep[0, 1]=0", "mask=causal"])["mask"].values
    np.testing.assert_array_equal(keep, np.triu(np.full((3, 3), -np.inf), 1))


def test_lists_of_the_config_count_from_their_end_too() -> None:
    labels = {**LAYER, "tokens": ["a", "b", "c"]}
    assert list(attntrace.trace(labels, sets=["tokens[-1]=z", "tokens[ 0 ]=y"]).labels["token"]) == ["y", "b", "z"]
    padded = attntrace.trace("padding", sets=["mask.padding[-1]=3"])["mask"].values
    np.testing.assert_array_equal(padded[1, 0], [0, 0, 0, -np.inf])


@pytest.mark.parametrize(
    ("config", "change", "message"),
    [
        (LAYER, "x[:][0]=1", "--set x[:][0]=1: 'x[:][0]': after : all axes go in the same brackets, such as x[:, 0]"),
        (
            LAYER,
            "x[[0, 1]]=1",
            "--set x[[0, 1]]=1: 'x[[0, 1]]': takes numbers and slices, such as 0, -1 or 1:3, and no lists of positions",
        ),
        (LAYER, "x[-4]=1", "--set x[-4]=1: x[-4]: index -4 is out of range: axis 0 has 3 entries, numbered 0 to 2"),
        (LAYER, "x[3:]=1", "--set x[3:]=1: x[3:]: selects nothing from shape 3 × 4"),
        (LAYER, "x[0]=[1, 2]", "--set x[0]=[1, 2]: x[0]: expected 4 numbers, found 2"),
        (LAYER, "x[0, 0]=[1, 2]", "--set x[0, 0]=[1, 2]: x[0, 0]: expected a single number, found 2"),
        (LAYER, "x[1]=[1, 2, 3, a]", "--set x[1]=[1, 2, 3, a]: x[1]: at [3] of the value: expected a number, found 'a'"),
        (
            LAYER,
            "x[:2]=[[1, 2], [3]]",
            "--set x[:2]=[[1, 2], [3]]: x[:2]: row 1 has 1 number; expected 2, as the rows before it",
        ),
        (LAYER, "rope.cos[0]=1", "--set rope.cos[0]=1: there is no rope.cos here to change"),
        (LAYER, "mask.keep[0, 1]=1", "--set mask.keep[0, 1]=1: there is no mask.keep here to change"),
        (
            MASKED,
            "mask[0].keep[0, 1]=2",
            "--set mask[0].keep[0, 1]=2: mask[0].keep[0, 1]: expected 0 or 1 (or false or true), found 2; to add numbers to "
            "the scores say add",
        ),
        (PAGED, "cache.table[-1]=3", "--set cache.table[-1]=3: cache.table[1]: expected a block from 0 to 2, found 3"),
        (
            "padding",
            "mask.padding[0:1]=[1]",
            "--set mask.padding[0:1]=[1]: slices go with tensors; of mask.padding name one entry, such as mask.padding[0]",
        ),
        (
            {**LAYER, "tokens": ["a", "b", "c"]},
            "tokens[-4]=z",
            "--set tokens[-4]=z: there is no tokens[-4]: tokens is a list of 3, numbered from 0",
        ),
    ],
)
def test_what_cannot_be_set(config: Any, change: str, message: str) -> None:
    with pytest.raises(AttnTraceError) as error:
        attntrace.trace(config, sets=[change])
    assert said(error) == message
