"""Goldens of presentation: what a person sees. `pytest --force-regen` rewrites them; read their diff like code.

The numbers in them are proven elsewhere; here only the layout is held still.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
import pytest

import attntrace
from attntrace.remarks import notes
from attntrace.render import latex, listing, markdown, rich
from attntrace.render.view import View, select

SPECIAL = {
    "x": np.array([[1e300, -1e-300, 0.0], [np.nan, np.inf, -np.inf], [3.0, -0.0, 1e-7]]),
    "w_q": np.eye(3),
    "w_k": np.eye(3),
    "w_v": np.eye(3),
}
LABELS = {
    "tokens": ["我爱", "مرحبا", "👩‍🚀", "very long label indeed", "\x1b[31mred", "[bold]x[/]", "a", "a", ""],
    "x": np.arange(18.0).reshape(9, 2) % 5,
    "w_q": [[0.5, 0.0], [0.0, 0.5]],
    "w_k": [[0.0, 0.5], [0.5, 0.0]],
    "w_v": [[1, 0], [0, 1]],
    "mask": "causal",
}
HEADS = {
    "q": np.arange(4 * 12 * 9 * 2).reshape(4, 12, 9, 2) % 7 / 4,
    "k": np.arange(4 * 12 * 9 * 2).reshape(4, 12, 9, 2) % 5 / 4,
    "v": np.ones((4, 12, 9, 2)),
}


def seen(config: Any, steps: str | None = None, index: dict[str, int] | None = None, **screen: Any) -> str:
    t = attntrace.trace(config)
    out = BytesIO()
    rich.write(View(t, select(t, steps.split() if steps else None, index or {}), notes(t), **screen), out)
    return out.getvalue().decode()


CASES: dict[str, dict[str, Any]] = {
    "module05": {"config": "module05"},
    "module05-60": {"config": "module05", "steps": "x scaled weights output", "width": 60},
    "module05-colour": {"config": "module05", "steps": "weights", "width": 80, "colour": True},
    "toy": {"config": "toy", "width": 80},
    "toy-precision-2": {"config": "toy", "steps": "scaled weights", "precision": 2},
    "multi-head-80": {"config": "multi-head-causal", "steps": "x mask weights output", "width": 80},
    "one-head": {"config": "multi-head-causal", "steps": "weights", "index": {"batch": 1, "head": 2}},
    "fully-masked-row": {"config": "fully-masked-row", "width": 100},
    "special-values": {"config": SPECIAL, "width": 80},
    "labels-60": {"config": LABELS, "steps": "x weights", "width": 60},
    "elided-heads-80": {"config": HEADS, "steps": "scores", "width": 80},
}


@pytest.mark.parametrize("name", CASES)
def test_terminal(name: str, file_regression: Any) -> None:
    file_regression.check(seen(**CASES[name]), basename=name, encoding="utf-8", extension=".txt")


@pytest.mark.parametrize(("form", "extension"), [(markdown, ".md"), (latex, ".tex")])
@pytest.mark.parametrize("name", ["toy", "multi-head-dropout"])
def test_documents(name: str, form: Any, extension: str, file_regression: Any) -> None:
    t = attntrace.trace(name)
    out = BytesIO()
    form.write(View(t, select(t, ["mask", "weights", "output"] if "mask" in t else ["weights", "output"], {}), notes(t)), out)
    file_regression.check(out.getvalue().decode(), basename=name, encoding="utf-8", extension=extension)


def test_listing(file_regression: Any) -> None:
    t = attntrace.trace("multi-head-dropout")
    out = BytesIO()
    listing.write(View(t, select(t, None, {})), out)
    file_regression.check(out.getvalue().decode(), basename="steps", encoding="utf-8", extension=".txt")
