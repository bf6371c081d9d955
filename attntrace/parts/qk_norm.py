"""Queries and keys brought to unit size, head by head, before their products are taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attntrace.ledger import Ledger
from attntrace.ops import Normalise
from attntrace.parts.norm import EPS, formula
from attntrace.parts.project import give
from attntrace.problem import Part, Place, Problem
from attntrace.tape import Step, Trace


@dataclass(frozen=True)
class QKNorm(Part):
    """`norm` is "rmsnorm", "layernorm" or "l2"; `q` and `k` are names of sources that weigh the entries, or ""."""

    norm: str
    eps: float
    q: str = ""
    k: str = ""

    @classmethod
    def make(cls, detail: str | Mapping[str, Any], place: Place) -> QKNorm:
        given = {"norm": detail} if isinstance(detail, str) else detail
        weights = {name: place(given[name], name) for name in ("q", "k") if name in given}
        return cls(given["norm"], float(given.get("eps", EPS[given["norm"]])), **weights)

    def enter(self, ledger: Ledger, p: Problem) -> dict[str, tuple[str, ...]]:
        names = filter(None, (self.q, self.k))
        return {name: ledger.enter(name, p.sources[name].shape, ("d_k",)) for name in names}


def normalise(t: Trace, p: Problem, q: Step, k: Step) -> tuple[Step, Step]:
    """Bring each query and key to unit size; without qk_norm, record nothing."""
    part = p.options.parts.get("qk_norm")
    if not isinstance(part, QKNorm):
        return q, k
    return one(t, p, part, "q", part.q, q), one(t, p, part, "k", part.k, k)


def one(t: Trace, p: Problem, part: QKNorm, letter: str, weight: str, x: Step) -> Step:
    g = [give(t, p, weight, f"{letter}_norm_weight", f"g_{letter.upper()}")] if weight else []
    op = Normalise(part.norm, part.eps, weighted=bool(g))
    return t(f"{letter}_norm", f"{letter.upper()}̂ = {formula(part.norm, x, g)}", x.axes, op, x, *g)
