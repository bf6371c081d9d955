"""Rotary position embeddings (Su et al. 2021): queries and keys turned by their positions, pair by pair."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attntrace.dtypes import working
from attntrace.errors import AttnTraceError, Fault
from attntrace.ledger import Ledger, amount
from attntrace.ops import Angles, Cos, Frequencies, LookUp, Rotate, Sin
from attntrace.ops.position import Linear, Llama3
from attntrace.parts.project import give
from attntrace.problem import Part, Place, Problem, called
from attntrace.tape import Array, Step, Trace

MANY = 3  # faults reported for one list of positions
FACTORS = {"low": 1.0, "high": 4.0}  # of Llama 3's scaling, unless given


@dataclass(frozen=True)
class Rope(Part):
    """`pairs` says which entries turn together: "interleaved" or "half". `dims` of them turn; None is all.

    `positions`, `cos` and the others are names of the problem's sources, or "" where they are not given.
    """

    pairs: str
    base: float = 10000.0
    dims: int | None = None
    offset: int = 0
    scaling: Linear | Llama3 | None = None
    positions: str = ""
    key_positions: str = ""
    cos: str = ""
    sin: str = ""

    @classmethod
    def make(cls, detail: Mapping[str, Any], place: Place) -> Rope:
        if faults := list(misfits(detail)):
            raise AttnTraceError(*faults)
        fields = {name: detail[name] for name in ("pairs", "base", "dims", "offset") if name in detail}
        for name in ("positions", "key_positions", "cos", "sin"):
            if name in detail:
                fields[name] = place(detail[name], name)
        return cls(**fields, scaling=scaling(detail.get("scaling")))

    def turned(self, p: Problem) -> int:
        """How many entries of each query and key turn."""
        if self.dims is not None:
            return self.dims
        return 2 * p.sizes["pair"] if self.cos else p.sizes["d_k"]

    def enter(self, ledger: Ledger, p: Problem) -> dict[str, tuple[str, ...]]:
        axes = {}
        for name, axis in ((self.positions, "token_position"), (self.key_positions, "key_position")):
            if name:
                axes[name] = ledger.enter(name, p.sources[name].shape, (*batch_axis(p, name, 2), axis))
        for name in filter(None, (self.cos, self.sin)):
            axes[name] = ledger.enter(name, p.sources[name].shape, (*batch_axis(p, name, 3), "table", "pair"))
        return axes

    def check(self, p: Problem) -> Iterator[Fault]:
        yield from self._check_width(p)
        faults = list(self._check_positions(p))
        yield from faults
        if self.cos and not faults:
            yield from self._check_table(p)

    def _check_width(self, p: Problem) -> Iterator[Fault]:
        d, n = p.sizes["d_k"], self.dims
        if n is not None and (n > d or n % 2):
            what = f"at most {d} (d_k)" if n > d else "an even number, since entries turn in pairs"
            yield Fault(f"rope.dims: expected {what}, found {n}", ("rope", "dims"))
        elif self.cos and n is None and p.sizes["pair"] > d // 2:
            wanted = f"at most {amount(d // 2, 'columns')} (d_k is {d})"
            yield Fault(f"rope.cos: expected {wanted}, one for each pair; found {p.sizes['pair']}", ("rope", "cos"))
        elif self.cos and n is not None and p.sizes["pair"] != n // 2:
            wanted = f"{amount(n // 2, 'columns')} (dims: {n})"
            yield Fault(f"rope.cos: expected {wanted}, one for each pair; found {p.sizes['pair']}", ("rope", "cos"))
        elif not self.cos and n is None and d % 2:
            cure = f"; say dims: {d - 1}" if d > 1 else ""
            yield Fault(f"rope: entries turn in pairs, and d_k is {d}{cure}", ("rope",))

    def _check_positions(self, p: Problem) -> Iterator[Fault]:
        new = p.sizes[p.new_key]
        for name, axis, count, what in (
            (self.positions, "token_position", p.queries, "queries"),
            (self.key_positions, "key_position", new, "keys"),
        ):
            if name and p.sizes[axis] != count:
                wanted = f"{amount(count, 'positions')} (one for each of the {what})"
                yield Fault(f"{name}: expected {wanted}, found {p.sizes[axis]}", tuple(name.split(".")))
        if p.queries != new and not self.positions:
            lengths = f"{amount(p.queries, 'queries')} and {amount(new, 'keys')}"
            yield Fault(f"rope: with {lengths} say where the queries stand: positions: [0, 1, …]", ("rope",))

    def _check_table(self, p: Problem) -> Iterator[Fault]:
        """Every position must be the number of a row of the tables."""
        last = p.sizes["table"] - 1
        for name in filter(None, (self.positions, self.key_positions)):
            at = p.sources[name].read()
            for index in np.argwhere(~((at >= 0) & (at <= last) & (at == np.floor(at))))[:MANY].tolist():
                path = (*name.split("."), *index)
                wanted = f"a row of the tables, 0 to {last}"
                yield Fault(f"{called(path)}: expected {wanted}, found {float(at[tuple(index)]):g}", path)
        counts, first = self._standing_by_themselves(p), p.past + self.offset
        if counts and first.min() < 0:
            found = f"found {first.min()}"
            yield Fault(f"rope.offset: expected at least 0, since the tables begin at position 0; {found}", ("rope", "offset"))
        elif counts and (end := int(first.max()) + max(counts)) > last + 1:
            wanted = f"{amount(end, 'rows')} (positions 0 to {end - 1})"
            yield Fault(f"rope.cos: expected at least {wanted}, found {last + 1}", ("rope", "cos"))

    def _standing_by_themselves(self, p: Problem) -> list[int]:
        """How many queries there are, and how many new keys, where it is not said where they stand."""
        new = p.sizes[p.new_key]
        queries = [] if self.positions else [p.queries]
        return queries if self.key_positions or (self.positions and p.queries == new) else [*queries, new]

    def standing(self, p: Problem, count: int) -> Array:
        """Where `count` tokens stand when nothing is said: in a row, after the keys of a cache."""
        start = p.past + self.offset
        rows = np.arange(count)
        return start[0] + rows if len(start) == 1 else start[:, None] + rows

    def of_queries(self, p: Problem) -> Array:
        given = p.arrays[self.positions] if self.positions else self.standing(p, p.queries)
        return given[..., p.rows.start : p.rows.stop]

    def of_keys(self, p: Problem) -> Array:
        new = p.sizes[p.new_key]
        if self.key_positions:
            return p.arrays[self.key_positions]
        return p.arrays[self.positions] if self.positions and p.queries == new else self.standing(p, new)


def batch_axis(p: Problem, name: str, axes: int) -> tuple[str, ...]:
    """The batch axis of an input that has `axes` with it, and one less where it serves all batch items."""
    return ("batch",) if p.batched and len(p.sources[name].shape) == axes else ()


def misfits(detail: Mapping[str, Any]) -> Iterator[Fault]:
    """Keys that are lacking, or that would change nothing beside others."""
    there = [name for name in ("cos", "sin") if name in detail]
    if len(there) == 1:
        lacking = "sin" if there == ["cos"] else "cos"
        yield Fault(f"rope: {there[0]} is given and {lacking} is not; give both tables, or neither", ("rope", there[0]))
    for name in ("base", "scaling") if there else ():
        if name in detail:
            yield Fault(f"rope.{name}: changes nothing where cos and sin are given; leave one of them out", ("rope", name))
    if "positions" in detail and "offset" in detail:
        yield Fault("rope.offset: positions say already where the tokens stand; leave one of them out", ("rope", "offset"))
    yield from scaling_misfits(detail.get("scaling") or {})


def scaling_misfits(detail: Mapping[str, Any]) -> Iterator[Fault]:
    at = ("rope", "scaling")
    for name in ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings"):
        if name in detail and detail["type"] == "linear":
            yield Fault(f"rope.scaling.{name}: goes with type: llama3, not with linear", (*at, name))
    low, high = (detail.get(f"{name}_freq_factor", most) for name, most in FACTORS.items())
    if detail.get("type") == "llama3" and low >= high:
        key = "high_freq_factor" if "high_freq_factor" in detail else "low_freq_factor"
        wanted = f"more than low_freq_factor ({low:g})" if key[0] == "h" else f"less than high_freq_factor ({high:g})"
        yield Fault(f"rope.scaling.{key}: expected {wanted}, found {detail[key]:g}", (*at, key))


def scaling(detail: Mapping[str, Any] | None) -> Linear | Llama3 | None:
    if detail is None:
        return None
    if detail["type"] == "linear":
        return Linear(float(detail["factor"]))
    low, high = (detail.get(f"{name}_freq_factor", most) for name, most in FACTORS.items())
    return Llama3(float(detail["factor"]), float(low), float(high), float(detail.get("original_max_position_embeddings", 8192)))


def rotate(t: Trace, p: Problem, q: Step, k: Step) -> tuple[Step, Step]:
    """Turn queries and keys by their positions; without rope, record nothing."""
    rope = p.options.parts.get("rope")
    if not isinstance(rope, Rope):
        return q, k
    t.labels["pair"] = pairs_of(rope.pairs, rope.turned(p))
    table = looked_up(t, p, rope) if rope.cos else computed(t, p, rope)
    cos, sin = table(where(t, p, rope, "", "query", "p"))
    alike = not rope.key_positions and p.queries == p.sizes[p.new_key] == len(p.rows)
    k_cos, k_sin = (cos, sin) if alike else table(where(t, p, rope, "key_", p.new_key, "pₖ"))
    dims = rope.turned(p)
    turn, which = Rotate(rope.pairs, dims), paired(rope.pairs, dims, p.sizes["d_k"])
    return (
        t("q_rot", f"Q̃ = {q.symbol} turned, {which}", q.axes, turn, q, cos, sin),
        t("k_rot", f"K̃ = {k.symbol} turned, {which}", k.axes, turn, k, k_cos, k_sin),
    )


def where(t: Trace, p: Problem, rope: Rope, prefix: str, token: str, symbol: str) -> Step:
    """The positions of the queries, or with the prefix "key_" those of the keys."""
    own = rope.key_positions if prefix and rope.key_positions else rope.positions
    if prefix and not rope.key_positions and p.queries != p.sizes[p.new_key]:
        own = ""
    batched = len(p.sources[own].shape) == 2 if own else len(p.past) > 1
    origin = (
        p.sources[own].origin if own else f"from {(p.past + rope.offset).tolist()[0]} on" if not batched else "after the past"
    )
    read = (lambda: rope.of_keys(p)) if prefix else (lambda: rope.of_queries(p))
    return t.given(f"{prefix}positions", symbol, (*("batch",) * batched, token), read, origin, np.dtype(np.float64))


Table = Callable[[Step], tuple[Step, Step]]


def computed(t: Trace, p: Problem, rope: Rope) -> Table:
    """Cosine and sine of the angle that each pair has at each position."""
    d, wide = rope.turned(p), working(p.options.dtype)
    t.sizes["pair"] = d // 2
    formula = f"θ = {rope.base:g}^(−2i/{d}){said(rope.scaling)}"
    theta = t("frequencies", formula, ("pair",), Frequencies(rope.base, d, rope.scaling), dtype=wide)

    def table(at: Step) -> tuple[Step, Step]:
        prefix, mark = at.name.removesuffix("positions"), at.symbol[1:]
        phi = t(f"{prefix}angles", f"φ{mark} = {at.symbol} θ", (*at.axes, "pair"), Angles(), at, theta, dtype=wide)
        cos = t(f"{prefix}cos", f"c{mark} = cos φ{mark}", phi.axes, Cos(), phi)
        return cos, t(f"{prefix}sin", f"s{mark} = sin φ{mark}", phi.axes, Sin(), phi)

    return table


def looked_up(t: Trace, p: Problem, rope: Rope) -> Table:
    """Rows of the tables that are given, one for each position."""
    tables = [give(t, p, source, f"{source[5:]}_table", f"T_{source[5:]}") for source in (rope.cos, rope.sin)]

    def table(at: Step) -> tuple[Step, Step]:
        prefix, mark = at.name.removesuffix("positions"), at.symbol[1:]
        lead = ("batch",) if "batch" in (*at.axes, *tables[0].axes) else ()
        axes = (*lead, at.axes[-1], "pair")
        cos = t(f"{prefix}cos", f"c{mark} = T_cos[{at.symbol}]", axes, LookUp(), tables[0], at)
        return cos, t(f"{prefix}sin", f"s{mark} = T_sin[{at.symbol}]", axes, LookUp(), tables[1], at)

    return table


def said(scaling: Linear | Llama3 | None) -> str:
    if scaling is None:
        return ""
    return f" / {scaling.factor:g}" if isinstance(scaling, Linear) else f", Llama 3 scaling by {scaling.factor:g}"


def pairs_of(pairs: str, dims: int) -> list[str]:
    """`(0, 2)`, `(1, 3)`: which entries turn together."""
    half = dims // 2
    return [f"({2 * i}, {2 * i + 1})" if pairs == "interleaved" else f"({i}, {i + half})" for i in range(half)]


def paired(pairs: str, dims: int, d: int) -> str:
    """`pairs (0, 2) (1, 3), 4 to 7 stay`, for a formula."""
    each = pairs_of(pairs, dims)
    shown = each if len(each) <= 4 else [*each[:2], "…", each[-1]]
    rest = "" if dims == d else f", {dims} stays" if dims == d - 1 else f", {dims} to {d - 1} stay"
    return f"pairs {' '.join(shown)}{rest}"
