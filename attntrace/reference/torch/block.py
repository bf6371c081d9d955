"""The transformer block around the layer."""

from __future__ import annotations

from collections.abc import Callable

from torch.nn import functional as F  # noqa: N812 - the name everybody uses

from attntrace.parts.block import Block
from attntrace.problem import Problem
from attntrace.reference.torch.project import linear, norm
from attntrace.reference.torch.tensors import Arrays, Tensor, wide

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "gated": F.silu,
    "gated_gelu": lambda x: F.gelu(x, approximate="tanh"),
}


def block(p: Problem) -> Block:
    part = p.options.parts["block"]
    assert isinstance(part, Block)
    return part


def normed(p: Problem, a: Arrays, which: str, x: Tensor) -> Tensor:
    return norm(block(p).norm, x, block(p).eps, a.get(f"w_norm{which}"), a.get(f"b_norm{which}"))


def first(p: Problem, a: Arrays) -> Tensor:
    """The first norm: of x, or after the sum where the order is post."""
    return normed(p, a, "1", a["residual"] if block(p).order == "post" else a["x"])


def second(p: Problem, a: Arrays) -> Tensor:
    """The second norm: of the sum, or of x itself where attention and MLP stand side by side."""
    return normed(p, a, "2", a.last("x", "x_rows", "residual"))


def residual(p: Problem, a: Arrays) -> Tensor:
    return a.last("x", "x_rows") + a["output"]


def inner(p: Problem, a: Arrays) -> Tensor:
    """What the MLP reads: the last norm that there is."""
    return a.last("normed1", "normed1_rows", "normed2")


def up(p: Problem, a: Arrays) -> Tensor:
    return linear(p, inner(p, a), a["w_up"], a.get("b_up"))


def gate(p: Problem, a: Arrays) -> Tensor:
    return linear(p, inner(p, a), a["w_gate"], a.get("b_gate"))


def activated(p: Problem, a: Arrays) -> Tensor:
    return ACTIVATIONS[block(p).mlp](wide(a.last("up", "gate")))


def gated(p: Problem, a: Arrays) -> Tensor:
    return a["activated"] * a["up"]


def mlp(p: Problem, a: Arrays) -> Tensor:
    return linear(p, a.last("activated", "gated"), a["w_down"], a.get("b_down"))


def after_mlp(p: Problem, a: Arrays) -> Tensor:
    """Where the order is post, what the second norm is of."""
    return a["normed1"] + a["mlp"]


def output(p: Problem, a: Arrays) -> Tensor:
    order = block(p).order
    if order == "post":
        return normed(p, a, "2", a["residual2"])
    if order == "parallel":
        return wide(a.last("x", "x_rows")) + wide(a["output"]) + wide(a["mlp"])
    return a["residual"] + a["mlp"]
