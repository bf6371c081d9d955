"""Worked examples that others have published, with the numbers as they printed them.

Expected numbers are theirs; what an example leaves unsaid is not asserted. `places` is how many decimals were printed, so
half a unit of the last one is the tolerance.
"""

from typing import Any

import numpy as np
import pytest
import yaml

import attntrace

Config = dict[str, Any]


def of(text: str) -> Config:
    return yaml.safe_load(text)


def printed(trace: Any, step: str, expected: Any, places: int, index: Any = ...) -> None:
    """A step is what was printed, to half a unit of the last printed decimal (and the rounding of that itself)."""
    found, wanted = trace[step].values[index], np.asarray(expected, dtype=float)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=0, atol=0.5000001 * 10.0**-places)


# ------------------------------------------------------------------ UnfoldDataScience, "Attention (1).ipynb"

UNFOLD = """
x: [[1, 0, 0.5], [0, 1, 0.3], [1, 1, 0.2]]
w_q: [[1, 0, 0.5], [0, 1, 0.5], [0, 1, 0.5]]
w_k: [[1, 0, 0.5], [0, 1, 0.5], [0, 1, 0.5]]
w_v: [[0.5, 1, 0.2], [1, 0.5, 0.3], [1, 0.5, 0.1]]
"""


def test_single_head_three_tokens() -> None:
    """github.com/UnfoldDataScience/YouTube-Videos-files, LLM for application development/Attention (1).ipynb."""
    t = attntrace.trace(of(UNFOLD))
    printed(t, "q", [[1, 0.5, 0.75], [0, 1.3, 0.65], [1, 1.2, 1.1]], 8)
    printed(t, "k", [[1, 0.5, 0.75], [0, 1.3, 0.65], [1, 1.2, 1.1]], 8)
    printed(t, "v", [[1, 1.25, 0.25], [1.3, 0.65, 0.33], [1.7, 1.6, 0.52]], 8)
    printed(t, "scores", [[1.8125, 1.1375, 2.425], [1.1375, 2.1125, 2.275], [2.425, 2.275, 3.65]], 8)
    scaled = [[1.04644736, 0.65673593, 1.4000744], [0.65673593, 1.21965244, 1.31347186], [1.4000744, 1.31347186, 2.10732848]]
    printed(t, "scaled", scaled, 8)
    weights = [[0.32242711, 0.21836449, 0.4592084], [0.21348029, 0.37482567, 0.41169404], [0.25345618, 0.23242983, 0.51411399]]
    printed(t, "weights", weights, 8)
    output = [[1.38695523, 1.27970424, 0.39145543], [1.40063353, 1.16919751, 0.39114344], [1.42960874, 1.290482, 0.40740516]]
    printed(t, "output", output, 8)


# ------------------------------------------------------------------ Machine Learning Mastery

MASTERY = """
seed: 42
generator: numpy-legacy
x: [[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1]]
w_q: {draw: integers, high: 3, shape: [3, 3]}
w_k: {draw: integers, high: 3, shape: [3, 3]}
w_v: {draw: integers, high: 3, shape: [3, 3]}
"""


def test_integers_from_numpys_legacy_seed() -> None:
    """machinelearningmastery.com/the-attention-mechanism-from-scratch: randint after seed 42, a tie in row 1."""
    t = attntrace.trace(of(MASTERY))
    np.testing.assert_array_equal(t["w_q"].values, [[2, 0, 2], [2, 0, 0], [2, 1, 2]])
    np.testing.assert_array_equal(t["w_k"].values, [[2, 2, 2], [0, 2, 1], [0, 1, 1]])
    np.testing.assert_array_equal(t["w_v"].values, [[1, 1, 0], [0, 1, 1], [0, 0, 0]])
    np.testing.assert_array_equal(t["scores"].values, [[8, 2, 10, 2], [4, 0, 4, 0], [12, 2, 14, 2], [10, 4, 14, 3]])
    weights = [
        [2.36089863e-01, 7.38987555e-03, 7.49130386e-01, 7.38987555e-03],
        [4.54826323e-01, 4.51736775e-02, 4.54826323e-01, 4.51736775e-02],
        [2.39275049e-01, 7.43870015e-04, 7.59237211e-01, 7.43870015e-04],
        [8.99501754e-02, 2.81554063e-03, 9.05653685e-01, 1.58059922e-03],
    ]
    np.testing.assert_allclose(t["weights"].values, weights, rtol=0.5e-8)
    output = [
        [0.98522025, 1.74174051, 0.75652026],
        [0.90965265, 1.40965265, 0.5],
        [0.99851226, 1.75849334, 0.75998108],
        [0.99560386, 1.90407309, 0.90846923],
    ]
    printed(t, "output", output, 8)
    assert [n.step for n in attntrace.notes(t) if n.code == "tie"] == ["weights"]


