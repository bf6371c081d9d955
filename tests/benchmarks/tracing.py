"""Tracing: the same four tensors (scores, scaled, weights, context), by attntrace, by plain NumPy and by torch, eagerly.

Once with a single thread each, in time of the processor, which compares the work itself. Once with as many threads as the
libraries start, which tells something on an idle machine only: on a busy one, threads that wait for each other take several
times as long.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec

from measure import Row, Work, Worker, compare, serve
from problem import D_K, STEPS, inputs, posed

PAIRS = 7
GOES = 3  # the first after a turn of the other pays for getting back the memory that the other had
THREADED = {False: "one thread", True: "all threads"}
GOALS = {"NumPy": 1.2, "torch": 1.3}


def attntrace_() -> Work:
    import attntrace

    problem = posed()

    def work() -> object:
        trace = attntrace.trace(problem)
        return [trace[name].values for name in STEPS]

    return work


def numpy_() -> Work:
    import numpy as np

    q, k, v = inputs()

    def work() -> object:
        scores = q @ k.swapaxes(-1, -2)
        scaled = scores / np.float32(np.sqrt(D_K))
        weights = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return scores, scaled, weights, weights @ v

    return work


def torch_() -> Work:
    import torch

    q, k, v = map(torch.from_numpy, inputs())

    def work() -> object:
        scores = q @ k.transpose(-1, -2)
        scaled = scores / D_K**0.5
        weights = torch.softmax(scaled, -1)
        return scores, scaled, weights, weights @ v

    return work


def rows() -> Iterator[Row]:
    for threaded, how in THREADED.items():
        for name, goal in GOALS.items():
            what = f"trace, {how} / {name}"
            if find_spec(name.lower()) is None:
                yield Row(what, "", "not installed", None, goal)
                continue
            with Worker(__file__, "attntrace", threaded) as ours, Worker(__file__, name, threaded) as theirs:
                yield compare(what, goal, partial(best, ours), partial(best, theirs), PAIRS)


def best(worker: Worker) -> float:
    return min(worker() for _ in range(GOES))


if __name__ == "__main__":
    serve({"attntrace": attntrace_, "NumPy": numpy_, "torch": torch_})
