"""attntrace grade"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from attntrace.cli.app import command
from attntrace.cli.options import INPUT, OUTPUT, Format, Output, Source, Target, option, steps_starting
from attntrace.cli.session import colour_of, emit, format_of, names_of, problem_of, screen, whole_file
from attntrace.errors import AttnTraceError, plain

if TYPE_CHECKING:
    from attntrace.grading import Grades

GRADES = (Format.rich, Format.csv, Format.json)
PATIENCE = 0.5  # seconds before a progress bar appears


class GradesFormat(str, Enum):
    rich = "rich"
    csv = "csv"
    json = "json"


Files = Annotated[
    Optional[list[str]],
    typer.Argument(
        metavar="FILES",
        show_default=False,
        help="What was handed in, a file a student; of a directory, every file in it and below.",
    ),
]
Rubric = Annotated[
    Optional[str],
    option("--rubric", metavar="FILE", help="YAML: {steps: {scores: 2, weights: 1}, partial: true}.", panel=INPUT),
]
Steps = Annotated[
    Optional[str],
    option("--steps", metavar="a,b", help="Mark only these steps.", panel=INPUT, autocompletion=steps_starting),
]
Jobs = Annotated[
    Optional[int],
    option("--jobs", "-j", min=1, max=64, help="Processes; as many as are worth it unless given.", panel=INPUT),
]
Feedback = Annotated[
    Optional[str], option("--feedback", metavar="DIR", help="Write a Markdown file for each student to DIR.", panel=OUTPUT)
]
Kind = Annotated[
    Optional[GradesFormat], option("--format", help="Default: by the extension of --output, or rich.", panel=OUTPUT)
]


@command
def grade(
    source: Source,
    output: Target,
    files: Files = None,
    rubric: Rubric = None,
    steps: Steps = None,
    jobs: Jobs = None,
    feedback: Feedback = None,
    kind: Kind = None,
) -> int:
    """Mark a pile of claims: marks, first wrong step and mistake of each file; exit 1 when something could not be read.

    A step brings one mark, or what --rubric says, and all of it or nothing, unless the rubric says partial: true. What follows
    from an earlier wrong step is right; a blank cell is not. Marked are the steps of the rubric or of --steps; without either,
    those of the config's expect; without that, every computed step that some file claims. A step not handed in gets 0.

    In a rubric, rounding: {allowed: 3} asks for three decimals or more. A file that cannot be read gets no marks at all.

    Example: attntrace grade toy answers/*.txt --output grades.csv

    Example: attntrace grade toy answers/ --rubric rubric.yaml --feedback feedback/
    """
    from attntrace import layer
    from attntrace.grading import grade as grade_files
    from attntrace.grading import pile, read_rubric

    chosen = format_of(Output(**vars(output), format=None if kind is None else Format(kind.value)), GRADES)
    if not files:
        raise AttnTraceError("nothing to grade: give files or directories after CONFIG, as in attntrace grade toy answers/")
    problem = problem_of(source)
    trace = layer.trace(problem)
    scheme = None if rubric is None else read_rubric(rubric, trace)
    folder = None if feedback is None else folder_of(feedback)
    found = pile(files, [name for name in (source.config, rubric, output.output, feedback) if name])
    with progress(output) as tick:
        grades = grade_files(problem, found, scheme, names_of(steps), jobs, tick)
    if folder is not None:
        write_feedback(grades, trace, folder)
    write(grades, chosen, output)
    return 0 if grades.complete else 1


def write(grades: Grades, chosen: Format, output: Target) -> None:
    """The grades where they go; the summary on standard error where they have no place for it, or are not to be seen."""
    from attntrace.render import grades as render

    writer = {Format.csv: render.write_csv, Format.json: render.write_json}.get(chosen, render.write)
    emit(output, chosen, lambda out: writer(grades, out, **screen(output)))
    seen = chosen is Format.rich and output.output in (None, "-")
    if not seen and not output.quiet:
        from io import BytesIO

        from attntrace.render.canvas import Canvas

        buffer = BytesIO()
        render.summary(Canvas(buffer, colour_of(output, sys.stderr), None), grades)
        sys.stderr.write(buffer.getvalue().decode())


def folder_of(name: str) -> Path:
    """The directory for feedback, made before anything is marked."""
    path = Path(name)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        why = "is not a directory" if isinstance(error, FileExistsError) else getattr(error, "strerror", None) or str(error)
        raise AttnTraceError(f"--feedback {plain(name)}: {why.lower()}") from None
    return path


def write_feedback(grades: Grades, trace: Any, folder: Path) -> None:
    """A file for each student, each whole or not at all."""
    from attntrace.render.grades import feedback, feedback_names

    for name, row in zip(feedback_names(grades), grades.rows, strict=True):
        try:
            with whole_file(os.path.join(folder, name)) as file:
                file.write(feedback(row, grades, trace))
        except AttnTraceError as error:
            raise AttnTraceError(str(error.faults[0].message).replace("--output", "--feedback", 1)) from None


@contextmanager
def progress(output: Target) -> Iterator[Any]:
    """How many files are read, on standard error, if it is a terminal and there are many."""
    if output.quiet or not sys.stderr.isatty():
        yield lambda done, of: None
        return
    from time import monotonic

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("reading"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    begun, task = monotonic(), bar.add_task("reading")

    def tick(done: int, of: int) -> None:
        bar.update(task, completed=done, total=of)
        if monotonic() - begun > PATIENCE:
            bar.start()

    try:
        yield tick
    finally:
        bar.stop()
