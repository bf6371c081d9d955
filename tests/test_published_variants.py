"""Published numbers of rotary positions, linear biases, windows and alignments; test_published.py has those of plain attention.

Expected numbers are those that were printed; half a unit of the last decimal is the tolerance, unless the numbers that went in
were rounded too, or the source names its own.
"""

from typing import Any

import numpy as np
import pytest
import yaml

import attntrace

Config = dict[str, Any]


def of(text: str) -> Config:
    return yaml.safe_load(text)


# ------------------------------------------------------------------ rotary positions

ROTARY = """
heads: 2
q: &tokens
  - [-1.0408, 0.9166, -1.3042, -1.1097, -0.1320, -0.2751, -0.2350, 0.0937]
  - [-1.2188, 1.1676, -1.0574, -0.1188, -0.7396, -1.2425, -0.1752, 0.6990]
  - [-0.8110, 0.6737, -1.1233, -0.0919, -0.6861, 0.7202, 0.1963, 0.6142]
k: *tokens
v: *tokens
"""
TURNED = """
- [-1.0408, 0.9166, -1.3042, -1.1097, -0.1320, -0.2751, -0.2350, 0.0937]
- [-1.6411, -0.3948, -1.0561, -0.1294, 0.6460, -1.2937, -0.1822, 0.6972]
- [-0.2751, -1.0178, -1.1212, -0.1143, -0.3694, -0.9235, 0.1840, 0.6180]
"""
TABLES = """
rope:
  pairs: interleaved
  cos: [[1.0000, 1.0000], [0.5403, 0.9999], [-0.4161, 0.9998]]
  sin: [[0.0000, 0.0000], [0.8415, 0.0100], [0.9093, 0.0200]]
"""
# Without the tables, which have four decimals, a sum of two products is off by up to 1.3e-4 more.
ROPES = {"tables given": (TABLES, 0.5e-4), "angles computed": ("rope: {pairs: interleaved}", 1.8e-4)}


def turned(rope: str, step: str) -> Any:
    """The two heads side by side again, as they were printed."""
    return attntrace.trace(of(ROTARY + rope))[step].values.swapaxes(0, 1).reshape(3, 8)


@pytest.mark.parametrize(("rope", "tolerance"), ROPES.values(), ids=ROPES)
def test_onnx_runtime_rotary_embedding(rope: str, tolerance: float) -> None:
    """onnxruntime/test/contrib_ops/rotary_embedding_op_test.cc, RotaryEmbedding_Interleaved_SmallData_LlamaMSFT."""
    for step in ("q_rot", "k_rot"):
        np.testing.assert_allclose(turned(rope, step), of(TURNED), rtol=0, atol=tolerance)


def test_onnx_runtime_rotary_embedding_tells_the_conventions_apart() -> None:
    """With entries paired by halves a number is off by more than 1, five hundred times what its test allows."""
    assert np.abs(turned("rope: {pairs: half}", "q_rot") - of(TURNED)).max() > 1


@pytest.mark.parametrize("place", ["positions: [1]", "offset: 1"])
def test_rotary_by_hand(place: str) -> None:
    """prof.lexailabs.com/practice/rotary-embedding-apply: pairs (0, 1) and (2, 3) at position 1."""
    t = attntrace.trace(of(f"q: [[1, 0, 1, 0]]\nk: [[1, 0, 1, 0]]\nv: [[1]]\nrope: {{pairs: interleaved, {place}}}"))
    np.testing.assert_allclose(t["q_rot"].values, [[0.5403, 0.8415, 0.99995, 0.01]], rtol=0, atol=0.5e-4)
    np.testing.assert_allclose(t["scores"].values, [[2]], rtol=1e-15)  # both stand at the same place: as if not turned


# ------------------------------------------------------------------ linear biases


