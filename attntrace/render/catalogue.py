"""The bundled examples, listed."""

from __future__ import annotations

from typing import BinaryIO

from attntrace.config import bundled
from attntrace.config.yaml import parse
from attntrace.render.canvas import Canvas, table


def text(name: str) -> str:
    return (bundled.folder() / f"{name}.yaml").read_text(encoding="utf-8")


def title(name: str) -> str:
    return str(parse(text(name), name, ("title",)).data.get("title", ""))


def write(out: BinaryIO, width: int | None, colour: bool) -> None:
    rows = [(name, title(name)) for name in bundled.names()]
    table(Canvas(out, colour, width), ("name", "what it shows"), rows, [("bold cyan", "")] * len(rows), (False, False))
