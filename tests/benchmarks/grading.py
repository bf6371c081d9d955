"""Grading: 1,000 files in under a minute on two cores, whatever is in them.

    python tests/benchmarks/grading.py              the Module 05 example, 1,000 files
    python tests/benchmarks/grading.py toy 200      another config, another number of files

A sixth of the files each: right, right and rounded, one mistake, two mistakes, random numbers, and bytes that are no claims.
Printed are the seconds that the command takes, with the processes that it starts by itself and with one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from itertools import combinations, cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import attntrace
from attntrace.mistakes import known, replay

GOAL = 60.0  # seconds
Numbers = Mapping[str, np.ndarray]


def numbers(trace: attntrace.Trace, decimals: int | None = 4) -> dict[str, np.ndarray]:
    with np.errstate(all="ignore"):
        found = {s.name: s.values.astype(np.float64) for s in trace if not s.given}
        return found if decimals is None else {name: np.round(values, decimals) for name, values in found.items()}


def mistaken(problem: attntrace.Problem, count: int) -> Iterator[Numbers]:
    """The numbers of each mistake, or of each pair of them, again and again."""
    for chosen in cycle(combinations(known(problem), count)):
        try:
            tape = replay(problem, *chosen)
        except (AttributeError, ValueError):  # two that rewrite the same step, or whose shapes clash
            continue
        if tape is not None:
            yield numbers(tape)


def random(problem: attntrace.Problem) -> Iterator[Numbers]:
    rng = np.random.default_rng(0)
    while True:
        yield {s.name: np.round(rng.normal(size=s.shape), 4) for s in attntrace.trace(problem) if not s.given}


def write(path: Path, found: Numbers, i: int) -> None:
    """As JSON, as NPZ, or as Python prints it, in turn."""
    if i % 3 == 0:
        path.with_suffix(".json").write_text(json.dumps({name: a.tolist() for name, a in found.items()}))
    elif i % 3 == 1:
        np.savez(path.with_suffix(".npz"), **found)
    else:
        path.with_suffix(".txt").write_text("\n".join(f"{name} =\n{a!r}" for name, a in found.items()))


def make(folder: Path, config: str, count: int) -> None:
    problem = attntrace.load(config)
    truth = attntrace.trace(problem)
    right = [numbers(truth, None), *(numbers(truth, decimals) for decimals in (2, 3, 4, 6))]
    kinds = [cycle(right[:1]), cycle(right[1:]), mistaken(problem, 1), mistaken(problem, 2), random(problem)]
    for i in range(count):
        path = folder / f"student-{i:04d}"
        if i % 6 == 5:
            path.with_suffix(".txt").write_bytes(np.random.default_rng(i).bytes(2000))
        else:
            write(path, next(islice(kinds[i % 6], 1)), i)


def seconds(config: str, folder: Path, *options: str) -> float:
    command = [sys.executable, "-c", "from attntrace.cli.app import main; main()", "grade", config, str(folder), "--quiet"]
    begin = time.perf_counter()
    done = subprocess.run([*command, *options], check=False)
    assert done.returncode == 1  # a sixth of the files cannot be read
    return time.perf_counter() - begin


def main() -> None:
    config, count = (*sys.argv[1:], "module05", "1000")[:2] if len(sys.argv) != 2 else (sys.argv[1], "1000")
    with TemporaryDirectory() as name:
        folder = Path(name, "pile")
        folder.mkdir()
        make(folder, config, int(count))
        for what, options in (("processes as it likes", ()), ("one process", ("--jobs", "1"))):
            taken = seconds(config, folder, *options)
            print(f"{count} files of {config}, {what}: {taken:.1f} s (goal {GOAL:.0f} s) {'met' if taken < GOAL else 'missed'}")


if __name__ == "__main__":
    main()
