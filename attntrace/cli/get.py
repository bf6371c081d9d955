"""attntrace get"""

from __future__ import annotations

from typing import Annotated, BinaryIO

import typer

from attntrace.cli.app import command
from attntrace.cli.options import Format, Output, Source
from attntrace.cli.session import emit, format_of, trace_of


@command
def get(
    cell: Annotated[str, typer.Argument(metavar="CELL", show_default=False, help="A step with a NumPy index: 'weights[0,1]'.")],
    source: Source,
    output: Output,
) -> None:
    """Print bare numbers, exact, one row a line. Computes no more than they need.

    Example: attntrace get 'weights[0,1]' --seed 42
    """
    from attntrace.cell import parse
    from attntrace.render import bare

    chosen = format_of(output, [Format.rich, Format.json])
    place = parse(cell)
    trace = trace_of(source)
    step = trace[place.name]
    place.within(step.axes, step.shape)
    trace.fits([step.name])
    values = step.values[place.index]

    def write(out: BinaryIO) -> None:
        bare.write(values, out, json=chosen is Format.json, precision=output.precision)

    emit(output, chosen, write)
