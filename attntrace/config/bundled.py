"""The bundled examples: in the wheel beside the code, in a checkout in `configs/` at the top."""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def folder() -> Path:
    package = Path(__file__).resolve().parents[1]
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


@cache
def names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in folder().glob("*.yaml")))
