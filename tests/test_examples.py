"""The bundled examples: their numbers, their keys, and the commands that their comments ask a reader to try.

Truths come from the printed pages where those are right, from closed forms, or from a transcription of the maths that
shares no code with the package.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import subprocess
import sys

import jsonschema
import numpy as np
import pytest

import attntrace
from attntrace.config import bundled, schema
from attntrace.config.draft import TEXT_KEYS
from attntrace.config.yaml import parse

SEEDED = {"module05", "six-tokens", "toy", "end-to-end", "linear-layout", "multi-head-causal", "multi-head-dropout"}
MADE = {"cross-attention", "padding", "fully-masked-row", "direct-qkv"}
VARIANTS = {
    *("grouped-query", "multi-query", "rope-half", "rope-interleaved", "alibi", "sliding-window", "softcap", "sinks"),
    *("kv-cache", "paged", "flash", "ring", "llama-block", "neox-block"),
}
NAMES = bundled.names()


def values(name, step, *sets, **options):
    return attntrace.trace(name, sets=sets, **options)[step].values


def codes(name, *sets):
    return {note.code for note in attntrace.notes(attntrace.trace(name, sets=sets))}


def near(actual, expected, atol=1e-12):
    expected = np.asarray(expected, dtype=float)
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=0, atol=atol)


def rounds_to(actual, printed, decimals):
    near(actual, printed, atol=0.5 * 10.0**-decimals + 1e-12)


def wrong(actual, printed, decimals=4):
    """How many printed cells are not the rounded truth."""
    return int((np.abs(actual - np.asarray(printed)) > 0.5 * 10.0**-decimals + 1e-12).sum())


# ------------------------------------------------------------------ Module 05, and its challenge

MODULE05 = {  # step: (decimals, as printed)
    "q": (3, [[0.396, -0.981, -2.435, -0.428], [2.084, 0.089, -0.17, -1.498], [-1.081, 1.119, 0.825, -0.024]]),
    "k": (3, [[0.963, -1.012, -1.462, 0.77], [1.042, -2.655, -2.244, -0.06], [-0.168, 0.386, 1.393, -1.479]]),
    "v": (3, [[-2.506, -0.188, 0.896, 2.679], [-1.459, 1.296, 1.914, 2.07], [1.587, -0.747, -0.24, -1.597]]),
    "scores": (3, [[4.604, 8.508, -3.204], [1.011, 2.405, 1.664], [-3.398, -5.949, 1.797]]),
    "scaled": (3, [[2.302, 4.254, -1.602], [0.506, 1.203, 0.832], [-1.699, -2.974, 0.899]]),
    "weights": (3, [[0.124, 0.873, 0.003], [0.228, 0.457, 0.315], [0.068, 0.019, 0.913]]),
    "output": (
        4,
        [[-1.5813, 1.1064, 1.7821, 2.1362], [-0.7367, 0.3136, 1.0029, 1.0518], [1.2507, -0.6701, -0.1218, -1.2369]],
    ),
}


@pytest.mark.parametrize("step", MODULE05)
def test_module05_is_what_the_page_prints(step):
    decimals, printed = MODULE05[step]
    rounds_to(values("module05", step), printed, decimals)


def test_module05_rows_of_weights_sum_to_one():
    near(values("module05", "weights").sum(axis=-1), [1, 1, 1], atol=1e-15)


def test_module05_is_the_default_and_draws_as_numpy_does():
    rng = np.random.RandomState(42)
    for name, rows in (("x", 3), ("w_q", 4), ("w_k", 4), ("w_v", 4)):
        near(values(None, name), np.round(rng.randn(rows, 4), 2), atol=0)


def test_six_tokens_draws_as_numpy_does():
    rng = np.random.RandomState(42)
    for name, rows in (("x", 6), ("w_q", 4), ("w_k", 4), ("w_v", 4)):
        near(values("six-tokens", name), np.round(rng.randn(rows, 4), 2), atol=0)


def test_six_tokens_strongest_pair():
    weights = values("six-tokens", "weights").copy()
    assert weights[3, 3] == pytest.approx(0.9996466847450347, abs=1e-14)
    np.fill_diagonal(weights, 0)
    assert np.unravel_index(weights.argmax(), weights.shape) == (4, 3)
    assert weights[4, 3] == pytest.approx(0.976171456551604, abs=1e-14)
    near(
        values("six-tokens", "output")[4],
        [-0.8435232939343975, -1.6515323021056671, 2.0837953656280352, 0.020494467005886922],
    )


def test_six_tokens_permuted():
    order = [0, 1, 4, 3, 2, 5]
    weights, output = values("six-tokens", "weights"), values("six-tokens", "output")
    moved = {step: values("six-tokens", step, permute="0,1,4,3,2,5") for step in ("weights", "output")}
    near(moved["weights"], weights[order][:, order], atol=1e-14)
    near(moved["output"], output[order], atol=1e-14)
    assert np.abs(moved["weights"] - weights).max() > 0.5
    assert np.abs(moved["output"] - output).max() > 0.5


# ------------------------------------------------------------------ the toy, and the layers that repeat it

ROOT = math.sqrt(3)
LOW, HIGH = (w / (2 + 2 * math.exp(1 / ROOT)) for w in (1, math.exp(1 / ROOT)))  # two keys score 0, two score 1
SMALL, LARGE = (w / (3 + math.exp(2 / ROOT)) for w in (1, math.exp(2 / ROOT)))  # three keys score 1, one scores 3
OWN = SMALL + LARGE
TOY = {
    "q": [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]],
    "k": [[0, 1, 0], [0, 0, 1], [1, 0, 0], [1, 1, 1]],
    "v": [[1, 0, 1], [0, 1, 0], [0, 0, 1], [1, 1, 2]],
    "scores": [[0, 0, 1, 1], [1, 0, 0, 1], [0, 1, 0, 1], [1, 1, 1, 3]],
    "scaled": [[0, 0, 1 / ROOT, 1 / ROOT], [1 / ROOT, 0, 0, 1 / ROOT], [0, 1 / ROOT, 0, 1 / ROOT], [1 / ROOT] * 3 + [ROOT]],
    "weights": [[LOW, LOW, HIGH, HIGH], [HIGH, LOW, LOW, HIGH], [LOW, HIGH, LOW, HIGH], [SMALL] * 3 + [LARGE]],
    "output": [[0.5, 0.5, 0.5 + 2 * HIGH], [2 * HIGH, 0.5, 0.5 + 2 * HIGH], [0.5, 2 * HIGH, 1], [OWN, OWN, 2 * OWN]],
}
FILLED_WITH_TRANSPOSES = [[1, 2 * HIGH, 0.5], [0.5 + 2 * HIGH, 0.5, 2 * HIGH], [0.5 + 2 * HIGH, 0.5, 0.5], [2 * OWN, OWN, OWN]]
PRINTED = {
    "scaled": [[0, 0.5774, 0, 0.5774], [0, 0, 0.5774, 0.5774], [0.5774, 0, 0, 0.5774], [0.5774, 0.5774, 0.5774, 1.1547]],
    "weights": [
        [0.2113, 0.3443, 0.2113, 0.2331],
        [0.1859, 0.1859, 0.3443, 0.2839],
        [0.3443, 0.2113, 0.2113, 0.2331],
        [0.1859, 0.1859, 0.1859, 0.4423],
    ],
    "output": [[0.4443, 0.3443, 0.6774], [0.2839, 0.4702, 0.6518], [0.4443, 0.2113, 0.6774], [0.6282, 0.4423, 1.1135]],
}


@pytest.mark.parametrize("step", TOY)
def test_toy(step):
    near(values("toy", step), TOY[step])


def test_toy_digits():
    """The closed forms themselves, against digits from elsewhere."""
    near(np.array([LOW, HIGH, SMALL, LARGE]), [0.179771262159686, 0.320228737840314, 0.161993870802346, 0.514018387592962])
    near(np.array([0.5 + 2 * HIGH, 2 * OWN]), [1.140457475680627, 1.352024516790616])


def test_toy_expects_what_the_page_prints():
    expected = attntrace.load("toy").config["expect"]
    assert expected == PRINTED


@pytest.mark.parametrize(("step", "cells"), [("scaled", 7), ("weights", 16), ("output", 12)])
def test_toy_page_is_wrong(step, cells):
    assert wrong(values("toy", step), PRINTED[step]) == cells


def test_toy_page_used_w_k_transposed_but_for_one_cell():
    transposed = values("toy", "scaled", "w_k=[[0,0,1],[1,0,0],[0,1,0]]")
    assert wrong(transposed, PRINTED["scaled"]) == 1
    assert transposed[3, 3] == pytest.approx(ROOT, abs=1e-15)
    assert wrong(transposed[3, 3], PRINTED["scaled"][3][3]) == 1


def test_toy_causal_mask_is_the_lower_triangle():
    mask = values("toy", "mask", "mask=causal")
    assert np.isfinite(mask).astype(int).tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]


def test_end_to_end_is_the_toy():
    near(values("end-to-end", "output"), [TOY["output"]])
    near(values("end-to-end", "weights"), [[TOY["weights"]]])


@pytest.mark.parametrize(
    "sets",
    [
        ["w_qkv[:,3:]=[[0,0,1,1,0,0],[1,0,0,0,1,0],[0,1,0,1,0,1]]"],
        ["w_qkv[:,3:6]=[[0,0,1],[1,0,0],[0,1,0]]", "w_qkv[:,6:]=[[1,0,0],[0,1,0],[1,0,1]]"],
    ],
)
def test_end_to_end_filled_with_transposes_is_neither_the_toy_nor_the_page(sets):
    output = values("end-to-end", "output", *sets)
    near(output, [FILLED_WITH_TRANSPOSES])
    assert wrong(output[0], TOY["output"]) >= 6
    assert wrong(output[0], PRINTED["output"]) == 12


@pytest.mark.parametrize("step", TOY)
def test_linear_layout_is_the_toy(step):
    near(values("linear-layout", step), TOY[step])


def test_linear_layout_stores_the_transposes():
    for name in ("w_q", "w_k", "w_v"):
        near(values("linear-layout", name), values("toy", name).T, atol=0)
    assert (values("linear-layout", "scaled") != values("linear-layout", "scaled", "weight_layout=in_out")).sum() == 6
    assert "square-weight" in codes("toy")
    assert "square-weight" not in codes("linear-layout")


# ------------------------------------------------------------------ four heads, causal, with and without dropout

INVENTED = [-0.0123, 0.0456, -0.0078, 0.0234, -0.0345]
TRUE = {
    "multi-head-causal": [
        -0.0034688814354808676,
        0.0006154805118965051,
        -0.0015010427919661755,
        -0.0022936160452393366,
        4.2962140817629834e-05,
    ],
    "multi-head-dropout": [
        -0.0028486454699016865,
        0.0018792598038605108,
        -0.0012728407205379107,
        -0.0028731849040065914,
        0.00028764785094842607,
    ],
}


def by_loops(rate):
    """The layer written out head by head and query by query: (weights, dropped weights, output)."""
    x = np.random.default_rng(0).normal(size=(2, 5, 16)).astype(np.float32).astype(float)
    rng = np.random.default_rng(42)
    fused = rng.normal(0, 0.02, size=(16, 48)).astype(np.float32).astype(float)
    mix = rng.normal(0, 0.02, size=(16, 16)).astype(np.float32).astype(float)
    keep = rng.random((2, 4, 5, 5)) > rate
    weights, dropped, output = np.zeros((2, 4, 5, 5)), np.zeros((2, 4, 5, 5)), np.zeros((2, 5, 16))
    for b in range(2):
        for h in range(4):
            q, k, v = (np.einsum("td,dc->tc", x[b], fused[:, at + 4 * h : at + 4 * h + 4]) for at in (0, 16, 32))
            for i in range(5):
                shares = [math.exp(sum(q[i] * k[j]) / 2) for j in range(i + 1)]
                weights[b, h, i, : i + 1] = np.array(shares) / math.fsum(shares)
                dropped[b, h, i] = weights[b, h, i] * keep[b, h, i] / (1 - rate)
                answer = sum(dropped[b, h, i, j] * v[j] for j in range(5))
                output[b, i] += sum(answer[c] * mix[4 * h + c] for c in range(4))
    return weights, dropped, output


@pytest.mark.parametrize(("name", "rate"), [("multi-head-causal", 0.0), ("multi-head-dropout", 0.1)])
def test_multi_head_against_loops(name, rate):
    weights, dropped, output = by_loops(rate)
    near(values(name, "weights"), weights, atol=1e-15)
    near(values(name, "output"), output, atol=1e-16)
    if rate:
        near(values(name, "dropped"), dropped, atol=1e-15)
        assert (dropped[weights > 0] == 0).sum() == 15


@pytest.mark.parametrize("name", TRUE)
def test_multi_head_last_token(name):
    found = values(name, "output")[0, -1, :5]
    np.testing.assert_allclose(found, TRUE[name], rtol=1e-12, atol=0)
    assert wrong(found, INVENTED) == 5


@pytest.mark.parametrize("name", TRUE)
@pytest.mark.parametrize("change", ["0", "-7.5"])
def test_causal_outputs_do_not_depend_on_later_tokens(name, change):
    before, after = values(name, "output"), values(name, "output", f"x[:,3:]={change}")
    assert np.array_equal(before[:, :3], after[:, :3])
    assert (before[:, 3:] != after[:, 3:]).all()


def test_without_the_mask_they_do():
    before, after = (values("multi-head-causal", "output", "mask=null", *change) for change in ((), ("x[:,3:]=0",)))
    assert (before[:, :3] != after[:, :3]).all()


# ------------------------------------------------------------------ the examples made for this tool


def softmax(*scores):
    shares = [math.exp(s) for s in scores]
    return [share / math.fsum(shares) for share in shares]


def test_cross_attention():
    near(values("cross-attention", "scores"), [[-1, 3, 6], [-0.5, 7, 2]])
    weights = np.array([softmax(-0.5, 1.5, 3), softmax(-0.25, 3.5, 1)])
    near(values("cross-attention", "weights"), weights)
    near(values("cross-attention", "output"), weights @ [[0, 0], [1, 2], [2, 0]])


def test_cross_attention_permutes_queries_alone():
    near(values("cross-attention", "weights", permute="1,0"), values("cross-attention", "weights")[::-1])


def test_padding_hides_keys_and_nothing_else():
    weights = values("padding", "weights")
    near(weights[1], [[*softmax(2, 1), 0, 0], [*softmax(0, 0.5), 0, 0], [0.5, 0.5, 0, 0], [0.5, 0.5, 0, 0]])
    near(weights[0], values("padding", "weights", "mask=null")[0], atol=0)
    near(values("padding", "weights", "mask=null")[1, 0], softmax(2, 1, 0, 0))
    near(values("padding", "output")[1, :, 0], [10 * a + 5 * b for a, b in (softmax(2, 1), softmax(0, 0.5))] + [7.5, 7.5])


def test_padding_at_the_end_lies_in_the_future_of_real_tokens():
    both = values("padding", "weights", "mask=[causal, {padding: [4, 2]}]")
    causal = values("padding", "weights", "mask=causal")
    near(both[1, :2], causal[1, :2], atol=0)
    assert (both[1, 2:] != causal[1, 2:]).any(axis=-1).all()


def test_fully_masked_row():
    near(values("fully-masked-row", "scores"), [[0, 0, 0], [0, 1, 3], [0, 2, 1]])
    weights = values("fully-masked-row", "weights")
    near(weights, [[0, 0, 0], [0, 1, 0], [0, *softmax(1, 0.5)]])
    near(values("fully-masked-row", "output"), weights[:, 1:])
    assert "masked-row" in codes("fully-masked-row")


def test_fully_masked_row_other_ways():
    nan = values("fully-masked-row", "output", "masked_row=nan")
    assert np.isnan(nan).tolist() == [[True, True], [False, False], [False, False]]
    assert np.isnan(values("fully-masked-row", "output", "v[0]=.nan")).all()
    filled = "mask={add: [[-1e9,-1e9,-1e9],[-1e9,0,-1e9],[-1e9,0,0]]}"
    near(values("fully-masked-row", "weights", filled)[0], [1 / 3] * 3)
    assert "mask-finite-fill" in codes("fully-masked-row", filled)


def test_direct_qkv():
    scaled = [[math.sqrt(2), math.sqrt(2), -math.sqrt(2), -math.sqrt(2)], [-2 * math.sqrt(2), 0, 2 * math.sqrt(2), 0]]
    weights = np.array([softmax(*row) for row in scaled])
    near(values("direct-qkv", "weights"), weights)
    blue_yellow_red_green = [[0, 0, 1], [1, 1, 0], [1, 0, 0], [0, 1, 0]]
    near(values("direct-qkv", "output"), weights @ blue_yellow_red_green)
    near(values("direct-qkv", "output", "scale=10"), [[0.5, 0.5, 0.5], [1, 0, 0]], atol=1e-10)
    near(values("direct-qkv", "weights", "scale=0"), [[0.25] * 4] * 2)


CLAIMS = [  # (example, what its comments say, cell, changes): numbers as written there
    ("six-tokens", "97.62 %", ("weights", 4, 3), ()),
    ("six-tokens", "99.96 %", ("weights", 3, 3), ()),
    ("toy", "0.3202", ("weights", 0, 2), ()),
    ("toy", "1.7321", ("scaled", 3, 3), ()),
    ("multi-head-causal", "0.0006", ("output", 0, -1, 1), ()),
    ("multi-head-dropout", "1.1111", ("dropped", 0, 3, 0, 0), ()),
    ("multi-head-dropout", "0.4447", ("dropped", 0, 3, 4), ()),
    ("cross-attention", "79.8 %", ("weights", 0, 2), ()),
    ("cross-attention", "90.4 %", ("weights", 1, 1), ()),
    ("padding", "8.26 %", ("weights", 1, 0, 3), ("mask=null",)),
    ("padding", "8.6553", ("output", 1, 0), ()),
    ("padding", "7.2255", ("output", 1, 0), ("mask=null",)),
    ("direct-qkv", "89.15 %", ("weights", 1, 2), ()),
    ("direct-qkv", "0.4721", ("weights", 0, 1), ()),
    ("rope-interleaved", "0.5403", ("q_rot", 1, 0), ()),
    ("rope-interleaved", "0.8415", ("q_rot", 1, 1), ()),
    ("grouped-query", "1.5", ("context", 0, 0, 0), ()),
    ("grouped-query", "1.5", ("context", 1, 1, 0), ()),
    ("grouped-query", "8.5", ("context", 2, 0, 0), ()),
    ("grouped-query", "8.5", ("context", 3, 1, 0), ()),
]


@pytest.mark.parametrize(("name", "claim", "cell", "sets"), CLAIMS, ids=[f"{c[0]}: {c[1]}" for c in CLAIMS])
def test_numbers_in_comments(name, claim, cell, sets):
    assert claim in comments(name)
    step, *index = cell
    found = values(name, step, *sets)[tuple(index)].sum() * (100 if "%" in claim else 1)
    number = claim.removesuffix(" %")
    assert f"{found:.{len(number.split('.')[1])}f}" == number


# ------------------------------------------------------------------ the examples of variants


def test_rope_interleaved_depends_on_distance_alone():
    apart = np.arange(4)[:, None] - np.arange(4)
    near(values("rope-interleaved", "scores"), np.cos(apart) + np.cos(apart / 100))
    near(values("rope-interleaved", "scores", "rope.offset=100"), np.cos(apart) + np.cos(apart / 100))


def test_rope_half_equals_interleaved_in_another_order():
    x, w_q, w_k = (values("rope-half", name, "rope.dims=8") for name in ("x", "w_q", "w_k"))
    order = [0, 4, 1, 5, 2, 6, 3, 7]
    columns = [*order, *(8 + i for i in order)]
    moved = {"x": x, "w_q": w_q[:, columns], "w_k": w_k[:, columns], "w_v": np.eye(16), "heads": 2, "mask": "causal"}
    other = attntrace.trace({**moved, "rope": {"pairs": "interleaved"}})
    near(other["weights"].values, values("rope-half", "weights", "rope.dims=8"))


def test_rope_half_leaves_the_rest_of_each_head():
    near(values("rope-half", "q_rot")[..., 4:], values("rope-half", "q")[..., 4:], atol=0)
    assert (values("rope-half", "q_rot")[:, 1:, :4] != values("rope-half", "q")[:, 1:, :4]).all()


def test_multi_query_shares_one_matrix():
    shared = values("multi-query", "k_shared")
    assert shared.shape == (4, 3, 4)
    near(shared, np.repeat(values("multi-query", "k"), 4, axis=0), atol=0)


def test_alibi():
    near(values("alibi", "slopes"), [1 / 4, 1 / 16, 1 / 64, 1 / 256], atol=0)
    for head, slope in enumerate((1 / 4, 1 / 16, 1 / 64, 1 / 256)):
        near(values("alibi", "weights")[head, 4], softmax(*(-slope * d for d in (4, 3, 2, 1, 0))))


def test_sliding_window():
    near(values("sliding-window", "output")[:, 0], [0, 0.5, 1, 2, 3, 4])
    assert np.isfinite(values("sliding-window", "mask")).sum(axis=-1).tolist() == [1, 2, 3, 3, 3, 3]


def test_softcap():
    capped = [2 * math.tanh(q * k / 2) for q, k in ((8, 0.1), (8, 0.5), (8, 1), (8, 2))]
    near(values("softcap", "capped")[3], capped)
    near(values("softcap", "weights")[3], softmax(*capped))
    assert round(math.exp(-2 - 2), 3) == 0.018


def test_sinks():
    near(values("sinks", "weights")[0, 0], softmax(0, 0, 0)[:2])
    near(values("sinks", "sink_weights")[0], [1 / 3, softmax(1, 2, 0)[2]])
    near(values("sinks", "sink_weights")[1], [softmax(0, 0, 3)[2], softmax(1, 2, 3)[2]])
    near(values("sinks", "weights").sum(axis=-1) + values("sinks", "sink_weights"), np.ones((2, 2)))


def test_kv_cache():
    keys = [[1, 0], [0, 1], [1, 1], [1, 1]]  # three given, and [1, 0, 1] @ w_k
    near(values("kv-cache", "k_all"), keys)
    near(values("kv-cache", "weights")[0], softmax(*(np.array([2, 1]) @ np.transpose(keys) / math.sqrt(2))))
    assert attntrace.trace("kv-cache").labels["key"] == ("t0", "t1", "t2", "down")


def test_paged():
    near(values("paged", "v_past")[:, 0, :, 0], [[1, 2, 3, 4], [11, 12, 13, 99]])
    first, second = softmax(0, 0.1, 0.2, 0.3, 0.4), softmax(0, 0.1, 0.2, 0.3)
    near(values("paged", "weights")[:, 0, 0], [first, [*second[:3], 0, second[3]]])
    near(values("paged", "output")[:, 0, 0], [np.dot(first, [1, 2, 3, 4, 5]), np.dot(second, [11, 12, 13, 14])])


@pytest.mark.parametrize("name", ["flash", "ring"])
def test_tiles_and_rings_equal_direct(name):
    near(values(name, "output"), values(name, "output", "core=direct"))


def test_flash_keeps_a_running_maximum_and_sum():
    row = values("flash", "scaled", "core=direct")[0]
    for j, seen in enumerate((2, 4, 5)):
        near(values("flash", f"max_0_{j}")[0], row[:seen].max())
        near(values("flash", f"sum_0_{j}")[0], np.exp(row[:seen] - row[:seen].max()).sum())


def test_ring_has_the_future_behind_it():
    assert np.isneginf(values("ring", "masked_0_1")).all()
    near(values("ring", "part_sum_0_1"), [0, 0], atol=0)
    near(values("ring", "sum_0_1"), values("ring", "sum_0_0"), atol=0)


def test_llama_block():
    x, y, mlp = (values("llama-block", name) for name in ("x", "output", "mlp"))
    near(values("llama-block", "residual"), x + y)
    near(values("llama-block", "block_output"), x + y + mlp)
    normed, g = values("llama-block", "normed1"), values("llama-block", "w_norm1")
    near(normed, x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-5) * g)


def test_neox_block():
    x, y, mlp = (values("neox-block", name) for name in ("x", "output", "mlp"))
    near(values("neox-block", "block_output"), x + y + mlp)
    trace = attntrace.trace("neox-block")
    assert trace["up"].operands[0].name == "normed2"
    assert attntrace.trace("neox-block", sets=["w_norm2=null", "b_norm2=null"])["up"].operands[0].name == "normed1"


# ------------------------------------------------------------------ keys


def source(name):
    return (bundled.folder() / f"{name}.yaml").read_text(encoding="utf-8")


def data(name):
    return parse(source(name), name, TEXT_KEYS).data


def test_all_examples_are_here():
    assert set(NAMES) == SEEDED | MADE | VARIANTS


@pytest.mark.parametrize("name", NAMES)
def test_example_is_a_valid_config(name):
    config = data(name)
    assert schema.check(config) == []
    jsonschema.Draft202012Validator(schema.json_schema()).validate(config)
    assert config["title"]
    assert config["source"]
    assert attntrace.load(name).options.title == config["title"]


def test_schema_tells_a_broken_example():
    validator = jsonschema.Draft202012Validator(schema.json_schema())
    for change in ({"weight_layout": "out-in"}, {"w_kq": [[1]]}, {"heads": 0}, {"mask": {"padded": [1]}}):
        config = data("toy") | change
        assert schema.check(config)
        assert not validator.is_valid(config)


@pytest.mark.parametrize("name", NAMES)
def test_example_reads_well(name):
    text = source(name)
    assert text.startswith("# ")
    assert text.endswith("\n")
    assert not re.search(r"[ \t]$|\t", text, re.MULTILINE)
    assert not [line for line in text.splitlines() if len(line) > 120]


# ------------------------------------------------------------------ commands in the comments

COMMAND = re.compile(r"#\s+(?:Try:\s+)?(attntrace .*?)(?:\s{2,}\(.*\))?")


def comments(name):
    lines = [line for line in source(name).splitlines() if line.startswith("#")]
    return " ".join(line.lstrip("# ") for line in lines)


def quoted(name):
    """The commands that the comments of an example quote, as argument lists."""
    found = [COMMAND.fullmatch(line) for line in source(name).splitlines() if line.startswith("#")]
    return [shlex.split(match[1])[1:] for match in found if match]


ONE_AFTER_THE_OTHER = """
import json, sys
from attntrace.cli.app import main
codes = []
for arguments in json.loads(sys.argv.pop()):
    sys.argv[1:] = arguments
    try:
        main()
    except SystemExit as end:
        codes.append(end.code or 0)