# ------------------------------------------------------------------ Grad-Chronicles: two heads

TWO_HEADS = """
x: [[1, 2], [3, 4]]
heads: 2
w_q: [[1, 0, 0, 1], [0, 1, 1, 0]]
w_k: [[0, 1, 1, 0], [1, 0, 0, 1]]
w_v: [[1, 0, 0, 1], [0, -1, -1, 0]]
w_o: [[1, 0], [0, 1], [-1, 0], [0, -1]]
"""


def test_two_heads_with_weights_of_their_own() -> None:
    """github.com/AliMuhammadAsad/Grad-Chronicles: the heads' matrices stand side by side as columns."""
    t = attntrace.trace(of(TWO_HEADS))
    one, two = [[2.97166793, -3.97166793], [2.9998996, -3.9998996]], [[-3.97166793, 2.97166793], [-3.9998996, 2.9998996]]
    printed(t, "context", [one, two], 8)
    printed(t, "concat", np.concatenate([one, two], axis=1), 8)
    printed(t, "output", 6.94333586, 8, (0, 0))


# ------------------------------------------------------------------ Raschka, Build a Large Language Model, chapter 3

JOURNEY = """
tokens: [Your, journey, starts, with, one, step]
x: [[0.43, 0.15, 0.89], [0.55, 0.87, 0.66], [0.57, 0.85, 0.64], [0.22, 0.58, 0.33], [0.77, 0.25, 0.10], [0.05, 0.80, 0.55]]
"""
WITHOUT_WEIGHTS = """
[[0.2098, 0.2006, 0.1981, 0.1242, 0.1220, 0.1452], [0.1385, 0.2379, 0.2333, 0.1240, 0.1082, 0.1581],
 [0.1390, 0.2369, 0.2326, 0.1242, 0.1108, 0.1565], [0.1435, 0.2074, 0.2046, 0.1462, 0.1263, 0.1720],
 [0.1526, 0.1958, 0.1975, 0.1367, 0.1879, 0.1295], [0.1385, 0.2184, 0.2128, 0.1420, 0.0988, 0.1896]]
"""
WITHOUT_WEIGHTS_SCORES = """
[[0.9995, 0.9544, 0.9422, 0.4753, 0.4576, 0.6310], [0.9544, 1.4950, 1.4754, 0.8434, 0.7070, 1.0865],
 [0.9422, 1.4754, 1.4570, 0.8296, 0.7154, 1.0605], [0.4753, 0.8434, 0.8296, 0.4937, 0.3474, 0.6565],
 [0.4576, 0.7070, 0.7154, 0.3474, 0.6654, 0.2935], [0.6310, 1.0865, 1.0605, 0.6565, 0.2935, 0.9450]]
"""
WITHOUT_WEIGHTS_CONTEXT = """
[[0.4421, 0.5931, 0.5790], [0.4419, 0.6515, 0.5683], [0.4431, 0.6496, 0.5671], [0.4304, 0.6298, 0.5510],
 [0.4671, 0.5910, 0.5266], [0.4177, 0.6503, 0.5645]]
"""


