"""Which step a claim is about: by name, generously; without one by shape and numbers; and how its shape is fitted."""

from __future__ import annotations

import numpy as np
import pytest

import attntrace
from attntrace import claims

HEADED = "multi-head-causal"
DROPPED = "multi-head-dropout"
CASES = {
    "scores": [
        "scores",
        "Scores",
        "raw scores",
        "Raw attention scores",
        "Q·K^T",
        "QK^T",
        "Q @ K.T",
        "S",
        "dot products",
        "QKᵀ",
    ],
    "scaled": [
        *("scaled", "scaled_scores", "Scaled scores", "S′", "S'", "scaledScores", "Scaled attention scores", "QK^T/√d_k"),
        *("scaled-scores", "Step 2: scaled scores", "scores / sqrt(d_k)", "QKᵀ / √d", r"\text{scaled scores}"),
    ],
    "weights": [
        *("weights", "attention_weights", "attn_weights", "attn", "A", "a", "softmax", "Attention Weights", "attentionWeights"),
        *(
            "probs",
            "attention probabilities",
            "α",
            "P",
            "softmax(scores)",
            "Attention weights (softmax over keys)",
            "attn.weights",
        ),
        *("3. Attention weights", "The attention matrix", "softmax(QK^T/√d_k)", "A = softmax(S′)", "**Attention weights**:"),
    ],
    "output": [
        "output",
        "out",
        "y",
        "Y",
        "Z",
        "Output",
        "outputs",
        "context vectors",
        "Context",
        "A V",
        "Attention(Q, K, V)",
        "result",
    ],
    "q": ["q", "Q", "queries", "Query", "query vectors", "X W_Q", "Q matrix"],
    "k": ["k", "K", "keys", "key"],
    "v": ["v", "V", "values", "value vectors"],
    "w_q": ["w_q", "W_Q", "Wq", "WQ", "W^Q", "W_query", "query weights", "q_proj.weight"],
    "x": ["x", "X", "inputs", "embeddings", "Token embeddings"],
}


def read(text: str, trace: attntrace.Trace) -> tuple[claims.Reading, claims.Reading]:
    reading = claims.read_text(text, "page.txt", trace.names)
    return reading, claims.match(reading.claims, trace)


@pytest.mark.parametrize(("step", "called"), [(step, called) for step, names in CASES.items() for called in names])
def test_names(step, called):
    """The numbers are none of the trace's, so that only the name can tell."""
    trace = attntrace.trace("toy")
    numbers = np.full(trace[step].shape, 77.5).tolist()
    reading, matched = read(f"{called}\n{numbers}", trace)
    assert [claim.name for claim in matched.claims] == [step]
    said = [*reading.said, *matched.said]
    if called.strip().lower() == step:
        assert said == []
    else:
        assert len(said) == 1
        assert said[0].endswith(f"(page.txt:2) is read as {step}")


VARIANTS = {
    ("sliding-window", "masked"): ["masked", "masked scores", "S″", "scores after mask", "pre-softmax scores"],
    ("sliding-window", "mask"): ["mask", "M", "attention mask"],
    ("softcap", "capped"): ["capped", "capped scores", "soft-capped", "softcapped scores"],
    ("rope-interleaved", "q_rot"): ["q_rot", "rotated queries", "Q after RoPE", "q_embed"],
    (DROPPED, "dropped"): ["dropped", "weights after dropout", "attn after dropout"],
    (HEADED, "context"): ["context", "context vectors", "attn_output", "head outputs", "C"],
    (HEADED, "concat"): ["concat", "concatenated heads", "merged heads"],
    (HEADED, "output"): ["output", "y", "multi-head output", "final output"],
    ("kv-cache", "k_all"): ["k_all", "all keys", "K cache"],
    ("grouped-query", "k_shared"): ["k_shared", "repeated keys"],
}  # fmt: skip


@pytest.mark.parametrize(("config", "step", "called"), [(c, s, name) for (c, s), names in VARIANTS.items() for name in names])
def test_names_of_variants(config, step, called):
    trace = attntrace.trace(config)
    _, matched = read(f"{called}\n{(np.round(trace[step].values, 3) + 0.0).tolist()}", trace)
    assert [claim.name for claim in matched.claims] == [step]


