"""What the loss is, as a person says it: `sum`, `mean`, `draw`, the gradient of the output itself, or a target."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from attntrace.backward import Squared, Upstream, Weighted, last, reverse
from attntrace.config.files import arrays
from attntrace.config.tensors import numbers
from attntrace.config.yaml import parse_value
from attntrace.errors import AttnTraceError, nearest, plain
from attntrace.tape import Array, Step, Trace

WORDS = ("sum", "mean", "draw")
EXPECTED = "a list of numbers, or a .npy, .npz, .csv or .safetensors file"
SHOWN = 60  # characters of an option that a message repeats


def upstream_of(y: Step, upstream: Any = None, target: Any = None) -> Upstream:
    """The loss on the output `y`: `sum` unless something else is asked for. From Python, arrays are as good as text."""
    if target is not None:
        if upstream is not None:
            raise AttnTraceError("--upstream and --target: each makes the gradient of the output; give one of them")
        return Squared(*given("--target", target, y, EXPECTED))
    word = "sum" if upstream is None else upstream
    if not isinstance(word, str):
        return Weighted(*given("--upstream", word, y, EXPECTED))
    if word == "sum":
        return Weighted(np.ones(y.shape), f"ones: L is the sum of {y.symbol}")
    if word == "mean":
        count = int(np.prod(y.shape))
        return Weighted(np.full(y.shape, 1 / count), f"1/{count}: L is the mean of {y.symbol}")
    if match := re.fullmatch(r"draw(?::(\d{1,19}))?", word):
        return drawn(int(match[1] or 0), y)
    return Weighted(*given("--upstream", word, y, f"{', '.join(WORDS)}, draw:SEED, {EXPECTED}"))


def drawn(seed: int, y: Step) -> Weighted:
    weights = np.random.default_rng(seed).normal(size=y.shape)
    return Weighted(weights, f"drawn normal (mean 0, std 1), numpy seed {seed}; L = Σ d{y.symbol} ∘ {y.symbol}")


def given(option: str, value: Any, y: Step, expected: str) -> tuple[Array, str]:
    """Numbers of the shape of the output, and where they come from."""
    if not isinstance(value, str):
        array, origin = numbers(value if isinstance(value, list) else np.asarray(value), (option,)), ""
    elif value.lstrip().startswith("["):
        array, origin = numbers(parse_value(value, option), (option,)), ""
    else:
        array, origin = from_file(option, value, expected)
    return fitted(option, array, y), origin


def from_file(option: str, text: str, expected: str) -> tuple[Array, str]:
    """`grad.npy`, or `grads.npz:key`: a file may be named by its array. A relative path is where the command is given."""
    name, key = (text, None) if Path(text).exists() or ":" not in text else text.rsplit(":", 1)
    if Path(name).suffix.lower() not in arrays.OPENERS:
        shown = plain(text if len(text) <= SHOWN else text[:SHOWN] + "…")
        raise AttnTraceError(f"{option} {shown}: expected {expected}{nearest(text, WORDS) if option == '--upstream' else ''}")
    try:
        return arrays.open_array(Path(name).expanduser(), key).read(), f"from {name}" + (f" [{key}]" if key else "")
    except AttnTraceError as error:
        raise AttnTraceError(*(f"{option}: {fault.message}" for fault in error.faults)) from None


def fitted(option: str, array: Array, y: Step) -> Array:
    """An array of the shape of the output; axes of 1 in front may be there or not."""
    if trimmed(array.shape) != trimmed(y.shape):
        wanted = " × ".join(f"{axis} {size}" for axis, size in zip(y.axes, y.shape, strict=True))
        found = " × ".join(map(str, array.shape))
        raise AttnTraceError(f"{option}: expected the shape of {y.name}, {wanted}; found {found or 'a single number'}")
    return array.astype(np.float64).reshape(y.shape)


def trimmed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return trimmed(shape[1:]) if shape[:1] == (1,) else shape


def gradients(t: Trace, upstream: Any = None, target: Any = None) -> dict[str, Step]:
    """The gradient of every step of `t`, by name (d_x is that of x): d_output first, those of the inputs last.

    `upstream` is "sum" (the default), "mean", "draw", "draw:SEED", a file or an array; with `target` the loss is half the
    squared distance from it. The gradients are recorded in `t`, so it can be asked once.
    """
    return {step.name: step for step in reverse(t, upstream_of(last(t), upstream, target))}
