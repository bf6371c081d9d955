"""What commands do alike: read the trace that is asked for, and write what they found."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from attntrace.cli.options import Answer, Choice, Colour, Format, Output, Source, Target
from attntrace.errors import AttnTraceError, plain

EXTENSIONS = {
    ".json": Format.json,
    ".csv": Format.csv,
    ".npz": Format.npz,
    ".md": Format.markdown,
    ".markdown": Format.markdown,
    ".tex": Format.latex,
    ".latex": Format.latex,
    ".txt": Format.rich,
}
ANSWERS = (Format.rich, Format.json)  # what a command writes that does not write a trace
PRECISION = 4
NARROWEST = 40  # a terminal that claims less is not believed


def request_of(source: Source) -> Any:
    """The options as the library takes them."""
    from attntrace.config.draft import Request

    return Request(**vars(source) | {"sets": source.sets or ()})


def problem_of(source: Source) -> Any:
    from attntrace.config.load import load

    return load(request_of(source))


def trace_of(source: Source) -> Any:
    """The trace that is asked for, not computed yet."""
    from attntrace.layer import trace

    return trace(problem_of(source))


def names_of(steps: str | None) -> list[str] | None:
    """--steps a,b as a list, each name once."""
    if steps is None:
        return None
    names = list(dict.fromkeys(name.strip() for name in steps.split(",") if name.strip()))
    if not names:
        raise AttnTraceError("--steps: expected names of steps, such as --steps scores,weights")
    return names


def shown_of(trace: Any, choice: Choice) -> list[Any]:
    from attntrace.render.view import select

    names = names_of(choice.steps)
    index = {axis: i for axis, i in (("batch", choice.batch), ("head", choice.head)) if i is not None}
    return select(trace, names, index)


def format_of(output: Output | Answer, allowed: Sequence[Format] = tuple(Format)) -> Format:
    """The format asked for, or the one that the extension of the output file tells."""
    chosen = Format(output.format.value) if output.format else by_extension(output.output) or Format.rich
    if chosen not in allowed:
        raise AttnTraceError(f"--output: this command writes {' and '.join(f.value for f in allowed)}, not {chosen.value}")
    return chosen


def by_extension(file: str | None) -> Format | None:
    if file is None or file == "-" or not Path(file).suffix:
        return None
    suffix = Path(file).suffix.lower()
    if suffix not in EXTENSIONS:
        raise AttnTraceError(
            f"--output {file}: the extension {suffix} tells no format; use {', '.join(EXTENSIONS)}, or say --format"
        )
    return EXTENSIONS[suffix]


def renderer(chosen: Format) -> Any:
    return importlib.import_module(f"attntrace.render.{chosen.value}")


def colour_of(output: Target, stream: Any) -> bool:
    """Whether to send colours: as told, else as NO_COLOR and FORCE_COLOR tell, else to terminals."""
    if output.color is not Colour.auto:
        return output.color is Colour.always
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (stream.isatty() and os.environ.get("TERM") != "dumb")


def to_terminal(output: Target) -> bool:
    return output.output in (None, "-") and sys.stdout.isatty()


def screen(output: Target) -> dict[str, Any]:
    """Width and colours of where the output goes; what is not a terminal has no width."""
    if not to_terminal(output):
        coloured = output.color is Colour.always or (output.output is None and colour_of(output, sys.stdout))
        return {"width": None, "colour": coloured}
    return {"width": max(NARROWEST, shutil.get_terminal_size().columns), "colour": colour_of(output, sys.stdout)}


def emit(output: Target, chosen: Format, write: Callable[[BinaryIO], None]) -> None:
    """Let `write` write to where the output goes; --quiet sends it nowhere unless a file was asked for."""
    if output.output is not None and output.output != "-":
        with whole_file(output.output) as file:
            write(file)
    elif not output.quiet:
        if chosen is Format.npz and sys.stdout.isatty():
            raise AttnTraceError("npz is not text: send it to a file with --output FILE")
        sys.stdout.flush()
        write_out(write, binary=chosen is Format.npz)


def write_out(write: Callable[[BinaryIO], None], binary: bool) -> None:
    """Write to standard output, in its own encoding: characters that it lacks become question marks."""
    encoding = (sys.stdout.encoding or "utf-8").lower().replace("_", "-")
    if binary or encoding in ("utf-8", "utf8"):
        write(sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return
    buffer = BytesIO()
    write(buffer)
    sys.stdout.buffer.write(buffer.getvalue().decode().encode(encoding, "replace"))
    sys.stdout.buffer.flush()


@contextmanager
def whole_file(name: str) -> Iterator[BinaryIO]:
    """A file that appears under `name` only when all of it is written; devices and pipes are written to as they are."""
    path = Path(os.path.realpath(name))  # a link stays, and what it points to is replaced
    try:
        if path.exists() and not path.is_file():
            with open(path, "wb") as file:
                yield file
            return
        beside = path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp")
        try:
            with open(beside, "xb") as file:
                yield file
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise AttnTraceError(f"--output {plain(name)}: {(error.strerror or str(error)).lower()}") from None


def tell(output: Target, notes: Sequence[Any]) -> None:
    """Notes about output that has no place for them go to standard error."""
    if output.quiet or not notes:
        return
    from attntrace.render import canvas, rich

    width = shutil.get_terminal_size().columns if sys.stderr.isatty() else None
    buffer = BytesIO()
    rich.notes(canvas.Canvas(buffer, colour_of(output, sys.stderr), width), notes)
    sys.stderr.write(buffer.getvalue().decode())
