"""attntrace verify"""

from __future__ import annotations

from typing import Annotated

import typer

from attntrace.cli.app import command
from attntrace.cli.options import Answer, Format, Source, Steps
from attntrace.cli.session import ANSWERS, emit, format_of, names_of, problem_of, screen


@command
def verify(
    source: Source,
    output: Answer,
    against: Annotated[
        str, typer.Option("--against", metavar="torch", show_default=False, help="What to hold it against.")
    ] = "torch",
    steps: Steps = None,
) -> int:
    """Hold every step against an independent implementation; exit 1 when one differs.

    Example: attntrace verify multi-head-causal
    """
    from attntrace import layer
    from attntrace.reference import reference
    from attntrace.render import report
    from attntrace.verification import verify

    chosen = format_of(output, ANSWERS)
    reference(against)  # without its framework there is no need to read anything
    problem = problem_of(source)
    trace = layer.trace(problem)
    trace.fits()
    found = verify(problem, trace, against, names_of(steps))
    write = report.write_json if chosen is Format.json else report.write
    emit(output, chosen, lambda out: write(found, out, **screen(output)))
    return 0 if found.agrees else 1
