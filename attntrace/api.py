"""The Python face of attntrace: load a problem, trace it, verify it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, overload

from attntrace import layer
from attntrace.cell import parse
from attntrace.config.draft import Request
from attntrace.config.load import load as load_request
from attntrace.decoding import Decoding
from attntrace.decoding import decode as decode_problem
from attntrace.differ import Comparison
from attntrace.differ import diff as diff_of
from attntrace.errors import AttnTraceError, Fault
from attntrace.explaining import Explanation
from attntrace.explaining import explain as explain_cell
from attntrace.marking import Marked, Marker, claims_about
from attntrace.problem import Problem
from attntrace.reference import KNOWN
from attntrace.tape import Step, Trace
from attntrace.upstream import gradients as gradients_of
from attntrace.verification import Report, Reports, verify_all
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


Name = Literal["torch", "onnx", "jax"]


@overload
def verify(problem: Problem | Config = None, against: Name = "torch", **options: Any) -> Report: ...


@overload
def verify(problem: Problem | Config = None, against: str = "torch", **options: Any) -> Report | Reports: ...


def verify(problem: Problem | Config = None, against: str = "torch", **options: Any) -> Report | Reports:
    """Hold every step against an independent implementation; `report.agrees` is the answer, `report.rows` the evidence.

    `against` is "torch", "onnx" or "jax"; several of them, "torch,onnx", or "all" give a report of each, in `reports`.
    Raises AttnTraceError as `load` does, when the trace does not fit in memory, and when the implementation is missing.
    """
    problem = posed(problem, options)
    tape = layer.trace(problem)
    tape.fits()
    return verify_trace(problem, tape, against) if against in KNOWN else verify_all(problem, tape, against)


def decode(problem: Problem | Config = None, block_size: int | None = None, **options: Any) -> Decoding:
    """Go token by token with a growing cache; `decoding.play()` computes, `decoding.agrees` says whether it equals the pass.

    With `block_size` the cache is paged. Raises AttnTraceError as `load` does, and for a layer that cannot be decoded.
    """
    return decode_problem(posed(problem, options), block_size)


def explain(problem: Problem | Config, cell: str, *, depth: int = 1, decimals: int | None = 4, **options: Any) -> Explanation:
    """How cells such as "weights[0]" come about, down to a calculator's arithmetic; `explanation.paragraphs` has the lines.

    Raises AttnTraceError as `load` does, for a cell that is not there, and for more than 400 of them.
    """
    return explain_cell(posed(problem, options), parse(cell), depth, decimals)


def gradients(problem: Problem | Config = None, upstream: Any = None, target: Any = None, **options: Any) -> dict[str, Step]:
    """The gradient of every step and input by name, `d_x` and so on, each a step with its formula.

    `upstream` is the gradient of the output: "sum" (ones, the default), "mean", "draw", "draw:SEED", a file or an array; with
    `target` the loss is half the squared distance from it. Raises AttnTraceError as `load` does, and for shapes that misfit.
    """
    return gradients_of(layer.trace(posed(problem, options)), upstream, target)


def diff(a: Problem | Config, b: Problem | Config = None, **options: Any) -> Comparison:
    """Two traces side by side: what changed, which rows stand still, whether tokens were reordered.

    Without `b` it is `a` with the options. Raises AttnTraceError as `load` does.
    """
    first = posed(a, {})
    return diff_of(first, posed(a if b is None else b, options))


def check(problem: Problem | Config, claims: Any = None, **options: Any) -> Marked:
    """Claimed numbers against the trace: `marked.right`, a verdict for each step, and the mistakes behind wrong ones.

    `claims` is a file, a text, or a mapping of step names to lists or arrays; without it, the config's `expect`. Raises
    AttnTraceError as `load` does, and when no claim can be read.
    """
    posed_ = posed(problem, options)
    reading = claims_about(posed_, claims)
    if not reading.claims:
        raise AttnTraceError(*(reading.faults or [Fault("no claim is about a step of this trace")]))
    return Marker(posed_).mark(reading.claims)


def posed(problem: Problem | Config, options: Mapping[str, Any]) -> Problem:
    """A problem as it is, to which options come too late; a config loaded with them."""
    if not isinstance(problem, Problem):
        return load(problem, **options)
    if options:
        raise AttnTraceError(f"{', '.join(options)}: a problem is loaded already; give the options to load")
    return problem
