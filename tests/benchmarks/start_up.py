"""Start-up: `attntrace run --seed 42`, the whole process, against a bare Typer app that imports what attntrace is made of.

Both run from compiled bytecode, as an installed package does, kept in a folder of this benchmark's own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from measure import Row, compare

COMMAND = str(Path(sys.executable).with_name("attntrace"))
PAIRS = 21
BARE = """
import numpy
import rich
import typer
import yaml
from rich.table import Table

app = typer.Typer()


@app.command()
def main() -> None:
    table = Table("query", "key")
    table.add_row("1", "2")
    rich.print(table)


app()
"""
LOADED = "import sys; from attntrace.cli.app import main\ntry: main()\nfinally: print('numpy' in sys.modules)"


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        bare = Path(folder, "bare.py")
        bare.write_text(BARE, encoding="utf-8")
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = str(Path(folder, "bytecode"))

        def run(*command: str) -> float:
            begin = time.perf_counter()
            subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
            return time.perf_counter() - begin

        ours, theirs = (COMMAND, "run", "--seed", "42"), (sys.executable, str(bare))
        yield compare("start-up, whole process / bare Typer app", 1.15, lambda: run(*ours), lambda: run(*theirs), PAIRS)
    yield help_without_numpy()


def help_without_numpy() -> Row:
    """Not timed: how many times `attntrace --help` imports numpy."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, "--help"], capture_output=True, text=True, encoding="utf-8", check=True
    )
    imported = done.stdout.splitlines()[-1] == "True"
    return Row("--help imports numpy", "yes" if imported else "no", "", float(imported), 0)
