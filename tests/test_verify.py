"""verify must be able to fail: a fault planted in any step is found, and named. And the tolerances that it fails by."""

import ast
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attntrace
from attntrace import compare, layer, ops
from attntrace.dtypes import dtype
from attntrace.errors import AttnTraceError, MissingPackage
from attntrace.ops import position
from attntrace.parts import place
from attntrace.parts.rope import Rope
from attntrace.problem import INPUTS
from attntrace.verification import opinion_row, verify

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tensors this small are only slowed down by more threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def draw(*shape: int, seed: int | None = None) -> dict[str, Any]:
    return {"draw": "normal", "shape": list(shape)} | ({} if seed is None else {"seed": seed})


def square(width: int, *names: str) -> dict[str, Any]:
    return {name: draw(width, width) for name in names}


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


SELF = {"seed": 1, "x": draw(4, 6), **square(6, "w_q", "w_k", "w_v")}
HEADED = {"seed": 2, "x": draw(2, 5, 8), **square(8, "w_q", "w_k", "w_v", "w_o"), "heads": 2}
GIVEN = {"seed": 6, "q": draw(2, 3, 4, 6), "k": draw(2, 3, 5, 6), "v": draw(2, 3, 5, 2)}
GROUPED = {
    "seed": 5, "x": draw(2, 3, 8), "w_q": draw(8, 24), "w_k": draw(8, 12), "w_v": draw(8, 6), "heads": 4, "kv_heads": 2
}  # fmt: skip
PAST = {"k": draw(2, 2, 4, 6), "v": draw(2, 2, 4, 3)}
PAGED = {"blocks": {"k": draw(5, 2, 2, 6), "v": draw(5, 2, 2, 3)}, "table": [[3, 1], [0, 4]], "lengths": [2, 3]}
LLAMA = {"type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 16}
BLOCK = {
    **SELF,
    "w_norm1": draw(6),
    "w_norm2": draw(6),
    "w_up": draw(6, 8),
    "b_up": draw(8),
    "w_down": draw(8, 6),
    "b_down": draw(6),
}
VARIED = {  # whatever goes with a matrix of scores
    **without(GROUPED, "x"), "x": draw(2, 5, 8), "sinks": draw(4), "softcap": 4, "alibi": True, "dropout": {"rate": 0.3},
    "mask": {"window": {"left": 1, "right": 3}}, "--queries": ":4",
}  # fmt: skip
PROBLEMS: dict[str, dict[str, Any]] = {
    "single head": SELF,
    "fused causal with biases": {
        "seed": 3, "x": draw(2, 5, 8), "w_qkv": draw(8, 24), "b_qkv": draw(24), "w_o": draw(8, 8), "b_o": draw(8),
        "heads": 4, "mask": "causal", "qkv_layout": "per-head",
    },
    "fused by group": {"seed": 12, "x": draw(5, 8), "w_qkv": draw(8, 16), "heads": 4, "kv_heads": 2, "qkv_layout": "per-group"},
    "grouped heads": {
        "seed": 4, "x": draw(5, 8), "w_q": draw(8, 8), "w_k": draw(8, 4), "w_v": draw(8, 4), "heads": 4, "kv_heads": 2
    },
    "dropout": {**HEADED, "dropout": {"rate": 0.3}},
    "dropout without heads": {**SELF, "dropout": {"rate": 0.5, "seed": 8}},
    "cross with padding": {
        "seed": 5, "x": draw(2, 3, 4), "x_kv": draw(2, 5, 6), "w_q": draw(4, 4), "w_k": draw(6, 4), "w_v": draw(6, 6),
        "b_q": draw(4), "b_k": draw(4), "b_v": draw(6), "heads": 2, "mask": {"padding": [4, 2]},
    },
    "direct": {"seed": 6, "q": draw(2, 3, 4, 5), "k": draw(2, 3, 6, 5), "v": draw(2, 3, 6, 2), "scale": 0.3},
    "direct, heads side by side": {"seed": 6, "q": draw(4, 8), "k": draw(5, 4), "v": draw(5, 6), "heads": 4, "kv_heads": 2},
    "w_o without heads": {**SELF, "w_o": draw(6, 3), "b_o": draw(3)},
    "stored out, in": {
        "seed": 9, "x": draw(4, 6), "w_q": draw(5, 6), "w_k": draw(5, 6), "w_v": draw(3, 6), "weight_layout": "out_in"
    },
    "keep": {**HEADED, "mask": {"keep": (np.arange(25).reshape(5, 5) % 3 != 1).astype(int).tolist()}},
    "ignore": {**SELF, "mask": {"ignore": (np.arange(16).reshape(4, 4) % 3 == 1).astype(int).tolist()}},
    "add": {**HEADED, "mask": {"add": draw(2, 1, 5, 5, seed=7)}},
    "add by head": {**HEADED, "mask": {"add": draw(2, 5, 5, seed=7)}},
    "window": {**SELF, "mask": {"window": {"left": 1, "right": 1}}},
    "bottom-right": {"seed": 6, "q": draw(4, 3), "k": draw(6, 3), "v": draw(6, 2), "mask": {"causal": "bottom-right"}},
    "list": {**HEADED, "mask": ["causal", {"padding": [5, 3]}, {"add": draw(5, 5, seed=7)}]},
    "a row without keys": {**SELF, "mask": {"keep": [[0, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [1, 1, 1, 1]]}},
    "only some queries": {**HEADED, "mask": ["causal", {"add": draw(5, 5, seed=7)}], "--queries": "2:4"},
    "only some queries, given": {**GIVEN, "mask": {"padding": [4, 5]}, "--queries": "-2:"},
    "only some queries, side by side": {
        "seed": 6, "q": draw(4, 8), "k": draw(5, 4), "v": draw(5, 6), "heads": 4, "kv_heads": 2, "--queries": "1:3"
    },
    "half rotated, scaled, after a cache": {
        **GROUPED, "cache": PAST, "mask": "causal", "rope": {"pairs": "half", "dims": 4, "scaling": LLAMA}
    },
    "pairs rotated, given positions": {
        **GROUPED, "rope": {"pairs": "interleaved", "positions": [[3, 1, 7], [0, 5, 2]], "key_positions": [9, 4, 0]}
    },
    "rotated, scaled evenly, some queries": {
        **GROUPED, "rope": {"pairs": "half", "offset": 3, "scaling": {"type": "linear", "factor": 4}}, "--queries": "1:"
    },
    "rotated by tables": {
        **GROUPED,
        "rope": {"pairs": "half", "cos": draw(9, 2), "sin": draw(9, 2), "dims": 4, "positions": [[3, 1, 7], [0, 5, 2]]},
    },
    "rotated by tables for each batch item": {
        **GROUPED, "rope": {"pairs": "interleaved", "cos": draw(2, 3, 3), "sin": draw(2, 3, 3)}
    },
    "rotated without heads": {**SELF, "rope": {"pairs": "half", "base": 100}},
    "norms of queries and keys": {
        **GROUPED, "qk_norm": {"norm": "rmsnorm", "q": draw(6), "k": draw(6)}, "rope": {"pairs": "half"}
    },
    "layernorm of queries and keys": {**SELF, "qk_norm": {"norm": "layernorm", "eps": 0.01}},
    "unit queries and keys": {**HEADED, "qk_norm": {"norm": "l2", "q": draw(4)}, "scale": 10},
    "paged, of unequal lengths": {
        **GROUPED, "cache": PAGED, "mask": {"window": {"left": 3, "right": 0}}, "rope": {"pairs": "half"}, "alibi": True
    },
    "paged, one sequence": {
        **SELF, "mask": "causal",
        "cache": {"blocks": {"k": draw(4, 2, 6), "v": draw(4, 2, 6)}, "table": [2, 0], "lengths": [3]},
    },
    "linear biases and softcap": {
        "seed": 7, "x": draw(4, 12), **square(12, "w_q", "w_k", "w_v"), "heads": 6, "alibi": True, "softcap": 2,
        "mask": "causal",
    },
    "linear biases aligned, without heads": {
        "seed": 6, "q": draw(4, 3), "k": draw(6, 3), "v": draw(6, 2), "alibi": {"slopes": [0.3], "align": "bottom-right"}
    },
    "sinks": {**HEADED, "sinks": draw(2), "mask": "causal", "softcap": 3},
    "a sink without heads": {**SELF, "sinks": [0.5]},
    "block, gated": {**BLOCK, "block": {"norm": "rmsnorm", "mlp": "gated"}, "w_gate": draw(6, 8), "b_gate": draw(8)},
    "block, gated by gelu, some queries": {
        **BLOCK, "block": {"norm": "layernorm", "mlp": "gated_gelu", "eps": 0.01}, "w_gate": draw(6, 8), "--queries": "1:3"
    },
    "block, normed afterwards": {
        **BLOCK, "block": {"norm": "layernorm", "mlp": "gelu", "order": "post"}, "b_norm1": draw(6), "b_norm2": draw(6)
    },
    "block, normed afterwards, some queries": {
        **BLOCK, "block": {"norm": "rmsnorm", "mlp": "silu", "order": "post"}, "--queries": ":2"
    },
    "block, side by side": {**BLOCK, "block": {"norm": "layernorm", "mlp": "gelu_tanh", "order": "parallel"}},
    "block, side by side, one norm": {
        **without(BLOCK, "w_norm2"), "block": {"norm": "rmsnorm", "mlp": "relu", "order": "parallel"}, "--queries": "2:"
    },
    "tiles": {**VARIED, "core": {"tiled": {"queries": 3, "keys": 2}}},
    "tiles after a cache": {**GROUPED, "cache": PAST, "mask": "causal", "core": {"tiled": {"queries": 2, "keys": 4}}},
    "tiles without heads": {**SELF, "core": {"tiled": {"queries": 3, "keys": 3}}, "--queries": "1:"},
    "ring": {**VARIED, "core": {"ring": {"devices": 2}}},
    "ring of more devices than queries": {**GROUPED, "cache": PAST, "core": {"ring": {"devices": 5}}, "--queries": "1:"},
}  # fmt: skip
MADE = ("mask", "distance", "positions", "key_positions")  # not computed, and yet the tool's own


def posed(config: dict[str, Any]) -> Any:
    """A problem; the key --queries is the option of that name."""
    return attntrace.load(without(config, "--queries"), queries=config.get("--queries"))


def compared(config: dict[str, Any]) -> list[str]:
    """The steps that can be wrong: those computed, and those that follow from the problem alone."""
    return [step.name for step in layer.trace(posed(config)) if not step.given or is_made(step.name)]


def is_made(name: str) -> bool:
    base, suffix = parted(name)
    return base in MADE or (base == "keep" and suffix != "")


def parted(name: str) -> tuple[str, str]:
    """scores_0_1 as scores and _0_1."""
    base = re.sub(r"(_\d+)+$", "", name)
    return base, name[len(base) :]


def sample(config: dict[str, Any]) -> list[str]:
    """The compared steps; of those that each tile has, the first and the last."""
    ends: dict[str, list[str]] = {}
    for name in compared(config):
        ends.setdefault(parted(name)[0], []).append(name)
    return [name for name in compared(config) if name in (ends[parted(name)[0]][0], ends[parted(name)[0]][-1])]


CASES = [(name, step) for name, config in PROBLEMS.items() for step in sample(config)]


@dataclass(frozen=True)
class Spoilt:
    """An operation whose result is spoilt afterwards."""

    right: Any
    spoil: Any

    @property
    def inner(self) -> Any:
        return self.right.inner

    def forward(self, *operands: np.ndarray) -> np.ndarray:
        return self.spoil(np.array(self.right.forward(*operands)))

    def rounding(self, *arguments: Any) -> Any:
        return self.right.rounding(*arguments)

    def spread(self, *arguments: Any) -> Any:
        return self.right.spread(*arguments)


def nudge(values: np.ndarray) -> np.ndarray:
    """One cell, the largest, off by a millionth; where all are zero, by a millionth of 1."""
    finite = np.where(np.isfinite(values), np.abs(values), -1)
    at = np.unravel_index(int(finite.argmax()), values.shape)
    values[at] = values[at] * (1 + 1e-6) or 1e-6
    return values


def last_nudge(values: np.ndarray) -> np.ndarray:
    """The last cell off by a millionth of the largest: an error in a corner, under a number that may be small."""
    top = np.abs(values[np.isfinite(values)]).max() or 1.0
    values[(-1,) * values.ndim] = (0 if np.isinf(values[(-1,) * values.ndim]) else values[(-1,) * values.ndim]) + 1e-6 * top
    return values


def shift(values: np.ndarray) -> np.ndarray:
    """All numbers there, in the wrong order."""
    return np.roll(values.ravel(), 1).reshape(values.shape)


def even(values: np.ndarray) -> np.ndarray:
    return np.full_like(values, 0.125)


def not_a_number(values: np.ndarray) -> np.ndarray:
    values[(0,) * values.ndim] = np.nan
    return values


def infinite(values: np.ndarray) -> np.ndarray:
    values[(0,) * values.ndim] = np.inf
    return values


def report(config: dict[str, Any], name: str, spoil: Any) -> Any:
    """What verify says of a trace whose step `name` is spoilt."""
    problem = posed(config)
    trace = layer.trace(problem)
    step = trace[name]
    if step.given:
        read = step.read
        step.read = lambda: spoil(np.array(read(), step.dtype))
    else:
        step.operation = Spoilt(step.operation, spoil)
    return verify(problem, trace)


@pytest.mark.parametrize("config", PROBLEMS.values(), ids=PROBLEMS)
def test_without_a_fault_all_steps_agree(config: dict[str, Any]) -> None:
    found = attntrace.verify(posed(config))
    assert found.agrees, found.verdict
    assert [row.step for row in found.rows] == compared(config)
    assert found.first is None


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("config", PROBLEMS.values(), ids=PROBLEMS)
def test_all_steps_agree_in_every_dtype(config: dict[str, Any], name: str) -> None:
    found = attntrace.verify(posed({**config, "dtype": name}))
    assert found.agrees, f"{found.verdict}: {found.first}"


@pytest.mark.parametrize(("name", "step"), CASES, ids=[f"{name}: {step}" for name, step in CASES])
def test_a_fault_is_found_and_named(name: str, step: str) -> None:
    """Only the faulty step differs: those after it are recomputed from it, and so are right. The cell is named too."""
    found = report(PROBLEMS[name], step, nudge)
    assert not found.agrees
    assert found.first.step == step
    assert f"the first that differs is {step} (" in found.verdict
    wrong = [row for row in found.rows if not row.difference.agrees]
    assert [row.step for row in wrong] == [step]
    right = layer.trace(posed(PROBLEMS[name]))[step].values
    assert nudge(np.array(right))[wrong[0].difference.worst] != right[wrong[0].difference.worst]


SPOILT = (last_nudge, shift, even, not_a_number, infinite)
FIRST = list({parted(step)[0] + "_" * (parted(step)[1] != ""): (name, step) for name, step in reversed(CASES)}.values())
EVERY_STEP = [case for case in CASES if case[0] in ("fused causal with biases", "grouped heads", "dropout")]


@pytest.mark.parametrize("spoil", SPOILT)
@pytest.mark.parametrize(("name", "step"), dict.fromkeys([*EVERY_STEP, *FIRST]))
def test_other_faults_are_found_and_named(name: str, step: str, spoil: Any) -> None:
    """Of every kind of step, in a tile and out of it, the first one that the problems have."""
    found = report(PROBLEMS[name], step, spoil)
    assert not found.agrees
    assert found.first.step == step


FORMULAS = {
    "scale by √d_model": (ops.Divide, "forward", lambda self, s: s / np.sqrt(8), "scaled"),
    "no scale": (ops.Divide, "forward", lambda self, s: s, "scaled"),
    "softmax over queries": (ops.Softmax, "forward", lambda self, s: np.exp(s) / np.exp(s).sum(-2, keepdims=True), "weights"),
    "softmax in base 2": (ops.Softmax, "forward", lambda self, s: np.exp2(s) / np.exp2(s).sum(-1, keepdims=True), "weights"),
    "merge without transpose": (ops.Merge, "forward", lambda self, c: c.reshape(2, 5, 8), "concat"),
    "split without transpose": (ops.matrix, "split", lambda y, heads: y.reshape(2, heads, 5, -1), "q"),
}


@pytest.mark.parametrize(("owner", "name", "wrong", "step"), FORMULAS.values(), ids=FORMULAS)
def test_a_wrong_formula_is_found(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, wrong: Any, step: str) -> None:
    monkeypatch.setattr(owner, name, wrong)
    found = attntrace.verify(HEADED)
    assert found.first is not None
    assert found.first.step == step


def other_pairs(self: Any) -> tuple[slice, slice]:
    half = self.dims // 2
    halves, neighbours = (slice(0, half), slice(half, self.dims)), (slice(0, self.dims, 2), slice(1, self.dims, 2))
    return neighbours if self.pairs == "half" else halves


VARIANTS = {  # what people get wrong: (owner, name, the wrong one, problem, first step that differs)
    "pairs of the other convention": (ops.Rotate, "indexes", other_pairs, "half rotated, scaled, after a cache", "q_rot"),
    "pairs of the other convention, again": (ops.Rotate, "indexes", other_pairs, "pairs rotated, given positions", "q_rot"),
    "turned the other way": (ops.Sin, "forward", lambda self, x: -np.sin(x), "rotated without heads", "sin"),
    "frequencies of d": (
        ops.Frequencies, "forward", lambda self: self.base ** -(np.arange(self.dims // 2) / self.dims), "rotated without heads",
        "frequencies",
    ),
    "a scaling left out": (
        position.Llama3, "__call__", lambda self, x: x, "half rotated, scaled, after a cache", "frequencies"
    ),
    "a scaling the wrong way round": (
        position.Linear, "__call__", lambda self, x: x * self.factor, "rotated, scaled evenly, some queries", "frequencies"
    ),
    "positions that begin at 0 after a cache": (
        Rope, "standing", lambda self, p, count: np.arange(count), "half rotated, scaled, after a cache", "positions"
    ),
    "a causal mask that forgets the cache": (
        place, "first", lambda p, align: np.array([0]), "half rotated, scaled, after a cache", "mask"
    ),
    "slots of a page taken for positions": (
        place, "key_positions", lambda p, at: np.array([at.keys]), "paged, of unequal lengths", "distance"
    ),
    "pages in the order of memory": (
        ops.Gather, "forward", lambda self, blocks, table: GATHER(self, blocks, np.sort(table)), "paged, of unequal lengths",
        "k_past",
    ),
    "new keys before the past": (
        ops.Concat, "forward", lambda self, *x: np.concatenate(x[::-1], -2), "tiles after a cache", "k_all"
    ),
    "a bias that grows": (
        ops.LinearBias, "forward", lambda self, m, x: m[:, None, None] * x, "linear biases and softcap", "alibi"
    ),
    "slopes without the heads between": (
        ops.Slopes, "forward", lambda self: 2.0 ** (-8 * np.arange(1, 7) / 6), "linear biases and softcap", "slopes"
    ),
    "a cap that only clips": (ops.Softcap, "forward", lambda self, s: s.clip(-self.cap, self.cap), "sinks", "capped"),
    "a sink left out": (ops.Softmax, "_with_sink", lambda self, s, z: ops.Softmax().forward(s), "sinks", "weights"),
    "epsilon beside the root": (
        ops.Normalise, "_size", lambda self, x: x.std(-1, keepdims=True) + self.eps, "layernorm of queries and keys", "q_norm"
    ),
    "variance of a sample": (
        ops.Normalise, "_size", lambda self, x: np.sqrt(x.var(-1, keepdims=True, ddof=1) + self.eps),
        "block, normed afterwards", "normed1",
    ),
    "the other gelu": (
        ops.Activate, "forward", lambda self, x: torch.nn.functional.gelu(torch.tensor(x)).numpy(), "block, side by side",
        "activated",
    ),
    "a running sum that is not rescaled": (ops.Combine, "forward", lambda self, a, f, b, g=1: a + b, "tiles", "sum_0_1"),
    "a maximum that forgets": (ops.Maximum, "forward", lambda self, a, b: b, "tiles", "max_0_1"),
    "a sink of the wrong size": (
        ops.AddSink, "forward", lambda self, total, m, z: total + np.exp(z)[:, None], "ring", "total_0"
    ),
}  # fmt: skip
GATHER = ops.Gather.forward


@pytest.mark.parametrize(("owner", "name", "wrong", "problem", "step"), VARIANTS.values(), ids=VARIANTS)
def test_a_wrong_formula_of_a_variant_is_found(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, wrong: Any, problem: str, step: str
) -> None:
    monkeypatch.setattr(owner, name, wrong)
    assert attntrace.verify(posed(PROBLEMS[problem])).first.step == step


def test_a_group_repeated_in_the_wrong_order_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops.Repeat, "forward", lambda self, k: np.concatenate([k] * self.times, axis=-3))
    assert attntrace.verify(PROBLEMS["grouped heads"]).first.step == "k_shared"


@pytest.mark.parametrize("layout", ["q|k|v", "per-group"])
def test_a_fused_matrix_read_in_another_layout_is_found(layout: str) -> None:
    """The reference reads the config, so a trace of another layout than the config's is not the config's."""
    config = {**PROBLEMS["fused by group"], "qkv_layout": layout}
    other = {**config, "qkv_layout": "per-group" if layout == "q|k|v" else "q|k|v"}
    assert verify(attntrace.load(config), attntrace.trace(other)).first.step == "q"


@pytest.mark.parametrize(("name", "part"), [("float32", 1e-4), ("float16", 0.02), ("bfloat16", 0.06)])
@pytest.mark.parametrize("step", compared(HEADED))
def test_a_fault_is_found_in_every_dtype(name: str, part: float, step: str) -> None:
    def spoil(values: np.ndarray) -> np.ndarray:
        at = np.unravel_index(int(np.abs(values).argmax()), values.shape)
        values[at] *= 1 + part
        return values

    assert report({**HEADED, "dtype": name}, step, spoil).first.step == step


def test_an_opinion_can_differ_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own attention is asked too: a reference whose steps echo a common error would be caught by it."""
    from attntrace.reference import torch as reference

    monkeypatch.setattr(ops.Divide, "forward", lambda self, s: s / 3)
    monkeypatch.setitem(reference.STEPS, "scaled", ("div", lambda p, a: a["scores"] / 3))
    found = attntrace.verify(SELF)
    assert all(row.difference.agrees for row in found.rows)
    assert {row.what for row in found.opinions if not row.difference.agrees} == {
        "scaled_dot_product_attention",
        "nn.MultiheadAttention",
    }
    assert not found.agrees
    assert "the first that differs is output (scaled_dot_product_attention)" in found.verdict


# ------------------------------------------------------------------ torch's own attention

FUSED, FLEX, MULTI = "scaled_dot_product_attention", "flex_attention", "nn.MultiheadAttention"
PARTS = {"block": {"norm": "rmsnorm", "mlp": "relu", "order": "pre"}, "w_up": draw(6, 8), "w_down": draw(8, 6)}
OPINIONS: dict[str, tuple[dict[str, Any], set[str]]] = {  # config, and what can be asked
    "plain": (SELF, {FUSED, MULTI}),
    "heads and a mask": ({**HEADED, "mask": ["causal", {"add": draw(2, 5, 5, seed=7)}]}, {FUSED, MULTI}),
    "some queries": ({**HEADED, "mask": "causal", "--queries": "2:4"}, {FUSED, MULTI}),
    "linear biases": ({**HEADED, "alibi": True, "mask": "causal"}, {FUSED, MULTI}),
    "linear biases without heads": ({**SELF, "alibi": True}, {FUSED, MULTI}),
    "a block before": ({**SELF, **PARTS}, {FUSED, MULTI}),
    "a block, some queries": ({**SELF, **PARTS, "--queries": "1:3"}, {FUSED, MULTI}),
    "tiles": ({**HEADED, "mask": "causal", "core": {"tiled": {"queries": 2, "keys": 2}}}, {FUSED, MULTI}),
    "a ring": ({**HEADED, "mask": "causal", "core": {"ring": {"devices": 3}}, "--queries": "1:"}, {FUSED, MULTI}),
    "groups": (GROUPED, {FUSED}),
    "rotations and a cache": (PROBLEMS["half rotated, scaled, after a cache"], {FUSED}),
    "unequal caches and biases": (PROBLEMS["paged, of unequal lengths"], {FUSED}),
    "norms": (PROBLEMS["norms of queries and keys"], {FUSED}),
    "a softmax of its own dtype": ({**HEADED, "softmax_dtype": "float32"}, {FUSED, MULTI}),
    "softcap": (PROBLEMS["linear biases and softcap"], {FLEX}),
    "sinks": ({**HEADED, "sinks": draw(2)}, {FLEX}),
    "a sink without heads": ({**SELF, "sinks": [0.5], "softcap": 2, "alibi": True}, {FLEX}),
    "softcap, groups and sinks": ({**without(VARIED, "dropout"), "core": {"ring": {"devices": 2}}}, {FLEX}),
    "sinks of half precision": ({**without(VARIED, "dropout"), "dtype": "bfloat16"}, {FLEX}),
    "dropout": (PROBLEMS["dropout"], set()),
    "dropout and softcap": (PROBLEMS["tiles"], set()),
    "NaN for a row without keys": ({**SELF, "masked_row": "nan", "mask": "causal", "softcap": 2.0}, set()),
}  # fmt: skip


@pytest.mark.parametrize(("config", "asked"), OPINIONS.values(), ids=OPINIONS)
def test_whoever_can_express_a_problem_is_asked(config: dict[str, Any], asked: set[str]) -> None:
    """And whoever cannot says why. Each finds the values planted elsewhere wrong: see the next test."""
    from attntrace.reference.torch import silences, whole

    problem = posed(config)
    trace = layer.trace(problem)
    have = {step.name: step.values for step in trace}
    opinions = list(whole(problem, have))
    assert {o.what for o in opinions} == asked
    assert {o.step for o in opinions if o.what != MULTI} <= {"context" if "context" in have else "output"}
    assert all(opinion_row(o, trace, have).difference.agrees for o in opinions)
    silent = silences(problem, have)
    wanted = {FUSED, MULTI} | ({FLEX} if {"softcap", "sinks"} & config.keys() else set())
    assert silent.keys() == wanted - asked
    assert all(silent.values())


SPANNED = [(name, what) for name, (_, asked) in OPINIONS.items() for what in sorted(asked)]


@pytest.mark.parametrize(("name", "what"), [case for case in SPANNED if case[0] != "sinks of half precision"])
def test_an_opinion_finds_a_fault(name: str, what: str) -> None:
    from attntrace.reference.torch import whole

    problem = posed(OPINIONS[name][0])
    trace = layer.trace(problem)
    have = {step.name: step.values for step in trace}
    size = 1e-6 if name != "a softmax of its own dtype" else 1e-3
    for o in [o for o in whole(problem, have) if o.what == what]:
        assert set(o.start) <= have.keys(), "both begin from steps of the trace"
        spoilt = have | {o.step: have[o.step] * (1 + size)}
        assert not opinion_row(o, trace, spoilt).difference.agrees


def test_why_flex_attention_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    from attntrace.reference.torch import whole as module_function
    from attntrace.reference.torch.whole import silences

    monkeypatch.setitem(module_function.__globals__, "flex_attention", None)
    problem = posed({**SELF, "softcap": 2.0})
    assert silences(problem, {})[FLEX] == "this version of torch has none that runs as it is"
    assert attntrace.verify(problem).opinions == ()


# ------------------------------------------------------------------ what is compared, and what is not


def test_inputs_are_listed_as_given() -> None:
    found = attntrace.verify(PROBLEMS["dropout"])
    assert found.given == ("x", "w_q", "w_k", "w_v", "w_o", "keep")
    assert attntrace.verify(PROBLEMS["direct, heads side by side"]).given == ("q_merged", "k_merged", "v_merged")


# Steps that are numbers of the config, or of the generator that dropout draws from.
NUMBERS = {
    *INPUTS, "keep", "slopes", "table", "cos_table", "sin_table",
    *(f"{letter}_{what}" for letter in "qkv" for what in ("merged", "given", "past", "blocks", "norm_weight")),
}  # fmt: skip


def test_every_step_is_compared_or_given() -> None:
    for config in PROBLEMS.values():
        given = {step.name for step in layer.trace(posed(config)) if step.given and not is_made(step.name)}
        assert given <= NUMBERS


def test_every_step_of_the_reference_has_been_seen_to_fail() -> None:
    from attntrace.reference.torch import STEPS, TILES

    seen = [parted(step) for _, step in CASES]
    assert {base for base, suffix in seen if not suffix} == set(STEPS)
    assert {base for base, suffix in seen if suffix} == set(TILES)


def test_comparing_nothing_is_an_error() -> None:
    problem = attntrace.load("toy")
    with pytest.raises(AttnTraceError, match="nothing to compare: x is given, not computed") as error:
        verify(problem, layer.trace(problem), only=["x"])
    assert error.value.exit_code == 2


def test_only_some_steps() -> None:
    problem = attntrace.load("toy")
    found = verify(problem, layer.trace(problem), only=["x", "weights", "q"])
    assert [row.step for row in found.rows] == ["q", "weights"]
    assert found.given == ("x",)
    with pytest.raises(AttnTraceError, match="there is no step 'wieghts' in this trace; did you mean \"weights\""):
        verify(problem, layer.trace(problem), only=["wieghts"])


def test_an_unknown_reference() -> None:
    with pytest.raises(AttnTraceError, match="--against torhc: expected torch"):
        attntrace.verify("toy", against="torhc")


def test_the_verdict_counts() -> None:
    assert attntrace.verify("toy").verdict.startswith(
        f"7 of 7 steps agree with torch {torch.__version__.partition('+')[0]}; so do "
    )


def test_the_reference_shares_no_arithmetic_with_the_layer() -> None:
    """Of the parts it knows the classes, which say what the config says, and no function; nor what they work out of it."""
    files = sorted((Path(attntrace.__file__).with_name("reference") / "torch").glob("*.py"))
    imported, called = set(), set()
    for node in [node for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))]:
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            imported |= {f"{node.module}.{alias.name}" for alias in node.names}
        if isinstance(node, ast.Attribute):
            called.add(node.attr)
    assert "torch" in imported
    assert not [name for name in imported if name.startswith(("attntrace.ops", "attntrace.layer", "attntrace.compare"))]
    parts = {name for name in imported if name.startswith(("attntrace.parts", "attntrace.cores"))} - {"attntrace.parts.mask"}
    assert {name.rpartition(".")[2] for name in parts} == {"Alibi", "Block", "Cache", "QKNorm", "Ring", "Rope", "Tiled"}
    assert not called & {"turned", "standing", "effective", "allowed", "whole", "divisor", "columns", "past", "rows", "axes"}


def test_overflow_within_a_step_is_not_held_against_torchs_attention() -> None:
    """Scores of 9e4 are infinite in float16, as torch's matmul says too; its fused attention adds up in float32."""
    config = {"q": [[300.0, 0]], "k": [[300.0, 0], [0, 1]], "v": [[1.0], [2.0]], "dtype": "float16"}
    found = attntrace.verify(config)
    assert found.agrees
    assert found.opinions == ()
    assert attntrace.trace(config)["scores"].values[0, 0] == np.inf


@pytest.mark.parametrize("inner", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("sinks", [{}, {"sinks": [0.5]}])
def test_a_softmax_of_another_dtype(inner: str, sinks: dict[str, Any]) -> None:
    """Its numbers are of that dtype, and a fault of more than a few units of it is found."""
    config = {**SELF, "scale": 0.1, "softmax_dtype": inner, **sinks}
    assert attntrace.verify(config).agrees
    values = attntrace.trace(config)["weights"].values
    assert (values == values.astype(dtype(inner)).astype(values.dtype)).all()
    part = {"float32": 1e-4, "float16": 0.1, "bfloat16": 0.5}[inner]
    for step in ("weights", *(("sink_weights",) if sinks else ())):
        assert report(config, step, lambda values: values * (1 + part)).first.step == step


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["x", "w_k", "w_v"])
def test_nan_and_infinity_in_an_input_agree_step_by_step(name: str, value: float) -> None:
    array = np.random.default_rng(0).normal(size=(3, 3))
    config = {n: array.copy() for n in ("x", "w_q", "w_k", "w_v")}
    config[name][1, 2] = value
    assert attntrace.verify(config).agrees


def test_arrays_that_may_not_be_written_to() -> None:
    array = np.broadcast_to(np.arange(3.0), (3, 3))
    assert not array.flags.writeable
    assert attntrace.verify(dict.fromkeys(("x", "w_q", "w_k", "w_v"), array)).agrees


def test_nan_weights_through_dropout() -> None:
    """0 · NaN is NaN: a plain softmax's NaN row stays one, as in torch's dropout."""
    config = {**SELF, "masked_row": "nan", "mask": {"keep": [[0], [1], [1], [1]]}, "dropout": {"rate": 0.5}}
    assert attntrace.verify(config).agrees
    assert np.isnan(attntrace.trace(config)["dropped"].values[0]).all()


# ------------------------------------------------------------------ exit codes


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`attntrace` with these arguments, in a process that first runs `code`."""
    script = f"import sys\nsys.argv[0] = 'attntrace'\n{code}\nfrom attntrace.cli.app import main\nmain()\n"
    return subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, encoding="utf-8", check=False
    )


BREAK_SOFTMAX = """
import numpy as np
from attntrace.ops import Softmax
right = Softmax.forward
def wrong(self, s):
    a = right(self, s)
    a[0, 0] *= 1 + 1e-6
    return a
Softmax.forward = wrong
"""


def test_exit_codes_without_and_with_a_fault() -> None:
    right = run("", "verify", "toy")
    assert right.returncode == 0, right.stderr
    wrong = run(BREAK_SOFTMAX, "verify", "toy")
    assert wrong.returncode == 1
    assert "6 of 7 steps agree" in wrong.stdout
    assert "the first that differs is weights (softmax)" in wrong.stdout
    assert run(BREAK_SOFTMAX, "verify", "toy", "--quiet").returncode == 1


def test_exit_code_when_nothing_is_compared() -> None:
    found = run("", "verify", "toy", "--steps", "x")
    assert (found.returncode, found.stdout) == (2, "")
    assert "nothing to compare" in found.stderr


def test_exit_code_without_torch() -> None:
    found = run("sys.modules['torch'] = None", "verify", "toy")
    assert (found.returncode, found.stdout) == (3, "")
    assert found.stderr.strip() == "error: verify needs torch, which is not installed: pip install 'attntrace[torch]'"


def test_a_missing_torch_is_told_by_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "attntrace.reference.torch", raising=False)
    with pytest.raises(MissingPackage, match=r"pip install 'attntrace\[torch\]'"):
        attntrace.verify("toy")


# ------------------------------------------------------------------ compare: tolerances, ulps, NaN and infinities


def step_of(operation: Any, *operands: np.ndarray, name: str = "float64") -> Any:
    """As much of a step as compare looks at."""
    kind = dtype(name)
    given = [SimpleNamespace(values=o.astype(kind), operation=None, shape=o.shape, dtype=kind) for o in operands]
    wide = [g.values.astype(np.float32) if kind.itemsize < 4 else g.values for g in given]
    with np.errstate(all="ignore"):
        values = operation.forward(*wide).astype(kind)
    return SimpleNamespace(values=values, operation=operation, operands=given, shape=values.shape, dtype=kind)


def dot(length: int, name: str = "float64", size: float = 1.0) -> Any:
    return step_of(ops.MatMul(), np.full((1, length), size), np.ones((length, 1)), name=name)


def test_a_tolerance_grows_with_the_length_of_the_sum_and_the_size_of_its_terms() -> None:
    for length in (4, 64, 4096):
        assert compare.tolerance(dot(8 * length)) > 8 * compare.tolerance(dot(length))
    assert compare.tolerance(dot(64, size=100)) == pytest.approx(100 * compare.tolerance(dot(64)))


def test_a_tolerance_is_the_sum_s_and_not_the_result_s() -> None:
    """1e8 − 1e8 + 1: what is lost is lost of the terms, however small their sum."""
    cancelling = step_of(ops.MatMul(), np.array([[1e8, -1e8, 1.0]]), np.ones((3, 1)))
    assert cancelling.values.item() == 1
    assert 1e-8 < compare.tolerance(cancelling).item() < 1e-6


def test_a_tolerance_grows_with_the_dtype() -> None:
    tolerances = [compare.tolerance(dot(16, name)).item() for name in ("float64", "float32", "float16", "bfloat16")]
    assert tolerances == sorted(tolerances)
    assert tolerances[1] / tolerances[0] == pytest.approx(2**29)  # 53 bits against 24
    assert tolerances[3] / tolerances[2] == pytest.approx(2**3, rel=0.2)  # 8 against 11; both add up in float32


def test_copies_are_held_to_the_last_bit() -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 4))
    for operation in (ops.Merge(), ops.Same(), ops.Repeat(2), ops.Split(2)):
        assert not compare.tolerance(step_of(operation, x)).any()


@pytest.mark.parametrize("name", ["float64", "float32", "float16", "bfloat16"])
def test_two_orders_of_adding_lie_within_the_tolerance(name: str) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(20, 50)), rng.normal(size=(50, 20))
    forth, back = step_of(ops.MatMul(), a, b, name=name), step_of(ops.MatMul(), a[:, ::-1], b[::-1], name=name)
    found = compare.difference(forth.values, back.values, compare.tolerance(forth), forth)
    assert found.agrees
    exact = forth.operands[0].values.astype(float) @ forth.operands[1].values.astype(float)
    assert (np.abs(forth.values.astype(float) - exact) <= compare.rounding(forth) + 1e-13).all()


@pytest.mark.parametrize("value", [1.0, 1.5, -3.7, 1e300, 2.0**52, 1e-310, 5e-324, 0.0, 0.1])
def test_ulps_of_float64_are_those_of_math(value: float) -> None:
    assert compare.spacing(np.array([value]), dot(2)) == math.ulp(value)


@pytest.mark.parametrize("name", ["float32", "float16"])
@pytest.mark.parametrize("value", [1.0, 1.5, 3.7, 60000.0, 1e-6, 0.0, 0.1])
def test_ulps_of_other_dtypes_are_those_of_numpy(name: str, value: float) -> None:
    number = np.dtype(name).type(value)
    assert compare.spacing(np.array([float(number)]), dot(2, name)) == float(np.spacing(number))


def test_ulps_of_bfloat16() -> None:
    step, ulp = dot(2, "bfloat16"), float(np.spacing(ml_dtypes.bfloat16(3)))
    assert compare.spacing(np.array([3.0]), step) == ulp == 2.0**-6


def test_a_difference_in_ulps() -> None:
    ours = np.array([1.0, 2.0])
    theirs = np.array([1.0, np.nextafter(np.nextafter(2.0, 3), 3)])
    found = compare.difference(ours, theirs, np.full(2, 1e-12), dot(2))
    assert (found.ulps, found.worst, found.error, found.tolerance, found.agrees) == (2, (1,), 2 * math.ulp(2.0), 1e-12, True)


SAME = [(math.nan, math.nan), (math.inf, math.inf), (-math.inf, -math.inf), (0.0, -0.0), (1.0, 1.0)]
DIFFERENT = [
    (math.nan, 1.0),
    (1.0, math.nan),
    (math.inf, -math.inf),
    (math.inf, 1.0),
    (-math.inf, sys.float_info.max),
    (math.nan, math.inf),
]


@pytest.mark.parametrize("allowed", [0.0, 1e-3])
@pytest.mark.parametrize(("ours", "theirs", "agrees"), [(*p, True) for p in SAME] + [(*p, False) for p in DIFFERENT])
def test_nan_and_infinity(ours: float, theirs: float, agrees: bool, allowed: float) -> None:
    found = compare.difference(np.array([ours]), np.array([theirs]), np.array([allowed]), dot(2))
    assert found.agrees is agrees
    assert found.error == (0 if agrees else math.inf)


@pytest.mark.parametrize("name", ["float64", "float32", "float16"])
def test_a_mask_filled_with_the_smallest_number_is_not_infinity(name: str) -> None:
    step, lowest = dot(2, name), float(np.finfo(name).min)
    assert not compare.difference(np.array([lowest]), np.array([-math.inf]), np.zeros(1), step).agrees
    scores = step_of(ops.AddMask(), np.ones((1, 1)), np.full((1, 1), -math.inf), name=name)
    assert not compare.difference(np.array([[lowest]]), scores.values, compare.tolerance(scores), scores).agrees


def test_a_sum_at_the_edge_of_its_dtype_may_be_rounded_to_infinity() -> None:
    """65519 is the last float16 sum before infinity, and sums that differ in the last place may fall to either side."""
    step = dot(2, "float16", 32750.0)
    assert compare.difference(np.array([[65504.0]]), np.array([[math.inf]]), compare.tolerance(step), step).agrees
    assert not compare.difference(np.array([[60000.0]]), np.array([[math.inf]]), compare.tolerance(step), step).agrees


def test_sums_that_overflow_on_the_way_are_not_held_to_anything() -> None:
    """(1e308 + 1e308) − 1e308 is infinite, 1e308 + (1e308 − 1e308) is not; a neighbour that does not overflow is held."""
    a = np.array([[1e308, 1e308, -1e308], [1.0, 2.0, 3.0]])
    step = step_of(ops.MatMul(), a, np.ones((3, 1)))
    tolerance = compare.tolerance(step)
    assert np.isinf(tolerance[0])
    assert tolerance[1] < 1e-12
    assert compare.difference(np.array([[1e308], [6.0]]), np.array([[math.inf], [6.0]]), tolerance, step).agrees
    assert not compare.difference(np.array([[1e308], [6.1]]), np.array([[math.inf], [6.0]]), tolerance, step).agrees


def test_another_shape_differs() -> None:
    assert not compare.difference(np.zeros((2, 1)), np.zeros((1, 2)), np.zeros((2, 1)), dot(2)).agrees


def test_accumulated_bounds_grow_along_the_tape_and_hold_a_perturbation() -> None:
    """Inputs moved by d move each step by no more than its accumulated bound says."""
    rng = np.random.default_rng(3)
    config = {"x": rng.normal(size=(4, 3)), **{w: rng.normal(size=(3, 3)) for w in ("w_q", "w_k", "w_v", "w_o")}}
    trace = attntrace.trace({**config, "mask": "causal"})
    for d in (1e-9, 1e-3):
        moved = attntrace.trace({**config, "x": config["x"] + d * rng.choice([-1, 1], size=(4, 3)), "mask": "causal"})
        start = {"x": np.full((4, 3), d)}
        for name in ("q", "scores", "scaled", "masked", "weights", "context", "output"):
            bound = compare.accumulated(trace[name], start)
            with np.errstate(invalid="ignore"):
                off = np.nan_to_num(np.abs(moved[name].values - trace[name].values))  # −∞ − −∞
            assert (off <= bound).all(), name
            assert bound.max() < 1e3 * off.max(), f"{name}: so wide a bound says nothing"


def test_a_sink_of_minus_infinity_is_none() -> None:
    """exp(−∞) is 0: the weights are those without a sink, and their tolerance is that of a softmax."""
    found = attntrace.verify({**SELF, "sinks": [-math.inf]})
    assert found.agrees
    np.testing.assert_allclose(attntrace.trace({**SELF, "sinks": [-math.inf]})["weights"].values.sum(axis=-1), 1, rtol=1e-15)
