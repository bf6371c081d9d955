"""Which file is read how: by its extension."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

from attntrace.config.files.block import ArrayFile
from attntrace.config.files.csv import open_csv
from attntrace.config.files.npy import open_npy
from attntrace.config.files.npz import open_npz
from attntrace.config.files.opening import bad, clip, opened, size, sound
from attntrace.config.files.safetensors import open_safetensors

OPENERS: dict[str, Callable[[io.BufferedReader, Path, str | None], ArrayFile]] = {
    ".npy": open_npy,
    ".npz": open_npz,
    ".csv": open_csv,
    ".safetensors": open_safetensors,
}


def open_array(path: Path, key: str | None) -> ArrayFile:
    """Look at the array in `path`; `key` names one where a file may hold several."""
    look = OPENERS.get(path.suffix.lower())
    if look is None:
        found = f'the extension "{clip(path.suffix)}"' if path.suffix else "no extension"
        raise bad(path, f"has {found}, expected .npy, .npz, .csv or .safetensors")
    with opened(path) as file, sound(path):
        if size(file) == 0:
            raise bad(path, f"is empty, expected a {path.suffix.lower()} file")
        return look(file, path, key)
