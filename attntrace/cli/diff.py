"""attntrace diff"""

from __future__ import annotations

import io
import shlex
import sys
from dataclasses import replace
from typing import Annotated, Any, Optional

import typer

from attntrace.cli.app import command
from attntrace.cli.options import INPUT, Answer, Choice, Format, Precision, Source, examples
from attntrace.cli.session import ANSWERS, emit, format_of, names_of, problem_of, screen, tell, to_terminal
from attntrace.errors import AttnTraceError

B = Annotated[
    Optional[str],
    typer.Argument(
        metavar="B",
        show_default=False,
        autocompletion=examples,
        help="Another config. Without it, B is CONFIG with the changes that are given.",
    ),
]
ExitCode = Annotated[bool, typer.Option("--exit-code", help="Exit 1 when anything differs.", rich_help_panel=INPUT)]


@command
def diff(
    source: Source, choice: Choice, output: Answer, b: B = None, exit_code: ExitCode = False, precision: Precision = None
) -> int:
    """Hold two traces side by side: A, which is CONFIG as it stands, and B, another config or the same with changes.

    --set, --permute and --seed change B alone; --queries, and the options that go without a CONFIG, are for both.

    Example: attntrace diff toy --set 'x[0]=[5,5,5]'

    Example: attntrace diff six-tokens --permute 0,1,4,3,2,5
    """
    from attntrace.differ import diff as compare
    from attntrace.render import difference
    from attntrace.render.view import check_position

    chosen = format_of(output, ANSWERS)
    one, other = sides(source, b)
    old, new = problems(one, other)
    index = {axis: i for axis, i in (("batch", choice.batch), ("head", choice.head)) if i is not None}
    for axis, i in index.items():
        for problem in (old, new):
            check_position(problem, axis, i)
    found = compare(old, new, names_of(choice.steps), index)
    names = caption(one, old), caption(other, new, "A" if b is None else "")
    look = difference.Look(names, *(() if precision is None else (precision, precision)), **screen(output))
    notes = difference.marked(found)
    aside = chosen is Format.rich and not to_terminal(output)
    if chosen is Format.json:
        emit(output, chosen, lambda out: difference.write_json(found, out, notes))
    else:
        emit(output, chosen, lambda out: difference.write(found, look, out, () if aside else notes))
    if aside:
        tell(output, notes)
    return int(exit_code and found.differs)


def sides(source: Source, b: str | None) -> tuple[Source, Source]:
    """What to trace as A and as B."""
    if b is None and source.seed is None and not source.sets and source.permute is None:
        what = "nothing to hold A against"
        raise AttnTraceError(
            f"{what}: give another config as B, or a change such as --set scale=1, --permute 1,0,2 or --seed 7"
        )
    return replace(source, seed=None, sets=None, permute=None), replace(source, config=source.config if b is None else b)


def problems(one: Source, other: Source) -> tuple[Any, Any]:
    """A and B loaded. Standard input can be read once, and is kept when both are made from it."""
    if not one.config == other.config == "-":
        return problem_of(one), problem_of(other)
    from attntrace.config.files.opening import TEXT_LIMIT, at_most

    given, text = sys.stdin, bytes(at_most(sys.stdin.buffer, TEXT_LIMIT + 1))
    try:
        return supplied(one, text), supplied(other, text)
    finally:
        sys.stdin = given


def supplied(source: Source, text: bytes) -> Any:
    """A problem made from a text as if it came by standard input."""
    sys.stdin = io.TextIOWrapper(io.BytesIO(text))
    return problem_of(source)


def caption(source: Source, problem: Any, base: str = "") -> str:
    """`toy · Four tokens, by hand`, or what was changed: `A with --set scale=1`."""
    changes = [f"--seed {source.seed}"] if source.seed is not None else []
    changes += [f"--set {shlex.quote(text)}" for text in source.sets or ()]
    changes += [f"--permute {source.permute}"] if source.permute is not None else []
    name = "standard input" if source.config == "-" else source.config
    told = base or " · ".join(filter(None, [name, problem.options.title]))
    return f"{told}{' with ' * bool(changes)}{' '.join(changes)}"