def test_every_step_answers_to_its_own_name_and_none_to_two():
    from attntrace.claims.names import candidates
    from attntrace.config import bundled

    for config in bundled.names():
        trace = attntrace.trace(config)
        for name in trace.names:
            assert candidates(name, trace.names) == (name,)
            assert candidates(name.upper().replace("_", " "), trace.names) == (name,)


def test_attention_scores_may_be_scaled_or_not_and_their_numbers_tell():
    trace = attntrace.trace("toy")
    for step, other in (("scores", "scaled"), ("scaled", "scores")):
        _, matched = read(f"Attention scores\n{np.round(trace[step].values, 2)}", trace)
        assert [claim.name for claim in matched.claims] == [step]
        assert matched.said == [
            f'"Attention scores" (page.txt:2) is read as {step}, whose numbers are nearer than those of {other}'
        ]


def test_a_heading_gives_way_to_a_name_below_it_and_prose_names_nothing():
    trace = attntrace.trace("toy")
    weights = trace["weights"].values
    prose = "Now the softmax turns each row of scores into something that sums to one:"
    text = f"## Step 3\n\n{prose}\n\nattention weights:\n{weights}"
    assert [claim.called for claim in claims.read_text(text, "page.txt").claims] == ["attention weights"]
    text = f"# Scaled scores\n\nThey are divided by the root of three, so that they do not grow with the size:\n\n{weights}"
    assert [claim.called for claim in claims.read_text(text, "page.txt").claims] == ["Scaled scores"]


# ------------------------------------------------------------------ without a name


def test_a_claim_without_a_name_goes_by_shape():
    trace = attntrace.trace("module05")
    _, matched = read(str(np.full((3, 4), 9.75).tolist()), trace)
    assert len(matched.claims) == 1
    assert "the nearest of the steps of its shape, though most of its numbers differ" in matched.said[0]


@pytest.mark.parametrize("step", ["q", "k", "v", "scores", "scaled", "weights", "output"])
@pytest.mark.parametrize("decimals", [2, 3, 8])
def test_a_claim_without_a_name_goes_by_numbers(step, decimals):
    trace = attntrace.trace("module05")
    _, matched = read(str(np.round(trace[step].values, decimals)), trace)
    assert [claim.name for claim in matched.claims] == [step]
    assert matched.said == [f"an array without a name (page.txt:1) is read as {step}, whose numbers are nearest"]


def test_the_nearest_step_is_meant_even_if_most_numbers_are_wrong():
    trace = attntrace.trace("module05")
    wrong = np.round(trace["weights"].values[[1, 0, 2]], 3)
    _, matched = read(str(wrong), trace)
    assert [claim.name for claim in matched.claims] == ["weights"]


def test_equal_steps_are_told_and_taken_in_order():
    """With w_q the identity, q has the numbers of x."""
    trace = attntrace.trace("toy")
    numbers = trace["q"].values
    _, matched = read(f"{numbers}", trace)
    assert [claim.name for claim in matched.claims] == ["q"]
    assert matched.said == ["an array without a name (page.txt:1) is read as q, which has the same numbers here as x"]


def test_several_claims_without_names_take_a_step_each():
    trace = attntrace.trace("module05")
    steps = ["v", "scores", "scaled", "weights", "output"]
    text = "\n\n".join(str(np.round(trace[step].values, 3)) for step in reversed(steps))
    _, matched = read(text, trace)
    assert [claim.name for claim in matched.claims] == steps


def test_a_name_that_nobody_knows_needs_numbers_that_fit():
    trace = attntrace.trace("module05")
    _, matched = read(f"step three\n{np.round(trace['weights'].values, 3)}", trace)
    assert [claim.name for claim in matched.claims] == ["weights"]
    _, matched = read("loss = [[7, 7, 7], [7, 7, 7], [7, 7, 7]]", trace)
    assert matched.claims == []
    assert matched.faults[0].message.startswith('"loss" is no step of this trace; its steps are x, w_q')


# ------------------------------------------------------------------ shapes


def headed(batch: int = 1) -> attntrace.Trace:
    return attntrace.trace(HEADED, sets=[f"x={{draw: normal, seed: 1, shape: [{batch}, 5, 16]}}"])


