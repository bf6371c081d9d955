"""attntrace get"""

from __future__ import annotations

from typing import Annotated, BinaryIO, Optional

import typer

from attntrace.cli.app import command
from attntrace.cli.options import CELL, Answer, Format, Source
from attntrace.cli.session import ANSWERS, emit, format_of, trace_of


@command
def get(
    cell: Annotated[
        str,
        CELL(help="A step with a NumPy index: 'weights[0,1]'."),
    ],
    source: Source,
    output: Answer,
    precision: Annotated[
        Optional[int],
        typer.Option("--precision", min=0, max=17, show_default=False, help="Decimals; without it numbers are exact."),
    ] = None,
) -> None:
    """Print bare numbers, exact, one row a line. Computes no more than they need.

    Example: attntrace get 'weights[0,1]' --seed 42
    """
    from attntrace.cell import parse
    from attntrace.render import bare

    chosen = format_of(output, ANSWERS)
    place = parse(cell)
    trace = trace_of(source)
    step = trace[place.name]
    place.within(step.axes, step.shape)
    for _ in trace.play({step.name}):
        pass
    values = step.values[place.index]

    def write(out: BinaryIO) -> None:
        bare.write(values, out, json=chosen is Format.json, precision=precision)

    emit(output, chosen, write)