def test_attention_without_weights_or_scale() -> None:
    """github.com/rasbt/LLMs-from-scratch ch03, section 3.3: q, k and v are the inputs, and nothing is divided."""
    x = of(JOURNEY)["x"]
    t = attntrace.trace({"q": x, "k": x, "v": x, "scale": 1})
    printed(t, "scores", of(WITHOUT_WEIGHTS_SCORES), 4)
    printed(t, "weights", of(WITHOUT_WEIGHTS), 4)
    printed(t, "output", of(WITHOUT_WEIGHTS_CONTEXT), 4)


def linear(name: str, inputs: int, outputs: int) -> str:
    """torch.nn.Linear(inputs, outputs) as a draw: uniform within 1/√inputs, stored (out, in)."""
    bound = inputs**-0.5
    return f"{name}: {{draw: uniform, low: {-bound!r}, high: {bound!r}, shape: [{outputs}, {inputs}]}}\n"


def linears(*shapes: tuple[str, int, int]) -> str:
    return "".join(linear(*shape) for shape in shapes)


V1 = """
seed: 123
generator: torch
w_q: {draw: uniform, shape: [3, 2]}
w_k: {draw: uniform, shape: [3, 2]}
w_v: {draw: uniform, shape: [3, 2]}
"""


def test_self_attention_v1() -> None:
    """ch03 SelfAttention_v1: torch.manual_seed(123), three times torch.rand(3, 2)."""
    pytest.importorskip("torch")
    t = attntrace.trace(of(JOURNEY + V1))
    assert t["w_q"].values[0, 0] == 0.29611194133758545
    assert t["w_v"].values[2, 1] == 0.8273953795433044
    printed(t, "q", [0.4306, 1.4551], 4, 1)
    printed(t, "scores", [1.2705, 1.8524, 1.8111, 1.0795, 0.5577, 1.5440], 4, 1)
    printed(t, "weights", [0.1500, 0.2264, 0.2199, 0.1311, 0.0906, 0.1820], 4, 1)
    output = [[0.2996, 0.8053], [0.3061, 0.8210], [0.3058, 0.8203], [0.2948, 0.7939], [0.2927, 0.7891], [0.2990, 0.8040]]
    printed(t, "output", output, 4)


V2 = "seed: 789\ngenerator: torch\nweight_layout: out_in\n" + linears(("w_q", 3, 2), ("w_k", 3, 2), ("w_v", 3, 2))
V2_WEIGHTS = """
[[0.1921, 0.1646, 0.1652, 0.1550, 0.1721, 0.1510], [0.2041, 0.1659, 0.1662, 0.1496, 0.1665, 0.1477],
 [0.2036, 0.1659, 0.1662, 0.1498, 0.1664, 0.1480], [0.1869, 0.1667, 0.1668, 0.1571, 0.1661, 0.1564],
 [0.1830, 0.1669, 0.1670, 0.1588, 0.1658, 0.1585], [0.1935, 0.1663, 0.1666, 0.1542, 0.1666, 0.1529]]
"""
CAUSAL_RAW = """
[[0.2899, -.inf, -.inf, -.inf, -.inf, -.inf], [0.4656, 0.1723, -.inf, -.inf, -.inf, -.inf],
 [0.4594, 0.1703, 0.1731, -.inf, -.inf, -.inf], [0.2642, 0.1024, 0.1036, 0.0186, -.inf, -.inf],
 [0.2183, 0.0874, 0.0882, 0.0177, 0.0786, -.inf], [0.3408, 0.1270, 0.1290, 0.0198, 0.1290, 0.0078]]
"""
CAUSAL_WEIGHTS = """
[[1.0000, 0, 0, 0, 0, 0], [0.5517, 0.4483, 0, 0, 0, 0], [0.3800, 0.3097, 0.3103, 0, 0, 0],
 [0.2758, 0.2460, 0.2462, 0.2319, 0, 0], [0.2175, 0.1983, 0.1984, 0.1888, 0.1971, 0],
 [0.1935, 0.1663, 0.1666, 0.1542, 0.1666, 0.1529]]
"""
DROPPED = """
[[2.0000, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0], [0.7599, 0.6194, 0.6206, 0, 0, 0], [0, 0.4921, 0.4925, 0, 0, 0],
 [0, 0.3966, 0, 0.3775, 0, 0], [0, 0.3327, 0.3331, 0.3084, 0.3331, 0]]
"""