print(json.dumps(codes))
"""


def run(commands):
    """Run commands in one fresh process, since starting costs more than most of them; what failed, and why."""
    script = [sys.executable, "-X", "utf8", "-c", ONE_AFTER_THE_OTHER, json.dumps(commands)]
    ended = subprocess.run(script, capture_output=True, text=True, encoding="utf-8", timeout=120)
    assert ended.returncode == 0, ended.stderr
    codes = json.loads(ended.stdout.splitlines()[-1])
    failed = [(shlex.join(arguments), code) for arguments, code in zip(commands, codes, strict=True) if code != 0]
    return failed and (failed, ended.stderr)


def test_commands_are_found():
    assert ["verify", "module05"] in quoted("module05")
    assert ["run", "fully-masked-row", "--steps", "weights,output", "--set", "v[0]=.nan"] in quoted("fully-masked-row")
    for name in NAMES:
        assert len(quoted(name)) >= 3, name
        assert ["verify", name] in quoted(name)


def test_a_failing_command_is_noticed():
    failed, _ = run([["run", "toy", "--quiet"], ["run", "toy", "--set", "w_k=[[1]]"], ["plot", "toy"]])
    assert failed == [("run toy --set 'w_k=[[1]]'", 2), ("plot toy", 2)]


@pytest.mark.parametrize("name", NAMES)
def test_quoted_commands_run(name):
    assert not run([arguments for arguments in quoted(name) if arguments[0] != "verify"])


def test_quoted_verifications_succeed():
    """All in one process: importing torch takes longer than the rest."""
    pytest.importorskip("torch")
    assert not run([arguments for name in NAMES for arguments in quoted(name) if arguments[0] == "verify"])
