"""Attention tile by tile, as FlashAttention computes it (Dao et al. 2022): no row of scores is ever whole.

For each tile of queries, the tiles of keys come one after the other. One with a larger score makes the running maximum grow,
and what was summed before it is made smaller by α = exp(m_old − m).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from attntrace.cores.direct import scores
from attntrace.cores.online import Keys, State, column, finish, keys_of, never_whole, one_dtype, queries_of, tile, too_many
from attntrace.errors import Fault
from attntrace.ops import Combine, ExpDifference, MatMul, Maximum, RowMax, RowSum
from attntrace.parts.dropout import drop
from attntrace.problem import Part, Place, Problem, Tile
from attntrace.tape import Note, Step, Trace


@dataclass(frozen=True)
class Tiled(Part):
    """Tiles of `queries` × `keys`; the last ones may be smaller."""

    queries: int
    keys: int

    @classmethod
    def make(cls, detail: Mapping[str, int], place: Place) -> Tiled:
        return cls(detail["queries"], detail["keys"])

    def check(self, p: Problem) -> Iterator[Fault]:
        tiles = -(-len(p.rows) // self.queries) * -(-p.sizes["key"] // self.keys)
        yield from too_many(tiles, "core.tiled", "larger tiles")
        yield from one_dtype(p)

    def remarks(self, p: Problem) -> Iterator[Note]:
        yield never_whole(p, min(self.queries, len(p.rows)), min(self.keys, p.sizes["key"]))

    def __call__(self, t: Trace, p: Problem, q: Step, k: Step, v: Step) -> Step:
        keys = [keys_of(t, j, run, k, v) for j, run in enumerate(runs(p.whole.keys, self.keys))]
        tiles = enumerate(runs(p.rows, self.queries))
        return column(t, p, [one_row(t, p, i, rows, queries_of(t, p, i, rows, q), keys) for i, rows in tiles])


def runs(whole: range, size: int) -> list[range]:
    """A range in runs of `size`, the last one as long as what is left."""
    return [whole[i : i + size] for i in range(0, len(whole), size)]


def one_row(t: Trace, p: Problem, i: int, rows: range, q: Step, keys: list[Keys]) -> Step:
    """The context of one tile of queries, after all tiles of keys."""
    state = None
    for j, some in enumerate(keys):
        state = visit(t, p, tile(i, rows, some, j), q, some, state)
    assert state is not None
    return finish(t, p, i, state)


def visit(t: Trace, p: Problem, at: Tile, q: Step, keys: Keys, before: State | None) -> State:
    """Merge one tile of keys into the running state."""
    s = scores(t, p, q, keys.k, at)
    n, prefix, mark = at.suffix, "" if before is None else "tile_", "" if before is None else "_tile"
    m = t(f"{prefix}max{n}", f"m{mark} = row max of {s.symbol}", s.axes[:-1], RowMax(), s)
    if before is not None:
        m = t(f"max{n}", "m = max(m_old, m_tile)", m.axes, Maximum(), before.m, m)
    e = t(f"exp{n}", f"P = exp({s.symbol} − m)", s.axes, ExpDifference(rows=True), s, m)
    l = t(f"{prefix}sum{n}", f"l{mark} = row sum of P", m.axes, RowSum(), e)  # noqa: E741
    a = drop(t, p, e, at)
    o = t(f"{prefix}acc{n}", f"O{mark} = {a.symbol} {keys.v.symbol}", (*m.axes, "d_v"), MatMul(), a, keys.v)
    return State(m, l, o) if before is None else rescaled(t, n, before, State(m, l, o))


def rescaled(t: Trace, n: str, before: State, new: State) -> State:
    """What was summed before, brought to the new maximum, and what the tile adds."""
    alpha = t(f"rescale{n}", "α = exp(m_old − m)", new.m.axes, ExpDifference(), before.m, new.m)
    l = t(f"sum{n}", "l = α l_old + l_tile", new.l.axes, Combine(), before.l, alpha, new.l)  # noqa: E741
    o = t(f"acc{n}", "O = α O_old + O_tile", new.o.axes, Combine(rows=True), before.o, alpha, new.o)
    return State(new.m, l, o)
