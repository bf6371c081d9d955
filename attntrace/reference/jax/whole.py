"""jax.nn.dot_product_attention, from queries, keys and values to the output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from attntrace.dtypes import DType, epsilon, working
from attntrace.parts import mask as masks
from attntrace.problem import Problem
from attntrace.reference import Opinion
from attntrace.reference.jax.local import exactly
from attntrace.reference.reading import (
    KEYS,
    QUERIES,
    VALUES,
    added,
    fewer,
    four,
    keyless,
    latest,
    one_more,
    ready_scores,
    result,
    sink_column,
    start,
    starts,
    summed_first,
    wide,
)
from attntrace.tape import Array

WHAT = "nn.dot_product_attention"
SINGLE = np.dtype(np.float32)  # what it computes softmax in, whatever it is given


def silences(p: Problem, have: Mapping[str, Array]) -> dict[str, str]:
    why = next(obstacles(p, have), "")
    return {WHAT: why} if why else {}


def obstacles(p: Problem, have: Mapping[str, Array]) -> Iterator[str]:
    if p.options.softcap is not None:
        yield "it has no softcap"
    if p.options.dropout is not None:
        yield "it has no dropout"
    if p.options.softmax_dtype not in (None, SINGLE):
        yield "its softmax is in float32"
    if largest_score(have) > float(np.finfo(SINGLE).max):
        yield "its softmax is in float32, beyond which the scores go"


def whole(p: Problem, have: Mapping[str, Array]) -> Iterator[Opinion]:
    """Its output, where it can express the problem; queries without keys, to which it gives other things, set aside."""
    if silences(p, have):
        return
    q, k, v, options = call(p, have)
    step = result(p)
    got = attention(q, k, v, **options)[..., : p.sizes["d_v"]]
    with np.errstate(all="ignore"):
        values = fewer(p, got).astype(have[step].dtype)
    yield Opinion(step, WHAT, start(p, have), values, off(p, have), None if "sinks" in have else aside(p, values))


def attention(q: Array, k: Array, v: Array, **options: Any) -> Array:
    """(batch, head, token, d) each; JAX has tokens before heads."""
    with exactly():
        arrays = (jnp.asarray(a.swapaxes(1, 2)) for a in (q, k, v))
        return np.asarray(jax.nn.dot_product_attention(*arrays, implementation="xla", **options)).swapaxes(1, 2)


def aside(p: Problem, values: Array) -> Array | None:
    """The rows of queries that may attend to nothing."""
    none = keyless(p)
    if not none.any():
        return None
    full = np.broadcast_to(none, (p.sizes.get("batch", 1), p.sizes.get("head", 1), none.shape[-1]))
    return np.broadcast_to(fewer(p, full[..., None]), values.shape)


def call(p: Problem, have: Mapping[str, Array]) -> tuple[Array, Array, Array, dict[str, Any]]:
    """What it is given: masks by its own options where it means the same by them, all others as `bias`.

    It wants values as wide as queries: the narrower are filled up with zeros. A sink is one key more, of zeros, with a value
    of zeros, whose score becomes its logit by its bias.
    """
    q, k, v = (wide(four(p, have[latest(have, *names)])) for names in (QUERIES, KEYS, VALUES))
    native, options = expressible(p)
    extra = added(p, have, [m for m in p.masks if m not in native])
    if "sinks" in have:
        k, v, extra = one_more(k), one_more(v), sink_column(p, have, extra)
    width = max(q.shape[-1], v.shape[-1])
    scale = 1 / np.sqrt(p.sizes["d_k"]) if p.options.scale is None else p.options.scale
    options |= {"scale": float(scale)} | ({} if extra is None else {"bias": extra})
    q, k, v = (np.pad(a, [(0, 0)] * 3 + [(0, width - a.shape[-1])]) for a in (q, k, v))
    return q, k, v, options


def expressible(p: Problem) -> tuple[list[Any], dict[str, Any]]:
    """The masks that it makes itself: one causal mask, one window with two ends and lengths, all counted from the first key.
    Not with a sink, whose key would be hidden."""
    if "sinks" in p.sources or p.options.queries is not None or "cache" in p.options.parts:
        return [], {}
    native: list[Any] = []
    options: dict[str, Any] = {}
    for m in p.masks:
        option = own_option(p, m)
        if option and not option.keys() & options.keys():
            native.append(m)
            options |= option
    return native, options


def own_option(p: Problem, m: Any) -> dict[str, Any]:
    if isinstance(m, masks.Padding):
        return {"key_value_seq_lengths": np.array(m.lengths, np.int32)}
    if not isinstance(m, masks.Causal | masks.Window) or set(starts(p, m.align)) != {0}:
        return {}
    if isinstance(m, masks.Causal):
        return {"is_causal": True}
    return {} if m.left is None or m.right is None else {"local_window_size": (m.left, m.right)}


def off(p: Problem, have: Mapping[str, Array]) -> dict[str, Array | float]:
    """Where it rounds otherwise than the steps.

    Softmax is in float32 whatever the dtype: to be off by a factor of 1 + e in an exponential, a sum or a quotient is to be
    off by e in a score, and each score is rounded to float32 itself, and its distance to the largest one. Weights below the
    smallest normal float32 are lost. So are numbers of the trace below the smallest normal one of their dtype.
    """
    found: dict[str, Array | float] = {}
    sums = summed_first(p, have)
    for name in ready_scores(have):
        found[name] = sums.get(name, 0.0) + epsilon(SINGLE) * (p.sizes["key"] + 4 + 3 * largest_score(have))
    for name in start(p, have):
        found[name] = lost(wide(have[name]))
    v = wide(have[latest(have, *VALUES)])
    flushed = p.sizes["key"] * (tiny(SINGLE) * float(np.abs(v).max(initial=0)) + tiny(working(v.dtype)))
    return {**found, result(p): flushed}


def largest_score(have: Mapping[str, Array]) -> float:
    """The largest of the scores and sinks that softmax reads, whatever its sign."""
    sizes = (np.abs(wide(have[name])) for name in (*ready_scores(have), *("sinks",) * ("sinks" in have)))
    return max((float(s[np.isfinite(s)].max(initial=0)) for s in sizes), default=0.0)


def lost(a: Array) -> Array:
    """What is taken for zero."""
    return np.where(np.abs(a) < tiny(a.dtype), np.abs(a), 0)


def tiny(d: DType) -> float:
    """The smallest normal number."""
    return float(np.finfo(d).smallest_normal)
