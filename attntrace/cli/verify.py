"""attntrace verify"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from attntrace.cli.app import command
from attntrace.cli.options import Answer, Format, Source, Steps
from attntrace.cli.session import ANSWERS, emit, format_of, names_of, problem_of, screen

NAMES = {  # for shell completion: asking the references would import NumPy
    "torch": "PyTorch, every step",
    "onnx": "the operators of ONNX's reference evaluator",
    "jax": "jax.numpy and jax.nn",
    "all": "one table of all that are installed",
}


def names_starting(incomplete: str) -> list[tuple[str, str]]:
    """References for shell completion, with what they are; of a list, its last name."""
    before, comma, last = incomplete.rpartition(",")
    known = {name: what for name, what in NAMES.items() if name.startswith(last) and not (comma and name == "all")}
    return [(f"{before}{comma}{name}", what) for name, what in known.items()]


Against = Annotated[
    str,
    typer.Option(
        "--against",
        metavar="torch|onnx|jax|all",
        show_default=False,
        autocompletion=names_starting,
        help="What to hold it against (torch); several as torch,onnx, or all that are installed.",
    ),
]


@command
def verify(source: Source, output: Answer, against: Against = "torch", steps: Steps = None) -> int:
    """Hold every step against an independent implementation; exit 1 when one differs.

    Example: attntrace verify multi-head-causal --against all
    """
    from attntrace import layer
    from attntrace.reference import KNOWN, chosen, installed
    from attntrace.render import report
    from attntrace.verification import verify, verify_all

    form = format_of(output, ANSWERS)
    installed(chosen(against))  # without a framework there is no need to read anything
    problem = problem_of(source)
    trace = layer.trace(problem)
    trace.fits()
    hold: Any = verify if against in KNOWN else verify_all
    found = hold(problem, trace, against, names_of(steps))
    write = report.write_json if form is Format.json else report.write
    emit(output, form, lambda out: write(found, out, **screen(output)))
    return 0 if found.agrees else 1