def test_alibi_slopes_of_twelve_heads() -> None:
    """github.com/ofirpress/attention_with_linear_biases, issue 17: those of eight heads, then every other one of sixteen.

    The last three were printed with the rounding of repeated products in them: 2^−1.5 is 0.35355339059327376…
    """
    slopes = [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625]
    slopes += [0.7071067811865476, 0.35355339059327384, 0.17677669529663692, 0.08838834764831849]
    zeros = np.zeros((12, 3, 1))
    t = attntrace.trace({"q": zeros, "k": zeros, "v": zeros, "alibi": True})
    np.testing.assert_array_equal(t["slopes"].values[:9], slopes[:9])
    np.testing.assert_allclose(t["slopes"].values, slopes, rtol=5e-16)
    np.testing.assert_allclose(t["alibi"].values[:, 2], -np.multiply.outer(slopes, [2, 1, 0]), rtol=5e-16)


# ------------------------------------------------------------------ windows and alignments


def plain(queries: int, keys: int, **options: Any) -> Config:
    """Every key alike, so that weights are the mask, divided by how many keys there are in a row; values tell the keys."""
    values = np.arange(float(keys))[:, None]
    return {"q": np.zeros((queries, 1)), "k": np.zeros((keys, 1)), "v": values, **options}


CORES = {"direct": "direct", "tiled": {"tiled": {"queries": 2, "keys": 2}}, "ring": {"ring": {"devices": 3}}}
EARLIER = {"none": 0, "two": 2}


@pytest.mark.parametrize("core", ["tiled", "ring"])
@pytest.mark.parametrize("past", EARLIER.values(), ids=EARLIER)
def test_a_window_in_parts(core: str, past: int) -> None:
    """onnx tests/python/reference_evaluator_attention_test.py, test_attention_asymmetric_bidirectional_window, where some of
    the keys may be in a cache: the queries that are left are the last ones."""
    given = plain(5 - past, 5, mask={"window": {"left": 1, "right": 2}}, core=CORES[core])
    if past:
        given["cache"] = {name: given[name][:past] for name in "kv"}
        given |= {name: given[name][past:] for name in "kv"}
    t = attntrace.trace(given)
    np.testing.assert_allclose(t["output"].values[:, 0], [1.0, 1.5, 2.5, 3.0, 3.5][past:], rtol=1e-15)


PYTORCH_108108 = [[0, 0], [0, 0], [0, 0], [1, 0], [1, 1]]
TVM_14907 = [[1, 1, 1, 0], [1, 1, 1, 1]]
BOTTOM_RIGHT = {
    "108108, a window": (PYTORCH_108108, {"window": {"right": 0, "align": "bottom-right"}}),
    "108108, a number": (PYTORCH_108108, {"causal": -3}),
    "14907, a window": (TVM_14907, {"window": {"right": 0, "align": "bottom-right"}}),
    "14907, a number": (TVM_14907, {"causal": 2}),
}


@pytest.mark.parametrize(("keep", "mask"), BOTTOM_RIGHT.values(), ids=BOTTOM_RIGHT)
def test_bottom_right_in_other_words(keep: list[list[int]], mask: Config) -> None:
    """pytorch/pytorch#108108 (5 × 2) and apache/tvm#14907 (2 × 4); with more queries than keys the latter prints ones in every
    cell, which contradicts PyTorch and is not followed."""
    t = attntrace.trace(plain(*np.shape(keep), mask=mask))
    np.testing.assert_array_equal(t["mask"].values, np.where(keep, 0, -np.inf))


def test_bottom_right_is_what_a_cache_means() -> None:
    """apache/tvm#14907, 2 × 4: two keys from before, and the two queries stand at the two new ones."""
    new = plain(2, 2, mask="causal", cache={"k": np.zeros((2, 1)), "v": np.zeros((2, 1))})
    np.testing.assert_array_equal(attntrace.trace(new)["mask"].values, np.where(TVM_14907, 0, -np.inf))


