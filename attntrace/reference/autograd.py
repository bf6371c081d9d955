"""torch's autograd, run through the reference's own computation of every step from the inputs to the output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attntrace.backward import Squared, Upstream, Weighted
from attntrace.errors import MissingPackage
from attntrace.problem import Problem
from attntrace.tape import Array, Step, Trace

try:
    import torch
except ImportError:
    raise MissingPackage("autograd", "torch", "torch") from None

from attntrace.reference.torch.steps import STEPS, TILES
from attntrace.reference.torch.tensors import Arrays, Tensor, array, parted, tensor


def name() -> str:
    return f"torch {torch.__version__.partition('+')[0]}'s autograd"


class Live(Arrays):
    """The same view of a trace, over tensors that remember what they were computed from."""

    have: Mapping[str, Any]

    def __getitem__(self, name: str) -> Tensor:
        return self.have[self.called(name) or name]

    def get(self, name: str) -> Tensor | None:
        full = self.called(name)
        return None if full is None else self.have[full]

    @property
    def everything(self) -> Live:
        return Live(self.have)

    def at(self, *tile: int) -> Live:
        return Live(self.have, "".join(f"_{n}" for n in tile))


def gradients(p: Problem, t: Trace, out: Step, inputs: Sequence[Step], upstream: Upstream) -> dict[str, Array] | str:
    """The gradient of the loss for each of `inputs`, by name; or a sentence that says why not."""
    live: dict[str, Tensor] = {}
    for step in t.needed([out.name]):
        got = leaf(step, step in inputs) if step.given else computed(p, live, step)
        if got is None:
            return f"the reference does not compute {step.name}"
        live[step.name] = got
    loss = loss_of(live[out.name], upstream)
    if loss is None:
        return "the loss is not known to it"
    leaves = [live[step.name] for step in inputs]
    found = torch.autograd.grad(loss, leaves, allow_unused=True)
    pairs = zip(inputs, leaves, found, strict=True)
    return {step.name: array(torch.zeros_like(a) if g is None else g) for step, a, g in pairs}


def leaf(step: Step, moves: bool) -> Tensor:
    a = tensor(step.values).clone()
    return a.requires_grad_() if moves else a


def computed(p: Problem, live: Mapping[str, Tensor], step: Step) -> Tensor | None:
    """What the reference makes of the tensors before it.

    Where a branch is not taken, such as the softmax of a row without keys, autograd multiplies 0 by infinity and passes NaN
    on; nothing comes that way, and NaN becomes 0. The loss is finite, so there is no other NaN.
    """
    base, suffix = parted(step.name)
    table = TILES if suffix else STEPS
    if base not in table:
        return None
    got = table[base][1](p, Live(live, suffix))
    if got is None:
        return None
    got = got.to(torch.float64)
    if got.requires_grad:
        got.register_hook(lambda g: g.masked_fill(g.isnan(), 0))
    return got


def loss_of(y: Tensor, upstream: Upstream) -> Tensor | None:
    if isinstance(upstream, Weighted):
        return (tensor(upstream.weights).to(y.dtype) * y).sum()
    if isinstance(upstream, Squared):
        return torch.nn.functional.mse_loss(y, tensor(upstream.target).to(y.dtype), reduction="sum") / 2
    return None
