"""From queries, keys and values to the output. What is about scores serves tiles as well as all of them at once."""

from __future__ import annotations

import torch
from torch.nn import functional as F  # noqa: N812 - the name everybody uses

from attntrace.problem import Problem
from attntrace.reference.torch.place import aligned, pieces, shard
from attntrace.reference.torch.project import KEYS, QUERIES, VALUES, linear
from attntrace.reference.torch.tensors import Arrays, Tensor, kind, wide

READY = ("scaled", "capped", "biased", "masked")  # what scores become one after the other


def asking(p: Problem, a: Arrays) -> Tensor:
    """The queries, as they are once they are ready."""
    return a["q"] if a.tile else a.last(*QUERIES)


def asked(p: Problem, a: Arrays) -> Tensor:
    """The keys, as they are once they are ready."""
    return a.at(shard(p, a))["k"] if a.tile else a.last(*KEYS, "k_shared")


def answers(p: Problem, a: Arrays) -> Tensor:
    """The values, as they are once they are ready."""
    return a.at(shard(p, a))["v"] if a.tile else a.last(*VALUES, "v_shared")


def scores(p: Problem, a: Arrays) -> Tensor:
    return asking(p, a) @ asked(p, a).mT


def scaled(p: Problem, a: Arrays) -> Tensor:
    s = a["scores"]
    return s.mul(p.options.scale) if p.options.scale is not None else s.div(asking(p, a).shape[-1] ** 0.5)


def capped(p: Problem, a: Arrays) -> Tensor:
    s, c = wide(a["scaled"]), p.options.softcap
    return torch.tanh(s / c) * c


def biased(p: Problem, a: Arrays) -> Tensor:
    return a.last("scaled", "capped") + a["alibi"]


def masked(p: Problem, a: Arrays) -> Tensor:
    s = a.last(*READY[:-1])
    return s + aligned(p, a["mask"], s)


# ------------------------------------------------------------------ weights


def with_sink(p: Problem, a: Arrays) -> Tensor:
    """Softmax over the keys and one column more, of the sink's logit."""
    s, inner = a.last(*READY), p.options.softmax_dtype
    sink = a["sinks"].view(-1, 1, 1) if p.headed else a["sinks"].view(1, 1)
    row = torch.cat([s, sink.expand(*s.shape[:-1], 1)], dim=-1)
    return F.softmax(row, dim=-1, dtype=None if inner is None else kind(inner))


def weights(p: Problem, a: Arrays) -> Tensor:
    if "sinks" in a:
        return with_sink(p, a)[..., :-1]
    s, inner = a.last(*READY), p.options.softmax_dtype
    w = F.softmax(s, dim=-1, dtype=None if inner is None else kind(inner))
    empty = s.isneginf().all(dim=-1, keepdim=True)
    return w if p.options.masked_row == "nan" else w.masked_fill(empty, 0)


def sink_weights(p: Problem, a: Arrays) -> Tensor:
    return with_sink(p, a)[..., -1]


def dropped(p: Problem, a: Arrays) -> Tensor:
    return a.last("weights", "exp").mul(a["keep"]).div(1 - (p.options.dropout or 0))


# ------------------------------------------------------------------ the output


def attended(p: Problem, a: Arrays) -> Tensor:
    """The average of the values; from tiles, what each tile of queries has of it, in their order."""
    tiles = sorted((int(name.rpartition("_")[2]), name) for name in a.have if name.startswith("context_"))
    if tiles:
        return torch.cat([a[name] for _, name in tiles], dim=-2)
    return a.last("weights", "dropped") @ answers(p, a)


def concat(p: Problem, a: Arrays) -> Tensor:
    c = a["context"]
    return c.transpose(-3, -2).flatten(-2) if p.headed else c


def output(p: Problem, a: Arrays) -> Tensor:
    if "concat" not in a:
        return attended(p, a)
    return linear(p, a["concat"], a["w_o"], a.get("b_o")) if "w_o" in a else a["concat"]


# ------------------------------------------------------------------ tiles of them


def query_tile(p: Problem, a: Arrays) -> Tensor:
    return pieces(p, a.everything.last(*QUERIES), "queries", -2)[a.tile[0]]


def key_tile(p: Problem, a: Arrays) -> Tensor:
    return pieces(p, a.everything.last(*KEYS, "k_shared"), "keys", -2)[a.tile[0]]


def value_tile(p: Problem, a: Arrays) -> Tensor:
    return pieces(p, a.everything.last(*VALUES, "v_shared"), "keys", -2)[a.tile[0]]
