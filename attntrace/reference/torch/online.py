"""The running maximum, sum and output of tiles and rings, a tile or a hop after the other."""

from __future__ import annotations

import torch

from attntrace.problem import Problem
from attntrace.reference.torch.place import pieces, rows, slots
from attntrace.reference.torch.scores import READY, answers
from attntrace.reference.torch.tensors import Arrays, Tensor, tensor, wide


def before(a: Arrays) -> Arrays:
    """The same trace, seen from the tile before."""
    return a.at(a.tile[0], a.tile[1] - 1)


def final(p: Problem, a: Arrays) -> Arrays:
    """The same trace, seen from the last tile of these queries."""
    return a.at(a.tile[0], len(pieces(p, torch.arange(p.sizes["key"]), "keys")) - 1)


def keep(p: Problem, a: Arrays) -> Tensor:
    """The tile's part of what dropout keeps of all weights."""
    return tensor(p.arrays["keep"]).index_select(-2, rows(p, a)).index_select(-1, slots(p, a))


def exponential(s: Tensor, m: Tensor) -> Tensor:
    """exp(s − m); of −∞ it is 0 whatever m is."""
    s, m = wide(s), wide(m)
    return torch.exp(s - m).masked_fill(s.isneginf(), 0)


def largest(p: Problem, a: Arrays) -> Tensor:
    """The largest score of each row of the tile."""
    return a.last(*READY).amax(dim=-1)


def running_max(p: Problem, a: Arrays) -> Tensor:
    if a.tile[1] == 0:
        return largest(p, a)
    return torch.maximum(before(a)["max"], a.last("tile_max", "part_max"))


def exp(p: Problem, a: Arrays) -> Tensor:
    """In a ring a shard has a maximum of its own; tiles have the running one."""
    return exponential(a.last(*READY), a.last("max", "part_max").unsqueeze(-1))


def total(p: Problem, a: Arrays) -> Tensor:
    """The sum of each row of the tile."""
    return a["exp"].sum(dim=-1)


def weighed(p: Problem, a: Arrays) -> Tensor:
    return a.last("exp", "dropped") @ answers(p, a)


def running_sum(p: Problem, a: Arrays) -> Tensor:
    if a.tile[1] == 0:
        return total(p, a)
    part, factor = a.last("tile_sum", "part_sum"), a.get("rescale_part")
    return merged(before(a)["sum"], a["rescale"], part, factor)


def running_acc(p: Problem, a: Arrays) -> Tensor:
    if a.tile[1] == 0:
        return weighed(p, a)
    part, factor = a.last("tile_acc", "part_acc"), a.get("rescale_part")
    factor = None if factor is None else factor.unsqueeze(-1)
    return merged(before(a)["acc"], a["rescale"].unsqueeze(-1), part, factor)


def merged(old: Tensor, alpha: Tensor, part: Tensor, beta: Tensor | None) -> Tensor:
    part = wide(part) if beta is None else wide(part).mul(wide(beta))
    return torch.addcmul(part, wide(old), wide(alpha))


def rescale(p: Problem, a: Arrays) -> Tensor:
    return exponential(before(a)["max"], a["max"])


def rescale_part(p: Problem, a: Arrays) -> Tensor:
    return exponential(a["part_max"], a["max"])


def with_sink(p: Problem, a: Arrays) -> Tensor:
    """The sum of these queries with the sink's share: without a key it is exp(z + ∞).

    That is put in, and not computed, since autograd would make a NaN of it, and one sink serves many rows.
    """
    m, z = wide(final(p, a)["max"]), wide(a["sinks"])
    empty = m.isneginf()
    share = torch.exp((z.view(-1, 1) if p.headed else z) - m.masked_fill(empty, 0))
    return torch.where(empty, torch.inf, wide(final(p, a)["sum"]) + share)


def context(p: Problem, a: Arrays) -> Tensor:
    """What was summed, by the sum of the weights; zeros for a query without keys."""
    l = wide(a["total"] if "total" in a else final(p, a)["sum"]).unsqueeze(-1)  # noqa: E741 - the name that the papers have
    c = wide(final(p, a)["acc"]).div(l)
    return c if p.options.masked_row == "nan" else c.masked_fill(l == 0, 0)
