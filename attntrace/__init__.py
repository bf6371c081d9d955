"""Trace every step of attention.

    import attntrace

    t = attntrace.trace("toy")                 # a bundled example, a YAML file, a mapping, or a problem
    for step in t:
        print(step.name, step.formula, step.shape)
    t["weights"].values                        # a NumPy array; computed when it is first read
    attntrace.verify("toy").agrees             # whether PyTorch gives the same
    attntrace.decode("kv-cache").agrees        # token by token, whether that equals the causal pass
    attntrace.notes(t)                         # what a careful reader should know

Everything is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attntrace.api import check, decode, diff, explain, gradients, load, trace, verify
    from attntrace.errors import AttnTraceError
    from attntrace.problem import Problem
    from attntrace.remarks import notes
    from attntrace.tape import Note, Step, Trace

HOME = {
    "AttnTraceError": "attntrace.errors",
    "Note": "attntrace.tape",
    "Problem": "attntrace.problem",
    "Step": "attntrace.tape",
    "Trace": "attntrace.tape",
    "check": "attntrace.api",
    "decode": "attntrace.api",
    "diff": "attntrace.api",
    "explain": "attntrace.api",
    "gradients": "attntrace.api",
    "load": "attntrace.api",
    "notes": "attntrace.remarks",
    "trace": "attntrace.api",
    "verify": "attntrace.api",
}
__all__ = [
    "AttnTraceError",
    "Note",
    "Problem",
    "Step",
    "Trace",
    "check",
    "decode",
    "diff",
    "explain",
    "gradients",
    "load",
    "notes",
    "trace",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in HOME:
        raise AttributeError(f"module 'attntrace' has no attribute {name!r}")
    value = getattr(import_module(HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
