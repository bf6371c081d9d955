"""attntrace explain"""

from __future__ import annotations

from enum import Enum
from importlib import import_module
from typing import Annotated, Optional

from attntrace.cli.app import command
from attntrace.cli.options import CELL, OUTPUT, Format, Output, Source, Target, option
from attntrace.cli.session import PRECISION, emit, format_of, problem_of, screen


class TextFormat(str, Enum):
    rich = "rich"
    markdown = "markdown"
    latex = "latex"
    json = "json"


@command
def explain(
    cell: Annotated[
        str,
        CELL(help="A step with a NumPy index: a number 'weights[0,1]', a row 'weights[0]', a small matrix."),
    ],
    source: Source,
    target: Target,
    depth: Annotated[
        int,
        option("--depth", metavar="N", min=1, max=1000, help="Explain operands too, N steps deep (1).", panel=OUTPUT),
    ] = 1,
    precision: Annotated[
        Optional[int], option("--precision", min=0, max=15, help="Decimals carried from line to line (4).", panel=OUTPUT)
    ] = None,
    form: Annotated[
        Optional[TextFormat], option("--format", help="Default: by the extension of --output, or rich.", panel=OUTPUT)
    ] = None,
) -> None:
    """Show the arithmetic behind a cell or a row, to do with a calculator.

    Example: attntrace explain 'weights[0]' --seed 42

    Example: attntrace explain 'output[0,1]' --depth 3 --precision 2
    """
    from attntrace.cell import parse
    from attntrace.explaining import explain as explanation_of

    asked = Output(output=target.output, format=None if form is None else Format(form.value))
    chosen = format_of(asked, [Format(each.value) for each in TextFormat])
    decimals = PRECISION if precision is None else precision
    found = explanation_of(problem_of(source), parse(cell), depth, decimals)
    writer = import_module(f"attntrace.render.explanation.{chosen.value}")
    look = screen(target) if chosen is Format.rich else {}
    emit(target, chosen, lambda out: writer.write(found, out, **look))