@pytest.mark.parametrize("core", CORES)
def test_queries_before_all_keys_get_nothing(core: str) -> None:
    """pytorch/pytorch#108108: the first three of five queries, with two keys; then one key, then both."""
    devices = {"ring": {"devices": 2}}  # there are two keys
    given = plain(5, 2, mask={"causal": "bottom-right"}, core=devices if core == "ring" else CORES[core])
    np.testing.assert_array_equal(attntrace.trace(given)["output"].values[:, 0], [0, 0, 0, 0, 0.5])


# ------------------------------------------------------------------ Keras


def test_keras_additive_scores() -> None:
    """keras/src/layers/attention/attention_test.py, score_mode="concat": a score is Σ tanh(q + k), here handed in as a bias to
    scores of zero (its own tolerance: 1e-3)."""
    q, k = np.eye(2), np.array([[0, 1], [1, 0]])
    scores = np.tanh(q[:, None] + k).sum(axis=-1)
    t = attntrace.trace({"q": 0 * q, "k": k, "v": [[1, 2], [3, 4]], "mask": {"add": scores}})
    np.testing.assert_allclose(t["weights"].values, [[0.636, 0.363], [0.363, 0.636]], atol=1e-3)
    np.testing.assert_allclose(t["output"].values, [[1.727, 2.727], [2.272, 3.272]], atol=1e-3)


# ------------------------------------------------------------------ ONNX Runtime

ONNX_RUNTIME = """
dtype: float32
heads: 2
x: [[[0.8, -0.5, 0.0, 1.0], [0.5, 0.2, 0.3, -0.6]]]
w_qkv:
  - [0.1, -0.2, 0.3, 1.0, 1.1, 0.3, 0.5, 0.2, 0.3, -0.6, 1.5, 2.0]
  - [0.5, 0.1, 0.4, 1.6, 1.0, 2.0, 0.4, 0.8, 0.9, 0.1, -1.3, 0.7]
  - [0.3, 0.2, 4.0, 2.2, 1.6, 1.1, 0.7, 0.2, 0.4, 1.0, 1.2, 0.5]
  - [0.2, 0.1, 0.4, 1.6, 2.4, 3.3, 2.1, 4.2, 8.4, 0.0, 2.1, 3.2]
b_qkv: [-0.5, 0.6, 1.2, 2.1, 0.5, 0.7, 0.2, 1.2, 0.5, 0.4, 0.3, 1.2]
"""
BOTH_KEYS = [
    [3.1495983600616455, 0.10843668878078461, 4.25, 5.6499996185302734],
    [3.9696791172027588, 0.073143675923347473, 4.2499995231628418, 5.6499991416931152],
]
ONE_KEY = [
    [8.6899995803833008, -0.13000002503395081, 4.25, 5.6499996185302734],
    [8.6899995803833008, -0.13000002503395081, 4.2499995231628418, 5.6499991416931152],
]
MASK_INDEX = {
    "two keys, in tiles": ("core: {tiled: {queries: 1, keys: 1}}", BOTH_KEYS),
    "two keys, mask_index 2": ("mask: {padding: [2]}", BOTH_KEYS),
    "one key, the filter that is added": ("mask: {add: [0, -10000]}", ONE_KEY),
    "one key, in a ring": ("mask: {padding: [1]}\ncore: {ring: {devices: 2}}", ONE_KEY),
}


@pytest.mark.parametrize(("options", "expected"), MASK_INDEX.values(), ids=MASK_INDEX)
def test_onnx_runtime_mask_index(options: str, expected: list[list[float]]) -> None:
    """onnxruntime/test/contrib_ops/attention_op_test.cc, AttentionBatch1 and AttentionMaskPartialSequence, whose kernel hides
    a key by adding −10,000: in float32 its weight is zero all the same."""
    t = attntrace.trace(of(ONNX_RUNTIME + options))
    np.testing.assert_allclose(t["output"].values[0], expected, rtol=1e-5, atol=1e-6)
