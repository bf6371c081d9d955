"""Printing: an elided step of 10,000 tokens takes as long as one of 100, since only what is shown is read."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from io import BytesIO

from measure import Row, Work, Worker, compare, serve

PAIRS = 15
REPEATS = 50  # for a time that is well above the resolution of a clock
LARGE, SMALL = 10_000, 100


def printed(tokens: int) -> Work:
    """Print a computed step of one head. Its rows share the memory of one row: 10,000² numbers would take 400 MB."""
    import numpy as np

    from attntrace.ops import Same
    from attntrace.render import rich
    from attntrace.render.view import View, select
    from attntrace.tape import Trace

    axes = ("head", "query", "key")
    row = np.random.default_rng(0).standard_normal(tokens, dtype=np.float32)
    trace = Trace({"head": 1, "query": tokens, "key": tokens}, row.dtype)
    given = trace.given("given", "G", axes, lambda: np.broadcast_to(row, (1, tokens, tokens)))
    assert trace("scores", "S = G", axes, Same(), given).values.shape == (1, tokens, tokens)  # reading computes
    view = View(trace, select(trace, ["scores"], {}))

    def work() -> object:
        for _ in range(REPEATS):
            rich.write(view, BytesIO())
        return None

    return work


def rows() -> Iterator[Row]:
    with Worker(__file__, str(LARGE)) as large, Worker(__file__, str(SMALL)) as small:
        yield compare(f"{REPEATS} prints, 10,000 tokens / 100 tokens", 1.3, large, small, PAIRS)


if __name__ == "__main__":
    serve({str(tokens): partial(printed, tokens) for tokens in (LARGE, SMALL)})
