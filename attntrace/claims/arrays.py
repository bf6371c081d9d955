""".npy and .npz: exact numbers, each array looked at before any of it is read."""

from __future__ import annotations

import io
import math
import zipfile
from functools import partial
from pathlib import Path

from attntrace.claims.claim import CELLS, CLAIMS, Claim, Reading, exact_claim, shown
from attntrace.config.files.block import ArrayFile
from attntrace.config.files.npy import open_npy
from attntrace.config.files.npz import open_npz
from attntrace.config.files.opening import opened, sound
from attntrace.errors import AttnTraceError, Fault


def read_npy(path: Path, reading: Reading) -> None:
    with opened(path) as file, sound(path):
        found = open_npy(file, path, None)
    reading.claims.append(claim_of(found, "", str(path)))


def read_npz(path: Path, reading: Reading) -> None:
    """Every array of an archive, each under its name; a damaged one does not spoil the others."""
    with opened(path) as file, sound(path), zipfile.ZipFile(file) as archive:
        keys = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
    if not keys:
        raise AttnTraceError(f"{path} holds no arrays, expected one at least")
    if len(keys) > CLAIMS:
        raise AttnTraceError(f"{path} holds {len(keys)} arrays, expected at most {CLAIMS}")
    for key in dict.fromkeys(keys):
        reading.collect(partial(entry, path, key))


def entry(path: Path, key: str) -> Claim:
    with opened(path) as file, sound(path):
        assert isinstance(file, io.BufferedReader)
        found = open_npz(file, path, key)
    return claim_of(found, key, str(path))


def claim_of(found: ArrayFile, called: str, origin: str) -> Claim:
    size = math.prod(found.shape)
    if not 0 < size <= CELLS:
        expected = f"at most {CELLS}" if size else "one at least"
        raise AttnTraceError(Fault(f"{origin}: {shown(called) or 'the array'} holds {size} numbers, expected {expected}"))
    return exact_claim(called, found.read(), origin)
