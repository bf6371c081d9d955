"""The Python face of attntrace: load a problem, trace it, verify it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attntrace import layer
from attntrace.config.draft import Request
from attntrace.config.load import load as load_request
from attntrace.problem import Problem
from attntrace.tape import Trace
from attntrace.verification import Report
from attntrace.verification import verify as verify_trace


def load(
    config: str | Mapping[str, Any] | None = None,
    *,
    seed: int | None = None,
    sets: Sequence[str] = (),
    permute: str | None = None,
) -> Problem:
    """Read a problem: a YAML file, the name of a bundled example, or a mapping with the keys of a config.

    In a mapping, tensors may be NumPy arrays. `seed`, `sets` and `permute` are the options --seed, --set and --permute of
    the command line. Raises AttnTraceError with every fault that is found.
    """
    return load_request(Request(config, seed, sets, permute))


def trace(problem: Problem | str | Mapping[str, Any] | None = None, **options: Any) -> Trace:
    """The tape of a problem, or of whatever `load` takes. Iterate it for its steps; numbers are computed when read."""
    return layer.trace(problem if isinstance(problem, Problem) else load(problem, **options))


def verify(problem: Problem | str | Mapping[str, Any] | None = None, against: str = "torch", **options: Any) -> Report:
    """Hold every step against an independent implementation; `report.agrees` is the answer, `report.rows` the evidence."""
    posed = problem if isinstance(problem, Problem) else load(problem, **options)
    return verify_trace(posed, layer.trace(posed), against)
