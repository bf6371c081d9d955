"""attntrace check"""

from __future__ import annotations

from typing import Annotated, Any, Optional

import typer

from attntrace.cli.app import command
from attntrace.cli.options import Answer, Format, Source
from attntrace.cli.session import ANSWERS, emit, format_of, problem_of, screen


@command
def check(
    source: Source,
    claims: Annotated[
        Optional[str],
        typer.Argument(
            metavar="CLAIMS",
            show_default=False,
            help="A JSON, YAML, CSV or NPZ file, pasted text, or - for standard input. Without it: expect in the config.",
        ),
    ] = None,
    *,
    output: Answer,
) -> int:
    """Hold claimed numbers against the trace, and name the likely mistake behind wrong ones; exit 1 when a claim is wrong.

    Example: attntrace check toy

    Example: attntrace check module05 my-numbers.txt
    """
    from attntrace.marking import Marker, claims_about
    from attntrace.render import marks

    chosen = format_of(output, ANSWERS)
    problem = problem_of(source)
    reading = claims_about(problem, claims, *(config_text(source) if claims is None else ()))
    if not reading.claims:
        from attntrace.errors import AttnTraceError, Fault

        raise AttnTraceError(*(reading.faults or [Fault("no claim is about a step of this trace")]))
    marker = Marker(problem)
    marked = marker.mark(reading.claims)
    write = marks.write_json if chosen is Format.json else marks.write
    emit(output, chosen, lambda out: write(marked, reading, marker.truth, out, **screen(output)))
    return 0 if marked.right and not reading.faults else 1


def config_text(source: Source) -> tuple[Any, ...]:
    """The text of the config, in which the digits of `expect` stand as they were written, and its name."""
    from attntrace.config.draft import find
    from attntrace.config.files.opening import read_text

    if source.config == "-" or any(text.startswith("expect") for text in source.sets or ()):
        return ()
    path = find(source.config)
    return read_text(path), path.name if source.config is None else source.config
