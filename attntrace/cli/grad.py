"""attntrace grad"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, BinaryIO, Optional

from attntrace.cli.app import command
from attntrace.cli.options import INPUT, OUTPUT, Choice, Format, Output, Source, option
from attntrace.cli.session import (
    ANSWERS,
    PRECISION,
    emit,
    format_of,
    problem_of,
    renderer,
    screen,
    shown_of,
    tell,
    to_terminal,
)
from attntrace.errors import AttnTraceError

Upstream = Annotated[
    Optional[str],
    option(
        "--upstream",
        metavar="sum|mean|draw|FILE",
        help="The gradient of the output: sum (ones, the default), mean, draw or draw:SEED, a list, FILE or FILE.npz:KEY.",
        panel=INPUT,
    ),
]
Target = Annotated[
    Optional[str],
    option("--target", metavar="FILE|LIST", help="Instead: L = ½ ‖Y − T‖², T a list, FILE or FILE.npz:KEY.", panel=INPUT),
]
CheckOnly = Annotated[bool, option("--check-only", help="Only the table of checks; --format rich or json.", panel=OUTPUT)]
PATIENCE = 1.0  # seconds before a progress bar appears
BEARING = ("masked-row", "saturated", "sunk", "nan", "overflow")  # notes of the forward pass that say something of gradients


@command
def grad(
    source: Source,
    choice: Choice,
    output: Output,
    upstream: Upstream = None,
    target: Target = None,
    check_only: CheckOnly = False,
) -> int:
    """Trace the backward pass: the gradient of every step and input, checked numerically; exit 1 when a check fails.

    The gradient of a step is called d_ and its name; --steps takes names of the forward pass too.

    Example: attntrace grad toy --upstream draw --steps weights,d_weights,d_scaled

    Example: attntrace grad toy --target '[[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]]' --steps d_output,d_x

    Example: attntrace grad llama-block --check-only
    """
    from attntrace import layer
    from attntrace.backward import last, reverse
    from attntrace.gradcheck import check
    from attntrace.upstream import upstream_of

    chosen = format_of(output, ANSWERS if check_only else tuple(Format))
    problem = problem_of(source)
    trace = layer.trace(problem)
    loss = upstream_of(last(trace), upstream, target)
    gradients = reverse(trace, loss)
    shown = shown_of(trace, choice if choice.steps else named(choice, gradients))
    if not check_only:
        trace.fits({s.name for s in shown})
    with progress(output) as tick:
        checks = check(problem, loss, tick)
    if check_only and not checks.rows:
        raise AttnTraceError(checks.verdict)
    if check_only:
        emit(output, chosen, lambda out: table(chosen, checks, out, output))
    else:
        write(trace, shown, loss.notes, checks, chosen, output)
    return 0 if checks.agrees else 1


def named(choice: Choice, steps: list[Any]) -> Choice:
    """The same choice, of these steps."""
    return Choice(",".join(step.name for step in steps), choice.batch, choice.head)


def write(trace: Any, shown: list[Any], more: list[Any], checks: Any, chosen: Format, output: Output) -> None:
    """The steps as `run` writes them; what the checks found after them, or as a note where the format has no place for it."""
    from attntrace.remarks import about, look_at
    from attntrace.render import gradcheck
    from attntrace.render.view import View
    from attntrace.tape import Note

    keep = {s.name for s in shown}
    looked = [note for step in trace.play(keep) for note in look_at(step)]
    bearing = [note for note in looked if note.step in keep or note.code in BEARING]
    notes = about([*more, *trace.remarks, *bearing], None)
    verdict = Note("gradient-check", None, checks.verdict)
    aside = chosen in (Format.csv, Format.npz) or (chosen is Format.rich and not to_terminal(output))
    told = [*notes, verdict] if chosen not in (Format.rich, Format.json) else notes
    precision = PRECISION if output.precision is None else output.precision
    view = View(trace, shown, () if aside else told, precision, output.full, **screen(output))

    def all_of_it(out: BinaryIO) -> None:
        if chosen is Format.json:
            gradcheck.write_trace(view, checks, out)
            return
        renderer(chosen).write(view, out)
        if chosen is Format.rich:
            out.write(b"\n")
            gradcheck.write(checks, out, **screen(output))

    emit(output, chosen, all_of_it)
    if aside:
        tell(output, told)


def table(chosen: Format, checks: Any, out: BinaryIO, output: Output) -> None:
    from attntrace.render import gradcheck

    (gradcheck.write_json if chosen is Format.json else gradcheck.write)(checks, out, **screen(output))


@contextmanager
def progress(output: Output) -> Iterator[Any]:
    """How far a check is, on standard error, if it is a terminal and the check takes long."""
    if output.quiet or not sys.stderr.isatty():
        yield lambda done, of: None
        return
    from time import monotonic

    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True), transient=True)
    begun = monotonic()
    task = bar.add_task("finite differences")

    def tick(done: int, of: int) -> None:
        if monotonic() - begun > PATIENCE:
            bar.start()
            bar.update(task, completed=done, total=of)

    try:
        yield tick
    finally:
        bar.stop()
