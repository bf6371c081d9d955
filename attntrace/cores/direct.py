"""All scores at once, as the papers write it."""

from __future__ import annotations

from attntrace.ops import MatMul
from attntrace.parts.alibi import bias
from attntrace.parts.dropout import drop
from attntrace.parts.mask import mask
from attntrace.parts.scale import scale
from attntrace.parts.softcap import cap
from attntrace.parts.weights import weigh
from attntrace.problem import Problem, Tile
from attntrace.tape import Step, Trace


def direct(t: Trace, p: Problem, q: Step, k: Step, v: Step) -> Step:
    """C = softmax(Q Kᵀ / √d_k) V, with whatever the config puts in between."""
    s = scores(t, p, q, k, p.whole)
    a = weigh(t, p, s)
    a = drop(t, p, a, p.whole)
    return average(t, p, a, v)


def scores(t: Trace, p: Problem, q: Step, k: Step, at: Tile) -> Step:
    """The scores of a tile, ready for softmax: scaled, capped, biased, masked, in this order (as ONNX and Gemma 2 do)."""
    s = t(f"scores{at.suffix}", f"S = {q.symbol} {k.symbol}ᵀ", (*p.lead, at.query, at.key), MatMul(transpose=True), q, k)
    s = scale(t, p, s, at)
    s = cap(t, p, s, at)
    s = bias(t, p, s, at)
    return mask(t, p, s, at)


def average(t: Trace, p: Problem, a: Step, v: Step) -> Step:
    """The values, averaged by the weights: the output itself, where there are no heads to merge and no w_o to come."""
    name, symbol = result(p)
    return t(name, f"{symbol} = {a.symbol} {v.symbol}", (*p.lead, "query", "d_v"), MatMul(), a, v)


def result(p: Problem) -> tuple[str, str]:
    """What the context is called, and its symbol."""
    return ("context", "C") if p.merges else ("output", "Y")
