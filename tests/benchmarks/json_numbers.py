"""JSON: a million numbers, written by attntrace (with row sums and more), against json.dumps of the same nested list."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import BytesIO
from typing import TYPE_CHECKING

from measure import Row, Work, Worker, compare, serve

if TYPE_CHECKING:
    import numpy as np

PAIRS = 9
SIDE = 1000


def attntrace_() -> Work:
    from attntrace.render import json as writer
    from attntrace.render.view import View, select
    from attntrace.tape import Trace

    values = numbers()
    trace = Trace({"query": SIDE, "key": SIDE}, values.dtype)
    trace.given("scores", "S", ("query", "key"), lambda: values)
    view = View(trace, select(trace, None, {}))

    def work() -> object:
        out = BytesIO()
        writer.write(view, out)
        return out

    return work


def json_() -> Work:
    nested = numbers().tolist()
    return lambda: json.dumps(nested)


def numbers() -> np.ndarray:
    import numpy as np

    return np.random.default_rng(0).standard_normal((SIDE, SIDE))


def rows() -> Iterator[Row]:
    with Worker(__file__, "attntrace") as ours, Worker(__file__, "json") as theirs:
        yield compare("JSON of a million numbers / json.dumps", 1.5, ours, theirs, PAIRS)


if __name__ == "__main__":
    serve({"attntrace": attntrace_, "json": json_})
