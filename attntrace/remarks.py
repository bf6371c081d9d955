"""What a careful reader should know about a trace. Each look takes one computed step and yields notes about it.

Looks read no more than a step and its operands, so they work while the tape is played and steps are let go of.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import numpy as np

from attntrace.dtypes import largest, working
from attntrace.ops import Dropout
from attntrace.tape import Array, Note, Step, Trace

SATURATED = 0.9999  # a row with a weight above it has next to no gradient left
MANY = 4  # places named in one note
MASKED = ("mask", "masked")  # steps in which −∞ is what it should be
KINDS = (("nan", "NaN"), ("overflow", "infinity"))  # code of a note, and what it is about


def notes(trace: Trace) -> list[Note]:
    """All notes about a trace: those of its problem, then those of its steps in order. Computes the trace."""
    return about([*trace.remarks, *(note for step in trace for note in look_at(step))], None)


def about(found: Iterable[Note], names: Collection[str] | None) -> list[Note]:
    """The notes about the steps in `names` (about all, when None), each cause of NaN and infinities told once."""
    result, causes = [], set()
    for note in found:
        wanted = names is None or note.step is None or note.step in names or note.cause
        if wanted and note.cause not in causes:
            result.append(note)
            causes |= {note.cause} - {""}
    return result


def look_at(step: Step) -> Iterator[Note]:
    """The notes about one computed step."""
    looks = (given_not_finite if step.given else became_infinite, *LOOKS.get(step.name, ()))
    with np.errstate(all="ignore"):  # bfloat16 warns when NaN is compared
        found = [note for look in looks for note in look(step)]
    yield from found


def bounds(values: Array) -> tuple[float, float]:
    """The smallest and largest value, NaN if there is one; reads the array twice and copies nothing."""
    wide = values if values.itemsize > 2 else values.astype(working(values.dtype))
    return float(wide.min()), float(wide.max())


def calm(step: Step) -> bool:
    """Whether there is nothing but finite numbers, and the −∞ that masks are made of."""
    low, high = bounds(step.values)
    return bool(np.isfinite(high) and (np.isfinite(low) or (step.name in MASKED and not np.isnan(low))))


def strange(step: Step, what: str) -> Array:
    """Where there is NaN, or an infinity that no mask put there."""
    if what == "NaN":
        return np.isnan(step.values)
    return np.isposinf(step.values) if step.name in MASKED else np.isinf(step.values)


def places(mask: Array) -> list[tuple[int, ...]]:
    """The first few positions where `mask` is true."""
    return [tuple(map(int, position)) for position in np.argwhere(mask)[:MANY]]


def cell(name: str, position: Sequence[int]) -> str:
    return f"{name}[{', '.join(map(str, position))}]"


def listing(name: str, mask: Array) -> str:
    """`q[0, 1], q[1, 1] and 3 more`."""
    more = int(mask.sum()) - MANY
    shown = ", ".join(cell(name, position) for position in places(mask))
    return f"{shown} and {more} more" if more > 0 else shown


def given_not_finite(step: Step) -> Iterator[Note]:
    """NaN and infinities among the inputs."""
    if calm(step):
        return
    for code, what in KINDS:
        mask = strange(step, what)
        if mask.any():
            yield Note(f"{code}-input", step.name, f"{what} in {listing(step.name, mask)}")


def became_infinite(step: Step) -> Iterator[Note]:
    """NaN or infinities that no computed operand has: where they come from, or that they were born here."""
    if calm(step):
        return
    sources = [o for o in step.operands if not calm(o)]
    for code, what in KINDS:
        mask = strange(step, what)
        if mask.any() and not any(strange(o, what).any() for o in sources if not o.given):
            cause = " and ".join(origins(what, sources))
            message = f"first {what} computed: {listing(step.name, mask)}{reason(step, what, cause)}"
            yield Note(code, step.name, message, cause)


def origins(what: str, sources: Sequence[Step]) -> list[str]:
    """The first cell of each operand that brings it about: ∞ makes ∞; NaN, ∞ − ∞ and 0 · ∞ make NaN."""
    kinds = ["infinity"] if what == "infinity" else ["NaN", "infinity"]
    return [cell(o.name, place) for o in sources for kind in kinds for place in places(strange(o, kind))[:1]]


def reason(step: Step, what: str, cause: str) -> str:
    if cause:
        return f"; it comes from {cause}"
    return f": beyond the largest {step.dtype.name}, {largest(step.dtype):.4g}" if what == "infinity" else ""


def rows_without_keys(step: Step) -> Iterator[Note]:
    """Queries that may attend to nothing."""
    scores = step.operands[0].values
    empty = np.isneginf(scores.max(axis=-1))
    if empty.any():
        zeros = not np.isnan(step.values[places(empty)[0]]).any()
        shown = "zeros, as torch's scaled_dot_product_attention and ONNX give" if zeros else "NaN, as plain softmax gives"
        yield Note(
            "masked-row",
            step.name,
            f"{listing(step.name, empty)}: a query that may attend to nothing has every score −∞; its weights are {shown}",
        )


def ties(step: Step) -> Iterator[Note]:
    """Rows with two largest weights; the first of them is marked."""
    top = step.values.max(axis=-1, keepdims=True)
    tied = ((step.values == top).sum(axis=-1) > 1) & (top[..., 0] > 0)
    if tied.any():
        row = places(tied)[0]
        equal = np.flatnonzero(step.values[row] == top[row])
        keys = ", ".join(map(str, equal[:MANY])) + (" …" if len(equal) > MANY else "")
        more = int(tied.sum()) - 1
        others = f" (and so in {more} more row{'s' if more > 1 else ''})" if more else ""
        message = f"{cell(step.name, row)} has its largest weight at keys {keys} alike; the first is marked{others}"
        yield Note("tie", step.name, message)


def saturated(step: Step) -> Iterator[Note]:
    """Rows in which one key among several takes nearly everything."""
    scores = step.operands[0].values
    choices = np.isfinite(scores).sum(axis=-1)
    top = step.values.max(axis=-1).astype(working(step.dtype), copy=False)  # in half precision the bound itself is 1
    full = (top > SATURATED) & (choices > 1)
    if full.any():
        yield Note(
            "saturated",
            step.name,
            f"{listing(step.name, full)}: one key takes more than {SATURATED:.2%} of the weight; softmax is saturated there, "
            "and next to no gradient passes",
        )


def dropped_sums(step: Step) -> Iterator[Note]:
    """Dropout at work; at a rate of 0 it changes nothing."""
    if isinstance(step.operation, Dropout) and step.operation.rate == 0:
        return
    yield Note(
        "dropout-sums",
        step.name,
        "rows do not sum to 1 because of dropout: weights that stay are divided by 1 − rate, and only the average sum is 1",
    )


def odd_mask(step: Step) -> Iterator[Note]:
    """Additive masks that were probably meant otherwise."""
    numbers = step.values[np.isfinite(step.values)]
    if not numbers.size:
        return
    low, high = bounds(numbers)
    if low == 0 and high == 1 and np.isin(numbers, (0, 1)).all():
        yield Note(
            "mask-added-01",
            step.name,
            "the additive mask holds 0 and 1: adding 1 to a score hides nothing; for a mask of 0 and 1 say keep or ignore",
        )
    if low <= -1e4:
        yield Note(
            "mask-finite-fill",
            step.name,
            f"the mask hides keys with {low:g} and not −∞: where every key of a row is hidden its weights are the softmax of "
            "what is left, not zeros, and a score of that size leaks through",
        )


Look = Callable[[Step], Iterator[Note]]
LOOKS: dict[str, tuple[Look, ...]] = {
    "weights": (rows_without_keys, ties, saturated),
    "dropped": (dropped_sums,),
    "mask": (odd_mask,),
}
