"""How the benchmarks measure: each contender in a process of its own, the two taking turns, the median of the pairs.

A machine is never quite idle, and gets faster and slower over minutes. What two contenders do one right after the other is
slowed down alike, so the ratio of a pair says more than either time. Processes of their own keep the threads, the caches and
the memory of one contender out of the way of the other; a process that waits for its turn sleeps.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

Work = Callable[[], object]
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


@dataclass(frozen=True)
class Row:
    """One line of the table. `ours` and `theirs` are ready to print; no `ratio` means that nothing was compared."""

    what: str
    ours: str
    theirs: str
    ratio: float | None
    goal: float

    @property
    def verdict(self) -> str:
        return "skipped" if self.ratio is None else "met" if self.ratio <= self.goal else "missed"


def compare(what: str, goal: float, ours: Callable[[], float], theirs: Callable[[], float], pairs: int) -> Row:
    """Let two contenders, each a function that returns the seconds of one go, take turns; the first turn only warms up."""
    ours(), theirs()
    taken = [(ours(), theirs()) for _ in range(pairs)]
    first, second = (median(column) for column in zip(*taken, strict=True))
    return Row(what, milliseconds(first), milliseconds(second), median(a / b for a, b in taken), goal)


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"


def megabytes(size: float) -> str:
    return f"{size / 1e6:.0f} MB"


# ------------------------------------------------------------------ a contender in a process of its own


class Worker:
    """A process that runs `python SCRIPT NAME`, does its work each time it is called, and answers how long that took.

    With `threaded`, libraries start as many threads as they like, and the time is that of the clock on the wall. Without,
    each keeps to one, and the time is that of the processor, which leaves out what other processes take.
    """

    def __init__(self, script: str, name: str, threaded: bool = False) -> None:
        clock, limits = ("perf_counter", {}) if threaded else ("process_time", dict.fromkeys(THREADS, "1"))
        command, pipe = [sys.executable, script, name, clock], subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1, env=os.environ | limits)

    def __call__(self) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("go\n")
        return float(self.process.stdout.readline())

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.communicate()  # the end of its input is what it stops at


def serve(contenders: Mapping[str, Callable[[], Work]]) -> None:
    """The other end of a Worker: get ready once, then work and answer once a line. The result is let go of untimed."""
    name, clock = sys.argv[1:]
    work, now = contenders[name](), getattr(time, clock)
    for _ in sys.stdin:
        begin = now()
        result = work()
        print(now() - begin, flush=True)
        del result
