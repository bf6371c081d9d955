"""All of ONNX's node test cases for Attention, RotaryEmbedding and FlexAttention, through the public API."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import attntrace

from .onnx_cases import CASES, Case, Config, config, expanded, expected, of, onnx

# Single nodes, and the same ones written out in smaller nodes, which add nothing and are not run.
COUNTS = {"Attention": (93, 93), "RotaryEmbedding": (8, 8), "FlexAttention": (11, 11)}  # onnx 1.23

# How many units of the dtype, at the size of the number and at 1, two right answers may be apart. ONNX multiplies queries and
# keys by √scale before their product and we the product by scale, which is a rounding or two in a score, and a unit of the
# scores is one of the weights; at most 18 numbers between 0 and 1 are summed. In half precision ONNX rounds exp and the sum
# of softmax as well, which we keep in float32. The largest differences seen are 2.6 units in float32, 1.4 in half precision.
UNITS = {"float64": 8, "float32": 8, "float16": 2, "bfloat16": 2}
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}

NOT_EXPRESSIBLE = {"test_flexattention_prob_mod": "weights times a number: no config key but dropout changes weights"}


def same(found: np.ndarray, wanted: np.ndarray) -> None:
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    tolerance = UNITS[wanted.dtype.name] * EPSILON[wanted.dtype.name]
    np.testing.assert_allclose(found.astype(float), wanted.astype(float), rtol=tolerance, atol=tolerance)


def hold(case: Case, asked: Config) -> None:
    """The trace of a config against all outputs of a case."""
    t = attntrace.trace(asked)
    for step, wanted in expected(case).items():
        same(t[step].values, wanted)


def each(cases: list[Case]) -> Any:
    return pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in cases])


@pytest.mark.parametrize("operator", COUNTS)
def test_no_case_is_left_out(operator: str) -> None:
    found, known = (len(of(operator)), expanded(operator)), COUNTS[operator]
    assert found == known, (
        f"onnx {onnx.__version__} has {found[0]} cases of {operator} and {found[1]} expanded ones, where {known[0]} and "
        f"{known[1]} were known: see that the new ones are converted as the operator means them, then correct COUNTS"
    )


@each([case for case in CASES.values() if case.name not in NOT_EXPRESSIBLE])
def test_case(case: Case) -> None:
    """Every output: Y, the present keys and values, and the matrix that qk_matmul_output_mode asks for; or what is turned."""
    assert case.outputs
    hold(case, config(case))


CORES = {"tiled": {"tiled": {"queries": 3, "keys": 4}}, "ring": {"ring": {"devices": 2}}}
IN_PARTS = [
    case
    for case in CASES.values()
    if case.dtype == "float32" and "Y" in case.outputs and not {"softmax_precision", "prob_mod"} & case.attributes.keys()
]


@each(IN_PARTS)
@pytest.mark.parametrize("core", CORES)
def test_case_in_parts(case: Case, core: str) -> None:
    """Y again, where no row of scores is ever whole; in half precision the parts are rounded more often than ONNX's rows."""
    t = attntrace.trace({**config(case), "core": CORES[core]})
    assert "weights" not in t
    step = "output" if case.outputs["Y"].ndim == 3 else "context"
    same(t[step].values, case.outputs["Y"])


# ------------------------------------------------------------------ FlexAttention's functions


def run(graph: Any, numbers: np.ndarray) -> np.ndarray:
    """What ONNX makes of the numbers by a subgraph."""
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 26)])
    (result,) = onnx.reference.ReferenceEvaluator(model).run(None, {graph.input[0].name: numbers})
    return result


@each([case for case in CASES.values() if "score_mod" in case.attributes])
def test_scores_are_what_score_mod_makes_of_them(case: Case) -> None:
    """Y alone could not tell: a constant bias leaves no trace in it."""
    t = attntrace.trace(config(case))
    ready = t["capped" if "capped" in t else "masked"]
    same(ready.values, run(case.attributes["score_mod"], t["scaled"].values))