def test_self_attention_v2() -> None:
    """ch03 SelfAttention_v2: torch.manual_seed(789), three nn.Linear(3, 2, bias=False)."""
    pytest.importorskip("torch")
    t = attntrace.trace(of(JOURNEY + V2))
    assert t["w_q"].values[0, 0] == 0.31605908274650574
    assert t["w_v"].values[1, 2] == -0.2043270468711853
    printed(t, "weights", of(V2_WEIGHTS), 4)
    output = [
        [-0.0739, 0.0713],
        [-0.0748, 0.0703],
        [-0.0749, 0.0702],
        [-0.0760, 0.0685],
        [-0.0763, 0.0679],
        [-0.0754, 0.0693],
    ]
    printed(t, "output", output, 4)


def test_causal_attention_with_dropout() -> None:
    """ch03 3.5: the same layer, causal, with nn.Dropout(0.5) after torch.manual_seed(123). It masks before it scales."""
    pytest.importorskip("torch")
    t = attntrace.trace(of(JOURNEY + V2 + "mask: causal\ndropout: {rate: 0.5, seed: 123}\n"))
    raw = t["scores"].values + np.where(np.tril(np.ones((6, 6))), 0, -np.inf)
    np.testing.assert_allclose(raw, of(CAUSAL_RAW), rtol=0, atol=0.5000001e-4)
    np.testing.assert_allclose(t["masked"].values, raw / np.sqrt(2))
    printed(t, "weights", of(CAUSAL_WEIGHTS), 4)
    printed(t, "dropped", of(DROPPED), 4)


CAUSAL = "seed: 123\ngenerator: torch\nweight_layout: out_in\nmask: causal\n"
SHAPES = (("w_q", 3, 2), ("w_k", 3, 2), ("w_v", 3, 2))
FIRST_HEAD = [
    [-0.4519, 0.2216],
    [-0.5874, 0.0058],
    [-0.6300, -0.0632],
    [-0.5675, -0.0843],
    [-0.5526, -0.0981],
    [-0.5299, -0.1081],
]
SECOND_HEAD = [[0.4772, 0.1063], [0.5891, 0.3257], [0.6202, 0.3860], [0.5478, 0.3589], [0.5321, 0.3428], [0.5077, 0.3493]]


def test_causal_attention_class() -> None:
    """ch03 CausalAttention: torch.manual_seed(123)."""
    pytest.importorskip("torch")
    t = attntrace.trace(of(JOURNEY + CAUSAL + linears(*SHAPES)))
    assert t["w_k"].values[0, 0] == -0.4196414053440094
    printed(t, "output", FIRST_HEAD, 4)


