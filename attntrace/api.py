"""The Python face of attntrace: load a problem, trace it, verify it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from attntrace import layer
from attntrace.config.draft import Request
from attntrace.config.load import load as load_request
from attntrace.errors import AttnTraceError
from attntrace.problem import Problem
from attntrace.tape import Trace
from attntrace.verification import Report
from attntrace.verification import verify as verify_trace

Config = str | os.PathLike[str] | Mapping[str, Any] | None


def load(
    config: Config = None,
    *,
    seed: int | None = None,
    sets: Sequence[str] = (),
    permute: str | None = None,
    queries: str | None = None,
) -> Problem:
    """Read a problem: a YAML file, the name of a bundled example, or a mapping with the keys of a config.

    In a mapping, tensors may be NumPy arrays. `seed`, `sets`, `permute` and `queries` are the options --seed, --set, --permute
    and --queries of the command line. Raises AttnTraceError with every fault that is found.
    """
    source = os.fspath(config) if isinstance(config, os.PathLike) else config
    return load_request(Request(source, seed, sets, permute, queries=queries))


def trace(problem: Problem | Config = None, **options: Any) -> Trace:
    """The tape of a problem, or of what `load` makes of a config and options. Iterate it for its steps.

    Numbers are computed when they are read. Raises AttnTraceError as `load` does.
    """
    return layer.trace(posed(problem, options))


def verify(problem: Problem | Config = None, against: str = "torch", **options: Any) -> Report:
    """Hold every step against an independent implementation; `report.agrees` is the answer, `report.rows` the evidence.

    Raises AttnTraceError as `load` does, when the trace does not fit in memory, and when the implementation is missing.
    """
    problem = posed(problem, options)
    tape = layer.trace(problem)
    tape.fits()
    return verify_trace(problem, tape, against)


def posed(problem: Problem | Config, options: Mapping[str, Any]) -> Problem:
    """A problem as it is, to which options come too late; a config loaded with them."""
    if not isinstance(problem, Problem):
        return load(problem, **options)
    if options:
        raise AttnTraceError(f"{', '.join(options)}: a problem is loaded already; give the options to load")
    return problem
