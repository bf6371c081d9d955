"""Arrays of a trace as tensors, and tensors as arrays."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from attntrace.tape import Array

Tensor = Any


def tensor(array: Array) -> Tensor:
    """An array as a tensor of the same dtype; bfloat16, which NumPy hands over as bytes, by way of float32.

    torch wants memory in C order that it might write to.
    """
    if array.dtype.name == "bfloat16":
        return tensor(array.astype(np.float32)).to(torch.bfloat16)
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def array(t: Tensor) -> Array:
    """A tensor as an array; bfloat16 widened to float32, which is exact."""
    t = t.detach()
    return np.asarray((t.float() if t.dtype == torch.bfloat16 else t).numpy())


def kind(dtype: np.dtype[Any]) -> Any:
    """The dtype in torch: float16 for float16, and so on."""
    return getattr(torch, dtype.name)


def wide(t: Tensor) -> Tensor:
    """Half precision as float32, for what torch would round more than once on its way."""
    return t.float() if t.dtype in (torch.float16, torch.bfloat16) else t


def parted(name: str) -> tuple[str, str]:
    """The name of a step, and the suffix that says of which tile it is: `scores_0_1` is `scores` and `_0_1`."""
    base = re.sub(r"(_\d+)+$", "", name)
    return base, name[len(base) :]


class Arrays:
    """The arrays of a trace as tensors, seen from the tile whose steps end in `suffix`.

    `a["scores"]` is the tile's own step of that name, or else that of its queries, or else the one for all.
    """

    def __init__(self, have: Mapping[str, Array], suffix: str = "") -> None:
        self.have = have
        self.suffix = suffix

    @property
    def tile(self) -> tuple[int, ...]:
        """The numbers of the tile: of the queries and then of the keys or the hop; or of one of them alone."""
        return tuple(map(int, self.suffix.split("_")[1:]))

    @property
    def everything(self) -> Arrays:
        """The same trace, seen from outside the tiles."""
        return Arrays(self.have)

    def at(self, *tile: int) -> Arrays:
        """The same trace, seen from another tile."""
        return Arrays(self.have, "".join(f"_{n}" for n in tile))

    def called(self, name: str) -> str | None:
        """The full name of a step; None when the trace has no such step."""
        ends = (self.suffix, self.suffix.rpartition("_")[0], "")
        return next((name + end for end in ends if name + end in self.have), None)

    def __contains__(self, name: str) -> bool:
        return self.called(name) is not None

    def __getitem__(self, name: str) -> Tensor:
        return tensor(self.have[self.called(name) or name])

    def get(self, name: str) -> Tensor | None:
        full = self.called(name)
        return None if full is None else tensor(self.have[full])

    def latest(self, *names: str) -> str:
        """The last one of `names` that the trace has."""
        return [name for name in names if name in self][-1]

    def last(self, *names: str) -> Tensor:
        return self[self.latest(*names)]
