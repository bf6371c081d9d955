"""README is true: every block in it is what its command prints, and it speaks of every command."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"


# Errors that `verify` measures differ between processors: of its table only the names and the verdicts are compared.
MEASURED = re.compile(r"(?m)^([✓✗] .*?) +\S+ +\S+ +\S+$")
TOGETHER = re.compile(r"(?m)^[\w, ]*?  .*[✓✗·].*$")


def test_every_block_is_what_its_command_prints(tmp_path: Path) -> None:
    pytest.importorskip("cogapp")
    pytest.importorskip("torch")
    again = tmp_path / "README.md"
    cog = [sys.executable, "-m", "cogapp", "-P", "-I", str(ROOT / "tests"), "-o", str(again), str(README)]
    done = subprocess.run(cog, capture_output=True, text=True, encoding="utf-8", cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    new, old = (unmeasured(path.read_text(encoding="utf-8")) for path in (again, README))
    assert new == old


def unmeasured(text: str) -> str:
    """README without the sizes of errors."""
    text = MEASURED.sub(r"\1", text)
    return TOGETHER.sub(lambda row: " ".join(re.findall(r"[^\W\d]\w*|[✓✗·†]", row[0])), text)


def test_every_command_has_help_with_an_example_and_a_line_here() -> None:
    from attntrace.cli import commands  # noqa: F401 - registers them
    from attntrace.cli.app import app

    assert {info.name for info in app.registered_commands} >= {"run", "verify", "get", "steps", "examples", "schema"}
    for info in app.registered_commands:
        help_text = info.callback.__doc__ or ""
        assert f"Example: attntrace {info.name}" in help_text, f"{info.name}: help without an example"
        assert f"| `attntrace {info.name}` |" in README.read_text(encoding="utf-8")


def test_every_key_of_the_config_has_a_line_here() -> None:
    from attntrace.config.schema import Config

    text = README.read_text(encoding="utf-8")
    assert [key for key in Config.model_fields if f"`{key}`" not in text] == []


def test_ci_runs_what_readme_says() -> None:
    """The command that README gives for the tests is what .ci/run runs, apart from where the environment lies."""
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    install, test = re.search(
        r"pip (install -e '\.\[test\]') && \.venv/bin/python (-m pytest)", README.read_text(encoding="utf-8")
    ).groups()
    assert install.split()[-1] in ci
    assert test in ci
