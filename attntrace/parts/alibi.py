"""ALiBi (Press et al. 2022): a bias that grows with the distance from query to key, steeper in some heads than in others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from attntrace.dtypes import working
from attntrace.errors import Fault
from attntrace.ledger import Ledger
from attntrace.ops import AddMask, LinearBias, Slopes
from attntrace.parts.place import Align, by_item, positions, unaligned
from attntrace.parts.project import give
from attntrace.problem import Part, Place, Problem, Tile
from attntrace.tape import Array, Step, Trace


@dataclass(frozen=True)
class Alibi(Part):
    """`slopes` is the name of a source, or "" for the slopes of the paper. `align` says where the first query stands."""

    slopes: str = ""
    align: Align = None

    @classmethod
    def make(cls, detail: Any, place: Place) -> Alibi | None:
        if detail is False:
            return None
        given = {} if detail is True else detail
        slopes = place(given["slopes"], "slopes") if "slopes" in given else ""
        return cls(slopes, given.get("align"))

    def enter(self, ledger: Ledger, p: Problem) -> dict[str, tuple[str, ...]]:
        if not self.slopes:
            return {}
        return {self.slopes: ledger.enter(self.slopes, p.sources[self.slopes].shape, (p.per_head,))}

    def check(self, p: Problem) -> Iterator[Fault]:
        """Where a mask has an alignment, or should have one, that is a matter between the reader and the mask."""
        masked = "mask" in p.unsure or any(hasattr(m, "align") for m in p.options.masks)
        return iter(()) if masked else unaligned(p, "the distance", self.align, "{{align: {}}}", ("alibi",))

    def standing(self, p: Problem) -> Align:
        """Its own alignment, or the one that a causal mask or a window has."""
        aligns = (getattr(m, "align", None) for m in p.options.masks)
        return self.align if self.align is not None else next((a for a in aligns if a is not None), None)

    def distance(self, p: Problem, at: Tile) -> Array:
        """|i − j| between the positions of query and key."""
        query, key = positions(p, at, self.standing(p))
        apart = np.abs(query - key)[:, 0]
        return np.asarray(apart if self.ragged(p) else apart[0])

    def ragged(self, p: Problem) -> bool:
        return bool(by_item(p, self.standing(p)))


def bias(t: Trace, p: Problem, s: Step, at: Tile) -> Step:
    """Add the linear bias to the scores; without alibi, record nothing."""
    alibi = p.options.parts.get("alibi")
    if not isinstance(alibi, Alibi):
        return s
    m = t["slopes"] if "slopes" in t else slopes(t, p, alibi)
    lead = ("batch",) if alibi.ragged(p) else ()
    apart = t.given(
        f"distance{at.suffix}", "|i − j|", (*lead, at.query, at.key), lambda: alibi.distance(p, at), "", np.dtype(np.float64)
    )
    heads = ("head",) if p.headed else ()
    b = t(f"alibi{at.suffix}", "B = −m |i − j|", (*lead, *heads, at.query, at.key), LinearBias(p.headed), m, apart)
    missing = tuple(i for i, axis in enumerate(s.axes) if axis not in b.axes)
    return t(f"biased{at.suffix}", f"S_B = {s.symbol} + B", s.axes, AddMask(missing), s, b)


def slopes(t: Trace, p: Problem, alibi: Alibi) -> Step:
    if alibi.slopes:
        return give(t, p, alibi.slopes, "slopes", "m")
    n = p.sizes.get("head", 1)
    power = n == 1 << (n.bit_length() - 1)
    formula = f"m = 2^(−8h/{n}), h from 1 to {n}" if power else f"m = ALiBi slopes of {n} heads"
    return t("slopes", formula, (p.per_head,), Slopes(n), dtype=working(p.options.dtype))
