"""Which step a claim is about, and how its cells lie in that step.

A name decides where it is known; where it may mean several steps, or there is none, shape decides, and then the numbers:
the step is meant that they are nearest to, even if they are all wrong. What was understood is said.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attntrace.claims import names
from attntrace.claims.claim import Claim, Index, Reading
from attntrace.claims.reading import fault_of, understood
from attntrace.errors import nearest
from attntrace.tape import Array, Step, Trace

HEADS = ("head", "kv_head")
ALIKE = 1e-9  # two steps are equally near
CLOSE = 0.5  # share of the cells that must fit before a name that nobody knows is overruled by its numbers
SLACK = 1e-6  # relative, of numbers that were computed in single precision
NUMBER = " number"
NAMELESS = 200  # claims that are held against every step


@dataclass(frozen=True)
class Fit:
    """A claim laid out as its step is, and what had to be done for it, in words."""

    claim: Claim
    step: Step
    done: str = ""


def match(claims: Iterable[Claim], trace: Trace) -> Reading:
    """The claims as claims about steps of `trace`, in their shapes and in the order of the tape; one a step."""
    reading = Reading()
    fits: list[Fit] = []
    nameless: list[Claim] = []
    for claim in counted(list(claims), trace):
        meant = options(claim, trace)
        if meant is None and len(nameless) == NAMELESS:
            reading.faults.append(fault_of(claim, f"{claim.title}: more than {NAMELESS} claims without the name of a step"))
        elif meant is None:
            nameless.append(claim)
        elif fit := chosen(claim, meant, trace, reading):
            fits.append(fit)
    reading.claims = merged(fits, reading)
    reading.claims += merged(by_value(nameless, trace, {c.name for c in reading.claims}, reading), reading)
    order = {name: i for i, name in enumerate(trace.names)}
    reading.claims.sort(key=lambda claim: order[claim.name])
    return reading


def counted(claims: list[Claim], trace: Trace) -> list[Claim]:
    """Heads and batch items that people number, counted from 0 where that can be told: from 0 if there is a 0, from 1 if there
    is one too many otherwise, or several in a row from 1 on."""
    for axis in ("head", "batch"):
        numbers = {i for claim in claims for name, i in claim.index if name == axis + NUMBER}
        several = len(numbers) > 1 and numbers == set(range(1, len(numbers) + 1))
        if 0 in numbers:
            first = 0
        elif several or trace.sizes.get(axis) in numbers:
            first = 1
        else:
            continue
        claims = [replace(claim, index=tuple(from_zero(part, axis, first) for part in claim.index)) for claim in claims]
    return claims


def from_zero(part: tuple[str, int], axis: str, first: int) -> tuple[str, int]:
    return (axis, part[1] - first) if part[0] == axis + NUMBER else part


# ------------------------------------------------------------------ by name


def options(claim: Claim, trace: Trace) -> tuple[str, ...] | None:
    """The steps that the name of a claim may mean, be they in the trace or not; None when it means nothing."""
    if claim.name in trace:
        return (claim.name,)
    symbols = [(step.symbol, step.name) for step in trace]
    bare = claim.called if claim.index else names.split(claim.called)[0]
    bare = names.split(bare)[0]
    return names.candidates(bare, trace.names, symbols) or None


def chosen(claim: Claim, meant: Sequence[str], trace: Trace, reading: Reading) -> Fit | None:
    """The step out of several that a name may mean: the one whose shape and numbers are nearest."""
    there = [trace[name] for name in meant if name in trace]
    if not there:
        others = nearest(meant[0], trace.names) or f"; its steps are {', '.join(trace.names[:20])}"
        reading.faults.append(fault_of(claim, f"{claim.title}: this trace has no step {meant[0]}{others}"))
        return None
    fitting = [fit for step in there if (fit := fitted(claim, step))]
    if not fitting:
        reading.faults.append(fault_of(claim, misfit(claim, there[0])))
        return None
    best = min(fitting, key=distance)
    if claim.name == "":
        said(claim, best, f", whose numbers are nearer than those of {listed(fitting, best)}" if fitting[1:] else "", reading)
    elif best.done:
        reading.said.append(f"{claim.title}: {best.done}")
    return best


def said(claim: Claim, fit: Fit, why: str, reading: Reading) -> None:
    plain_name = names.split(claim.called)[0].strip().lower() == fit.step.name.lower()
    if not plain_name or why:
        reading.said.append(understood(claim, fit.step.name, why))
    if fit.done:
        reading.said.append(f"{claim.title}: {fit.done}")


def listed(fits: Sequence[Fit], best: Fit) -> str:
    others = [fit.step.name for fit in fits if fit is not best]
    return " and ".join([", ".join(others[:-1]), others[-1]] if others[1:] else others)


def misfit(claim: Claim, step: Step) -> str:
    expected = " × ".join(f"{axis} {size}" for axis, size in zip(step.axes, step.shape, strict=True))
    found = " × ".join(map(str, claim.shape)) or "a single number"
    part = " for a part of it" if claim.index else ""
    return f"{claim.title}: {step.name} is {expected}; found {found}{part}"


# ------------------------------------------------------------------ by value


Near = dict[str, tuple[float, float]]  # how far a claim is from each step


def by_value(claims: Sequence[Claim], trace: Trace, taken: set[str], reading: Reading) -> list[Fit]:
    """Claims whose names tell nothing, each for the step that it is nearest to; the surest ones choose first."""
    result = []
    waiting = []
    for claim in claims:
        fits = [fit for step in trace if (fit := fitted(claim, step))]
        if fits:
            waiting.append((claim, fits, {fit.step.name: distance(fit) for fit in fits}))
        else:
            reading.faults.append(fault_of(claim, f"{claim.title}: no step of this trace has the shape {times(claim.shape)}"))
    while waiting:
        open_ = [(free(claim, fits, taken), near) for claim, fits, near in waiting]
        first = min(range(len(waiting)), key=lambda i: least(*open_[i]))
        claim, _, near = waiting.pop(first)
        fit = settled(claim, open_[first][0], near, trace, reading)
        if fit:
            result.append(fit)
            taken = taken | {fit.step.name}
    return result


def free(claim: Claim, fits: Sequence[Fit], taken: set[str]) -> list[Fit]:
    """What is left for a claim to be about. A part of a step goes beside other parts."""
    return [fit for fit in fits if fit.step.name not in taken or claim.index]


def least(fits: Sequence[Fit], near: Near) -> tuple[float, float]:
    return min((near[fit.step.name] for fit in fits), default=(2.0, 2.0))


def settled(claim: Claim, fits: Sequence[Fit], near: Near, trace: Trace, reading: Reading) -> Fit | None:
    """The step that a claim without a name is about, which is said; None, and a fault, where there is none left for it."""
    if not fits:
        reading.faults.append(fault_of(claim, f"{claim.title}: every step of its shape is claimed already"))
        return None
    fit = preferred(fits, near)
    if claim.called and near[fit.step.name][0] > CLOSE:
        reading.faults.append(fault_of(claim, unknown(claim, trace)))
        return None
    said(claim, fit, doubt(fit, fits, near), reading)
    return fit


def preferred(fits: Sequence[Fit], near: Near) -> Fit:
    """The nearest fit; of equal ones the first that is computed."""
    best = min(near[fit.step.name] for fit in fits)
    return min((fit for fit in fits if alike(near[fit.step.name], best)), key=lambda fit: fit.step.given)


def alike(a: tuple[float, float], b: tuple[float, float]) -> bool:
    return abs(a[0] - b[0]) + abs(a[1] - b[1]) < ALIKE


def doubt(fit: Fit, fits: Sequence[Fit], near: Near) -> str:
    """How sure the choice is, as the end of a sentence."""
    others = [f.step.name for f in fits if f is not fit and alike(near[f.step.name], near[fit.step.name])]
    if others:
        return f", which has the same numbers here as {' and '.join(others[:3])}"
    if len(fits) == 1:
        return ", the only step of its shape"
    if near[fit.step.name][0] > CLOSE:
        return ", the nearest of the steps of its shape, though most of its numbers differ"
    return ", whose numbers are nearest"


def unknown(claim: Claim, trace: Trace) -> str:
    hint = nearest(claim.called[:60], trace.names) or f"; its steps are {', '.join(trace.names[:20])}"
    return f'"{claim.title}" is no step of this trace{hint}'


def distance(fit: Fit) -> tuple[float, float]:
    """How far a claim is from a step: the share of its cells that differ, then by how much they do, from 0 to 1."""
    there = fit.claim.there
    claimed, half = fit.claim.values[there], fit.claim.half[there]
    right = fit.step.values.astype(np.float64)[there]
    if not claimed.size:
        return 1.0, 1.0
    with np.errstate(all="ignore"):
        off = np.abs(claimed - right)
        size = np.abs(claimed) + np.abs(right)
        fine = (claimed == right) | (np.isnan(claimed) & np.isnan(right)) | (off <= half + SLACK * (1 + np.abs(right)))
        far = np.where(fine, 0.0, np.where(np.isfinite(off / size), off / size, 1.0))
    return 1.0 - float(fine.mean()), float(far.mean())


# ------------------------------------------------------------------ shapes


def fitted(claim: Claim, step: Step) -> Fit | None:
    """The claim in the shape of a step; None if it does not go in, or goes in more than one way."""
    places = list(positions(claim.index, step))
    claim = ordered(claim, step)
    found = [fit for place in places if (fit := placed(claim, step, place))]
    return min(found, key=distance) if found else None


def ordered(claim: Claim, step: Step) -> Claim:
    """A claim that names its axes, with them in the order of the step."""
    if not claim.axes or set(claim.axes) != set(step.axes):
        return claim
    order = [claim.axes.index(axis) for axis in step.axes]
    parts = {part: getattr(claim, part).transpose(order) for part in ("values", "there", "half")}
    return replace(claim, axes=step.axes, **parts)


def positions(index: Index, step: Step) -> Iterable[dict[int, int]]:
    """Where an index of a claim points: axis number to position. People number heads from 0 or from 1."""
    ways: list[list[tuple[int, int]]] = []
    free = 0
    for axis, i in index:
        if axis == "":
            ways.append([(free, i)])
            free += 1
            continue
        name = axis.removesuffix(NUMBER)
        at = next((j for j, a in enumerate(step.axes) if a == name or (name == "head" and a in HEADS)), None)
        if at is None:
            continue  # a step without heads, as keys that all heads share
        ways.append([(at, i)] + ([(at, i - 1)] if axis.endswith(NUMBER) else []))
    for way in itertools.product(*ways):
        if all(at < len(step.shape) and 0 <= i < step.shape[at] for at, i in way) and len(dict(way)) == len(way):
            yield dict(way)


def placed(claim: Claim, step: Step, place: dict[int, int]) -> Fit | None:
    axes = tuple(axis for i, axis in enumerate(step.axes) if i not in place)
    target = tuple(n for i, n in enumerate(step.shape) if i not in place)
    way = layout(claim.shape, target, axes, claim.loose)
    if way is None:
        return None
    change, done = way
    key = tuple(place.get(i, slice(None)) for i in range(len(step.shape)))
    values, there, half = (
        spread(change(part), step.shape, key, empty)
        for part, empty in ((claim.values, np.nan), (claim.there, False), (claim.half, 0.0))
    )
    whole = replace(claim, name=step.name, values=values, there=there, half=half, index=(), axes=(), loose=False)
    return Fit(whole, step, done)


def spread(part: Array, shape: tuple[int, ...], key: tuple[int | slice, ...], empty: float) -> Array:
    """A part of a step in an array of the whole."""
    if part.shape == shape:
        return part
    whole = np.full(shape, empty, dtype=part.dtype)
    within = whole[key]
    within[tuple(slice(n) for n in part.shape)] = part
    return whole


Change = Callable[[Array], Array]


def layout(found: tuple[int, ...], target: tuple[int, ...], axes: tuple[str, ...], loose: bool) -> tuple[Change, str] | None:
    """How an array of one shape becomes one of another, and a sentence about it where that is not plain."""
    if found == target:
        return (lambda a: a), ""
    if loose and len(found) == len(target) and all(a <= b for a, b in zip(found, target, strict=True)):
        return (lambda a: a), "cells that are not listed are taken as blank"
    if found == (1, *target) and len(target) == 1:
        return (lambda a: a[0]), ""  # a table of one row
    if squeezed(found) == squeezed(target):
        return (lambda a: a.reshape(target)), f"its shape {times(found)} is read as {times(target)}"
    return merged_heads(found, target, axes)


def squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for n in shape if n != 1)


def times(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape)) or "one number"


def merged_heads(found: tuple[int, ...], target: tuple[int, ...], axes: tuple[str, ...]) -> tuple[Change, str] | None:
    """Heads side by side in a claim where the step has an axis of them, and the reverse."""
    if len(target) >= 3 and axes[-3] in HEADS:
        *lead, heads, rows, width = target
        if squeezed(found) == squeezed((*lead, rows, heads * width)):
            split = (*lead, rows, heads, width)
            return (lambda a: a.reshape(split).swapaxes(-2, -3)), f"its columns are read as {heads} heads of {width}"
    if len(target) >= 2 and len(found) >= 3 and "head" in axes[-1]:
        heads, rows, width = found[-3:]
        if (rows, heads * width) == target[-2:] and squeezed(found[:-3]) == squeezed(target[:-2]):
            return (lambda a: a.swapaxes(-2, -3).reshape(target)), f"its {heads} heads are put side by side"
    return None


# ------------------------------------------------------------------ parts of one step


def merged(fits: Sequence[Fit], reading: Reading) -> list[Claim]:
    """One claim a step: parts put together, as the heads that somebody printed one by one."""
    result: dict[str, Claim] = {}
    for fit in fits:
        name, claim = fit.step.name, fit.claim
        before = result.get(name)
        if before is None:
            result[name] = claim
        elif not (before.there & claim.there).any():
            result[name] = joined(before, claim)
        elif not same(before, claim):
            message = f"{claim.title}: {name} is claimed twice, first as {before.title} ({before.origin}), which counts"
            reading.faults.append(fault_of(claim, message))
    return list(result.values())


def same(a: Claim, b: Claim) -> bool:
    """Whether two claims say the same wherever both say something, to the digits given."""
    both = a.there & b.there
    with np.errstate(all="ignore"):
        near = np.abs(a.values - b.values) <= np.maximum(a.half, b.half) * (1 + SLACK)
    equal = (a.values == b.values) | (np.isnan(a.values) & np.isnan(b.values)) | near
    return bool(equal[both].all())


def joined(a: Claim, b: Claim) -> Claim:
    pick = {part: np.where(b.there, getattr(b, part), getattr(a, part)) for part in ("values", "half")}
    return replace(a, there=a.there | b.there, **pick)
