"""Ring attention (Liu et al. 2023): every device keeps its queries, and keys and values travel around the ring.

At hop 0 a device works on its own keys and values; then each passes what it has to its neighbour, so that at hop h device d
has the shard of device d − h. Of each shard a device makes a partial maximum, sum and output, and merges them into its own:
both are brought to the larger maximum, by α = exp(m_old − m) and β = exp(m_part − m).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from attntrace.cores.direct import scores
from attntrace.cores.online import Keys, State, column, finish, keys_of, never_whole, one_dtype, queries_of, tile, too_many
from attntrace.errors import Fault
from attntrace.ledger import amount
from attntrace.ops import Combine, ExpDifference, MatMul, Maximum, RowMax, RowSum
from attntrace.parts.dropout import drop
from attntrace.problem import Part, Place, Problem, Tile
from attntrace.tape import Note, Step, Trace


@dataclass(frozen=True)
class Ring(Part):
    """A ring of `devices`; where the tokens do not divide evenly, the first ones have one more."""

    devices: int

    @classmethod
    def make(cls, detail: Mapping[str, int], place: Place) -> Ring:
        return cls(detail["devices"])

    def check(self, p: Problem) -> Iterator[Fault]:
        keys = p.sizes["key"]
        if self.devices > keys:
            wanted = f"at most {amount(keys, 'devices')} (one for each key)"
            yield Fault(f"core.ring.devices: expected {wanted}, found {self.devices}", ("core", "ring", "devices"))
        yield from too_many(self.devices**2, "core.ring", "fewer devices")
        yield from one_dtype(p)

    def remarks(self, p: Problem) -> Iterator[Note]:
        yield never_whole(p, -(-len(p.rows) // self.devices), -(-p.sizes["key"] // self.devices))

    def __call__(self, t: Trace, p: Problem, q: Step, k: Step, v: Step) -> Step:
        keys = [keys_of(t, j, run, k, v) for j, run in enumerate(shards(p.whole.keys, self.devices))]
        busy = [(d, rows) for d, rows in enumerate(shards(p.rows, self.devices)) if rows]
        return column(t, p, [device(t, p, d, rows, queries_of(t, p, d, rows, q), keys) for d, rows in busy])


def shards(whole: range, n: int) -> list[range]:
    """A range in `n` runs as even as they can be, the longer ones first."""
    size, more = divmod(len(whole), n)
    ends = [i * size + min(i, more) for i in range(n + 1)]
    return [whole[start:stop] for start, stop in pairwise(ends)]


def device(t: Trace, p: Problem, d: int, rows: range, q: Step, keys: list[Keys]) -> Step:
    """The context of the queries of device `d`, after all shards have passed."""
    state = None
    for hop in range(len(keys)):
        shard = keys[(d - hop) % len(keys)]
        at = tile(d, rows, shard, hop)
        part = partial(t, p, at, q, shard, "" if state is None else "part_")
        state = part if state is None else merged(t, at.suffix, state, part)
    assert state is not None
    return finish(t, p, d, state)


def partial(t: Trace, p: Problem, at: Tile, q: Step, keys: Keys, prefix: str) -> State:
    """The maximum, sum and output of one shard by itself."""
    s = scores(t, p, q, keys.k, at)
    n, mark = at.suffix, "_part" if prefix else ""
    m = t(f"{prefix}max{n}", f"m{mark} = row max of {s.symbol}", s.axes[:-1], RowMax(), s)
    e = t(f"exp{n}", f"P = exp({s.symbol} − {m.symbol})", s.axes, ExpDifference(rows=True), s, m)
    l = t(f"{prefix}sum{n}", f"l{mark} = row sum of P", m.axes, RowSum(), e)  # noqa: E741
    a = drop(t, p, e, at)
    o = t(f"{prefix}acc{n}", f"O{mark} = {a.symbol} {keys.v.symbol}", (*s.axes[:-1], "d_v"), MatMul(), a, keys.v)
    return State(m, l, o)


def merged(t: Trace, n: str, before: State, part: State) -> State:
    """Two partial states as one."""
    m = t(f"max{n}", "m = max(m_old, m_part)", part.m.axes, Maximum(), before.m, part.m)
    alpha = t(f"rescale{n}", "α = exp(m_old − m)", m.axes, ExpDifference(), before.m, m)
    beta = t(f"rescale_part{n}", "β = exp(m_part − m)", m.axes, ExpDifference(), part.m, m)
    l = t(f"sum{n}", "l = α l_old + β l_part", m.axes, Combine(), before.l, alpha, part.l, beta)  # noqa: E741
    o = t(f"acc{n}", "O = α O_old + β O_part", part.o.axes, Combine(rows=True), before.o, alpha, part.o, beta)
    return State(m, l, o)
