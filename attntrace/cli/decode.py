"""attntrace decode"""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from attntrace.cli.app import command
from attntrace.cli.options import INPUT, OUTPUT, Answer, Choice, Format, Precision, Source, option
from attntrace.cli.session import ANSWERS, PRECISION, emit, format_of, names_of, problem_of, screen, tell, to_terminal
from attntrace.errors import AttnTraceError


@command
def decode(
    source: Source,
    choice: Choice,
    output: Answer,
    paged: Annotated[bool, option("--paged", help="Keep the cache in blocks, which a table names.", panel=INPUT)] = False,
    block_size: Annotated[
        Optional[int], option("--block-size", metavar="N", min=1, max=1 << 20, help="Slots of a block (4).", panel=INPUT)
    ] = None,
    precision: Precision = None,
    full: Annotated[bool, typer.Option("--full", help="Print large tensors whole.", rich_help_panel=OUTPUT)] = False,
) -> int:
    """Decode token by token with a growing KV cache; exit 1 when a row is not that of the causal pass.

    Example: attntrace decode --seed 3 --tokens 5 --d-model 8 --heads 2 --causal

    Example: attntrace decode llama-block --paged --block-size 2
    """
    from attntrace.decoding import BLOCK_SIZE
    from attntrace.decoding import decode as decoding_of
    from attntrace.render.decode import Look, write, write_json

    if block_size is not None and not paged:
        raise AttnTraceError("--block-size: goes with --paged")
    chosen = format_of(output, ANSWERS)
    decoding = decoding_of(problem_of(source), (block_size or BLOCK_SIZE) if paged else None)
    index = {axis: i for axis, i in (("batch", choice.batch), ("head", choice.head)) if i is not None}
    decimals = PRECISION if precision is None else precision
    look = Look(names_of(choice.steps), index, decimals, full, **screen(output))
    look.check(decoding)
    aside = chosen is Format.rich and not to_terminal(output)
    writer = write_json if chosen is Format.json else write
    emit(output, chosen, lambda out: writer(decoding, look, out, () if aside else decoding.notes))
    if aside:
        tell(output, decoding.notes)
    return 0 if decoding.agrees else 1
