"""A layer decoded: for each token its cache and its rows, then whether they are those of the causal pass.

Tokens are written while they are decoded, so that no more than one trace is held at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from attntrace.decoding import Decoding, Pages, Token
from attntrace.errors import plain
from attntrace.ledger import amount
from attntrace.render import json, rich
from attntrace.render.canvas import Canvas
from attntrace.render.labels import legible
from attntrace.render.report import AGREES, DIFFERS, entry, short
from attntrace.render.text import axes_line
from attntrace.render.view import Shown, View, select
from attntrace.tape import Note, Step, Trace

SHOWN = ("scores", "weights", "output", "block_output")  # of each token, unless others are asked for
MANY = 6  # blocks of a sequence that are named


@dataclass(frozen=True)
class Look:
    """How tokens are shown: which steps of each (None: SHOWN), at which batch item and head, with how many decimals."""

    names: Sequence[str] | None = None
    index: Mapping[str, int] | None = None
    precision: int = 4
    full: bool = False
    width: int | None = None
    colour: bool = False

    def check(self, d: Decoding) -> None:
        """Raise AttnTraceError when there is no such step, batch item or head in any token."""
        first, last = d.outline(0), d.outline(d.tokens - 1)
        select(last, [name for name in self.names or () if name not in first], self.index or {})

    def shown(self, t: Trace) -> list[Shown]:
        """The steps to show that this token has; the first token, for one, may have no cache yet."""
        names = [s.name for s in t if base(s.name) in SHOWN] if self.names is None else [n for n in self.names if n in t]
        return select(t, names, self.index or {})

    def view(self, t: Trace) -> View:
        return View(t, self.shown(t), (), self.precision, self.full, self.width, self.colour)

    def part(self, step: Step) -> Shown:
        index = {axis: i % step.shape[step.axes.index(axis)] for axis, i in (self.index or {}).items() if axis in step.axes}
        return Shown(step, index)


def base(name: str) -> str:
    """The name of a step without the numbers of its tile."""
    return name.rstrip("_0123456789")


# ------------------------------------------------------------------ for people


def write(d: Decoding, look: Look, out: BinaryIO, notes: Sequence[Note] = ()) -> None:
    canvas = Canvas(out, look.colour, look.width)
    heading(canvas, d)
    ties = [token(canvas, look, each) for each in d.play()]
    equal = f"   {rich.MARKS['tie']} equal to it" if any(ties) else ""
    canvas.line((f"{rich.MARKS['max']} largest of its row{equal}", "dim"))
    canvas.line()
    rich.notes(canvas, notes)
    for text, style in ending(d):
        canvas.paragraph("", plain(text), style)


def heading(canvas: Canvas, d: Decoding) -> None:
    about = [(d.whole.options.title, "bold"), (" ".join(d.whole.changes), "dim")]
    for text, style in about:
        if text:
            canvas.paragraph("", plain(text), style)
    if any(text for text, _ in about):
        canvas.line()


def token(canvas: Canvas, look: Look, each: Token) -> bool:
    """One token; tells whether a row of it has two largest entries."""
    mark, style = (AGREES, "bold green") if each.agrees else (DIFFERS, "bold red")
    canvas.line((f"{mark} ", style), (f"token {legible([each.label])[0]}", "bold"), f", {place(each)}")
    for name, step in zip(("k_all", "v_all"), each.cache, strict=True):
        canvas.paragraph((f"   {name}  ", "bold cyan"), f"{axes_line(look.part(step))}")
    for line in [] if each.pages is None else blocks(each.pages, look.index):
        canvas.paragraph("   ", line, "dim")
    canvas.line()
    view = look.view(each.trace)
    ties = [rich.step(canvas, view, shown) for shown in view.shown]
    return any(ties)


def place(each: Token) -> str:
    """`position 3`; where batch items differ, all of theirs, and where rope counts otherwise, what it turns by."""
    told = counted("position", each.positions)
    if "positions" in each.trace:
        turned = [int(p) if p == int(p) else float(p) for p in np.ravel(each.trace["positions"].values)]
        if set(turned) != set(each.positions):
            return f"{told}; {counted('rope position', turned)}"
    return told


def counted(what: str, numbers: Sequence[float]) -> str:
    """`position 3`, `positions 3, 5`."""
    alike = len(set(numbers)) == 1
    return f"{what} {numbers[0]}" if alike else f"{what}s {', '.join(map(str, numbers))}"


def blocks(pages: Pages, index: Mapping[str, int] | None) -> Iterator[str]:
    """The block table with the new token in it, a line for each sequence, and how much of the pool is taken."""
    picked = (index or {}).get("batch")
    several = len(pages.tables) > 1
    for i in range(len(pages.tables)) if picked is None else [picked % len(pages.tables)]:
        yield f"table{f'[{i}]' if several else ''}  {filling(pages.tables[i], pages.lengths[i] + 1, pages.size)}"
    yield f"pool  {sum(map(len, pages.tables))} of {pages.total} blocks taken"


def filling(table: Sequence[int], held: int, size: int) -> str:
    """`block 0 full, block 2 full, block 4 holds 1 of 4  ·  3 slots free`."""
    rest = held - (len(table) - 1) * size
    state = "full" if rest == size else f"holds {rest} of {size}"
    each = [*(f"block {n} full" for n in table[:-1]), f"block {table[-1]} {state}"]
    shown = each if len(each) <= MANY else [*each[:2], "…", *each[-2:]]
    return f"{', '.join(shown)}  ·  {amount(size - rest, 'slots')} free"


def ending(d: Decoding) -> Iterator[tuple[str, str]]:
    """The verdict, how close it was, and what the cache saves; each with its style."""
    yield d.verdict, "bold green" if d.agrees else "bold red"
    label, row = d.worst
    error, allowed = short(row.difference.error), short(row.difference.tolerance)
    yield f"largest error {error}, in {row.step} of {label}; tolerance {allowed}", ""
    n = d.multiplications
    saved = f"{n.with_cache:,} with the cache, {n.without_cache:,} without it, {n.ratio:.2f} times as many"
    yield f"multiplications: {saved}", ""


# ------------------------------------------------------------------ for scripts


def write_json(d: Decoding, look: Look, out: BinaryIO, notes: Sequence[Note] = ()) -> None:
    """The same as JSON, numbers exact. `steps` are those of `attntrace run --format json`.

    {"attntrace": {version, format}, "title", "config",
     "tokens": [{"token": label, "positions": [one for each batch item], "cache": {"k_all": {axes, shape}, "v_all": …},
                 "blocks": {size, tables, filled, pool} (only with a paged cache; `filled` counts the slots of each sequence),
                 "compared": [{name, against, error, ulps, tolerance, worst, agrees}], "steps": […]}],
     "agrees", "verdict", "worst": {"token", name, …}, "multiplications": {with_cache, without_cache, ratio}, "notes"}
    """
    out.writelines(map(str.encode, document(d, look, notes)))


def document(d: Decoding, look: Look, notes: Sequence[Note]) -> Iterator[str]:
    yield f'{{"attntrace": {json.text({"version": json.version(), "format": json.FORMAT})},\n'
    yield f'"title": {json.text(d.whole.options.title)},\n"config": '
    yield from json.config(d.whole.config)
    yield ',\n"tokens": '
    yield from json.listed(member(each, look) for each in d.play())
    yield f',\n"agrees": {json.text(d.agrees)},\n"verdict": {json.text(d.verdict)},\n'
    label, row = d.worst
    yield f'"worst": {json.text({"token": label, **entry(row)})},\n'
    yield f'"multiplications": {json.text({**d.multiplications._asdict(), "ratio": d.multiplications.ratio})},\n"notes": '
    yield from json.listed([json.text({"code": n.code, "step": n.step, "message": n.message})] for n in notes)
    yield "}\n"


def member(each: Token, look: Look) -> Iterator[str]:
    yield json.text(described(each, look)).removesuffix("}")
    yield ', "steps": '
    yield from json.listed(json.step(shown, values=True) for shown in look.shown(each.trace))
    yield "}"


def described(each: Token, look: Look) -> dict[str, Any]:
    parts = {name: look.part(step) for name, step in zip(("k_all", "v_all"), each.cache, strict=True)}
    told: dict[str, Any] = {
        "token": each.label,
        "positions": each.positions,
        "cache": {name: {"axes": shown.axes, "shape": shown.shape} for name, shown in parts.items()},
    }
    if (pages := each.pages) is not None:
        filled = [length + 1 for length in pages.lengths]
        told["blocks"] = {"size": pages.size, "tables": pages.tables, "filled": filled, "pool": pages.total}
    return {**told, "compared": [entry(row) for row in each.compared]}
