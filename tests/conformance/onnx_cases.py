"""ONNX's own node test cases, and each of them as a config.

A case is a model of one node with its inputs and the outputs that the operator's reference gives for them. The `_expanded`
ones, the same node written out as many smaller ones, have the same inputs and outputs and are not taken.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
onnx_node = pytest.importorskip("onnx.backend.test.case.node")
Array = np.ndarray
Config = dict[str, Any]

MODULES = {"Attention": "attention", "RotaryEmbedding": "rotaryembedding", "FlexAttention": "flexattention"}
QK_STEPS = ("scaled", "capped", "masked", "weights")  # what qk_matmul_output is, by its mode
PRECISIONS = {
    onnx.TensorProto.FLOAT: "float32",
    onnx.TensorProto.FLOAT16: "float16",
    onnx.TensorProto.DOUBLE: "float64",
    onnx.TensorProto.BFLOAT16: "bfloat16",
}


@dataclass(frozen=True)
class Case:
    """A node, the arrays that go in and those that should come out, by the operator's names for them."""

    name: str
    operator: str
    attributes: dict[str, Any]
    inputs: dict[str, Array]
    outputs: dict[str, Array]

    @property
    def dtype(self) -> str:
        return next(iter(self.inputs.values())).dtype.name


def every_model() -> list[Any]:
    """All models of the operators in MODULES, single nodes and expanded ones.

    `collect_testcases` makes the cases of every operator there is, or of one, and that once in a process. Importing three
    modules fills the same list, twenty times as fast. The cases draw from NumPy's global generator, seeded anew for each.
    """
    state = np.random.get_state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rows that are masked altogether divide 0 by 0
        for module in MODULES.values():
            import_module(f"{onnx_node.__name__}.{module}")
    np.random.set_state(state)
    return list(onnx_node._NodeTestCases)


def single(model: Any) -> Case | None:
    """The case of a model, if it is a single node of an operator in MODULES."""
    nodes = model.model.graph.node
    if len(nodes) != 1 or nodes[0].op_type not in MODULES:
        return None
    (node,), (arrays,) = nodes, model.data_sets
    inputs, outputs = (
        dict(zip(filter(None, names), given, strict=True))
        for names, given in zip((node.input, node.output), arrays, strict=True)
    )
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    return Case(model.name, node.op_type, attributes, inputs, outputs)


MODELS = every_model()
CASES = {case.name: case for case in map(single, MODELS) if case is not None}


def of(operator: str) -> list[Case]:
    return [case for case in CASES.values() if case.operator == operator]


def config(case: Case) -> Config:
    return {"Attention": attention, "RotaryEmbedding": rotary, "FlexAttention": flex}[case.operator](case)


def expected(case: Case) -> dict[str, Array]:
    """What the steps of the trace should be, by their names."""
    if case.operator == "RotaryEmbedding":
        turned = split(case.outputs["output"], case.attributes.get("num_heads"))
        return {"q_rot": turned, "k_rot": turned}
    mode = case.attributes.get("qk_matmul_output_mode", 0)
    steps = {"present_key": "k_all", "present_value": "v_all", "qk_matmul_output": QK_STEPS[mode]}
    steps["Y"] = "output" if case.outputs["Y"].ndim == 3 else "context"  # heads side by side, or apart
    return {steps[name]: numbers for name, numbers in case.outputs.items()}


def expanded(operator: str) -> int:
    """How many models write a case of the operator out in smaller nodes."""
    names = tuple(f"{case.name}_expanded" for case in of(operator))
    return sum(model.name.startswith(names) for model in MODELS)


# ------------------------------------------------------------------ Attention


def split(x: Array, heads: int | None) -> Array:
    """(batch, token, heads · d) as (batch, head, token, d); what has a head axis stays as it is."""
    if x.ndim == 4 or heads is None:
        return x
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def attention(case: Case) -> Config:
    heads = case.attributes.get("q_num_heads"), case.attributes.get("kv_num_heads")
    q, k, v = (split(case.inputs[name], heads[name != "Q"]) for name in "QKV")
    config = {**layer(case.dtype, q, k, v), **options(case.attributes), **cache(case)}
    masks = [*positional(case), *padding(case), *given_mask(case, k.shape[2] + past(case))]
    return {**config, "mask": masks} if masks else config


