"""ONNX's Attention operator, called once for every mode of its qk_matmul_output, so that it is asked for the steps between."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from onnx import helper

from attntrace.dtypes import epsilon, smallest, working
from attntrace.parts import mask as masks
from attntrace.problem import Problem
from attntrace.reference import Opinion
from attntrace.reference.onnx.evaluator import run
from attntrace.reference.reading import (
    KEYS,
    QUERIES,
    VALUES,
    added,
    fewer,
    four,
    held,
    latest,
    one_more,
    result,
    sink_column,
    start,
    starts,
    summed_first,
    wide,
)
from attntrace.tape import Array

WHAT = "Attention"
Attributes = dict[str, Any]


class Inputs(NamedTuple):
    """What the operator is given, in the order of its inputs."""

    q: Array
    k: Array
    v: Array
    attn_mask: Array | None = None
    past_key: Array | None = None
    past_value: Array | None = None
    nonpad_kv_seqlen: Array | None = None


def silences(p: Problem, have: Mapping[str, Array]) -> dict[str, str]:
    if p.options.scale is not None and p.options.scale < 0:
        return {WHAT: "it takes the square root of the scale, which is negative"}
    if p.options.dropout is not None:
        return {f"the output of {WHAT}": "it has no dropout"}
    return {}


def whole(p: Problem, have: Mapping[str, Array]) -> Iterator[Opinion]:
    """What Attention gives for every step that it can show, where it can express the problem."""
    if WHAT in silences(p, have):
        return
    inputs, attributes = call(p, have)
    for step, mode in shown(p, have):
        capless = {"softcap": 0.0} if mode == 0 else {}
        got = run(WHAT, *inputs, outputs=4, **{**attributes, **capless, "qk_matmul_output_mode": mode})[3]
        yield opinion(p, have, step, got[..., : p.sizes["key"]])
        if mode == 3 and "sink_weights" in have:
            yield opinion(p, have, "sink_weights", got[..., -1])
    y, key, value, _ = run(WHAT, *inputs, outputs=4, **attributes, qk_matmul_output_mode=0)
    yield from presents(p, have, key, value)
    if p.options.dropout is None:
        yield opinion(p, have, result(p), y)


def shown(p: Problem, have: Mapping[str, Array]) -> Iterator[tuple[str, int]]:
    """Which steps the modes show: scaled scores; with a softcap; with all that is added; weights."""
    last = "masked" if "masked" in have else "biased"
    for step, mode in (("scaled", 0), ("capped", 1), (last, 2), ("weights", 3)):
        if step in have:
            yield step, mode


def presents(p: Problem, have: Mapping[str, Array], key: Array, value: Array) -> Iterator[Opinion]:
    """The cache grown by the new keys and values."""
    for step, got in (("k_all", key), ("v_all", value)):
        if step in have:
            letter = step[0]
            begin = (f"{letter}_past", latest(have, letter, f"{letter}_norm", f"{letter}_rot"))
            yield Opinion(step, WHAT, begin, as_step(p, have, step, got[:, :, : p.sizes["key"]]))


def opinion(p: Problem, have: Mapping[str, Array], step: str, got: Array) -> Opinion:
    return Opinion(step, WHAT, start(p, have), as_step(p, have, step, got), off(p, have))


def as_step(p: Problem, have: Mapping[str, Array], step: str, got: Array) -> Array:
    with np.errstate(all="ignore"):
        return fewer(p, got).astype(have[step].dtype)


def off(p: Problem, have: Mapping[str, Array]) -> dict[str, Array | float]:
    """Where the operator rounds otherwise than the steps.

    It multiplies queries and keys by the root of the scale each: a rounding of the root and one of the product, as if they
    were off by an epsilon. A scale that is given is a float32 attribute, and so is its root: by what this root lacks. A
    softcap is a float32 attribute too. And what masks and linear biases add up to is rounded before it is added to the scores.
    """
    found: dict[str, Array | float] = {}
    given = p.options.scale
    scale = 1 / np.sqrt(p.sizes["d_k"]) if given is None else given
    short = abs(float(np.sqrt(np.float32(scale))) / np.sqrt(scale) - 1) if given else 0.0
    for names in (QUERIES, KEYS):
        x = have[latest(have, *names)]
        kind = working(x.dtype)
        least = smallest(kind) / np.sqrt(scale) if scale else 0.0
        found[latest(have, *names)] = (epsilon(kind) + short) * np.abs(wide(x)) + least
    cap = p.options.softcap
    if cap is not None:
        less = abs(float(np.float32(cap)) - cap)
        found |= {name: less for name in have if name == "capped" or name.startswith("capped_")}
    return {**found, **summed_first(p, have)}


# ------------------------------------------------------------------ inputs and attributes


def call(p: Problem, have: Mapping[str, Array]) -> tuple[Inputs, Attributes]:
    """What the operator is given: masks as attributes where it means the same by them, all others as attn_mask.

    Values of grouped heads are not repeated, and a cache is not joined: it does both. A sink is one key more, of zeros, with a
    value of zeros, whose score becomes its logit by what is added to it.
    """
    native, attributes, lengths = expressible(p)
    rest = [m for m in p.masks if m not in native]
    cached = "k_all" in have
    q, k, v = (wide(four(p, have[latest(have, *names)])) for names in (QUERIES, KEYS[: 3 if cached else 4], VALUES[:1]))
    past = [wide(four(p, have[f"{letter}_past"])) if cached else None for letter in "kv"]
    extra = added(p, have, rest)
    if "sinks" in have:
        k, v, extra = one_more(k), one_more(v), sink_column(p, have, extra)
    return Inputs(q, k, v, extra, past[0], past[1], lengths), {**attributes, **precision(p), **scaling(p)}


def scaling(p: Problem) -> Attributes:
    scale, cap = p.options.scale, p.options.softcap
    return {**({} if scale is None else {"scale": scale}), **({} if cap is None else {"softcap": cap})}


def precision(p: Problem) -> Attributes:
    inner = p.options.softmax_dtype
    return {} if inner is None else {"softmax_precision": helper.np_dtype_to_tensor_dtype(inner)}


def expressible(p: Problem) -> tuple[list[Any], Attributes, Array | None]:
    """The masks that the operator makes itself: its attributes for them, and nonpad_kv_seqlen.

    It has one causal mask and one window, which count queries from the first key, after a cache from its end, and with
    nonpad_kv_seqlen so that the last query stands at the last key that is real. Only where the problem means exactly this they
    are used; never with a sink, whose key would be hidden.
    """
    placed = [m for m in p.masks if isinstance(m, masks.Causal | masks.Window)]
    lengths = [m for m in p.masks if isinstance(m, masks.Padding)]
    kinds = [type(m) for m in (*placed, *lengths)]
    apart = len(set(kinds)) < len(kinds) or len(set(held(p))) > 1
    if "sinks" in p.sources or p.options.queries is not None or apart or (lengths and "cache" in p.options.parts):
        return [], {}, None
    counts = list(lengths[0].lengths) if lengths else []
    offsets = [n - p.queries for n in counts] or held(p)
    if any(offset != own for m in placed for offset, own in zip(offsets, starts(p, m.align) * len(offsets), strict=False)):
        return [], {}, None
    attributes: Attributes = {}
    for m in placed:
        attributes |= {"is_causal": 1} if isinstance(m, masks.Causal) else window(m)
    return [*placed, *lengths], attributes, np.array(counts, np.int64) if counts else None


def window(m: Any) -> Attributes:
    sizes = {"left_window_size": m.left, "right_window_size": m.right}
    return {name: size for name, size in sizes.items() if size is not None}
