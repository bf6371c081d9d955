"""The functions that people write for torch's FlexAttention, against the config keys that say the same.

FlexAttention runs eagerly here. Its `score_mod` changes a scaled score, given the numbers of batch item, head, query and key;
its `mask_mod` says which keys a query may attend to. Beside the output it gives the log of each row's sum of exponentials,
which shows what the output hides: a bias that is the same for a whole row.
"""

import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import attntrace

torch = pytest.importorskip("torch")
flex = pytest.importorskip("torch.nn.attention.flex_attention")

Array = np.ndarray
Config = dict[str, Any]
Score = Callable[..., Any]
B, H, QUERIES, KEYS, D_K, D_V = 2, 4, 6, 8, 8, 5
GROUPS = {"own keys": 4, "shared keys": 2}
RNG = np.random.default_rng(20)
QUERY, KEY = np.arange(QUERIES)[:, None], np.arange(KEYS)
SLOPES = 2.0 ** (-8 * np.arange(1, H + 1) / H)  # of the ALiBi paper, for a power of two
TABLE = RNG.normal(size=(H, QUERIES + KEYS))  # a learned bias for each head and distance
DOCUMENTS = np.array([[0, 0, 0, 1, 1, 2, 2, 2], [0, 1, 1, 1, 1, 1, 2, 2]])
PREFIX, LENGTHS, SINKS = np.array([2, 4]), np.array([5, 7]), RNG.normal(size=H)
CAP = 0.7
AT = "top-left"  # in FlexAttention, the first query stands at the first key


class Function(NamedTuple):
    """A score_mod, a mask_mod or both, and what a config says for it."""

    says: Config
    score: Score | None = None
    mask: Score | None = None


def tensor(numbers: Array) -> Any:
    return torch.from_numpy(np.ascontiguousarray(numbers))


def inputs(kv_heads: int) -> Config:
    shapes = {"q": (B, H, QUERIES, D_K), "k": (B, kv_heads, KEYS, D_K), "v": (B, kv_heads, KEYS, D_V)}
    rng = np.random.default_rng(kv_heads)
    return {"heads": H, "kv_heads": kv_heads} | {name: 1.5 * rng.normal(size=shape) for name, shape in shapes.items()}


def of_torch(given: Config, function: Function) -> tuple[Array, Array]:
    """The output, and the log of each row's sum."""
    block_mask = None
    if function.mask is not None:
        block_mask = flex.create_block_mask(function.mask, B, H, QUERIES, KEYS, device="cpu")
    output, aux = flex.flex_attention(
        *(tensor(given[name]) for name in "qkv"),
        score_mod=function.score,
        block_mask=block_mask,
        scale=function.says.get("scale"),
        enable_gqa=True,
        return_aux=flex.AuxRequest(lse=True),
    )
    return output.numpy(), aux.lse.numpy()


def logsumexp(scores: Array) -> Array:
    with np.errstate(divide="ignore"):  # a row that may attend to nothing has the sum 0
        return np.log(np.exp(scores).sum(axis=-1))


def ready(t: Any) -> Array:
    """The scores that softmax is taken of."""
    return t["weights"].operands[0].values


# ------------------------------------------------------------------ what a config can say


def causal(b: Any, h: Any, i: Any, j: Any) -> Any:
    return i >= j


def softcap(s: Any) -> Any:
    return CAP * torch.tanh(s / CAP)


def alibi(s: Any, h: Any, i: Any, j: Any) -> Any:
    return s - tensor(SLOPES)[h] * (i - j).abs()


