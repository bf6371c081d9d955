"""attntrace run"""

from __future__ import annotations

from attntrace.cli.app import command
from attntrace.cli.options import Choice, Format, Output, Source
from attntrace.cli.session import PRECISION, emit, format_of, renderer, screen, shown_of, tell, to_terminal, trace_of


@command
def run(source: Source, choice: Choice, output: Output) -> None:
    """Print every step: its formula, its shape, every number, row sums and the largest entry of each row.

    Example: attntrace run --seed 42

    Example: attntrace run toy --set mask=causal --steps masked,weights
    """
    from attntrace.remarks import about, look_at
    from attntrace.render.view import View

    chosen = format_of(output)
    trace = trace_of(source)
    shown = shown_of(trace, choice)
    keep = None if choice.steps is None else {s.name for s in shown}
    notes = about([*trace.remarks, *(note for step in trace.play(keep) for note in look_at(step))], keep)
    aside = chosen in (Format.csv, Format.npz) or (chosen is Format.rich and not to_terminal(output))
    precision = PRECISION if output.precision is None else output.precision
    view = View(trace, shown, () if aside else notes, precision, output.full, **screen(output))
    emit(output, chosen, lambda out: renderer(chosen).write(view, out))
    if aside:
        tell(output, notes)