@each([CASES[name] for name in NOT_EXPRESSIBLE])
def test_what_cannot_be_expressed_still_cannot(case: Case) -> None:
    """The key that it needs is refused, and without it the numbers are others. Else the case belongs to those above."""
    with pytest.raises(attntrace.AttnTraceError, match="unknown key 'prob_mod'"):
        attntrace.trace({**config(case), "prob_mod": {"scale": 0.5}})
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        hold(case, config(case))


@each([CASES[name] for name in NOT_EXPRESSIBLE])
def test_nothing_else_is_lacking(case: Case) -> None:
    """Our weights, changed by the subgraph, times our values are Y."""
    t = attntrace.trace(config(case))
    same(run(case.attributes["prob_mod"], t["weights"].values) @ t["v"].values, case.outputs["Y"])


# ------------------------------------------------------------------ whether the cases could fail

ALL_TRUE = "every entry of the mask is True"
ALIKE = "all values are alike, and so is any average of them"
ROUNDING = "weights computed in another dtype, once rounded to that of the case, are within the tolerance"
# Options that change nothing in a case, and why. Of all others, leaving one out must be noticed.
IDLE = {
    ("test_attention_4d_attn_mask_bool", "keep"): ALL_TRUE,
    ("test_attention_4d_attn_mask_bool_4d", "keep"): ALL_TRUE,
    ("test_attention_local_window_rank1_boolean_mask", "keep"): "the keys that it hides come after every query",
    ("test_attention_causal_boolmask_nan_robustness", "causal"): "the mask that is given hides the later key too",
    ("test_attention_4d_gqa_causal_nonpad_decode", "causal"): "the one query is the last, and padding hides the rest",
    ("test_attention_4d_gqa_causal_nonpad_decode_fp16", "causal"): "the one query is the last, and padding hides the rest",
    ("test_attention_4d_causal_nonpad_continued_prefill", "padding"): "all keys are real",
    ("test_attention_local_window_ext_cache_float16_mask", "causal"): ALIKE,
    ("test_attention_local_window_ext_cache_float16_mask", "window"): ALIKE,
    ("test_attention_local_window_ext_cache_float16_mask", "padding"): ALIKE,
    ("test_attention_local_window_ext_cache_float16_mask", "add"): ALIKE,
    ("test_attention_24_qk_matmul_output_mode3_softmax_precision", "softmax_dtype"): ROUNDING,
    ("test_attention_local_window_gqa_rank4_mask", "softmax_dtype"): ROUNDING,
    ("test_flexattention_fp16", "softmax_dtype"): ROUNDING,
    ("test_flexattention_score_mod", "add"): "a constant bias cancels in softmax",
}


def without_an_option() -> Iterator[Any]:
    """Every config without one of its options, or one of its masks."""
    for case in CASES.values():
        asked = config(case)
        for key in sorted(asked.keys() & {"scale", "softcap", "softmax_dtype"}):
            yield pytest.param(case, key, {k: v for k, v in asked.items() if k != key}, id=f"{case.name}-{key}")
        masks = asked.get("mask", [])
        for i, mask in enumerate(masks):
            (kind,) = mask
            rest = {**asked, "mask": masks[:i] + masks[i + 1 :]}
            yield pytest.param(case, kind, rest, id=f"{case.name}-{kind}")


@pytest.mark.parametrize(("case", "option", "rest"), list(without_an_option()))
def test_every_option_counts(case: Case, option: str, rest: Config) -> None:
    """Without it there is another number, or a step is missing."""
    idle = (case.name, option) in IDLE
    with nullcontext() if idle else pytest.raises((AssertionError, attntrace.AttnTraceError)):
        hold(case, rest)


def test_idle_options_are_there() -> None:
    assert IDLE.keys() <= {(case.name, option) for case, option, _ in (param.values for param in without_an_option())}


@each(of("RotaryEmbedding"))
def test_the_other_pairs_give_other_numbers(case: Case) -> None:
    asked = config(case)
    other = {"half": "interleaved", "interleaved": "half"}[asked["rope"]["pairs"]]
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        hold(case, {**asked, "rope": {**asked["rope"], "pairs": other}})
