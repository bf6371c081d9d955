"""How often `check` names the mistake that was made, and that it accuses nobody who is right: a table by mistake.

    python tests/benchmarks/diagnosis.py               7,200 single mistakes, 1,000 pairs, 10,000 right claims: five minutes
    python tests/benchmarks/diagnosis.py --quick       a few of each, some seconds
    python tests/benchmarks/diagnosis.py --only scale  the mistakes whose names begin so

Random layers (sizes, heads, masks, batch, positions, biases, caches, softcap, sinks, dropout, fused weights) are written out in
NumPy (`slips.py`) with one mistake or two made in them; what comes out is rounded to 2 to 6 decimals, or not at all, and all of
its steps are claimed, or the last one alone. A mistake counts when some claimed number differs from the right one.

`named` is how many of those were named, `right` how many were taken for right numbers of somebody who rounds on the way, and
`equal` whether all other mistakes named come to the same numbers, as NumPy has it. Right claims are rounded at the end, or from
step to step, at every number of decimals; none may be found wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from slips import Config, layer, possible

import attntrace
from attntrace.claims import Claim
from attntrace.marking import Marked, Marker

QUICK, FULL = (12, 2, 150), (1200, 500, 10_000)  # layers with single mistakes, layers with pairs, right claims
EACH = 6  # single mistakes that are planted in a layer
DIGITS = (2, 3, 4, 5, 6, None)
LINE = "{:<40} {:>7} {:>7} {:>6} {:>7} {:>6}"
ROUNDING = ("dtype-", "rounded-", "softmax-matrix-max-float32")  # slips that are right, where rounding on the way is
GOALS = {"single": 0.99, "pair": 0.90}


# ------------------------------------------------------------------ random layers


class Draw:
    """Random choices, the same for the same seed."""

    def __init__(self, *seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.style = self.one("normal", "normal", "decimals", "integers")

    def one(self, *choices: Any) -> Any:
        return choices[self.rng.integers(len(choices))]

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def array(self, *shape: int, size: float = 1.0) -> np.ndarray:
        if self.style == "integers":
            return self.rng.integers(-2, 3, size=shape).astype(float)
        a = size * self.rng.normal(size=shape)
        return np.round(a, 2) if self.style == "decimals" else a


def config(seed: int) -> Config:
    """A random layer, as attntrace takes it."""
    d = Draw(seed, 5)
    batch = d.one((), (), (2,), (3,))
    h = d.one(None, None, 1, 2, 2, 4, 3)
    g = d.one(*(n for n in (1, 2, 3, 4) if (h or 1) % n == 0)) if h and d.chance(0.4) else h
    t, d_k = d.one(3, 4, 5, 6), d.one(2, 4, 4, 6)
    made: Config = {} if h is None else {"heads": h, "kv_heads": g}
    n, m = h or 1, g or 1
    d_v = d_k if d.chance(0.7) else d.one(2, 3, 5)
    wide = n * d_k if d.chance(0.6) else d.one(3, 5, 6)
    keys, way = t, d.one("own", "own", "own", "fused", "cross", "given")
    if way == "given":
        keys = d.one(t, t, 3, 5)
        batch = () if h is None else batch
        lead, kv_lead = ((), ()) if h is None else ((*batch, n), (*batch, m))
        made |= {"q": d.array(*lead, t, d_k), "k": d.array(*kv_lead, keys, d_k), "v": d.array(*kv_lead, keys, d_v)}
    elif way == "fused":
        d_v = d_k
        made |= {"x": d.array(*batch, t, wide), "w_qkv": d.array(wide, (n + 2 * m) * d_k, size=0.6)}
        made |= {"qkv_layout": d.one("q|k|v", "per-head" if n == m else "per-group")} if h else {}
        made |= {"b_qkv": d.array((n + 2 * m) * d_k)} if d.chance(0.4) else {}
    else:
        made["x"] = d.array(*batch, t, wide)
        if way == "cross":
            keys = d.one(t, 2, 5)
            made["x_kv"] = d.array(*batch, keys, wide)
        for letter, columns in (("q", n * d_k), ("k", m * d_k), ("v", m * d_v)):
            made[f"w_{letter}"] = d.array(wide, columns, size=0.6)
            made |= {f"b_{letter}": d.array(columns)} if d.chance(0.3) else {}
        if d.chance(0.2):
            made["weight_layout"] = "out_in"
            made |= {w: made[w].T for w in ("w_q", "w_k", "w_v")}
    if d.chance(0.5):
        out = n * d_v if d.chance(0.6) else d.one(3, 4)
        w_o = d.array(n * d_v, out, size=0.6)
        made["w_o"] = w_o.T if "weight_layout" in made else w_o
        made |= {"b_o": d.array(out)} if d.chance(0.4) else {}
    return made | variants(d, batch, n, m, t, keys, d_k, d_v, h is None, way)


def variants(
    d: Draw, batch: tuple[int, ...], n: int, m: int, t: int, keys: int, d_k: int, d_v: int, bare: bool, way: str
) -> Config:
    made: Config = {}
    past = 0
    if d.chance(0.2) and way != "cross" and not (bare and batch) and keys == t:
        past = d.one(1, 2, 3)
        lead = (*batch, *(() if bare else (m,)))
        made["cache"] = {"k": d.array(*lead, past, d_k), "v": d.array(*lead, past, d_v)}
    square = t == keys
    if d.chance(0.25) and square and way != "cross":
        made["rope"] = {"pairs": d.one("half", "interleaved")} | ({"base": d.one(100, 500000)} if d.chance(0.3) else {})
    if d.chance(0.65):
        made["mask"] = mask(d, batch, t, keys, past)
    if d.chance(0.2) and square:
        made["alibi"] = True if d.chance(0.7) else {"slopes": np.round(d.rng.uniform(0.1, 1, n), 3)}
    if d.chance(0.2):
        made["softcap"] = d.one(1.0, 2.5, 5.0)
    if d.chance(0.2):
        made["sinks"] = d.array(n)
    if d.chance(0.2):
        made["scale"] = d.one(0.5, 0.3, 2.0)
    if d.chance(0.2):
        made["dropout"] = {"rate": d.one(0.25, 0.5, 0.1), "seed": int(d.rng.integers(1000))}
    return made


def mask(d: Draw, batch: tuple[int, ...], t: int, keys: int, past: int) -> Any:
    total, align = keys + past, None if keys == t else d.one("top-left", "bottom-right")
    causal = "causal" if align is None else {"causal": align}
    window = {"window": {"left": d.one(1, 2), "right": d.one(0, 1)} | ({} if align is None else {"align": align})}
    keep = d.rng.integers(0, 2, (t, total))
    keep[:, d.rng.integers(total)] = 1
    lower = np.tril(np.ones((t, total), int), total - t)
    padding = {"padding": d.rng.integers(1, total + 1, batch[0] if batch else 1).tolist()}
    extra = np.where(keep == 1, np.round(d.rng.normal(size=keep.shape), 1), -np.inf)
    arrays = d.one({"keep": keep}, {"ignore": 1 - keep}, {"keep": lower}, {"add": extra})
    both = [[causal, padding], [window, padding]] if align != "bottom-right" else [padding]  # which aligns by the padding
    return d.one(causal, causal, window, arrays, padding, *both)


# ------------------------------------------------------------------ claims


def claim(name: str, values: np.ndarray, decimals: int | None) -> Claim:
    """What somebody claims who writes so many decimals."""
    if decimals is None:
        return Claim(name, name, values, np.ones(values.shape, bool), np.zeros(values.shape), "")
    half = np.full(values.shape, 0.5 * 10.0**-decimals)
    return Claim(name, name, np.round(values, decimals), np.ones(values.shape, bool), half, "")


def claims(steps: dict[str, np.ndarray], marker: Marker, decimals: int | None, last: bool) -> list[Claim]:
    there = [n for n in marker.truth.names if n in steps and steps[n].shape == marker.truth[n].shape]
    return (
        [claim(n, steps[n], decimals) for n in there[-1:] if there] if last else [claim(n, steps[n], decimals) for n in there]
    )


def close(c: Claim, values: np.ndarray) -> bool:
    """Whether numbers are those claimed, to the digits claimed."""
    if values.shape != c.values.shape:
        return False
    with np.errstate(all="ignore"):
        near = np.abs(c.values - values) <= c.half * (1 + 1e-9) + 1e-8 * np.abs(values) + 1e-10
        return bool((near | (c.values == values) | (np.isnan(c.values) & np.isnan(values))).all())


# ------------------------------------------------------------------ plants


@dataclass
class Tally:
    """What became of the plants of one kind."""

    planted: int = 0
    visible: int = 0
    named: int = 0
    rounded: int = 0
    unequal: int = 0
    missed: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        for name in ("planted", "visible", "named", "rounded", "unequal"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.missed += other.missed


@dataclass
class Layer:
    """A random layer, its right numbers by NumPy, and the marker of claims about it."""

    seed: int

    def __post_init__(self) -> None:
        self.config = config(self.seed)
        problem = attntrace.load(self.config)
        if "keep" in problem.arrays:
            self.config["--keep"] = problem.arrays["keep"]
        self.marker, self.right = Marker(problem), layer(self.config)
        self.possible = possible(self.config)
        for name in self.marker.truth.names:
            if name in self.right:
                np.testing.assert_allclose(
                    self.right[name], self.marker.truth[name].values, 1e-9, 1e-12, err_msg=f"{self.seed} {name}"
                )

    def plant(self, made: tuple[str, ...], decimals: int | None, last: bool) -> Tally:
        steps = layer(self.config, made)
        given = claims(steps, self.marker, decimals, last)
        if all(close(c, self.right[c.name]) for c in given if c.name in self.right) or not given:
            return Tally(planted=1)
        marked = self.marker.mark(given)
        tally = Tally(1, 1)
        if marked.right and made[0].startswith(ROUNDING):
            return Tally(1, rounded=1)  # which it is
        if marked.right:
            tally.rounded = 1
            tally.missed.append(f"{self.seed} {made} {decimals} {'last' if last else 'all'}: right")
        elif self.names(marked, made, given):
            tally.named = 1
        else:
            found = [[[m.key for m in each] for each in f.alternatives][:4] for f in marked.findings]
            wrong = [v.name for v in marked.verdicts if v.status == "wrong here"]
            tally.missed.append(f"{self.seed} {made} {decimals} {'last' if last else 'all'}: {wrong} {found}")
        if not self.equal(marked, given):
            tally.unequal = 1
            tally.missed.append(f"{self.seed} {made} {decimals} {'last' if last else 'all'}: unequal")
        return tally

    def names(self, marked: Marked, made: tuple[str, ...], given: list[Claim]) -> bool:
        """Whether each slip that was made, and changes anything, is among those named."""
        complete = [f for f in marked.findings if f.complete]
        keys = {m.key for f in complete for each in f.alternatives for m in each}
        return all(slip in keys or f"{slip}-too" in keys or self.vanishes(slip, made, given) for slip in made)

    def vanishes(self, slip: str, made: tuple[str, ...], given: list[Claim]) -> bool:
        """Whether one slip of two changes nothing that is claimed."""
        others = tuple(other for other in made if other != slip)
        without = layer(self.config, others)
        return bool(others) and all(c.name in without and close(c, without[c.name]) for c in given)

    def equal(self, marked: Marked, given: list[Claim]) -> bool:
        """Whether all single mistakes that are named for a step lead to what is claimed of it, as NumPy has it.

        Where several steps are claimed, a mistake in one of them need not be the only one; that is asked of last steps alone.
        """
        if len(given) > 1:
            return True
        for f in marked.findings:
            for each in f.alternatives if f.complete else ():
                keys = [m.key for m in each]
                checkable = all(k in self.possible for k in keys) and not any(k.startswith(("dtype", "rounded")) for k in keys)
                if checkable and not close(given[0], layer(self.config, keys)[f.step]):
                    return False
        return True


# ------------------------------------------------------------------ the table


def singles(layers: int, only: str) -> Iterator[tuple[str, Tally]]:
    """Some slips in each of so many layers, the rarest first."""
    seen = Counter[str]()
    for seed in range(layers):
        lay, d = Layer(seed), Draw(seed, 6)
        order = sorted((s for s in lay.possible if s.startswith(only)), key=lambda s: (seen[s], d.rng.random()))
        for slip in order[:EACH]:
            tally = lay.plant((slip,), d.one(*DIGITS), d.chance(0.5))
            seen[slip] += tally.visible
            yield slip, tally


SLOTS = (
    ("transposed-", "swapped-"), ("without-b",), ("layout-",), ("split-",), ("heads-",), ("groups-",), ("merge-",),
    ("without-w",), ("rope-",), ("alibi-",), ("scores-", "cosine"), ("scale-",), ("mask-", "sink-"), ("softcap-",), ("cache-",),
    ("softmax-",), ("dropout-",), ("average-",),
)  # fmt: skip


def slot(slip: str) -> int:
    return next((i for i, starts in enumerate(SLOTS) if slip.startswith(starts)), -1)


def pairs(layers: int) -> Iterator[tuple[str, Tally]]:
    """Two slips in different places of a layer, twice in each."""
    for seed in range(layers):
        lay, d = Layer(100_000 + seed), Draw(seed, 7)
        slips = [s for s in lay.possible if slot(s) >= 0]
        for _ in range(2):
            a = d.one(*slips)
            others = [s for s in slips if slot(s) != slot(a)]
            if others:
                yield "pair", lay.plant((a, d.one(*others)), d.one(*DIGITS), d.chance(0.5))


WAYS = {"in the end": [], "from step to step": ["rounded-{}-too"], "from the inputs on": ["rounded-{}-too", "copied"]}


def right_claims(count: int) -> Iterator[tuple[int, list[str]]]:
    """How many at a time, and those found wrong. They are rounded in the end, or from step to step; every step is claimed, some
    of them, or the last one.
    """
    done = seed = 0
    while done < count:
        lay, d = Layer(200_000 + seed), Draw(seed, 8)
        seed += 1
        for decimals in (1, 2, 3, 4, 5, 6, None):
            for way, slips in WAYS.items():
                if decimals is None and slips:
                    continue
                steps = layer(lay.config, [slip.format(decimals) for slip in slips])
                given = claims(steps, lay.marker, decimals, d.chance(0.3))
                some = [c for c in given if d.chance(0.6)] or given[-1:]
                given = some if d.chance(0.5) else given
                marked = lay.marker.mark(given)
                done += len(given)
                bad = [v.name for v in marked.verdicts if not v.right]
                yield len(given), [f"{lay.seed} {decimals} {way}: {bad} of {[c.name for c in given]}"] if bad else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few of each")
    parser.add_argument("--only", default="", metavar="NAME", help="mistakes whose names begin so, and nothing else")
    parser.add_argument("--missed", type=int, default=0, metavar="N", help="list so many of those that were missed")
    args = parser.parse_args()
    layers, both, claimed = QUICK if args.quick else FULL
    began, held, accused = time.perf_counter(), 0, list[str]()
    print(LINE.format("mistake", "planted", "visible", "named", "right", "equal"))
    single, pair = (collected(found) for found in (singles(layers, args.only), pairs(0 if args.only else both)))
    for slip in sorted(single):
        show(slip, single[slip])
    met = [show("ALL SINGLE MISTAKES", total(single), GOALS["single"]), show("ALL PAIRS", total(pair), GOALS["pair"])]
    for n, bad in right_claims(0 if args.only else claimed):
        held += n
        accused += bad
    print(f"{held} right claims, {len(accused)} sets with a claim found wrong")
    for line in [*total(single).missed[: args.missed], *total(pair).missed[: args.missed], *accused[:40]]:
        print("  ", line)
    print(f"{time.perf_counter() - began:.0f} s")
    return 0 if all(met) and not accused else 1


def collected(found: Iterator[tuple[str, Tally]]) -> dict[str, Tally]:
    tables: dict[str, Tally] = defaultdict(Tally)
    for name, tally in found:
        tables[name].add(tally)
    return tables


def total(tables: dict[str, Tally]) -> Tally:
    result = Tally()
    for tally in tables.values():
        result.add(tally)
    return result


def show(what: str, tally: Tally, goal: float = 0.0) -> bool:
    equal = "yes" if not tally.unequal else f"-{tally.unequal}"
    print(LINE.format(what, tally.planted, tally.visible, tally.named, tally.rounded, equal), flush=True)
    return tally.named >= goal * tally.visible


if __name__ == "__main__":
    sys.exit(main())
