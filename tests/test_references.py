"""ONNX and JAX as references: they agree with what is right, find what is wrong, and say where they differ by design."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attntrace
from attntrace import layer, ops
from attntrace.cli.verify import names_starting
from attntrace.config import bundled
from attntrace.errors import AttnTraceError
from attntrace.reference import KNOWN, chosen
from attntrace.verification import Report, Reports, verify, verify_all

pytest.importorskip("onnx", "1.23")
pytest.importorskip("jax")
pytest.importorskip("torch")

OTHERS = ("onnx", "jax")
Config = dict[str, Any]


def held(config: Config | str, against: str, **options: Any) -> Report:
    problem = attntrace.load(config, **options)
    return verify(problem, layer.trace(problem), against)


# ------------------------------------------------------------------ bundled examples

ELSEWHERE = {  # steps of bundled examples that a reference has no answer for, beside tiles
    "onnx": {"slopes", "alibi", "activated"},
    "jax": {"slopes", "alibi", "frequencies", "normed1", "normed2"},
}


@pytest.mark.parametrize("against", OTHERS)
@pytest.mark.parametrize("example", bundled.names())
def test_bundled_examples_agree_in_every_step_that_a_reference_can_give(example: str, against: str) -> None:
    trace, found = attntrace.trace(example), held(example, against)
    assert found.agrees, found.verdict
    tiled = "core" in trace.config
    compared = {row.step for row in (*found.rows, *found.opinions)}
    computed = {step.name for step in trace if not step.given}
    if not tiled:
        assert computed - compared <= ELSEWHERE[against]
    whole = {row.what for row in found.opinions}
    spoken = {"onnx": {"Attention"}, "jax": {"nn.dot_product_attention"}}[against]
    assert whole == spoken or set(found.silent) & spoken
    told = {name for names in found.silent for name in names.split(", ")}
    assert tiled or computed - compared <= told


def test_attention_of_onnx_is_asked_for_the_steps_between() -> None:
    assert [row.step for row in held("softcap", "onnx").opinions] == ["scaled", "capped", "masked", "weights", "output"]
    cached = {row.step for row in held("kv-cache", "onnx").opinions}
    assert {"k_all", "v_all", "output"} <= cached
    assert "biased" in {row.step for row in held("alibi", "onnx", sets=["mask=null"]).opinions}
    assert {"weights", "sink_weights", "context"} <= {row.step for row in held("sinks", "onnx").opinions}


# ------------------------------------------------------------------ random problems

B, H, G, T, D, W = 2, 4, 2, 5, 4, 6
DTYPES = ("float64", "float64", "float32", "float16", "bfloat16")
HIDDEN = [[1, 0, 1, 1, 0], [0, 1, 1, 0, 1], [1, 1, 1, 1, 1], [0, 0, 0, 1, 0], [1, 1, 0, 0, 1]]
MASKS: tuple[Any, ...] = (
    "causal", {"causal": 0}, {"causal": "bottom-right"}, {"window": {"left": 1, "right": 1}}, {"window": {"left": 2}},
    {"padding": [4, 2]}, {"keep": HIDDEN}, {"add": np.linspace(-2, 2, 25).reshape(5, 5)},
)  # fmt: skip
PARTS: tuple[Config, ...] = (
    {"softcap": 2.0}, {"softcap": 0.7}, {"alibi": True}, {"sinks": [0.5, -1, 2, 0]}, {"rope": {"pairs": "half"}},
    {"rope": {"pairs": "interleaved", "dims": 2}}, {"qk_norm": "rmsnorm"}, {"qk_norm": {"norm": "layernorm", "eps": 0.01}},
    {"qk_norm": "l2"}, {"scale": 0.3}, {"scale": 0.0}, {"softmax_dtype": "float32"}, {"dropout": {"rate": 0.4, "seed": 1}},
    {"core": {"tiled": {"queries": 2, "keys": 2}}}, {"core": {"ring": {"devices": 2}}}, {"kv_heads": H},
)  # fmt: skip


def random_config(seed: int) -> Config:
    """Shapes are few, since JAX compiles for each anew."""
    rng = np.random.default_rng(seed)
    dtype = DTYPES[seed % len(DTYPES)]
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)

    def draw(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(kind).astype(np.float64)

    made: Config = {"dtype": dtype, "heads": H, "kv_heads": G}
    for part in rng.choice(len(PARTS), size=rng.integers(0, 4), replace=False):
        made |= PARTS[part]
    if "core" in made:  # tiles have no softmax of their own
        made.pop("softmax_dtype", None)
    groups = made["kv_heads"]
    made |= {"x": draw(B, T, W) * rng.choice([1, 1, 30]), "w_q": draw(W, H * D), "w_k": draw(W, groups * D)}
    made |= {"w_v": draw(W, groups * D), "b_v": draw(groups * D), "w_o": draw(H * D, W)}
    masks = [MASKS[i] for i in rng.choice(len(MASKS), size=rng.integers(0, 3), replace=False)]
    if rng.random() < 0.25:
        made["cache"] = {"k": draw(B, groups, 2, D), "v": draw(B, groups, 2, D)}
        masks = [m for m in masks if isinstance(m, str) or not {"keep", "add"} & m.keys()]
    return made | ({"mask": masks} if masks else {})


@pytest.mark.parametrize("seed", range(150))
def test_random_problems_agree_with_onnx(seed: int) -> None:
    found = held(random_config(seed), "onnx", queries="1:4" if seed % 5 == 2 else None)
    assert found.agrees, found.verdict
    assert any(row.step == "context" for row in found.opinions) or found.silent


@pytest.mark.parametrize("seed", range(1000, 1040))
def test_random_problems_agree_with_jax(seed: int) -> None:
    found = held(random_config(seed), "jax")
    assert found.agrees, found.verdict


@pytest.mark.parametrize("against", OTHERS)
def test_most_random_problems_are_held_against_the_frameworks_own_attention(against: str) -> None:
    from importlib import import_module

    silences = import_module(f"attntrace.reference.{against}").silences
    silent = 0
    for seed in range(40):
        problem = attntrace.load(random_config(seed))
        silent += bool(silences(problem, {step.name: step.values for step in layer.trace(problem)}))
    assert silent < 20


# ------------------------------------------------------------------ faults

LAYER: Config = {
    "seed": 3, "x": {"draw": "normal", "shape": [2, 5, 6]}, "w_q": {"draw": "normal", "shape": [6, 16]},
    "w_k": {"draw": "normal", "shape": [6, 8]}, "w_v": {"draw": "normal", "shape": [6, 8]}, "heads": 4, "kv_heads": 2,
    "w_o": {"draw": "normal", "shape": [16, 3]}, "rope": {"pairs": "half"}, "softcap": 2.0, "alibi": True,
    "mask": ["causal", {"padding": [5, 3]}], "dropout": {"rate": 0.3}, "qk_norm": "rmsnorm",
    "cache": {"k": {"draw": "normal", "shape": [2, 2, 2, 4]}, "v": {"draw": "normal", "shape": [2, 2, 2, 4]}},
}  # fmt: skip
NAMES = [step.name for step in attntrace.trace(LAYER) if not step.given]


@pytest.mark.parametrize("against", OTHERS)
@pytest.mark.parametrize("step", NAMES)
def test_a_planted_fault_is_found_and_named(step: str, against: str) -> None:
    problem = attntrace.load(LAYER)
    if step in {row for names in held(LAYER, against).silent for row in names.split(", ")}:
        pytest.skip("no answer, and it says so")
    trace = layer.trace(problem)
    right = np.array(trace[step].values)
    at = np.unravel_index(int(np.where(np.isfinite(right), np.abs(right), -1).argmax()), right.shape)
    right[at] *= 1 + 1e-6
    trace[step]._values = right
    found = verify(problem, trace, against)
    assert found.first is not None
    assert found.first.step == step
    assert found.first.difference.worst == tuple(map(int, at))


@pytest.mark.parametrize(("against", "what", "size"), [("onnx", "Attention", 1e-6), ("jax", "nn.dot_product_attention", 1e-3)])
@pytest.mark.parametrize("core", ["direct", {"tiled": {"queries": 2, "keys": 3}}])
def test_the_frameworks_own_attention_finds_a_fault_by_itself(
    against: str, what: str, size: float, core: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scale that is slightly off is right step by step only where the step itself is not looked at."""
    config = {key: value for key, value in LAYER.items() if key not in ("softcap", "dropout", "qk_norm")} | {"core": core}
    assert held(config, against).agrees
    monkeypatch.setattr(ops.Divide, "forward", lambda self, s: s / s.dtype.type(self.divisor * (1 + size)))
    wrong = [row.step for row in held(config, against).opinions if not row.difference.agrees]
    assert "context" in wrong


