"""The tape in reverse: from the gradient of the output to that of every input, a step at a time.

L is a number that depends on the output; dS, the gradient of a step S, says how much L changes with each of its cells. Each
operation passes on what reaches its result (`Operation.backward`); a step that several others read gets the sum. Masks,
positions and what dropout keeps have no gradient: they choose.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from attntrace.ops import Add, Operation
from attntrace.ops.pointwise import Subtract
from attntrace.tape import Array, Note, Step, Trace

FIXED = ("mask", "keep", "positions", "key_positions", "distance", "table", "cos_table", "sin_table")  # they count or choose
TILE = re.compile(r"(_\d+)+$")  # the numbers that end the name of a tile's step


class Upstream(Protocol):
    """What L is: how the gradient of the output comes about, and L itself, to be held against."""

    def record(self, t: Trace, y: Step) -> list[Step]: ...  # the last one is the gradient of y

    def terms(self, y: Array) -> Array: ...  # L is their sum

    @property
    def notes(self) -> list[Note]: ...


@dataclass(frozen=True, eq=False)
class Weighted:
    """L = Σ G ∘ Y, so that the gradient of the output is G: ones, random numbers, or what some later layer sends back."""

    weights: Array
    origin: str

    def record(self, t: Trace, y: Step) -> list[Step]:
        return [t.given(f"d_{y.name}", f"d{y.symbol}", y.axes, lambda: self.weights, self.origin)]

    def terms(self, y: Array) -> Array:
        return self.weights * y

    @property
    def notes(self) -> list[Note]:
        """Rows of weights sum to 1. What every key of a query gains alike is lost again in softmax, so a gradient that is the
        same for all outputs leaves a wrong softmax gradient hard to see."""
        if np.ptp(self.weights):
            return []
        message = (
            "the gradient of the output is the same number everywhere; since rows of weights sum to 1, what all keys gain "
            "alike vanishes in softmax, and such a loss hides mistakes in softmax's gradient: try --upstream draw"
        )
        return [Note("upstream-ones", None, message)]


@dataclass(frozen=True, eq=False)
class Squared:
    """L = ½ ‖Y − T‖²: the sum of the squared errors, halved. (The mean of the squares would be 2/n times as much.)"""

    target: Array
    origin: str

    def record(self, t: Trace, y: Step) -> list[Step]:
        origin = "; ".join(filter(None, (self.origin, f"L = ½ ‖{y.symbol} − T‖²")))
        target = t.given("target", "T", y.axes, lambda: self.target, origin)
        return [target, t(f"d_{y.name}", f"d{y.symbol} = {y.symbol} − T", y.axes, Subtract(), y, target)]

    def terms(self, y: Array) -> Array:
        return np.asarray(np.square(y - self.target) / 2)

    @property
    def notes(self) -> list[Note]:
        return []


@dataclass(frozen=True)
class Backward(Operation):
    """What reaches operand `i` of a step of operation `of`: its operands are the step's gradient, its result, its operands."""

    of: Operation
    i: int

    def forward(self, g: Array, y: Array, *operands: Array) -> Array:
        found = self.of.backward(g, y, *operands)[self.i]
        assert found is not None
        return found


def last(t: Trace) -> Step:
    """The step that everything is for: the output of the layer, or of the block around it."""
    return t["block_output" if "block_output" in t else "output"]


def varies(step: Step) -> bool:
    """Whether an input is a number that a gradient makes sense for, and not a mask, a position, a draw of dropout."""
    return TILE.sub("", step.name) not in FIXED


def moving(t: Trace) -> list[Step]:
    """The steps that the output depends on and that depend on an input which varies, in order."""
    found: dict[str, Step] = {}
    for step in t.needed([last(t).name]):
        if varies(step) if step.given else any(o.name in found for o in step.operands):
            found[step.name] = step
    return list(found.values())


def reverse(t: Trace, upstream: Upstream) -> list[Step]:
    """Record the gradients in `t`, after the steps that they are of, and return them: that of the output, as `upstream` has
    it, then back; those of the inputs last, in the order of the inputs. The gradient of a step S is called d_S."""
    steps = moving(t)
    before = len(t)
    gradients = {last(t).name: upstream.record(t, last(t))[-1]}
    readers = {step.name: list(read_by(step, steps)) for step in steps}
    inputs = [step for step in steps if step.given]
    for step in (*(s for s in reversed(steps) if not s.given), *inputs):
        if step.name not in gradients:
            gradients[step.name] = summed(t, step, readers[step.name], gradients)
    return list(t)[before:]


def read_by(step: Step, steps: list[Step]) -> Iterator[tuple[Step, int]]:
    """Who reads a step, and as which operand."""
    for reader in steps:
        for i, operand in enumerate(reader.operands):
            if operand is step:
                yield reader, i


def summed(t: Trace, step: Step, readers: list[tuple[Step, int]], gradients: dict[str, Step]) -> Step:
    """The gradient of a step: what comes from the one that reads it, or the sum of what comes from each."""
    if len(readers) == 1:
        return passed(t, step, *readers[0], gradients, "")
    names = [reader.name for reader, _ in readers]
    parts = [
        passed(t, step, reader, i, gradients, f"_via_{reader.name}" + f"_{i}" * (names.count(reader.name) > 1))
        for reader, i in readers
    ]
    text = f"d{symbol(step)} = {' + '.join(part.symbol for part in parts)}"
    return t(f"d_{step.name}", text, step.axes, Add(), *parts, dtype=step.dtype)


def passed(t: Trace, step: Step, reader: Step, i: int, gradients: dict[str, Step], way: str) -> Step:
    """What `reader` passes on to its operand `i`, which is `step`."""
    assert reader.operation is not None
    g, symbols = gradients[reader.name], [symbol(o) for o in reader.operands]
    via = f"⟨{symbol(reader)}⟩" if way else ""
    text = f"d{symbol(step)}{via} = {reader.operation.gradient(i, g.symbol, symbol(reader), symbols)}"
    back = Backward(reader.operation, i)
    return t(f"d_{step.name}{way}", text, step.axes, back, g, reader, *reader.operands, dtype=step.dtype)


def symbol(step: Step) -> str:
    """A step's symbol, with the numbers of its tile: one formula of the way back names several tiles."""
    tile = TILE.search(step.name)
    numbers = tile[0] if tile else ""
    return step.symbol if step.symbol.endswith(numbers) else step.symbol + numbers
