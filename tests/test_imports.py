"""What is imported when: a start is as fast as what it does not import."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

RUN = "from attntrace.cli.app import main; main()"
REPORT = "import atexit, sys; atexit.register(lambda: print('\\n', *sys.modules, file=sys.stderr)); "


def imported(code: str, *arguments: str) -> set[str]:
    """The names of all modules that a new process has imported by its end."""
    command = [sys.executable, "-c", REPORT + code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=True)
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize("command", ["", "run", "verify"])
def test_help_imports_no_numbers(command: str) -> None:
    assert not imported(RUN, *command.split(), "--help") & {"numpy", "torch", "onnx", "jax", "yaml"}


@pytest.mark.parametrize("arguments", [(), ("toy", "--seed", "1")])
def test_running_a_bundled_example_imports_no_option_and_no_schema(arguments: tuple[str, ...]) -> None:
    modules = imported(RUN, "run", *arguments)
    assert "numpy" in modules
    assert not modules & {"torch", "onnx", "jax", "ml_dtypes", "safetensors", "jsonschema", "attntrace.config.schema"}


def test_a_changed_example_is_checked() -> None:
    assert "attntrace.config.schema" in imported(RUN, "run", "toy", "--set", "scale=1")


def test_the_package_imports_nothing_until_it_is_used() -> None:
    assert not imported("import attntrace") & {"numpy", "typer", "yaml", "rich"}


def test_a_reference_is_imported_when_it_is_asked_for() -> None:
    frameworks = {"torch", "onnx", "jax"}
    assert not imported("import attntrace; attntrace.trace('toy')['output'].values") & frameworks
    assert not imported("import attntrace.verification, attntrace.reference.conventions") & frameworks
    for name in filter(find_spec, frameworks):
        assert imported(RUN, "verify", "toy", "--quiet", "--against", name) & frameworks == {name}


def test_what_the_package_offers_is_there() -> None:
    import attntrace

    for name in attntrace.__all__:
        assert getattr(attntrace, name).__name__ == name
