"""What `diff` found: a table of the steps that changed, what each token attends to in words, and where the tokens went."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from attntrace.differ import SIDES, Attention, Change, Comparison, Moved, Places, Reordering, whole
from attntrace.errors import plain
from attntrace.ledger import amount
from attntrace.render import json, rich
from attntrace.render.canvas import Canvas, table, widest
from attntrace.render.grid import writer
from attntrace.render.labels import legible
from attntrace.render.report import AGREES, DIFFERS, short
from attntrace.tape import Array, Note

HEAD = ("step", "largest change", "at", "A", "B", "rows that changed")
NUMERIC = (False, True, False, True, True, False)
STYLES = ("bold", "", "dim", "", "", "")
ROOM = 30  # terminal cells that the last column of the table should have at least
MANY = 30  # lines of the table; where there are more steps, the tiles of one share a line
ROWS = 8  # rows of the weights that get a sentence each; of more, the FEW that changed most do
FEW = 5
LISTED = 6  # entries, or runs of them, that are named one by one
ORDERED = 12  # tokens whose order is written out
# Steps that show what goes by place, so that tokens in another order do not take it along.
BY_PLACE = {
    "mask": "a mask goes by place, and does not move with the tokens",
    "positions": "rope turns a token by its place, and a token that moves has another one",
    "key_positions": "rope turns a key by its place, and a token that moves has another one",
    "distance": "alibi counts the places between two tokens, and tokens that move are another way apart",
    "keep": "which weights are dropped is drawn by place, and does not move with the tokens",
}


@dataclass(frozen=True)
class Look:
    """How a comparison is shown: what A and B are, and how many decimals changes and entropies have."""

    names: tuple[str, str] = ("", "")
    changes: int = 4
    entropies: int = 2
    width: int | None = None
    colour: bool = False


def write(c: Comparison, look: Look, out: BinaryIO, notes: Sequence[Note] = ()) -> None:
    """The whole comparison, then `notes`, then the verdict."""
    canvas, names = Canvas(out, look.colour, look.width), Names(c)
    for letter, name in zip("AB", look.names, strict=True):
        canvas.paragraph((f"{letter}  ", "bold cyan"), plain(name))
    canvas.line()
    if c.differs:
        steps(canvas, c, names, look)
    if c.attention is not None and c.differs:
        attention(canvas, c.attention, names, look)
    if c.reordering is not None:
        order(canvas, c.reordering, names, look)
    if notes:
        rich.notes(canvas, notes)
        canvas.line()
    canvas.paragraph("", verdict(c), "bold" if c.differs else "bold green")


def verdict(c: Comparison) -> str:
    total, lone = len(c.steps) + sum(map(len, c.only)), sum(map(len, c.only))
    if not c.differs:
        return f"nothing differs: {'the one step is' if total == 1 else f'all {total} steps are'} the same, number for number"
    if c.reordering is not None and c.reordering.agrees and not lone:
        return "B is A with its tokens in another order, and nothing else" if c.reordering.steps else moved_only(c)
    changed = [step.name for step in c.steps if not step.same]
    first = f"; the first is {changed[0]}" if changed and not lone else ""
    return f"{len(changed) + lone} of {amount(total, 'steps')} {'differs' if len(changed) + lone == 1 else 'differ'}{first}"


def moved_only(c: Comparison) -> str:
    return "B has the tokens of A in another order; of these steps nothing can be told"


def marked(c: Comparison) -> list[Note]:
    """The notes that one trace alone gives rise to, saying which."""
    pairs = [(letter, note) for letter, found in zip("AB", c.notes, strict=True) for note in found]
    return [Note(note.code, note.step, f"in {letter} alone: {note.message}") for letter, note in pairs]


# ------------------------------------------------------------------ what entries are called


class Names:
    """What the entries along an axis are called: by the labels of A and, where they are others, of B."""

    def __init__(self, c: Comparison) -> None:
        self.labels = [{axis: legible(found) for axis, found in t.labels.items()} for t in (c.a, c.b)]

    def own(self, which: int, axis: str, i: int) -> str:
        """The name of an entry in A (0) or in B (1)."""
        found = self.labels[which].get(axis)
        return found[i] if found else f"t{i}" if whole(axis) in SIDES else str(i)

    def of(self, axis: str, i: int, was: int | None = None) -> str:
        """The name of an entry; `dog→cat` where A has another there, or at the entry `was` that it comes from."""
        before, after = self.own(0, axis, i if was is None else was), self.own(1, axis, i)
        return after if before == after else f"{before}→{after}"

    def listing(self, axis: str, entries: Sequence[int]) -> str:
        """`t0 to t2, t5`. Runs of words are not shortened: nobody knows what lies between the and mat."""
        words = any(axis in found for found in self.labels)
        runs = [[i] for i in entries] if words else list(in_runs(entries))
        texts = [
            self.of(axis, run[0]) if len(run) == 1 else f"{self.of(axis, run[0])} to {self.of(axis, run[-1])}" for run in runs
        ]
        left = sum(map(len, runs[LISTED:]))
        return ", ".join([*texts[:LISTED], *[f"{left} more"] * bool(left)])

    def some(self, axis: str, entries: Sequence[int], kind: str = "row") -> str:
        """Entries with what they are: tokens by their names alone, `rows 0 to 2`, `head 1`."""
        told = self.listing(axis, entries)
        if whole(axis) in SIDES and kind != "column":
            return told
        own = axis if axis in ("batch", "head", "kv_head") else kind
        return f"{own}{'s' if len(entries) > 1 and own == kind else ''} {told}"


def in_runs(entries: Sequence[int]) -> Iterator[list[int]]:
    """Three and more neighbours together, others one by one."""
    for _, group in itertools.groupby(enumerate(entries), lambda pair: pair[1] - pair[0]):
        run = [i for _, i in group]
        yield from [run] if len(run) > 2 else [[i] for i in run]


# ------------------------------------------------------------------ steps


def steps(canvas: Canvas, c: Comparison, names: Names, look: Look) -> None:
    """A line for each step that changed, then those that did not, and those that one trace alone has."""
    changed = [step for step in c.steps if step.cells]
    lines = [line(step, names, look.changes) for step in changed]
    lines = lines if len(lines) <= MANY else list(together(changed, names, look.changes))
    if lines:
        changes(canvas, lines)
    if reshaped := [reshaping(step) for step in c.steps if not step.comparable]:
        table(canvas, ("step", "shape in A", "shape in B"), reshaped, [("bold", "", "")] * len(reshaped), (False,) * 3)
        canvas.line()
    told = {
        "the same in both": [step.name for step in c.steps if step.same and not step.rounded],
        "the same in both, to rounding": [step.name for step in c.steps if step.same and step.rounded],
        "only in A": c.only[0],
        "only in B": c.only[1],
    }
    for what, found in told.items():
        if found:
            canvas.paragraph((f"{what}: ", "dim"), enumerated(found))
    if any(told.values()):
        canvas.line()


def changes(canvas: Canvas, lines: Sequence[tuple[str, ...]]) -> None:
    """The table, on a narrow terminal without the numbers in A and B, and where that is not enough without their place."""
    for columns in ((0, 1, 2, 3, 4, 5), (0, 1, 2, 5), (0, 1, 5)):
        head, *cells = ([row[i] for i in columns] for row in (HEAD, *lines))
        taken = sum(widest(column) + 2 for column in list(zip(head, *cells, strict=True))[:-1])
        if canvas.width is None or canvas.width - taken >= ROOM:
            break
    table(canvas, head, cells, [[STYLES[i] for i in columns]] * len(lines), [NUMERIC[i] for i in columns])
    canvas.line()


def enumerated(found: Sequence[str]) -> str:
    """Names of steps; where there are many, those of tiles by what they have in common."""
    if len(found) <= MANY:
        return ", ".join(found)
    return ", ".join(f"{kind} ({len(tiles)} tiles)" if tiles[1:] else tiles[0] for kind, tiles in grouped(found).items())


def grouped(found: Sequence[str]) -> dict[str, list[str]]:
    """Steps by what they are, the tiles of one together."""
    kinds: dict[str, list[str]] = {}
    for name in found:
        kind = whole(name)
        kinds.setdefault(f"{kind}_*" if kind != name else name, []).append(name)
    return kinds


def reshaping(step: Change) -> tuple[str, str, str]:
    one, other = (" × ".join(map(str, shape)) for shape in step.shapes)
    return step.name, one, other


def line(step: Change, names: Names, decimals: int) -> tuple[str, ...]:
    at = f"[{', '.join(map(str, step.at))}]"
    return step.name, number(step.largest, decimals), at, *numbers(step, decimals), rows(step, names)


def number(value: float, decimals: int) -> str:
    return writer(np.array([value]), decimals, given=False)(value)


def numbers(step: Change, decimals: int) -> tuple[str, str]:
    """Before and after, written alike."""
    both = np.array([step.before, step.after])
    write = writer(both, decimals, given=False)
    return write(step.before), write(step.after)


def together(changed: Sequence[Change], names: Names, decimals: int) -> Iterator[tuple[str, ...]]:
    """The tiles of a step on one line, which is that of the tile that changed most."""
    by_name = {step.name: step for step in changed}
    for tiles in grouped(list(by_name)).values():
        most = max((by_name[name] for name in tiles), key=lambda step: np.nan_to_num(step.largest, nan=np.inf))
        own, more = line(most, names, decimals), len(tiles) - 1
        yield (*own[:-1], f"{own[-1]} ({amount(more, 'more tiles')})") if more else own


def rows(step: Change, names: Names) -> str:
    """`t3, t4; t0 to t2 stand still`."""
    axis, moved = step.row_axes[-1], step.moved(step.row_axes[-1])
    still = sorted(set(range(step.rows.shape[-1])) - set(moved))
    steady = standing(names.some(axis, still, "row" if len(step.axes) > 1 else "entry"), still)
    return f"{within(step, names)}{which(step, names, moved)}{'; ' * bool(steady)}{steady}"


def standing(told: str, still: Sequence[int]) -> str:
    return f"{told} {'stands' if len(still) == 1 else 'stand'} still" if still else ""


def which(step: Change, names: Names, moved: Sequence[int]) -> str:
    """The rows that changed; apart from them those that did only in some columns, and in which.

    Of features that is told when it holds for all rows: a cell here and there that happens to be as before tells nothing.
    """
    full = [i for i in moved if step.spots[i].all()]
    partly = [i for i in moved if not step.spots[i].all()]
    columns = np.flatnonzero(step.spots[partly].any(axis=0)).tolist()
    if not partly or len(columns) == step.spots.shape[1] or (full and whole(step.axes[-1]) not in SIDES):
        return every(step, names, moved)
    told = every(step, names, partly)
    few = f"{told}{', but' * (told == 'all')} only in {names.some(step.axes[-1], columns, 'column')}"
    return f"{every(step, names, full)}; {few}" if full else few


def every(step: Change, names: Names, entries: Sequence[int]) -> str:
    axis, size = step.row_axes[-1], step.rows.shape[-1]
    return "all" if len(entries) == size else names.some(axis, entries, "row" if len(step.axes) > 1 else "entry")


def within(step: Change, names: Names) -> str:
    """The batch items and heads that it is about, where not all changed: `only batch 0: `."""
    found = []
    for axis, size in zip(step.row_axes[:-1], step.rows.shape, strict=False):
        moved = step.moved(axis)
        found += [names.some(axis, moved)] if len(moved) < size else []
    return f"only {', '.join(found)}: " if found else ""


# ------------------------------------------------------------------ what each token attends to


def attention(canvas: Canvas, a: Attention, names: Names, look: Look) -> None:
    """A sentence for each row of the weights that changed to speak of; of many, for the few whose entropy changed most."""
    canvas.paragraph("", "What each token attends to (entropy of its row of weights, in nats)", "bold")
    told = notable(a, look.entropies)
    shown = told if len(told) <= ROWS else sorted(told, key=lambda row: -strength(a, row, look.entropies))[:FEW]
    for row in shown:
        canvas.paragraph("  ", sentence(a, row, names, look))
    for text in [more(a, [row for row in told if row not in set(shown)]), *rest(a, len(told), names, look)]:
        if text:
            canvas.paragraph("  ", text, "dim")
    canvas.line()


def notable(a: Attention, decimals: int) -> list[tuple[int, ...]]:
    """The rows whose entropy differs in the digits shown, or that give most to another key."""
    before, after = (np.round(h, decimals) for h in a.entropy)
    idle = a.idle[0] != a.idle[1]
    found = ~a.steady & (~((before == after) | (np.isnan(before) & np.isnan(after))) | a.new_top | idle)
    return [tuple(map(int, row)) for row in np.argwhere(found)]


def strength(a: Attention, row: tuple[int, ...], decimals: int) -> float:
    """How much the entropy of a row changed, in the digits shown; NaN and rows without keys come first."""
    if a.idle[0][row] != a.idle[1][row]:
        return np.inf
    return float(np.nan_to_num(abs(a.entropy[1][row] - a.entropy[0][row]), nan=np.inf).round(decimals))


def sentence(a: Attention, row: tuple[int, ...], names: Names, look: Look) -> str:
    """`t0 attends more sharply: entropy 0.39 → 0.02 nats, still t1 (0.8735 → 0.9991)`."""
    who, (before, after) = row_name(a, row, names), (float(h[row]) for h in a.entropy)
    if np.isnan(before) or np.isnan(after):
        return f"{who}: {'its weights were NaN, and are numbers now' if np.isnan(before) else 'its weights are NaN now'}"
    if a.idle[1][row]:
        return f"{who} attends to nothing now, {former(a, row, names, look)}"
    if a.idle[0][row]:
        return f"{who} attends to something now: entropy {after:.{look.entropies}f} nats, {latter(a, row, names, look)}"
    one, other = f"{before:.{look.entropies}f}", f"{after:.{look.entropies}f}"
    change = "as sharply as before" if one == other else "more sharply" if after < before else "more evenly"
    entropies = one if one == other else f"{one} → {other}"
    return f"{who} attends {change}: entropy {entropies} nats, {tops(a, row, names, look)}"


def former(a: Attention, row: tuple[int, ...], names: Names, look: Look) -> str:
    top = phrase(a, a.tops(row)[0], 0, names)
    return f"before mostly to {top} ({written(a.before[row].max(), look)})"


def latter(a: Attention, row: tuple[int, ...], names: Names, look: Look) -> str:
    top = phrase(a, a.tops(row)[1], 1, names)
    return f"mostly to {top} ({written(a.after[row].max(), look)})"


def row_name(a: Attention, row: tuple[int, ...], names: Names) -> str:
    """`t0`, with its batch item and head where there are several."""
    lead = [f"{axis} {i}" for axis, i in zip(a.axes[:-1], row, strict=False)]
    return ", ".join([*lead, names.of(a.axes[-1], row[-1], origin(a.places, a.axes[-1], row[-1]))])


def origin(places: Places | None, axis: str, i: int) -> int | None:
    """The entry of A that an entry of B comes from."""
    order = None if places is None else places.order(axis)
    return None if order is None else order[i]


def tops(a: Attention, row: tuple[int, ...], names: Names, look: Look) -> str:
    """`still t1 (0.8735 → 0.9991)`, `now t2 (0.5502) instead of t1 (0.6101)`; then what a sink takes."""
    before, after = a.tops(row)
    was, now = (written(w[row].max(), look) for w in (a.before, a.after))
    top = phrase(a, after, 1, names)
    link = " instead of" if len(before) == len(after) == 1 else ", before"
    other = f"now {top} ({now}){link} {phrase(a, before, 0, names)} ({was})"
    return f"{f'still {top} ({was} → {now})' if before == after else other}{sink(a, row, look)}"


def sink(a: Attention, row: tuple[int, ...], look: Look) -> str:
    """What a sink takes of a row, where both have one."""
    before, after = a.shares
    if before is None or after is None:
        return ""
    return f"; the sink takes {written(before[row], look)} → {written(after[row], look)}"


def written(weight: float, look: Look) -> str:
    return f"{weight:.{look.changes}f}"


def phrase(a: Attention, keys: Sequence[int], which: int, names: Names) -> str:
    """`t1`, `t1 and t2 alike`: the keys that a row of A (0) or B (1) gives most to."""
    if len(keys) == a.after.shape[-1] > 1:
        return "all keys alike"
    told = [key_name(a, key, which, names) for key in keys[:LISTED]]
    told += [f"{len(keys) - LISTED} more"] if len(keys) > LISTED else []
    return told[0] if len(told) == 1 else f"{', '.join(told[:-1])} and {told[-1]} alike"


def key_name(a: Attention, key: int, which: int, names: Names) -> str:
    was = origin(a.places, "key", key)
    return names.own(which, "key", key) if was is None else names.of("key", key, was)


def more(a: Attention, left: Sequence[tuple[int, ...]]) -> str:
    """`and 27 more rows: 12 more sharply, 15 more evenly; 3 of them most to another key`."""
    if not left:
        return ""
    rows = tuple(np.array(left).T)
    change = a.entropy[1][rows] - a.entropy[0][rows]
    counts = {"more sharply": change < 0, "more evenly": change > 0, "with NaN": np.isnan(change)}
    told = ", ".join(f"{int(n.sum())} {how}" for how, n in counts.items() if n.any())
    other = int(a.new_top[rows].sum())
    ends = [told, *[f"{other} of them most to another key"] * bool(other)]
    return f"and {amount(len(left), 'more rows')}: {'; '.join(filter(None, ends))}".removesuffix(": ")


def rest(a: Attention, told: int, names: Names, look: Look) -> Iterator[str]:
    """The rows that there is nothing to say about: those that changed a little, and those that did not at all."""
    steady = int(a.steady.sum())
    little = a.steady.size - told - steady
    if little:
        gives = "gives" if little == 1 else "give"
        yield f"{amount(little, 'rows')} changed too little to show, and still {gives} most to the same key"
    if steady:
        yield steadiness(a, steady, names)


def steadiness(a: Attention, steady: int, names: Names) -> str:
    """`t0 to t2 stand still`; of tokens that moved, that they attend to the same tokens as before."""
    size, axis = a.steady.shape[-1], a.axes[-1]
    lead = tuple(range(a.steady.ndim - 1))
    everywhere = np.flatnonzero(a.steady.all(axis=lead)).tolist()
    if a.places is not None:
        who = "every token attends" if steady == a.steady.size else f"{amount(steady, 'rows')} attend"
        return f"{who} to the same tokens as before, by the same weights, wherever they stand now"
    if len(everywhere) * a.steady.size // size != steady:
        return f"{amount(steady, 'rows')} of {a.steady.size} {'stands' if steady == 1 else 'stand'} still"
    if len(everywhere) == size:
        return "every row stands still"
    return standing(names.listing(axis, everywhere), everywhere)


# ------------------------------------------------------------------ the order of the tokens


def order(canvas: Canvas, r: Reordering, names: Names, look: Look) -> None:
    """How the tokens moved, and whether the weights and the output moved with them, and nothing else."""
    canvas.paragraph("", arrangement(r.places, names), "bold")
    for step in telling(r):
        mark, style = (AGREES, "bold green") if step.difference.agrees else (DIFFERS, "bold red")
        canvas.paragraph((f"  {mark} ", style), f"{step.name}: {outcome(step, look.changes)}")
    if r.first is not None:
        why = BY_PLACE.get(cause(r), "")
        canvas.paragraph("  ", f"the first step that has not merely moved is {r.first.name}{f': {why}' if why else ''}")
    if r.silent:
        canvas.paragraph("  ", f"not told, since other tokens meet in a tile now: {enumerated(r.silent)}", "dim")
    canvas.line()


def telling(r: Reordering) -> list[Moved]:
    """The weights, and what comes out; of other steps only where neither is there."""
    found = [step for step in r.steps if step.name in ("weights", "output", "block_output")]
    return found or list(r.steps[:MANY])


def outcome(step: Moved, decimals: int) -> str:
    d = step.difference
    if not d.agrees:
        at = ", ".join(map(str, d.worst))
        return f"not the same numbers in the new order; most apart at [{at}], by {number(d.error, decimals)}"
    words = [word for axis, word in (("query", "rows"), ("token", "rows"), ("key", "columns")) if axis in step.axes]
    how = f"moved with the tokens: its {' and '.join(dict.fromkeys(words))}" if words else "where they were"
    rounding = f" (to rounding: {short(d.error)})" if d.error else ""
    return f"the same numbers{rounding}, {how}"


def cause(r: Reordering) -> str:
    """What goes by place in the first step that has not merely moved, or in the tiles that it is made of."""
    first = "" if r.first is None else r.first.name
    return next((whole(name) for name in (first, *r.silent) if whole(name) in BY_PLACE), "")


def arrangement(places: Places, names: Names) -> str:
    """`B has the tokens of A in another order: t2 and t4 have changed places.`"""
    both = [
        (what, axis, found) for what, axis, found in (("queries", "all_query", places.query), ("keys", "new_key", places.key))
    ]
    if places.query == places.key:
        both = [("tokens", "token", places.query)]
    told = [
        f"the {what} of A in another order: {movement(axis, found, names, what == 'tokens')}"
        for what, axis, found in both
        if moves(found)
    ]
    return f"B has {', and '.join(told)}"


def moves(found: Sequence[int]) -> list[int]:
    return [i for i, was in enumerate(found) if i != was]


def movement(axis: str, found: Sequence[int], names: Names, option: bool) -> str:
    """Where they went; `option` adds the order as an option takes it."""
    moved = moves(found)
    if len(moved) == 2:
        return f"{names.own(0, axis, moved[0])} and {names.own(0, axis, moved[1])} have changed places"
    if len(found) > ORDERED:
        return f"{len(moved)} of {len(found)} have moved"
    told = ", ".join(names.own(0, axis, i) for i in found)
    return f"{told} (--permute {','.join(map(str, found))})" if option else told


# ------------------------------------------------------------------ for scripts


def write_json(c: Comparison, out: BinaryIO, notes: Sequence[Note] = ()) -> None:
    """The same as JSON, numbers exact.

    {"attntrace": {version, format}, "a": {title, changes, labels}, "b": …, "differs", "verdict",
     "steps": [{name, axes, shape (or shapes, where they differ), same, cells, largest_change, at, before, after,
                changed: {axis: entries in which a cell changed}}],
     "only_in_a": [names], "only_in_b": [names],
     "attention": {axes, entropy, argmax: each {before, after}, unchanged} or null,
     "reordering": {query, key: for each entry of B that of A, agrees, first_that_is_not_moved,
                    steps: [{name, moved_along, error, tolerance, agrees}], not_told} or null, "notes"}

    Where tokens were reordered, cells that differ by rounding alone count as the same, and what `attention` has of A is in
    the order of B.
    """
    out.writelines(map(str.encode, document(c, notes)))


def document(c: Comparison, notes: Sequence[Note]) -> Iterator[str]:
    yield f'{{"attntrace": {json.text({"version": json.version(), "format": json.FORMAT})},\n'
    for letter, t in zip("ab", (c.a, c.b), strict=True):
        labels = {axis: list(found) for axis, found in t.labels.items()}
        yield f'"{letter}": {json.text({"title": t.title, "changes": t.changes, "labels": labels})},\n'
    yield f'"differs": {json.text(c.differs)},\n"verdict": {json.text(verdict(c))},\n"steps": '
    yield from json.listed([json.text(json.data(entry(step)))] for step in c.steps)
    yield f',\n"only_in_a": {json.text(c.only[0])},\n"only_in_b": {json.text(c.only[1])},\n'
    yield f'"attention": {json.text(json.data(None if c.attention is None else of_rows(c.attention)))},\n'
    yield f'"reordering": {json.text(json.data(None if c.reordering is None else of_order(c.reordering)))},\n"notes": '
    yield from json.listed([json.text({"code": n.code, "step": n.step, "message": n.message})] for n in notes)
    yield "}\n"


def entry(step: Change) -> dict[str, Any]:
    if not step.comparable:
        return {"name": step.name, "axes": step.axes, "shapes": step.shapes, "same": False}
    about = {"name": step.name, "axes": step.axes, "shape": step.shapes[0], "same": step.same, "cells": step.cells}
    if step.same:
        return about
    numbers = {"largest_change": step.largest, "at": step.at, "before": step.before, "after": step.after}
    return {**about, **numbers, "changed": {axis: step.moved(axis) for axis in step.row_axes}}


def of_rows(a: Attention) -> dict[str, Any]:
    pairs: dict[str, tuple[Array, Array]] = {
        "entropy": a.entropy,
        "argmax": (a.before.argmax(axis=-1), a.after.argmax(axis=-1)),
    }
    told = {name: {"before": one, "after": other} for name, (one, other) in pairs.items()}
    return {"axes": a.axes, **told, "unchanged": a.steady}


def of_order(r: Reordering) -> dict[str, Any]:
    steps = [
        {
            "name": step.name,
            "moved_along": step.axes,
            "error": step.difference.error,
            "tolerance": step.difference.tolerance,
            "agrees": step.difference.agrees,
        }
        for step in r.steps
    ]
    first = None if r.first is None else r.first.name
    told = {"query": r.places.query, "key": r.places.key, "agrees": r.agrees, "first_that_is_not_moved": first}
    return {**told, "steps": steps, "not_told": r.silent}
