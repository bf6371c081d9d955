"""Keys and values of earlier tokens, kept: given as they are, or in the physical blocks of a paged cache."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attntrace.errors import AttnTraceError, Fault
from attntrace.ledger import Ledger, amount
from attntrace.ops import Concat, Gather
from attntrace.parts.mask import Filled, clipped
from attntrace.parts.project import give
from attntrace.problem import Mask, Part, Place, Problem
from attntrace.tape import Step, Trace


@dataclass(frozen=True)
class Cache(Part):
    """`k` and `v` are names of sources: ([batch], [head], past, d), or with a `table` the blocks (block, [head], slot, d).

    `table` ([batch], page) names the blocks of each sequence in order. `lengths` says how many of their slots are filled.
    """

    k: str
    v: str
    table: str = ""
    lengths: tuple[int, ...] = ()

    @classmethod
    def make(cls, detail: Mapping[str, Any], place: Place) -> Cache:
        if faults := list(misfits(detail)):
            raise AttnTraceError(*faults)
        if "blocks" not in detail:
            return cls(place(detail["k"], "k"), place(detail["v"], "v"))
        k, v = (place(detail["blocks"][name], "blocks", name) for name in "kv")
        return cls(k, v, place(detail["table"], "table"), tuple(detail.get("lengths", ())))

    def enter(self, ledger: Ledger, p: Problem) -> dict[str, tuple[str, ...]]:
        head = p.kv_lead[-1:] if p.headed else ()
        if self.table:
            batch = ("batch",) if p.batched else ()
            shape = p.sources[self.table].shape
            axes = {self.table: ledger.enter(self.table, shape, (*batch, "page"))}
            lead, token = ("block", *head), "slot"
        else:
            axes, lead, token = {}, p.kv_lead, "past_key"
        for name, width in ((self.k, "d_k"), (self.v, "d_v")):
            axes[name] = ledger.enter(name, p.sources[name].shape, (*lead, token, width))
        if self.table and ledger.sure("page", "slot"):
            self._enter_lengths(ledger, p)
        sound = not any(fault.path[:1] == ("cache",) for fault in ledger.faults)
        if sound and ledger.sure("past_key", "new_key"):
            total = ledger.sizes["past_key"] + ledger.sizes["new_key"]
            ledger.set("key", total, "past and new keys", "cache", *ledger.makers["new_key"])
        return axes

    def _enter_lengths(self, ledger: Ledger, p: Problem) -> None:
        """The longest sequence is as long as the gathered past."""
        slots = p.sizes["page"] * p.sizes["slot"]
        faults = list(self._misfits(p, slots))
        ledger.faults += faults
        if not faults:
            ledger.set("past_key", max(self.lengths, default=slots), "the slots of the cache", "cache")

    def _misfits(self, p: Problem, slots: int) -> Iterator[Fault]:
        """What is wrong with the lengths."""
        items = p.sizes.get("batch", 1)
        if self.lengths and len(self.lengths) != items:
            what = "one for each batch item" if p.batched else "there is no batch axis"
            wanted = f"{amount(items, 'lengths')} ({what})"
            yield Fault(f"cache.lengths: expected {wanted}, found {len(self.lengths)}", ("cache", "lengths"))
        for i, n in enumerate(self.lengths):
            if n > slots:
                wanted = f"at most {slots} ({amount(p.sizes['page'], 'pages')} of {amount(p.sizes['slot'], 'slots')})"
                yield Fault(f"cache.lengths[{i}]: expected {wanted}, found {clipped(n)}", ("cache", "lengths", i))
        if self.lengths and not any(self.lengths):
            yield Fault("cache.lengths: no slot is filled; give one at least, or leave the cache out", ("cache", "lengths"))

    def check(self, p: Problem) -> Iterator[Fault]:
        """Every entry of the table must be the number of a block."""
        if not self.table:
            return
        table = p.sources[self.table].read()
        for index in np.argwhere((table < 0) | (table >= p.sizes["block"]) | (table != np.floor(table)))[:3].tolist():
            last = p.sizes["block"] - 1
            found = f"{float(table[tuple(index)]):g}"
            where = "".join(f"[{i}]" for i in index)
            yield Fault(f"cache.table{where}: expected a block from 0 to {last}, found {found}", ("cache", "table", *index))

    def masks(self, p: Problem) -> Iterable[Mask]:
        """Slots that hold no key are hidden."""
        return (Filled(self.lengths),) if len(set(self.lengths)) > 1 else ()


def misfits(detail: Mapping[str, Any]) -> Iterator[Fault]:
    """Keys that are lacking, or that exclude one another."""
    paged = {"blocks", "table", "lengths"} & detail.keys()
    plain = {"k", "v"} & detail.keys()
    together = ("blocks", "table") if paged else ("k", "v")
    if paged and plain:
        yield Fault("cache: give k and v, or blocks and table, not both", ("cache",))
        return
    for key in together:
        if key not in detail:
            yield Fault(f"cache: {key} is missing: {' and '.join(together)} go together", ("cache",))
    for name in "kv" if "blocks" in detail else "":
        if name not in detail["blocks"]:
            yield Fault(f"cache.blocks: {name} is missing: k and v go together", ("cache", "blocks"))


def extend(t: Trace, p: Problem, k: Step, v: Step) -> tuple[Step, Step]:
    """Put the past before the new keys and values; without a cache, record nothing."""
    cache = p.options.parts.get("cache")
    if not isinstance(cache, Cache):
        return k, v
    return one(t, p, cache, "k", k), one(t, p, cache, "v", v)


def one(t: Trace, p: Problem, cache: Cache, letter: str, new: Step) -> Step:
    """All keys, or all values."""
    symbol = letter.upper()
    if cache.table:
        past = gathered(t, p, cache, letter)
    else:
        past = give(t, p, getattr(cache, letter), f"{letter}_past", f"{symbol}_past")
    axes = (*p.kv_lead, "key", new.axes[-1])
    return t(f"{letter}_all", f"{symbol}_all = [{past.symbol}; {new.symbol}]", axes, Concat(), past, new)


def gathered(t: Trace, p: Problem, cache: Cache, letter: str) -> Step:
    """The blocks of each sequence, side by side in the order of its table."""
    symbol = letter.upper()
    blocks = give(t, p, getattr(cache, letter), f"{letter}_blocks", f"{symbol}_blocks")
    table = t["table"] if "table" in t else give(t, p, cache.table, "table", "T", np.dtype(np.int64))
    axes = (*p.kv_lead, "past_key", blocks.axes[-1])
    gather, slots = Gather(p.sizes["past_key"]), f"slots 0 to {p.sizes['past_key'] - 1}"
    return t(f"{letter}_past", f"{symbol}_past = {symbol}_blocks[T], {slots}", axes, gather, blocks, table)
