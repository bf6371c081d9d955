"""The attention layer, from top to bottom. Read this first.

Every line that records a step reads: its name, its formula, its axes, the operation, and the steps it is computed from. A
part that is switched off records nothing.
"""

from __future__ import annotations

from attntrace.cores import core
from attntrace.parts import mask as masks
from attntrace.parts.block import enter_block, leave_block
from attntrace.parts.cache import extend
from attntrace.parts.gqa import share
from attntrace.parts.merge import merge, project_out
from attntrace.parts.project import inputs, project
from attntrace.parts.qk_norm import normalise
from attntrace.parts.rope import rotate
from attntrace.problem import Problem, labels
from attntrace.tape import Step, Trace


def trace(p: Problem) -> Trace:
    """The tape of the layer that `p` poses. Nothing is computed until it is read."""
    parts = [note for part in p.options.parts.values() for note in part.remarks(p)]
    remarks = [*p.remarks, *masks.remarks(p), *parts]
    t = Trace(p.sizes, p.options.dtype, labels(p), p.options.title, p.config, remarks, p.changes)
    attention(t, p)
    return t


def attention(t: Trace, p: Problem) -> Step:
    """Record the attention layer of `p` in `t`; returns the output."""
    given = inputs(t, p)
    q, k, v = project(t, p, enter_block(t, p, given))
    q, k = normalise(t, p, q, k)
    q, k = rotate(t, p, q, k)
    k, v = extend(t, p, k, v)
    k, v = share(t, p, k, v)
    c = core(p)(t, p, q, k, v)  # scores, scale, softcap, bias, mask, softmax, dropout, average
    c = merge(t, p, c)
    y = project_out(t, p, given, c)
    return leave_block(t, p, given, y)
