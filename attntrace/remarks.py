"""What a careful reader should know about a trace. Each look takes one computed step and yields notes about it.

Looks read no more than a step and its operands, so they work while the tape is played and steps are let go of.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import numpy as np

from attntrace.dtypes import epsilon, largest, working
from attntrace.ops import AddSink, Dropout, Quotient
from attntrace.tape import Array, Note, Step, Trace

SATURATED = 0.9999  # a row with a weight above it has next to no gradient left
MANY = 4  # places named in one note
MASKED = ("mask", "masked", "max", "tile_max", "part_max")  # steps in which −∞ is what it should be
COARSE = 1e-3  # radians between neighbouring angles, from which a rotation is no longer what it is meant to be
ALIKE = ("mask-added-01", "mask-finite-fill", "dropout-sums")  # said of one tile, they are said of all
TILE = re.compile(r"(_\d+)+")  # what ends the names of a tile's steps
KINDS = (("nan", "NaN"), ("overflow", "infinity"))  # code of a note, and what it is about


def notes(trace: Trace) -> list[Note]:
    """All notes about a trace: those of its problem, then those of its steps in order. Computes the trace."""
    return about([*trace.remarks, *(note for step in trace for note in look_at(step))], None)


def about(found: Iterable[Note], names: Collection[str] | None) -> list[Note]:
    """The notes about the steps in `names` (about all, when None). A cause of NaN and infinities is told once, and so is
    what all tiles have alike."""
    result, told = [], set()
    for note in found:
        wanted = names is None or note.step is None or note.step in names or note.cause
        once = note.cause or (note.code if note.code in ALIKE else "")
        if wanted and once not in told:
            result.append(note)
            told |= {once} - {""}
    return result


def look_at(step: Step) -> Iterator[Note]:
    """The notes about one computed step."""
    looks = (given_not_finite if step.given else became_infinite, *LOOKS.get(base(step), ()))
    with np.errstate(all="ignore"):  # bfloat16 warns when NaN is compared
        found = [note for look in looks for note in look(step)]
    yield from found


def base(step: Step) -> str:
    """The name of a step without the tile that it is about: masked_0_1 is one of those called masked."""
    return TILE.sub("", step.name)


def bounds(values: Array) -> tuple[float, float]:
    """The smallest and largest value, NaN if there is one; reads the array twice and copies nothing."""
    wide = values if values.itemsize > 2 else values.astype(working(values.dtype))
    return float(wide.min()), float(wide.max())


def calm(step: Step) -> bool:
    """Whether there is nothing but finite numbers, and the −∞ that masks are made of."""
    low, high = bounds(step.values)
    if np.isfinite(low) and np.isfinite(high):
        return True
    return not np.isnan(low) and not any(strange(step, what).any() for _, what in KINDS)


def strange(step: Step, what: str) -> Array:
    """Where there is NaN, or an infinity that no mask put there: a sink's share of a row without keys, exp(z + ∞), is one."""
    if what == "NaN":
        return np.isnan(step.values)
    if isinstance(step.operation, AddSink):
        return np.isinf(step.values) & ~np.isneginf(step.operands[1].values)
    return np.isposinf(step.values) if base(step) in MASKED else np.isinf(step.values)


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
    """Queries that may attend to nothing: every score of theirs is −∞."""
    empty = np.isneginf(step.operands[0].values.max(axis=-1))
    yield from masked_rows(step, empty, "its weights are", sink=len(step.operands) > 1)


def tiles_without_keys(step: Step) -> Iterator[Note]:
    """The same of a tile of queries, after all its keys: nothing was summed, or nothing but the sink."""
    if isinstance(step.operation, Quotient) and not isinstance(step.operands[1].operation, AddSink):
        yield from masked_rows(step, step.operands[1].values == 0, "its context is", sink=False)


def sinks_alone(step: Step) -> Iterator[Note]:
    """Rows of a tile whose largest score is −∞: only the sink is left."""
    yield from masked_rows(step, np.isneginf(step.operands[1].values), "its context is", sink=True)


def masked_rows(step: Step, empty: Array, what: str, sink: bool) -> Iterator[Note]:
    if not empty.any():
        return
    if sink:
        shown = "zeros, since the sink takes everything"
    elif np.isnan(step.values[places(empty)[0]]).any():
        shown = "NaN, as plain softmax gives"
    else:
        shown = "zeros, as torch's scaled_dot_product_attention and ONNX give"
    message = f"{listing(step.name, empty)}: a query that may attend to nothing has every score −∞; {what} {shown}"
    yield Note("masked-row", step.name, message)


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


def sunk(step: Step) -> Iterator[Note]:
    """Rows of which a sink leaves next to nothing to the keys, though there are some."""
    share = step.values.astype(working(step.dtype), copy=False)
    full = (share > SATURATED) & ~np.isneginf(step.operands[0].values.max(axis=-1))
    if full.any():
        yield Note(
            "sunk",
            step.name,
            f"{listing(step.name, full)}: the sink takes more than {SATURATED:.2%} of the weight; next to nothing is left to "
            "the keys",
        )


def coarse_angles(step: Step) -> Iterator[Note]:
    """Positions so far out that neighbouring angles cannot be told apart in this dtype."""
    far = max(map(abs, bounds(step.values)))
    if np.isfinite(far) and (apart := far * epsilon(step.dtype)) > COARSE:
        yield Note(
            "rope-precision",
            step.name,
            f"angles reach {far:.6g} radians, where {step.dtype.name} is no finer than about {apart:.1g}: the fastest pairs "
            "turn by angles that are rounded so far",
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
    "sink_weights": (sunk,),
    "context": (tiles_without_keys,),
    "total": (sinks_alone,),
    "dropped": (dropped_sums,),
    "angles": (coarse_angles,),
    "key_angles": (coarse_angles,),
    "mask": (odd_mask,),
}