def test_all_names_the_reference_that_finds_it() -> None:
    problem = attntrace.load(LAYER)
    trace = layer.trace(problem)
    trace["weights"]._values = trace["weights"].values[..., ::-1]
    found = verify_all(problem, trace, "all")
    assert not found.agrees
    assert [report.first.step for report in found.reports if report.first] == ["weights"] * 3


# ------------------------------------------------------------------ what differs by design

QKV = {name: np.array([[1.0, 2], [3, 1], [0, 1]]) for name in "qk"} | {"v": np.array([[1.0, 2], [4, 8], [4, 5]])}
KEYLESS = {**QKV, "mask": {"keep": [[0, 0, 0], [1, 0, 0], [1, 1, 1]]}}


def told(config: Config, against: str) -> list[tuple[str, str, float, float, bool]]:
    return [(c.what, c.does, c.ours, c.theirs, c.differs) for c in held(config, against).conventions]


def test_a_query_without_keys_is_told_of_each_reference() -> None:
    """Row 0 may attend to nothing; the mean of the first column of V is 3."""
    assert told(KEYLESS, "onnx") == [("Attention", "gives zeros", 0.0, 0.0, False)]
    fused, multihead = told(KEYLESS, "torch")
    assert fused == ("scaled_dot_product_attention", "gives zeros", 0.0, 0.0, False)
    assert multihead[:2] == ("nn.MultiheadAttention", "gives NaN")
    assert np.isnan(multihead[3])
    assert multihead[4]
    masked, biased = told(KEYLESS, "jax")
    assert masked[:2] == ("nn.dot_product_attention with a mask", "gives the mean of all values")
    assert masked[2:] == (0.0, pytest.approx(3), True)  # its softmax is in float32
    assert biased[:2] == ("nn.dot_product_attention with a bias of −∞", "gives NaN")


