"""Independent implementations to hold a trace against. A file or a package is a framework, imported when it is asked for.

Each has `NAME` and `version()`; `steps(problem, have)`, which recomputes every step it can from the steps before it;
`whole(problem, have)`, which computes several steps in one call of the framework's own attention; and `silences`, which says
why such a call is not made. They share no formula with the layer: they read the problem and the arrays, and call the
framework. What they do otherwise by design stands in `conventions`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import NamedTuple, Protocol, cast

from attntrace.errors import AttnTraceError, MissingPackage, nearest
from attntrace.problem import Problem
from attntrace.tape import Array

KNOWN = ("torch", "onnx", "jax")
ALL = "all"


class Opinion(NamedTuple):
    """What a framework's own attention gives for a step, and the steps from which on it was computed.

    `off` is how far the call's own way of computing may take the steps on its path, by their names, beyond what they may be
    off anyway: it rounds at other places. `aside` are cells in which it differs by design, and which are not compared.
    """

    step: str
    what: str
    start: tuple[str, ...]
    values: Array
    off: Mapping[str, Array | float] = {}
    aside: Array | None = None


class Reference(Protocol):
    NAME: str

    def version(self) -> str: ...

    def steps(self, p: Problem, have: Mapping[str, Array]) -> Iterator[tuple[str, str, Array]]: ...

    def silences(self, p: Problem, have: Mapping[str, Array]) -> dict[str, str]: ...

    def whole(self, p: Problem, have: Mapping[str, Array]) -> Iterator[Opinion]: ...


def reference(name: str) -> Reference:
    """The reference called `name`. Raises MissingPackage when its framework is not installed."""
    return cast(Reference, import_module(f"attntrace.reference.{known(name)}"))


def known(name: str) -> str:
    if name not in KNOWN:
        choices = (*KNOWN, ALL)
        raise AttnTraceError(f"--against {name}: expected {', '.join(KNOWN)} or {ALL}{nearest(name, choices)}")
    return name


def chosen(against: str) -> tuple[str, ...]:
    """The names in `--against torch,onnx`, each once; all of them for `all`."""
    names = tuple(dict.fromkeys(name.strip() for name in against.split(",") if name.strip()))
    if names == (ALL,):
        return KNOWN
    if not names:
        raise AttnTraceError(f"--against: expected {', '.join(KNOWN)} or {ALL}")
    return tuple(map(known, names))


def installed(names: tuple[str, ...]) -> tuple[dict[str, Reference], dict[str, str]]:
    """The references that are installed, and for the others the sentence that says how to get them.

    Raises MissingPackage when none is.
    """
    found: dict[str, Reference] = {}
    missing: dict[str, MissingPackage] = {}
    for name in names:
        try:
            found[name] = reference(name)
        except MissingPackage as error:
            missing[name] = error
    if len(missing) == len(names) == 1:
        raise next(iter(missing.values()))
    if not found:
        raise MissingPackage("verify", f"one of {', '.join(missing)}", ",".join(missing))
    return found, {name: error.faults[0].message for name, error in missing.items()}
