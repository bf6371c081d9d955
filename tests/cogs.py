"""What README's blocks are made with: a command is run, and shown with what it printed.

`cog -P -r -I tests README.md` rewrites them; a test checks that they are true.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def run(command: str) -> str:
    """What the command prints when its output is piped, standard error after standard output, as a shell here would."""
    scripts = sysconfig.get_path("scripts")
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "PYTHONIOENCODING")}
    env = kept | {"PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", "PYTHONUTF8": "1"}
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=ROOT / "tests" / "readme",
        env=env,
        check=False,
    )
    return done.stdout + done.stderr


def console(*commands: str, lines: int | None = None) -> None:
    """A console block: each command after a `$`, then its output, of which `lines` says how many lines are shown."""
    print("```console")
    for command in commands:
        print(f"$ {command}")
        output = run(command).rstrip("\n").split("\n")
        shown = output if lines is None or len(output) <= lines else [*output[:lines], "…"]
        print("\n".join(line.rstrip() for line in shown))
    print("```")


def python(source: str) -> None:
    """A Python block, run, with what it prints as comments below."""
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, encoding="utf-8", cwd=ROOT, check=False
    )
    print("```python")
    print(source.strip())
    print("\n".join(f"# {line}".rstrip() for line in (done.stdout + done.stderr).rstrip("\n").split("\n")))
    print("```")


def yaml(name: str) -> None:
    """A file of tests/readme, shown whole."""
    print("```yaml")
    print((ROOT / "tests" / "readme" / name).read_text(encoding="utf-8").rstrip("\n"))
    print("```")


def commands() -> None:
    """The table of commands, from their own help."""
    from attntrace.cli import commands as registered  # noqa: F401 - registers them
    from attntrace.cli.app import app

    print("| command | does |")
    print("|---|---|")
    for info in app.registered_commands:
        about = (info.callback.__doc__ or "").split("\n\n")[0].replace("\n    ", " ")
        print(f"| `attntrace {info.name}` | {about} |")
