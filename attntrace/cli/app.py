"""The app, and what all commands have in common: exit codes, errors, interrupts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial, wraps
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any

import typer

from attntrace.cli.options import grouped
from attntrace.errors import AttnTraceError, plain

APART = ("app", "commands", "options", "session")  # modules beside those of the commands
EPILOG = "Exit codes: 0 yes · 1 the answer is no · 2 bad usage or bad input · 3 an optional package is missing"

app = typer.Typer(
    name="attntrace",
    help="Trace every step of attention: print each tensor, and hold each number against an independent implementation.",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["--help", "-h"]},
)


def print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"attntrace {version('attntrace')}")
        raise typer.Exit


@app.callback()
def main_options(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options before the command."""


def command(function: Callable[..., Any]) -> Callable[..., Any]:
    """Register a command under its function's name. It may raise AttnTraceError, or return an exit code."""
    flat = grouped(function)

    @wraps(flat)
    def guarded(**options: Any) -> None:
        raise typer.Exit(guard(lambda: flat(**options), debug=bool(options.get("debug"))))

    guarded.__signature__ = flat.__signature__  # type: ignore[attr-defined]
    name = function.__name__.strip("_")
    app.command(name)(guarded)
    return function


def guard(run: Callable[[], Any], debug: bool) -> int:
    """Run a command and turn however it ends into an exit code; nothing but a sentence reaches the user."""
    try:
        code = int(run() or 0)
        sys.stdout.flush()
        return code
    except AttnTraceError as error:
        if debug:
            raise
        return say(str(error), error.exit_code)
    except BrokenPipeError:  # the reader has seen enough; what is left in the buffer has nowhere to go
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return say("", 130)
    except MemoryError:
        return say("error: out of memory; use fewer tokens, a smaller dtype, or keep only some steps with --steps", 2)
    except OSError as error:  # a full disk behind standard output, say; files are told of where they are opened
        if debug:
            raise
        return say(f"error: {plain((error.strerror or str(error)).lower())}", 2)
    except Exception as error:
        if debug:
            raise
        what = plain(f"{type(error).__name__}: {error}")
        return say(f"error: attntrace itself failed ({what}); please report it, with what --debug prints", 2)


def say(text: str, code: int) -> int:
    if text:
        print(folded(text) if sys.stderr.isatty() else text, file=sys.stderr)
    return code


def folded(text: str) -> str:
    """An error as a terminal shows it best: sentences broken between words, excerpts of files as they are."""
    import shutil
    import textwrap

    width = max(20, shutil.get_terminal_size().columns)
    fold = partial(textwrap.fill, width=width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(fold(line) if line.startswith("error: ") else line for line in text.split("\n"))


def register(first: Sequence[str]) -> None:
    """Import the command that is asked for, which registers it; all of them, when it is none: help and completion list them."""
    name = next((word for word in first if word.isidentifier() and word not in APART), None)
    if name is None or find_spec(f"attntrace.cli.{name}") is None:
        name = "commands"
    import_module(f"attntrace.cli.{name}")


def main() -> None:
    """The entry point of the attntrace command."""
    register(sys.argv[1:2])
    for stream in (sys.stdout, sys.stderr):  # a character that the terminal cannot show is no reason to stop
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        app()
    except BrokenPipeError:
        os._exit(0)