EXPRESSIBLE = {
    "plain": Function({}),
    "scale": Function({"scale": 0.3}),
    "causal": Function({"mask": {"causal": AT}}, mask=causal),
    "causal, as a score_mod": Function({"mask": {"causal": AT}}, lambda s, b, h, i, j: torch.where(i >= j, s, -torch.inf)),
    "causal, queries further on": Function({"mask": {"causal": 2}}, mask=lambda b, h, i, j: i + 2 >= j),
    "causal, the last at the last": Function(
        {"mask": {"causal": "bottom-right"}}, mask=lambda b, h, i, j: i + KEYS - QUERIES >= j
    ),
    "causal, queries before all keys": Function({"mask": {"causal": -3}}, mask=lambda b, h, i, j: i - 3 >= j),
    "relative bias": Function({"mask": {"add": QUERY - KEY}}, lambda s, b, h, i, j: s + (i - j)),
    "bias by a table": Function(
        {"mask": {"add": TABLE[:, QUERY - KEY + KEYS]}}, lambda s, b, h, i, j: s + tensor(TABLE)[h, i - j + KEYS]
    ),
    "bias of the head": Function({"mask": {"add": np.arange(H)[:, None, None]}}, lambda s, b, h, i, j: s + h),
    "bias of the query": Function({"mask": {"add": QUERY}}, lambda s, b, h, i, j: s + i),
    "bias of the batch item": Function({"mask": {"add": np.arange(B)[:, None, None, None]}}, lambda s, b, h, i, j: s + b),
    "alibi": Function({"alibi": {"align": AT}}, lambda s, b, h, i, j: alibi(s, h, i, j)),
    "alibi, causal": Function(
        {"alibi": True, "mask": {"causal": AT}}, lambda s, b, h, i, j: s + tensor(SLOPES)[h] * (j - i), causal
    ),
    "alibi, slopes of one's own": Function(
        {"alibi": {"slopes": SINKS, "align": 1}}, lambda s, b, h, i, j: s - tensor(SINKS)[h] * (i + 1 - j).abs()
    ),
    "softcap": Function({"softcap": CAP}, lambda s, b, h, i, j: softcap(s)),
    "softcap, causal": Function({"softcap": CAP, "mask": {"causal": AT}}, lambda s, b, h, i, j: softcap(s), causal),
    "softcap, then alibi, causal": Function(
        {"softcap": CAP, "alibi": True, "mask": {"causal": AT}}, lambda s, b, h, i, j: alibi(softcap(s), h, i, j), causal
    ),
    "sliding window": Function(
        {"mask": {"window": {"left": 2, "right": 0, "align": AT}}}, mask=lambda b, h, i, j: (i >= j) & (i - j <= 2)
    ),
    "sliding window, both sides": Function(
        {"mask": {"window": {"left": 1, "right": 3, "align": AT}}}, mask=lambda b, h, i, j: (i - j <= 1) & (j - i <= 3)
    ),
    "sliding window, the last at the last": Function(
        {"mask": {"window": {"left": 2, "right": 0, "align": "bottom-right"}}},
        mask=lambda b, h, i, j: (i + KEYS - QUERIES >= j) & (i + KEYS - QUERIES - j <= 2),
    ),
    "dilated window": Function(
        {"mask": {"keep": (abs(QUERY - KEY) <= 4) & ((QUERY - KEY) % 2 == 0)}},
        mask=lambda b, h, i, j: ((i - j).abs() <= 4) & ((i - j) % 2 == 0),
    ),
    "prefix, then causal": Function(
        {"mask": {"keep": (PREFIX[:, None, None, None] > KEY) | (QUERY >= KEY)}},
        mask=lambda b, h, i, j: (j < tensor(PREFIX)[b]) | (i >= j),
    ),
    "documents": Function(
        {"mask": {"keep": (DOCUMENTS[:, :QUERIES, None] == DOCUMENTS[:, None])[:, None]}},
        mask=lambda b, h, i, j: tensor(DOCUMENTS)[b, i] == tensor(DOCUMENTS)[b, j],
    ),
    "documents, causal": Function(
        {"mask": [{"causal": AT}, {"ignore": (DOCUMENTS[:, :QUERIES, None] != DOCUMENTS[:, None])[:, None]}]},
        mask=lambda b, h, i, j: (tensor(DOCUMENTS)[b, i] == tensor(DOCUMENTS)[b, j]) & (i >= j),
    ),
    "padding": Function({"mask": {"padding": LENGTHS.tolist()}}, mask=lambda b, h, i, j: j < tensor(LENGTHS)[b]),
    "padding, the last at the last real key": Function(
        {"mask": [{"causal": "bottom-right"}, {"padding": LENGTHS.tolist()}]},
        mask=lambda b, h, i, j: (j < tensor(LENGTHS)[b]) & (i + tensor(LENGTHS)[b] - QUERIES >= j),
    ),
    "a head that sees all": Function(
        {"mask": {"keep": (np.arange(H)[:, None, None] == 0) | (QUERY >= KEY)}}, mask=lambda b, h, i, j: (h == 0) | (i >= j)
    ),
}