def test_axes_of_length_one_come_and_go():
    trace = headed()
    weights = trace["weights"].values
    for claimed, shape in ((weights[0], "4 × 5 × 5"), (weights[None], "1 × 1 × 4 × 5 × 5")):
        if claimed.ndim > 4:
            continue
        _, matched = read(f"weights = {claimed.tolist()}", trace)
        np.testing.assert_array_equal(matched.claims[0].values, weights)
        assert matched.said == [f"weights: its shape {shape} is read as 1 × 4 × 5 × 5"]
    toy = attntrace.trace("toy")
    _, matched = read(f"weights = {toy['weights'].values[None].tolist()}", toy)
    assert matched.claims[0].shape == (4, 4)
    assert matched.said == ["weights: its shape 1 × 4 × 4 is read as 4 × 4"]


def test_a_column_for_a_row():
    trace = attntrace.trace("kv-cache")
    row = trace["weights"].values
    assert row.shape == (1, 4)
    _, matched = read(f"weights = {row.T.tolist()}", trace)
    np.testing.assert_array_equal(matched.claims[0].values, row)
    assert matched.said == ["weights: its shape 4 × 1 is read as 1 × 4"]


def test_heads_side_by_side():
    trace = headed(2)
    _, matched = read(f"context = {trace['concat'].values.tolist()}", trace)
    np.testing.assert_array_equal(matched.claims[0].values, trace["context"].values)
    assert matched.said == ["context: its columns are read as 4 heads of 4"]
    _, matched = read(f"concat = {trace['context'].values.tolist()}", trace)
    np.testing.assert_array_equal(matched.claims[0].values, trace["concat"].values)
    assert matched.said == ["concat: its 4 heads are put side by side"]


@pytest.mark.parametrize("name", ["weights[0, {}]", "weights[0][{}]", "attn[0, {}]  batch 0, head {}"])
def test_matrices_by_their_index(name):
    trace = headed(2)
    weights = trace["weights"].values
    text = "\n\n".join(f"{name.replace('[0][{}]', '[0, {}]').format(i, i)}\n{weights[0, i].tolist()}" for i in (0, 1, 3))
    _, matched = read(text, trace)
    (claim,) = matched.claims
    assert claim.there.sum() == 75
    assert not claim.there[1].any()
    np.testing.assert_array_equal(claim.values[0, [0, 1, 3]], weights[0, [0, 1, 3]])


@pytest.mark.parametrize("first", [0, 1])
def test_heads_as_people_number_them(first):
    trace = headed()
    weights = trace["weights"].values
    text = "\n\n".join(f"Head {i + first} attention weights:\n{weights[0, i].tolist()}" for i in range(4))
    _, matched = read(text, trace)
    np.testing.assert_array_equal(matched.claims[0].values, weights)


def test_one_head_is_told_by_its_numbers():
    trace = headed()
    weights = trace["weights"].values
    for i in (1, 2):
        _, matched = read(f"weights, head 2\n{weights[0, i].tolist()}", trace)
        assert matched.claims[0].there[0].any(axis=(1, 2)).tolist() == [j == i for j in range(4)]


def test_the_same_said_twice_is_one_claim_and_what_contradicts_is_told():
    trace = attntrace.trace("toy")
    weights = trace["weights"].values
    _, matched = read(f"weights\n{weights.round(3)}\n\nA\n{weights.round(2)}", trace)
    assert len(matched.claims) == 1
    assert matched.faults == []
    _, matched = read(f"weights\n{weights.round(3)}\n\nA\n{weights.round(3) + 1}", trace)
    np.testing.assert_allclose(matched.claims[0].values, weights, atol=5e-4)
    assert [fault.message for fault in matched.faults] == [
        "A: weights is claimed twice, first as weights (page.txt:2), which counts"
    ]


def test_claims_come_in_the_order_of_the_tape():
    trace = attntrace.trace("toy")
    text = "\n".join(f"{name} = {trace[name].values.tolist()}" for name in ("output", "weights", "scores"))
    assert [claim.name for claim in read(text, trace)[1].claims] == ["scores", "weights", "output"]
