"""attntrace examples"""

from __future__ import annotations

from typing import Annotated, BinaryIO, Optional

import typer

from attntrace.cli.app import command
from attntrace.cli.options import Format, Target
from attntrace.cli.options import examples as names_starting
from attntrace.cli.session import emit, screen
from attntrace.errors import AttnTraceError, nearest


@command
def examples(
    output: Target,
    name: Annotated[
        Optional[str],
        typer.Argument(metavar="NAME", show_default=False, autocompletion=names_starting, help="An example to print."),
    ] = None,
) -> None:
    """List the bundled examples; with a NAME print that file, to copy and edit.

    Example: attntrace examples toy > mine.yaml
    """
    from attntrace.config import bundled
    from attntrace.render import catalogue
    from attntrace.render.text import write_text

    if name is not None and name not in bundled.names():
        raise AttnTraceError(f"{name}: no bundled example has that name{nearest(name, bundled.names())}")
    text = catalogue.text(name) if name else ""

    def write(out: BinaryIO) -> None:
        if name:
            write_text(text, out)
        else:
            catalogue.write(out, **screen(output))

    emit(output, Format.rich, write)