# What no config can say, each with the nearest that one can say.
NOT_EXPRESSIBLE = {
    "squared scores": Function({"scale": 0.5}, lambda s, b, h, i, j: s * s),
    "scores without those below zero": Function({}, lambda s, b, h, i, j: torch.relu(s)),
    "scores cut off": Function({"softcap": CAP}, lambda s, b, h, i, j: s.clamp(-CAP, CAP)),
    "a temperature of the head": Function({"scale": 0.5}, lambda s, b, h, i, j: s * (1 + h)),
    "scores that fade with distance": Function({"alibi": {"align": AT}}, lambda s, b, h, i, j: s / (1 + (i - j).abs())),
    "zero in place of −∞": Function({"mask": {"causal": AT}}, lambda s, b, h, i, j: torch.where(i >= j, s, 0.0)),
    "alibi before softcap": Function(
        {"alibi": {"align": AT}, "softcap": CAP}, lambda s, b, h, i, j: softcap(alibi(s, h, i, j))
    ),
    "mask before softcap": Function(
        {"mask": {"causal": AT}, "softcap": CAP}, lambda s, b, h, i, j: softcap(torch.where(i >= j, s, -torch.inf))
    ),
}


def functions(table: dict[str, Function]) -> Any:
    return pytest.mark.parametrize("function", [pytest.param(function, id=name) for name, function in table.items()])


@pytest.fixture(autouse=True)
def _eagerly() -> Iterator[None]:
    """FlexAttention warns, once in a process, that it is slow when it is not compiled. That is well enough here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile", UserWarning)
        yield


def close(found: Array, wanted: Array) -> bool:
    return bool(np.allclose(found, wanted, rtol=1e-12, atol=1e-12))


@pytest.mark.parametrize("kv_heads", GROUPS.values(), ids=GROUPS)
@functions(EXPRESSIBLE)
def test_a_function_and_its_config(function: Function, kv_heads: int) -> None:
    given = inputs(kv_heads)
    output, total = of_torch(given, function)
    t = attntrace.trace({**given, **function.says})
    np.testing.assert_allclose(t["context"].values, output, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(logsumexp(ready(t)), total, rtol=1e-12, atol=1e-12)
    assert function.says == {} or not close(logsumexp(ready(attntrace.trace(given))), total)  # it does something


@functions(NOT_EXPRESSIBLE)
def test_what_cannot_be_said_still_cannot(function: Function) -> None:
    """A function as such is refused, and the nearest config gives other numbers. Else it belongs in EXPRESSIBLE."""
    given = inputs(H)
    with pytest.raises(attntrace.AttnTraceError, match="unknown key 'score_mod'"):
        attntrace.trace({**given, "score_mod": "score * score"})
    output, _ = of_torch(given, function)
    assert not close(attntrace.trace({**given, **function.says})["context"].values, output)


def test_sinks_from_the_sums_of_rows() -> None:
    """A sink z of a head leaves 1 / (1 + exp(z − lse)) of each row, which is how sinks are had from FlexAttention."""
    given = inputs(2)
    output, total = of_torch(given, Function({}, mask=causal))
    left = 1 / (1 + np.exp(SINKS[:, None] - total))
    t = attntrace.trace({**given, "mask": {"causal": AT}, "sinks": SINKS})
    np.testing.assert_allclose(t["context"].values, left[..., None] * output, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(t["sink_weights"].values, 1 - left, rtol=1e-12, atol=1e-12)
