"""Random tensors: which generator, which seed, in which order. A draw names all three, so that others get the same numbers.

Tensors that name the same generator and seed share one stream: the second goes on where the first stopped, as in a script
that seeds once and then draws one tensor after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from attntrace.dtypes import dtype
from attntrace.errors import AttnTraceError, MissingPackage
from attntrace.tape import Array


class Stream(Protocol):
    """A seeded generator. `integers` excludes `high`; `keep` is true with probability 1 − rate."""

    # `dtype` is the one to draw in, where the generator has a choice

    def normal(self, mean: float, std: float, shape: tuple[int, ...], dtype: str | None) -> Array: ...
    def uniform(self, low: float, high: float, shape: tuple[int, ...], dtype: str | None) -> Array: ...
    def integers(self, low: int, high: int, shape: tuple[int, ...], dtype: str | None) -> Array: ...
    def keep(self, rate: float, shape: tuple[int, ...]) -> Array: ...


class NumPy:
    """numpy.random.default_rng(seed) and its methods."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def normal(self, mean: float, std: float, shape: tuple[int, ...], dtype: str | None) -> Array:
        return self.rng.normal(mean, std, shape)

    def uniform(self, low: float, high: float, shape: tuple[int, ...], dtype: str | None) -> Array:
        return self.rng.uniform(low, high, shape)

    def integers(self, low: int, high: int, shape: tuple[int, ...], dtype: str | None) -> Array:
        return self.rng.integers(low, high, shape)

    def keep(self, rate: float, shape: tuple[int, ...]) -> Array:
        return self.rng.random(shape) > rate


class NumPyLegacy:
    """numpy.random.seed(seed) and the module's functions: normal and randn, uniform and rand, randint."""

    def __init__(self, seed: int) -> None:
        if seed >= 2**32:
            raise AttnTraceError(f"numpy-legacy takes seeds below 2³² (4294967296), found {seed}")
        self.rng = np.random.RandomState(seed)

    def normal(self, mean: float, std: float, shape: tuple[int, ...], dtype: str | None) -> Array:
        return self.rng.normal(mean, std, shape)

    def uniform(self, low: float, high: float, shape: tuple[int, ...], dtype: str | None) -> Array:
        return self.rng.uniform(low, high, shape)

    def integers(self, low: int, high: int, shape: tuple[int, ...], dtype: str | None) -> Array:
        return self.rng.randint(low, high, shape)

    def keep(self, rate: float, shape: tuple[int, ...]) -> Array:
        return self.rng.random_sample(shape) > rate


class Torch:
    """torch.manual_seed(seed), then torch.randn, rand, randint, dropout on the CPU, in float32 unless a draw names a dtype."""

    def __init__(self, seed: int) -> None:
        try:
            import torch
        except ImportError:
            raise MissingPackage("the generator torch", "torch", "torch") from None
        self.torch = torch
        self.rng = torch.Generator().manual_seed(seed)

    def _empty(self, shape: tuple[int, ...], dtype: str | None) -> Any:
        return self.torch.empty(shape, dtype=getattr(self.torch, dtype or "float32"))

    @staticmethod
    def _array(tensor: Any) -> Array:
        """bfloat16, which NumPy lacks, comes widened."""
        return np.asarray((tensor.float() if tensor.element_size() < 4 else tensor).numpy())

    def normal(self, mean: float, std: float, shape: tuple[int, ...], dtype: str | None) -> Array:
        return self._array(self._empty(shape, dtype).normal_(mean, std, generator=self.rng))

    def uniform(self, low: float, high: float, shape: tuple[int, ...], dtype: str | None) -> Array:
        return self._array(self._empty(shape, dtype).uniform_(low, high, generator=self.rng))

    def integers(self, low: int, high: int, shape: tuple[int, ...], dtype: str | None) -> Array:
        return self._array(self.torch.randint(low, high, shape, generator=self.rng))

    def keep(self, rate: float, shape: tuple[int, ...]) -> Array:
        """torch.nn.functional.dropout draws which weights stay, with probability 1 − rate."""
        return self._array(self._empty(shape, None).bernoulli_(1 - rate, generator=self.rng))


GENERATORS: Mapping[str, Callable[[int], Stream]] = {"numpy": NumPy, "numpy-legacy": NumPyLegacy, "torch": Torch}


class Streams:
    """The streams of one config, each begun when something is first drawn from it."""

    def __init__(self) -> None:
        self._streams: dict[tuple[str, int], Stream] = {}

    def get(self, generator: str, seed: int) -> Stream:
        if (generator, seed) not in self._streams:
            self._streams[generator, seed] = GENERATORS[generator](seed)
        return self._streams[generator, seed]


DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "normal": {"mean": 0.0, "std": 1.0},
    "uniform": {"low": 0.0, "high": 1.0},
    "integers": {"low": 0},
}


@dataclass(frozen=True)
class Drawn:
    """A tensor to be drawn: numbers of a distribution, rounded to `decimals`, in `dtype`. Reading it advances its stream."""

    streams: Streams
    generator: str
    seed: int
    distribution: str
    parameters: Mapping[str, Any]
    shape: tuple[int, ...]
    decimals: int | None = None
    dtype: str | None = None

    @property
    def origin(self) -> str:
        numbers = ", ".join(f"{name} {value:g}" for name, value in self.parameters.items())
        rounded = "" if self.decimals is None else f", {self.decimals} decimals"
        return f"drawn {self.distribution} ({numbers}), {self.generator} seed {self.seed}{rounded}"

    def read(self) -> Array:
        stream = self.streams.get(self.generator, self.seed)
        values: Array = getattr(stream, self.distribution)(**self.parameters, shape=self.shape, dtype=self.dtype)
        if self.decimals is not None:
            values = np.round(values, self.decimals)
        return values if self.dtype is None else values.astype(dtype(self.dtype))


@dataclass(frozen=True)
class Kept:
    """The weights that dropout leaves in place, drawn: 1 for those that stay."""

    streams: Streams
    generator: str
    seed: int
    rate: float
    shape: tuple[int, ...]

    @property
    def origin(self) -> str:
        return f"1 with probability {1 - self.rate:g}, {self.generator} seed {self.seed}"

    def read(self) -> Array:
        return self.streams.get(self.generator, self.seed).keep(self.rate, self.shape)