def test_wrapper_of_two_heads() -> None:
    """ch03 MultiHeadAttentionWrapper: two layers drawn one after the other, their outputs side by side."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(123)
    drawn = [[torch.nn.Linear(3, 2, bias=False).weight.detach().numpy() for _ in "qkv"] for _ in range(2)]
    weights = {f"w_{letter}": np.concatenate([drawn[0][i], drawn[1][i]]) for i, letter in enumerate("qkv")}
    t = attntrace.trace({**of(JOURNEY), **weights, "weight_layout": "out_in", "heads": 2, "mask": "causal"})
    printed(t, "output", np.concatenate([FIRST_HEAD, SECOND_HEAD], axis=1), 4)


def test_multi_head_attention_with_output_bias() -> None:
    """ch03 MultiHeadAttention: heads of one column each, out_proj = nn.Linear(2, 2) drawn last, its bias after its weight."""
    pytest.importorskip("torch")
    bias = f"b_o: {{draw: uniform, low: {-(2**-0.5)!r}, high: {2**-0.5!r}, shape: [2]}}\n"
    t = attntrace.trace(of(JOURNEY + CAUSAL + "heads: 2\n" + linears(*SHAPES, ("w_o", 2, 2)) + bias))
    assert t["w_o"].values[0, 0] == -0.16675779223442078
    assert t["b_o"].values[1] == 0.6825409531593323
    output = [[0.3190, 0.4858], [0.2943, 0.3897], [0.2856, 0.3593], [0.2693, 0.3873], [0.2639, 0.3928], [0.2575, 0.4028]]
    printed(t, "output", output, 4)


# ------------------------------------------------------------------ Keras


def test_keras_attention_does_not_scale() -> None:
    """keras/src/layers/attention/attention_test.py, test_attention_correctness (its own tolerance: 1e-3)."""
    t = attntrace.trace(of("q: [[1, 0], [0, 1]]\nk: [[0, 1], [1, 0]]\nv: [[1, 2], [3, 4]]\nscale: 1"))
    np.testing.assert_allclose(t["weights"].values, [[0.269, 0.731], [0.731, 0.269]], atol=1e-3)
    np.testing.assert_allclose(t["output"].values, [[2.462, 3.462], [1.538, 2.538]], atol=1e-3)


def test_keras_attention_with_a_value_mask() -> None:
    """attention_test.py, test_attention_with_mask: the value mask is padding; Keras's query mask, applied to the output
    alone, is not part of attention (it zeroes the second row there)."""
    config = "q: [[[[1, 0], [0, 1]]]]\nk: [[[[0, 1], [1, 0]]]]\nv: [[[[1, 1], [1, 1]]]]\nscale: 1\nmask: {padding: [1]}"
    t = attntrace.trace(of(config))
    np.testing.assert_array_equal(t["weights"].values[0, 0], [[1, 0], [1, 0]])
    np.testing.assert_array_equal(t["output"].values[0, 0], [1, 1])


def test_keras_multi_head_attention_with_identities() -> None:
    """multi_head_attention_test.py, test_correctness: 8 heads of 8, no bias (its own tolerance: 1e-2, in half precision).

    Its kernel, the identity repeated for each head, gives every head the whole input; the same array as output kernel,
    read as (head, d, out), sends the sum of head i to column i. Keys and values are not made from the same tensor.
    """
    every_head = np.tile(np.eye(8), (1, 8))
    values = np.arange(64).reshape(8, 8) / 100 @ every_head
    w_o = np.repeat(np.eye(8), 8, axis=0)
    t = attntrace.trace({"q": every_head, "k": every_head, "v": values, "heads": 8, "w_o": w_o})
    weights = np.where(np.eye(8), 0.1691, 0.1187)
    np.testing.assert_allclose(t["weights"].values, np.broadcast_to(weights, (8, 8, 8)), atol=1e-4)
    output = np.repeat([[2.406], [2.440], [2.473], [2.504], [2.535], [2.568], [2.602], [2.633]], 8, axis=1)
    np.testing.assert_allclose(t["output"].values, output, atol=1e-2)


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


def test_onnx_runtime_batch_of_one() -> None:
    """onnxruntime/test/contrib_ops/attention_op_test.cc, AttentionBatch1: fused q|k|v, two heads, float32."""
    expected = [
        [3.1495983600616455, 0.10843668878078461, 4.25, 5.6499996185302734],
        [3.9696791172027588, 0.073143675923347473, 4.2499995231628418, 5.6499991416931152],
    ]
    t = attntrace.trace(of(ONNX_RUNTIME))
    np.testing.assert_allclose(t["output"].values[0], expected, rtol=1e-5, atol=1e-6)


def test_onnx_runtime_partial_sequence() -> None:
    """attention_op_test.cc, AttentionMaskPartialSequence: one key of two is real, so both rows are its values."""
    expected = [
        [8.6899995803833008, -0.13000002503395081, 4.25, 5.6499996185302734],
        [8.6899995803833008, -0.13000002503395081, 4.2499995231628418, 5.6499991416931152],
    ]
    t = attntrace.trace(of(ONNX_RUNTIME + "mask: {padding: [1]}\n"))
    np.testing.assert_allclose(t["output"].values[0], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(t["weights"].values, np.broadcast_to([1.0, 0.0], (1, 2, 2, 2)))


# ------------------------------------------------------------------ masks


def test_a_window_counts_both_ends() -> None:
    """onnx tests/python/reference_evaluator_attention_test.py, test_attention_asymmetric_bidirectional_window."""
    zeros = np.zeros((5, 1))
    t = attntrace.trace({"q": zeros, "k": zeros, "v": np.arange(5.0)[:, None], "mask": {"window": {"left": 1, "right": 2}}})
    np.testing.assert_allclose(t["output"].values[:, 0], [1.0, 1.5, 2.5, 3.0, 3.5], rtol=1e-15)


ALIGNMENTS = {
    "apache/tvm#14907, 4 × 2": ("top-left", [[1, 0], [1, 1], [1, 1], [1, 1]]),
    "apache/tvm#14907, 2 × 4": ("top-left", [[1, 0, 0, 0], [1, 1, 0, 0]]),
    "apache/tvm#14907, 2 × 4, last": ("bottom-right", [[1, 1, 1, 0], [1, 1, 1, 1]]),
    "pytorch/pytorch#108108, 5 × 2": ("bottom-right", [[0, 0], [0, 0], [0, 0], [1, 0], [1, 1]]),
}


@pytest.mark.parametrize(("align", "keep"), ALIGNMENTS.values(), ids=ALIGNMENTS)
def test_alignments(align: str, keep: list[list[int]]) -> None:
    queries, keys = np.shape(keep)
    c = {"q": np.zeros((queries, 1)), "k": np.zeros((keys, 1)), "v": np.zeros((keys, 1)), "mask": {"causal": align}}
    np.testing.assert_array_equal(attntrace.trace(c)["mask"].values, np.where(keep, 0, -np.inf))
    np.testing.assert_array_equal(attntrace.trace(c)["weights"].values > 0, np.array(keep) == 1)


def test_grouped_heads_route_by_division() -> None:
    """prof.lexailabs.com/practice/grouped-query-attention: 4 query heads, 2 groups, one key."""
    c = of(
        "heads: 4\nkv_heads: 2\nq: [[[0, 0]], [[0, 0]], [[0, 0]], [[0, 0]]]\nk: [[[0, 0]], [[0, 0]]]\nv: [[[1, 1]], [[9, 9]]]"
    )
    np.testing.assert_array_equal(attntrace.trace(c)["context"].values, [[[1, 1]], [[1, 1]], [[9, 9]], [[9, 9]]])


# ------------------------------------------------------------------ draws, against the calls they stand for


def drawn(text: str) -> Any:
    """A 2 × 3 q, then a 2 × 3 k, of a config with this draw; v is left alone."""
    t = attntrace.trace(of(f"seed: 7\n{text}\nv: [[1], [1]]"))
    return t["q"].values, t["k"].values


def twice(draw: str, generator: str) -> Any:
    entry = f"{{draw: {draw}, shape: [2, 3]}}"
    return drawn(f"generator: {generator}\nq: {entry}\nk: {entry}")


def equal(found: Any, *wanted: Any) -> None:
    for f, w in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(f, w)


def test_draws_of_numpy() -> None:
    rng = np.random.default_rng(7)
    equal(twice("normal", "numpy"), rng.normal(size=(2, 3)), rng.normal(size=(2, 3)))
    rng = np.random.default_rng(7)
    equal(twice("normal, mean: 3, std: 0.5", "numpy"), rng.normal(3, 0.5, (2, 3)), rng.normal(3, 0.5, (2, 3)))
    rng = np.random.default_rng(7)
    equal(twice("uniform, low: -2, high: 5", "numpy"), rng.uniform(-2, 5, (2, 3)), rng.uniform(-2, 5, (2, 3)))
    rng = np.random.default_rng(7)
    equal(twice("integers, low: -2, high: 5", "numpy"), rng.integers(-2, 5, (2, 3)), rng.integers(-2, 5, (2, 3)))


def test_draws_of_numpys_legacy_functions() -> None:
    state = np.random.get_state()
    try:
        np.random.seed(7)
        equal(twice("normal", "numpy-legacy"), np.random.randn(2, 3), np.random.randn(2, 3))
        np.random.seed(7)
        equal(twice("uniform", "numpy-legacy"), np.random.rand(2, 3), np.random.rand(2, 3))
        np.random.seed(7)
        equal(
            twice("integers, low: 1, high: 9", "numpy-legacy"), np.random.randint(1, 9, (2, 3)), np.random.randint(1, 9, (2, 3))
        )
    finally:
        np.random.set_state(state)


@pytest.mark.parametrize("shape", [(2, 3), (4, 8)])  # torch fills 16 numbers and more in another way
def test_draws_of_torch(shape: tuple[int, int]) -> None:
    torch = pytest.importorskip("torch")

    def of_torch(draw: str) -> Any:
        t = attntrace.trace(
            of(f"q: {{draw: {draw}, shape: {list(shape)}, seed: 7, generator: torch}}\nk: [{[0] * shape[1]}]\nv: [[1]]")
        )
        return t["q"].values

    torch.manual_seed(7)
    equal([of_torch("normal")], torch.randn(shape).numpy())
    torch.manual_seed(7)
    equal([of_torch("uniform")], torch.rand(shape).numpy())
    torch.manual_seed(7)
    equal([of_torch("integers, high: 9")], torch.randint(9, shape).numpy())
    torch.manual_seed(7)
    equal([of_torch("normal, dtype: float64")], torch.randn(shape, dtype=torch.float64).numpy())
    torch.manual_seed(7)
    equal([of_torch("normal, dtype: float16")], torch.randn(shape, dtype=torch.float16).numpy())
    torch.manual_seed(7)
    equal([of_torch("uniform, dtype: bfloat16")], torch.rand(shape, dtype=torch.bfloat16).float().numpy())
    torch.manual_seed(7)
    equal([of_torch("normal, mean: 1, std: 0.02")], torch.empty(shape).normal_(1, 0.02).numpy())


def test_a_draw_leaves_the_global_generators_alone() -> None:
    torch = pytest.importorskip("torch")
    before = np.random.get_state()[1].copy(), torch.get_rng_state()
    for generator in ("numpy", "numpy-legacy", "torch"):
        twice("normal", generator)
    np.testing.assert_array_equal(np.random.get_state()[1], before[0])
    assert torch.equal(torch.get_rng_state(), before[1])


def test_decimals_round_as_numpy_does() -> None:
    rng = np.random.default_rng(7)
    equal(twice("normal, decimals: 2", "numpy"), np.round(rng.normal(size=(2, 3)), 2), np.round(rng.normal(size=(2, 3)), 2))


def test_streams_are_told_apart_by_seed_and_generator() -> None:
    """k has a seed of its own; q, with the config's, is the first of its stream."""
    found = drawn("q: {draw: normal, shape: [2, 3]}\nk: {draw: normal, shape: [2, 3], seed: 8}")
    equal(found, np.random.default_rng(7).normal(size=(2, 3)), np.random.default_rng(8).normal(size=(2, 3)))
    legacy = drawn("q: {draw: normal, shape: [2, 3]}\nk: {draw: normal, shape: [2, 3], generator: numpy-legacy}")
    equal(legacy, np.random.default_rng(7).normal(size=(2, 3)), np.random.RandomState(7).randn(2, 3))


def test_streams_are_drawn_from_in_the_order_of_the_file() -> None:
    rng = np.random.default_rng(7)
    first, second = rng.normal(size=(2, 3)), rng.normal(size=(2, 3))
    equal(drawn("k: {draw: normal, shape: [2, 3]}\nq: {draw: normal, shape: [2, 3]}"), second, first)


def test_dropout_draws_in_its_place_of_the_file() -> None:
    rng = np.random.default_rng(7)
    q, keep = rng.normal(size=(2, 3)), rng.random((2, 2)) > 0.5
    draw = {"draw": "normal", "shape": [2, 3]}
    t = attntrace.trace({"seed": 7, "q": draw, "dropout": {"rate": 0.5}, "k": draw, "v": [[1], [1]]})
    equal([t["q"].values, t["keep"].values, t["k"].values], q, keep, rng.normal(size=(2, 3)))