def test_rows_that_differ_by_design_are_set_aside_and_no_others() -> None:
    found = held(KEYLESS, "jax")
    assert found.agrees
    assert [row.aside for row in found.opinions] == [2]
    problem = attntrace.load(KEYLESS)
    trace = layer.trace(problem)
    trace["output"]._values = trace["output"].values + np.array([[0], [0.1], [0]])
    assert [row.difference.worst[0] for row in verify(problem, trace, "jax").opinions] == [1]


def test_nan_for_a_query_without_keys_differs_from_onnx_by_design() -> None:
    (row,) = told({**KEYLESS, "masked_row": "nan"}, "onnx")
    assert np.isnan(row[2])
    assert row[3:] == (0.0, True)


LONGER = {**QKV, "k": np.ones((5, 2)), "v": np.ones((5, 2)), "mask": {"causal": "bottom-right"}}


@pytest.mark.parametrize(
    ("against", "what"),
    [
        ("torch", "scaled_dot_product_attention with is_causal"),
        ("onnx", "Attention with is_causal and no cache"),
        ("jax", "nn.dot_product_attention with is_causal"),
    ],
)
def test_the_corner_of_a_causal_mask_is_told(against: str, what: str) -> None:
    """Three queries and five keys: the first query sees one key from the top left, and three from the bottom right."""
    assert told(LONGER, against) == [(what, "puts the first query at the first key", 3.0, 1.0, True)]
    top = {**LONGER, "mask": {"causal": "top-left"}}
    assert [row[2:] for row in told(top, against)] == [(1.0, 1.0, False)]


def test_onnx_stands_after_a_cache() -> None:
    config = {**QKV, "cache": {"k": np.ones((2, 2)), "v": np.ones((2, 2))}, "mask": "causal"}
    (row,) = told(config, "onnx")
    assert row[0] == "Attention with is_causal and a cache"
    assert row[2:] == (3.0, 3.0, False)


def test_the_order_of_softcap_and_mask_is_told() -> None:
    assert told({**QKV, "softcap": 2.0, "mask": "causal"}, "onnx") == [("Attention", "caps before it masks", 0.0, 0.0, False)]
    assert told({**QKV, "softcap": 2.0}, "onnx") == []


