"""attntrace steps"""

from __future__ import annotations

from typing import BinaryIO

from attntrace.cli.app import command
from attntrace.cli.options import Answer, Choice, Format, Source
from attntrace.cli.session import ANSWERS, emit, format_of, screen, shown_of, trace_of


@command
def steps(source: Source, choice: Choice, output: Answer) -> None:
    """List the steps: names, formulas, axes and shapes. Computes nothing.

    Example: attntrace steps multi-head-causal
    """
    from attntrace.render import json, listing
    from attntrace.render.view import View

    chosen = format_of(output, ANSWERS)
    trace = trace_of(source)
    view = View(trace, shown_of(trace, choice), trace.remarks, **screen(output))

    def write(out: BinaryIO) -> None:
        (json.without_values if chosen is Format.json else listing.write)(view, out)

    emit(output, chosen, write)
