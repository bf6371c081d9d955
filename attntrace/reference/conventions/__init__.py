"""On which points implementations of attention differ by design, and what each does where a problem touches such a point.

What a framework does is found out by asking it: a probe is a small call of its own attention, made for this point alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module

import numpy as np

from attntrace.parts import mask as masks
from attntrace.problem import Problem
from attntrace.reference.reading import VALUES as VALUE_NAMES
from attntrace.reference.reading import bias, four, gaps, keyless, latest, result, wide
from attntrace.tape import Array

Have = Mapping[str, Array]
KEYLESS = "a query without keys"
CORNER = "a causal mask with unequal lengths"
ORDER = "a softcap together with a mask"


@dataclass(frozen=True)
class Convention:
    """A point that the problem touches, what a framework does there, and a number of each, which `number` describes."""

    point: str
    what: str
    does: str
    number: str
    ours: float
    theirs: float

    @property
    def differs(self) -> bool:
        return not (math.isclose(self.ours, self.theirs, rel_tol=1e-2) or (math.isnan(self.ours) and math.isnan(self.theirs)))

    @property
    def sentence(self) -> str:
        here = f"here {self.ours:.4g}" if self.differs else "as here"
        return f"{self.point}: {self.what} {self.does}; {self.number} is {self.theirs:.4g} there, {here}"


def conventions(framework: str, p: Problem, have: Have) -> list[Convention]:
    """What `framework`, whose package is installed, does on every point that the problem touches."""
    return list(import_module(f"attntrace.reference.conventions.{framework}").conventions(p, have))


Values = Callable[[Array], Array]  # values (1, 1, key, d) to what a query gets that may see none of them: (d)
Seen = Callable[[int, int], Array]  # numbers of queries and keys to which keys each query sees: (query, key), 0 or more


def without_keys(p: Problem, have: Have, what: str, attend: Values) -> Iterator[Convention]:
    """Whether some query may attend to nothing, and what it gets: zeros, NaN, or the mean of all values."""
    none = keyless(p)
    if "sinks" in p.sources or not none.any() or result(p) not in have:
        return
    item, head, row = (int(n) for n in np.argwhere(none)[0])
    v = wide(four(p, have[latest(have, *VALUE_NAMES)]))[item, head // p.group][None, None]
    ours = four(p, have[result(p)])[item, head, row]
    theirs = np.asarray(attend(v), np.float64)
    place = ", ".join(map(str, (*(item,) * p.batched, *(head,) * p.headed, row, 0)))
    does = found(theirs, v[0, 0].mean(axis=0))
    yield Convention(KEYLESS, what, does, f"{result(p)}[{place}]", float(ours[0]), float(theirs[0]))


def found(row: Array, mean: Array) -> str:
    if np.isnan(row).all():
        return "gives NaN"
    if not row.any():
        return "gives zeros"
    return "gives the mean of all values" if np.allclose(row, mean, rtol=1e-3, atol=1e-6) else "gives other numbers"


def aligned(p: Problem, what: str, seen: Seen) -> Iterator[Convention]:
    """Where a causal mask puts the first query when there are not as many queries as keys."""
    causal = next((m for m in p.options.masks if isinstance(m, masks.Causal)), None)
    queries, keys = p.queries, p.sizes["key"]
    if causal is None or queries == keys:
        return
    theirs = np.asarray(seen(queries, keys), np.float64) > 0
    corners = {"at the first key": 0, "so that the last one stands at the last key": keys - queries}
    counts = theirs.sum(axis=1)
    where = next((name for name, first in corners.items() if (counts == visible(queries, keys, first)).all()), "elsewhere")
    ours = (gaps(p, causal.align)[0, 0] >= 0).sum(axis=1)
    row = p.rows[0]
    number = f"the number of keys that query {row} may see"
    yield Convention(CORNER, what, f"puts the first query {where}", number, float(ours[0]), float(counts[row]))


def visible(queries: int, keys: int, first: int) -> Array:
    """How many keys each query sees when the first one stands at key `first`."""
    return np.clip(first + 1 + np.arange(queries), 0, keys)


def capped_before(p: Problem, have: Have, what: str, hidden: Callable[[float], float]) -> Iterator[Convention]:
    """Whether the softcap comes before the mask: after it, keys that are hidden get some weight."""
    cap = p.options.softcap
    if cap is None or not np.isneginf(wide(bias(p))).any():
        return
    theirs = hidden(cap)
    does = "caps before it masks" if theirs == 0 else "caps after it masks"
    yield Convention(ORDER, what, does, "the weight of a hidden key", weight_of_hidden(p, have), theirs)


def weight_of_hidden(p: Problem, have: Have) -> float:
    """The largest weight in the trace of a key that a mask hides."""
    if "weights" not in have:
        return 0.0
    w = np.nan_to_num(wide(have["weights"])).reshape(p.sizes.get("batch", 1), p.sizes.get("head", 1), len(p.rows), -1)
    return float(np.where(np.isneginf(wide(bias(p))), w, 0).max())
