"""The Python face: what can be loaded, traced and verified, and how steps behave."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import attntrace
from attntrace.cli.options import STEPS, steps_starting
from attntrace.config import bundled

LAYER = {"x": np.eye(2), "w_q": np.eye(2), "w_k": np.eye(2), "w_v": [[1, 2], [3, 4]]}


def test_a_trace_is_made_of_a_name_a_path_a_mapping_or_a_problem(tmp_path: Path) -> None:
    file = tmp_path / "eye.yaml"
    file.write_text("x: [[1, 0], [0, 1]]\nw_q: [[1, 0], [0, 1]]\nw_k: [[1, 0], [0, 1]]\nw_v: [[1, 2], [3, 4]]\n")
    for config in (LAYER, file, str(file), attntrace.load(file)):
        np.testing.assert_array_equal(attntrace.trace(config)["v"].values, [[1, 2], [3, 4]])
    assert attntrace.trace("toy").title.startswith("Toy")


def test_numpy_scalars_and_tuples_are_as_good_as_plain_numbers_and_lists() -> None:
    rows = ((np.float32(1), np.int64(0)), (np.float64(0), 1))
    t = attntrace.trace({**LAYER, "x": rows, "heads": np.int64(2), "mask": {"padding": (np.int32(1),)}})
    np.testing.assert_array_equal(t["x"].values, np.eye(2))
    assert t.sizes["head"] == 2


def test_a_mask_array_with_other_numbers_than_0_and_1_is_refused_when_it_is_loaded() -> None:
    with pytest.raises(attntrace.AttnTraceError, match=r"mask\.keep\[1\]\[0\]: expected 0 or 1 .*, found 0\.5"):
        attntrace.load({**LAYER, "mask": {"keep": np.array([[1, 0], [0.5, 1]])}})


def test_options_are_those_of_the_command_line() -> None:
    t = attntrace.trace(LAYER, sets=["scale=1", "x[0]=[2,0]"], permute="1,0")
    np.testing.assert_array_equal(t["x"].values, [[0, 1], [2, 0]])
    np.testing.assert_array_equal(t["scaled"].values, t["scores"].values)
    assert t.changes == ["--set scale=1", "--set x[0]=[2,0]", "--permute 1,0"]


def test_options_that_come_too_late_are_refused() -> None:
    with pytest.raises(attntrace.AttnTraceError, match="seed: a problem is loaded already"):
        attntrace.trace(attntrace.load(LAYER), seed=1)
    with pytest.raises(TypeError):
        attntrace.trace(LAYER, bogus=1)


def test_a_step_says_what_it_is() -> None:
    assert repr(attntrace.trace(LAYER)["weights"]) == "Step(weights: A = softmax(S′), query 2 × key 2, float64)"


def test_an_unknown_step_is_told_with_the_nearest_or_with_all() -> None:
    t = attntrace.trace(LAYER)
    with pytest.raises(attntrace.AttnTraceError, match='did you mean "weights"'):
        t["weigths"]
    with pytest.raises(attntrace.AttnTraceError, match="its steps are x, w_q, w_k"):
        t["zzz"]


def test_completion_knows_the_steps_of_every_trace() -> None:
    names = {re.sub(r"(_\d+)+$", "", name) for example in bundled.names() for name in attntrace.trace(example).names}
    merged = {"q": np.ones((2, 4)), "k": np.ones((2, 2)), "v": np.ones((2, 2)), "heads": 2, "kv_heads": 1}
    names |= set(attntrace.trace(merged).names)
    assert names <= set(STEPS)
    assert steps_starting("scores,we") == ["scores,weights"]


def test_everything_public_can_be_had() -> None:
    for name in attntrace.__all__:
        assert getattr(attntrace, name).__doc__
    assert set(attntrace.__all__) == set(dir(attntrace))


def test_permuting_takes_the_labels_of_queries_and_keys_along() -> None:
    direct = {name: np.arange(4.0).reshape(2, 2) for name in "qkv"}
    t = attntrace.trace({**direct, "tokens": ["a", "b"], "kv_tokens": ["A", "B"]}, permute="1,0")
    assert t.labels["query"] == ("b", "a")
    assert t.labels["key"] == ("B", "A")
    unlabelled = attntrace.trace(LAYER, permute="1,0")
    assert unlabelled.labels["query"] == ("t1", "t0")
