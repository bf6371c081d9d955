"""Memory: what tracing adds to the peak of a process that has the same imports and inputs, against the sum of its arrays."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from statistics import median

from measure import Row, megabytes
from problem import STEPS, posed

RUNS = 3


def peak() -> int:
    """The most bytes that this process has held; the unit of ru_maxrss is the KiB, except on macOS."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def answer(traced: bool) -> None:
    """What the two subprocesses do: the peak, and the sum of the arrays where they are computed."""
    import attntrace

    trace = attntrace.trace(posed())
    size = sum(trace[name].values.nbytes for name in STEPS) if traced else 0
    print(peak(), size)


def ask(which: str) -> tuple[int, int]:
    done = subprocess.run([sys.executable, __file__, which], capture_output=True, text=True, check=True)
    size, arrays = map(int, done.stdout.split())
    return size, arrays


def rows() -> Iterator[Row]:
    what, goal = "memory of that trace / its arrays", 1.15
    if find_spec("resource") is None:
        yield Row(what, "", "not measured here", None, goal)
        return
    without = median(ask("inputs")[0] for _ in range(RUNS))
    peaks, (arrays, *_) = zip(*(ask("trace") for _ in range(RUNS)), strict=True)
    added = median(peaks) - without
    yield Row(what, megabytes(added), megabytes(arrays), added / arrays, goal)


if __name__ == "__main__":
    answer(traced=sys.argv[1] == "trace")
