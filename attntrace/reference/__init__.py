"""Independent implementations to hold a trace against. A file is a framework, imported when it is asked for.

Each has `NAME` and `version()`; `steps(problem, have)`, which recomputes every step it can from the steps before it;
`whole(problem, have)`, which computes several steps in one call of the framework's own attention; and `silences`, which says
why such a call is not made. They share no formula with the layer: they read the problem and the arrays, and call the
framework.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import NamedTuple, Protocol, cast

from attntrace.errors import AttnTraceError, nearest
from attntrace.problem import Problem
from attntrace.tape import Array

KNOWN = ("torch",)


class Opinion(NamedTuple):
    """What a framework's own attention gives for a step, and the steps from which on it was computed."""

    step: str
    what: str
    start: tuple[str, ...]
    values: Array


class Reference(Protocol):
    NAME: str

    def version(self) -> str: ...

    def steps(self, p: Problem, have: Mapping[str, Array]) -> Iterator[tuple[str, str, Array]]: ...

    def silences(self, p: Problem, have: Mapping[str, Array]) -> dict[str, str]: ...

    def whole(self, p: Problem, have: Mapping[str, Array]) -> Iterator[Opinion]: ...


def reference(name: str) -> Reference:
    """The reference called `name`. Raises MissingPackage when its framework is not installed."""
    if name not in KNOWN:
        raise AttnTraceError(f"--against {name}: expected {' or '.join(KNOWN)}{nearest(name, KNOWN)}")
    return cast(Reference, import_module(f"attntrace.reference.{name}"))
