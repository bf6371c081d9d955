"""The ways from queries, keys and values to their context: all scores at once, tile by tile, or around a ring."""

from __future__ import annotations

from collections.abc import Callable

from attntrace.cores.direct import direct
from attntrace.cores.ring import Ring
from attntrace.cores.tiled import Tiled
from attntrace.problem import Problem
from attntrace.tape import Step, Trace

Core = Callable[[Trace, Problem, Step, Step, Step], Step]


def core(p: Problem) -> Core:
    """The core that the config names: `core: direct`, `{tiled: …}` or `{ring: …}`."""
    chosen = p.options.parts.get("core")
    return chosen if isinstance(chosen, (Tiled, Ring)) else direct
