"""What tiles and rings share: a running state of each row, and how it begins and ends.

Of the keys seen so far, m is the largest score of each row, l the sum of exp(s − m), and o the sum of exp(s − m) v. After the
last key, o / l is the context. (Milakov and Gimelshein 2018.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from attntrace.cores.direct import result
from attntrace.errors import Fault
from attntrace.ops import AddSink, Concat, Quotient, Take
from attntrace.problem import Problem, Tile
from attntrace.tape import Note, Step, Trace

MOST = 20_000  # tiles of one trace


class State(NamedTuple):
    """The running maximum, sum and output of a tile of queries."""

    m: Step
    l: Step  # noqa: E741 - the name that the papers have
    o: Step


class Keys(NamedTuple):
    """A run of keys and their values."""

    run: range
    k: Step
    v: Step


def queries_of(t: Trace, p: Problem, i: int, rows: range, q: Step) -> Step:
    """Tile `i` of the queries; `rows` are their numbers among all."""
    query, first = t.axis(f"query_{i}", "query", moved(rows, -p.rows.start)), rows.start - p.rows.start
    take = Take(first, first + len(rows))
    symbol = f"Q_{i}"
    return t(f"q_{i}", f"{symbol} = {q.symbol}[{take.start}:{take.stop}]", (*q.axes[:-2], query, q.axes[-1]), take, q)


def moved(run: range, by: int) -> range:
    return range(run.start + by, run.stop + by)


def keys_of(t: Trace, j: int, run: range, k: Step, v: Step) -> Keys:
    """Run `j` of the keys and values."""
    key, take = t.axis(f"key_{j}", "key", run), Take(run.start, run.stop)
    parts = (
        t(
            f"{letter}_{j}",
            f"{letter.upper()}_{j} = {x.symbol}[{run.start}:{run.stop}]",
            (*x.axes[:-2], key, x.axes[-1]),
            take,
            x,
        )
        for letter, x in (("k", k), ("v", v))
    )
    return Keys(run, *parts)


def tile(i: int, rows: range, keys: Keys, n: int) -> Tile:
    """The scores of tile `i` of the queries with some keys; `n` numbers the keys, or the hop."""
    return Tile(rows, keys.run, f"query_{i}", keys.k.axes[-2], f"_{i}_{n}")


def finish(t: Trace, p: Problem, i: int, state: State) -> Step:
    """The context of a tile of queries; a sink takes its share of the sum first."""
    total = state.l
    if "sinks" in p.sources:
        z = t["sinks"]
        total = t(f"total_{i}", f"ℓ_{i} = {total.symbol} + exp(z − m)", total.axes, AddSink(), total, state.m, z)
    return t(
        f"context_{i}",
        f"C_{i} = {state.o.symbol} / {total.symbol}",
        state.o.axes,
        Quotient(p.options.masked_row),
        state.o,
        total,
    )


def column(t: Trace, p: Problem, parts: list[Step]) -> Step:
    """The contexts of all tiles of queries, one below the other."""
    name, symbol = result(p)
    text = f"{symbol} = [{'; '.join(shortened([s.symbol for s in parts]))}]"
    return t(name, text, (*p.lead, "query", "d_v"), Concat(), *parts)


def shortened(symbols: list[str]) -> list[str]:
    return symbols if len(symbols) <= 6 else [*symbols[:2], "…", symbols[-1]]


def too_many(tiles: int, key: str, cure: str) -> Iterator[Fault]:
    if tiles > MOST:
        yield Fault(f"{key}: would make {tiles} tiles, more than {MOST}; use {cure}", tuple(key.split(".")))


def one_dtype(p: Problem) -> Iterator[Fault]:
    """Tiles have no softmax of their own that could have another dtype."""
    if p.options.softmax_dtype not in (None, p.options.dtype):
        yield Fault("softmax_dtype: goes with core: direct; tiles are summed in the dtype of the trace", ("softmax_dtype",))


def never_whole(p: Problem, high: int, wide: int) -> Note:
    """How many scores there would be at once, and how many there are."""
    lead = [p.sizes[axis] for axis in p.lead]
    direct, largest = product([*lead, len(p.rows), p.sizes["key"]]), product([*lead, high, wide])
    shape = " × ".join(map(str, [*lead, len(p.rows), p.sizes["key"]]))
    message = f"never materialised: the {direct} scores ({shape}) and as many weights; the largest tile holds {largest}"
    return Note("tiles", None, message)


def product(sizes: list[int]) -> int:
    total = 1
    for n in sizes:
        total *= n
    return total
