"""attntrace worksheet"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from enum import Enum
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Optional

from attntrace.cli.app import command
from attntrace.cli.options import INPUT, OUTPUT, Source, Target, option, steps_starting
from attntrace.cli.session import names_of, problem_of, whole_file, write_out
from attntrace.errors import AttnTraceError, plain

if TYPE_CHECKING:
    from attntrace.worksheet import Sheet


class SheetFormat(str, Enum):
    markdown = "markdown"
    latex = "latex"
    yaml = "yaml"


EXTENSIONS = {
    ".md": SheetFormat.markdown,
    ".markdown": SheetFormat.markdown,
    ".tex": SheetFormat.latex,
    ".latex": SheetFormat.latex,
    ".yaml": SheetFormat.yaml,
    ".yml": SheetFormat.yaml,
}
SUFFIX = {SheetFormat.markdown: ".md", SheetFormat.latex: ".tex", SheetFormat.yaml: ".yaml"}

Blank = Annotated[
    Optional[str],
    option("--blank", metavar="a,b", help="Steps to fill in; all unless given.", panel=INPUT, autocompletion=steps_starting),
]
Seeds = Annotated[
    Optional[str],
    option("--seeds", metavar="1:30", help="A sheet for each seed, 1 to 30. Needs --output-dir.", panel=INPUT),
]
Students = Annotated[
    Optional[str],
    option("--students", metavar="FILE", help="A sheet for each name in FILE, one a line. Needs --output-dir.", panel=INPUT),
]
Keep = Annotated[
    Optional[str], option("--keep", metavar="a,b", help="Inputs that keep the numbers of the config.", panel=INPUT)
]
Key = Annotated[
    Optional[str],
    option("--key", metavar="FILE", help="Where the key goes; with --output-dir, a directory.", panel=OUTPUT),
]
Folder = Annotated[
    Optional[str], option("--output-dir", metavar="DIR", help="Where many sheets go; their keys to DIR/keys.", panel=OUTPUT)
]
Kind = Annotated[
    Optional[SheetFormat], option("--format", help="Default: by the extension of --output, or markdown.", panel=OUTPUT)
]
Precision = Annotated[
    Optional[int], option("--precision", min=0, max=12, help="Decimals that are asked for (3).", panel=OUTPUT)
]


@command
def worksheet(
    source: Source,
    output: Target,
    blank: Blank = None,
    seeds: Seeds = None,
    students: Students = None,
    keep: Keep = None,
    key: Key = None,
    output_dir: Folder = None,
    kind: Kind = None,
    precision: Precision = None,
) -> None:
    """Write a sheet with steps left blank, to do by hand, and its key.

    --output sheet.md writes sheet.md and its key, sheet-key.md (or what --key names); the screen shows the sheet alone.
    A YAML sheet is a config: attntrace check says what is wrong once it is filled in, attntrace grade marks it by its YAML key.

    --seed N gives a sheet other numbers, good ones to do by hand, in place of those that the config draws or writes out. Masks,
    positions and slopes stay, and so does what comes from a file, from --set, or is named by --keep. With --students everybody
    gets the numbers that follow from the name, and from --seed.

    Example: attntrace worksheet toy --blank weights,output

    Example: attntrace worksheet toy --blank weights,output --seed 7 --output sheet.tex

    Example: attntrace worksheet module05 --students names.txt --format yaml --output-dir sheets
    """
    many = seeds is not None or students is not None
    check_options(source, output, seeds, students, output_dir)
    make = maker(source, names_of_option("--blank", blank), names_of_option("--keep", keep) or [], precision, many)
    if many:
        assert output_dir is not None
        pile(make, output, who(seeds, students, source.seed), kind or SheetFormat.markdown, Path(output_dir), key)
    else:
        single(make(source.seed, ""), output, kind, key)


def check_options(source: Source, output: Target, seeds: str | None, students: str | None, folder: str | None) -> None:
    option = "--seeds" if seeds is not None else "--students" if students is not None else None
    if seeds is not None and students is not None:
        raise AttnTraceError("--seeds and --students: expected one of them")
    if seeds is not None and source.seed is not None:
        raise AttnTraceError("--seed and --seeds: expected one of them")
    if option is None and folder is not None:
        raise AttnTraceError("--output-dir: goes with --seeds or --students; a single sheet goes to --output FILE")
    if option is not None and output.output is not None:
        raise AttnTraceError(f"{option}: writes many sheets, to --output-dir DIR and not to --output")
    if option is not None and folder is None:
        raise AttnTraceError(f"{option}: writes many sheets; say where to, with --output-dir DIR")


def names_of_option(option: str, names: str | None) -> list[str] | None:
    try:
        return names_of(names)
    except AttnTraceError:
        example = "weights,output" if option == "--blank" else "w_q,w_k"
        what = "steps" if option == "--blank" else "inputs"
        raise AttnTraceError(f"{option}: expected names of {what}, such as {option} {example}") from None


def maker(source: Source, blank: list[str] | None, keep: list[str], precision: int | None, many: bool) -> Any:
    """What makes a sheet out of a seed and a name. The config is read once."""
    from attntrace.worksheet import DECIMALS, worksheet

    if keep and source.seed is None and not many:
        raise AttnTraceError("--keep: goes with --seed, --seeds or --students, without which all inputs stay")
    problem = base(source, many)
    decimals = DECIMALS if precision is None else precision
    return lambda seed, student: worksheet(problem, blank, decimals, seed, keep, student)


def base(source: Source, many: bool) -> Any:
    """The problem of the config with its own seed, which is that of its masks; one that has none is given that of the sheet."""
    if source.seed is None and not many:
        return problem_of(source)
    try:
        if source.config != "-":
            return problem_of(replace(source, seed=None))
    except AttnTraceError:
        pass  # perhaps for want of a seed; if not, it will be said once more
    return problem_of(replace(source, seed=source.seed or 0))


def who(seeds: str | None, students: str | None, seed: int | None) -> list[tuple[str, int]]:
    """Whom the sheets are for, and their seeds; the name is empty where there are only seeds."""
    from attntrace import worksheet as sheets

    if students is None:
        return [("", number) for number in sheets.seeds(seeds or "")]
    from attntrace.config.files.opening import read_text, text

    content = text(sys.stdin.buffer, "standard input") if students == "-" else read_text(Path(students))
    return list(sheets.students(content, "standard input" if students == "-" else students, seed or 0).items())


# ------------------------------------------------------------------ one sheet


def single(sheet: Sheet, output: Target, kind: SheetFormat | None, key: str | None) -> None:
    """The sheet and its key: both, or neither."""
    target = output.output or "-"
    kind = kind or by_extension(output.output) or SheetFormat.markdown
    place = key_beside(target) if key is None else key
    if place is not None and place != "-" and os.path.realpath(place) == os.path.realpath(target):
        raise AttnTraceError(f"--key {plain(place)}: the sheet goes there")
    if place == target == "-":
        raise AttnTraceError("--key -: the sheet goes to standard output; send one of the two to a file")
    with ExitStack() as files:
        write(sheet, False, kind, files.enter_context(writing("--output", target)), output)
        if place is not None:
            of_key = EXTENSIONS.get(Path(place).suffix.lower(), kind)
            write(sheet, True, of_key, files.enter_context(writing("--key", place)), output)
    tell(output, [sheet], f"the key is in {plain(place)}" if place not in (None, "-") else "")


def key_beside(target: str) -> str | None:
    """sheet-key.md for sheet.md; none for standard output, a device or a pipe, which hold the sheet alone."""
    if target == "-" or (os.path.exists(target) and not os.path.isfile(target)):
        return None
    path = Path(target)
    return str(path.with_name(f"{path.stem}-key{path.suffix}")) if path.name else None


def by_extension(file: str | None) -> SheetFormat | None:
    suffix = Path(file).suffix.lower() if file and file != "-" else ""
    if suffix and suffix not in EXTENSIONS:
        known = ", ".join(EXTENSIONS)
        raise AttnTraceError(f"--output {file}: the extension {suffix} tells no format; use {known}, or say --format")
    return EXTENSIONS.get(suffix)


@contextmanager
def writing(option: str, name: str) -> Iterator[BinaryIO | None]:
    """A file, whole or not at all; None for standard output."""
    if name == "-":
        yield None
        return
    try:
        with whole_file(name) as file:
            yield file
    except AttnTraceError as error:
        raise AttnTraceError(str(error.faults[0].message).replace("--output", option, 1)) from None


def write(sheet: Sheet, key: bool, kind: SheetFormat, file: BinaryIO | None, output: Target) -> None:
    from attntrace.render.worksheet import WRITERS

    writer = WRITERS[kind.value]
    if file is not None:
        writer(sheet, key, file)
    elif not output.quiet:
        sys.stdout.flush()
        write_out(lambda out: writer(sheet, key, out), binary=False)


# ------------------------------------------------------------------ a sheet for each


def pile(make: Any, output: Target, of: Sequence[tuple[str, int]], kind: SheetFormat, folder: Path, key: str | None) -> None:
    """A sheet for each student or seed, and their keys in a directory of their own, so that none is handed out with a sheet."""
    keys = folder / "keys" if key is None else Path(key)
    if os.path.realpath(keys) == os.path.realpath(folder):
        raise AttnTraceError(f"--key {plain(str(key))}: the sheets go there")
    directory("--output-dir", folder)
    directory("--key", keys)
    sheets = []
    for (student, seed), name in zip(of, file_names(of), strict=True):
        sheet = make(seed, student)
        with (
            writing("--output-dir", str(folder / f"{name}{SUFFIX[kind]}")) as file,
            writing("--key", str(keys / f"{name}-key{SUFFIX[kind]}")) as file_of_key,
        ):
            write(sheet, False, kind, file, output)
            write(sheet, True, kind, file_of_key, output)
        sheets += [sheet] if sheet.lacks else []
    many = "1 sheet" if len(of) == 1 else f"{len(of)} sheets"
    tell(output, sheets, f"{many} in {plain(str(folder))}, the keys in {plain(str(keys))}")


def directory(option: str, path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        why = "is not a directory" if isinstance(error, FileExistsError) else getattr(error, "strerror", None) or str(error)
        raise AttnTraceError(f"{option} {plain(str(path))}: {why.lower()}") from None


def file_names(of: Sequence[tuple[str, int]]) -> Iterator[str]:
    """A name for each sheet: no paths, no hidden files, no two alike on any file system."""
    from attntrace.render.grades import safe

    taken: set[str] = set()
    for student, seed in of:
        base = safe(student) if student else f"sheet-{seed}"
        names = (base if number == 1 else f"{base}-{number}" for number in count(1))
        name = next(name for name in names if name.casefold() not in taken)
        taken.add(name.casefold())
        yield name


def tell(output: Target, sheets: Sequence[Sheet], where: str) -> None:
    """On standard error: where the key is, and which numbers are not as good as they should be."""
    from attntrace.worksheet import remark

    if not output.quiet:
        for said in filter(None, [*map(remark, sheets), where]):
            print(f"note: {said}", file=sys.stderr)