def layer(dtype: str, q: Array, k: Array, v: Array) -> Config:
    config = {"dtype": dtype, "q": q, "k": k, "v": v}
    return config if q.shape[1] == k.shape[1] else {**config, "heads": q.shape[1], "kv_heads": k.shape[1]}


def options(attributes: dict[str, Any]) -> Config:
    """`scale`, `softcap` (0 is none) and the dtype of softmax."""
    config = {"scale": attributes["scale"]} if "scale" in attributes else {}
    if attributes.get("softcap"):
        config["softcap"] = attributes["softcap"]
    if "softmax_precision" in attributes:
        config["softmax_dtype"] = PRECISIONS[attributes["softmax_precision"]]
    return config


def cache(case: Case) -> Config:
    if "past_key" not in case.inputs:
        return {}
    return {"cache": {"k": case.inputs["past_key"], "v": case.inputs["past_value"]}}


def past(case: Case) -> int:
    return case.inputs["past_key"].shape[2] if "past_key" in case.inputs else 0


def alignment(case: Case) -> str | int:
    """Where the first query stands: after the past, before the last real key, or at the first key."""
    if "past_key" in case.inputs:
        return past(case)
    return "bottom-right" if "nonpad_kv_seqlen" in case.inputs else "top-left"


def positional(case: Case) -> list[Config]:
    """`is_causal` and the window; a side of −1 has no limit."""
    align, attributes = alignment(case), case.attributes
    masks: list[Config] = [{"causal": align}] if attributes.get("is_causal") else []
    sides = {side: attributes.get(f"{side}_window_size", -1) for side in ("left", "right")}
    limits = {side: size for side, size in sides.items() if size >= 0}
    return [*masks, {"window": {**limits, "align": align}}] if limits else masks


def padding(case: Case) -> list[Config]:
    lengths = case.inputs.get("nonpad_kv_seqlen")
    return [] if lengths is None else [{"padding": lengths.tolist()}]


def given_mask(case: Case, keys: int) -> list[Config]:
    """`attn_mask`; keys that it does not reach are hidden."""
    mask = case.inputs.get("attn_mask")
    if mask is None:
        return []
    kind, hidden = ("keep", False) if mask.dtype == bool else ("add", -np.inf)
    short = keys - mask.shape[-1]
    return [{kind: np.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, short)], constant_values=hidden)}]


# ------------------------------------------------------------------ RotaryEmbedding


def rotary(case: Case) -> Config:
    """Queries and keys that are both the input; the values are of no account."""
    x = split(case.inputs["input"], case.attributes.get("num_heads"))
    rope = {"pairs": "interleaved" if case.attributes.get("interleaved") else "half"}
    rope |= {"cos": case.inputs["cos_cache"], "sin": case.inputs["sin_cache"]}
    if case.attributes.get("rotary_embedding_dim"):
        rope["dims"] = case.attributes["rotary_embedding_dim"]
    if "position_ids" in case.inputs:
        rope["positions"] = case.inputs["position_ids"]
    return {"dtype": case.dtype, "q": x, "k": x, "v": x, "rope": rope}


# ------------------------------------------------------------------ FlexAttention


def flex(case: Case) -> Config:
    """A case whose `score_mod` is one of SCORE_MODS. FlexAttention's softmax is in float32 for half precision."""
    q, k, v = (case.inputs[name] for name in "QKV")
    config = {**layer(case.dtype, q, k, v), **options(case.attributes)}
    if case.dtype in ("float16", "bfloat16"):
        config.setdefault("softmax_dtype", "float32")
    graph = case.attributes.get("score_mod")
    return {**config, **(score_mod(graph, q.shape[2], k.shape[2]) if graph else {})}


def score_mod(graph: Any, queries: int, keys: int) -> Config:
    """The config keys that say what the subgraph computes. It is told by its name, and its numbers are read from it."""
    numbers = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    if graph.name == "score_mod_bias":
        return {"mask": [{"add": np.full((queries, keys), numbers["bias"])}]}
    if graph.name == "score_mod_causal_mask":
        return {"mask": [{"causal": "top-left"}]}
    if graph.name == "score_mod_soft_cap":
        return {"softcap": float(numbers["cap"])}
    assert graph.name == "score_mod_relative_positional", f"no config is known for the score_mod {graph.name}"
    return {"mask": [{"add": np.subtract.outer(np.arange(queries), np.arange(keys))}]}