def test_nothing_is_told_of_a_problem_that_touches_no_point() -> None:
    for against in KNOWN:
        assert told({**QKV, "mask": "causal"}, against) == []


# ------------------------------------------------------------------ several at once


def test_all_is_a_report_of_each_and_a_list_of_some() -> None:
    every, some = attntrace.verify("toy", "all"), attntrace.verify("toy", "jax, torch")
    assert isinstance(every, Reports)
    assert isinstance(some, Reports)
    assert [report.reference for report in every.reports] == ["torch", "onnx", "jax"]
    assert [report.reference for report in some.reports] == ["jax", "torch"]
    assert isinstance(attntrace.verify("toy", "onnx"), Report)
    assert every.agrees
    assert every.verdict.count("\n") == 2


def test_unknown_names() -> None:
    with pytest.raises(AttnTraceError, match='--against onx: expected torch, onnx, jax or all; did you mean "onnx"'):
        attntrace.verify("toy", "torch,onx")
    with pytest.raises(AttnTraceError, match="--against: expected torch, onnx, jax or all"):
        attntrace.verify("toy", " , ")
    assert chosen("jax,torch,jax") == ("jax", "torch")


def test_comparing_nothing_is_an_error_alone_and_said_among_others() -> None:
    problem = attntrace.load("alibi")
    with pytest.raises(AttnTraceError, match="nothing to compare: onnx has no answer for alibi"):
        verify(problem, layer.trace(problem), "onnx", ["alibi"])
    with pytest.raises(AttnTraceError, match="nothing to compare: x is given, not computed"):
        verify_all(problem, layer.trace(problem), "all", ["x"])
    found = verify_all(problem, layer.trace(problem), "all", ["alibi"])
    assert found.reports[0].verdict == f"1 of 1 steps agree with {found.reports[0].name}"
    assert found.reports[1].verdict == f"nothing to compare with {found.reports[1].name}"


def test_completion_knows_every_reference() -> None:
    assert [name for name, _ in names_starting("")] == [*KNOWN, "all"]
    assert [name for name, _ in names_starting("torch,o")] == ["torch,onnx"]


# ------------------------------------------------------------------ the command line

RUN = "import sys; {}from attntrace.cli.app import main; main()"


def run(*arguments: str, without: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    blocked = "".join(f"sys.modules[{name!r}] = None; " for name in without)
    command = [sys.executable, "-c", RUN.format(blocked), "verify", *arguments]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8")


def test_one_table_with_a_column_for_each() -> None:
    done = run("fully-masked-row", "--against", "all")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["step", "torch", "onnx", "jax", "tolerance"]
    assert len([line for line in lines if line.startswith("scores ")]) == 1
    mask = next(line for line in lines if line.startswith("mask "))
    assert mask.split() == ["mask", "0", "✓", "·", "0", "✓", "0"]
    assert "differs by design: jax: a query without keys: nn.dot_product_attention with a mask gives the mean" in done.stdout
    assert [line.split()[6] for line in lines[-3:]] == ["torch", "onnx", "jax"]


def test_a_missing_package_exits_3_with_the_command_that_brings_it() -> None:
    for name in OTHERS:
        done = run("toy", "--against", name, without=(name,))
        assert done.returncode == 3
        assert f"verify needs {name}, which is not installed: pip install 'attntrace[{name}]'" in done.stderr


def test_of_several_the_missing_are_named_and_the_others_asked() -> None:
    done = run("toy", "--against", "all", without=("jax", "torch"))
    assert done.returncode == 0
    assert done.stdout.splitlines()[0].split() == ["step", "onnx", "tolerance"]
    for name in ("jax", "torch"):
        assert f"left out: {name}: verify needs {name}, which is not installed" in done.stdout
    done = run("toy", "--against", "all", without=KNOWN)
    assert done.returncode == 3
    assert "pip install 'attntrace[torch,onnx,jax]'" in done.stderr


def test_json_has_a_report_of_each() -> None:
    import json

    done = run("fully-masked-row", "--against", "torch,jax", "--format", "json", without=("onnx",))
    document = json.loads(done.stdout)
    assert document["agrees"] is True
    assert [entry["reference"]["name"] for entry in document["references"]] == ["torch", "jax"]
    assert document["references"][1]["by_design"][0]["theirs"] == pytest.approx(1 / 3)
    assert document["references"][1]["opinions"][0]["set_aside"] == 2
