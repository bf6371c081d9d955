"""NPZ: numpy.load, told not to unpickle, gives the arrays back; a pipe will do to write to."""

from __future__ import annotations

import io
import os
import pathlib
import subprocess
import sys
import threading
import zipfile
from collections.abc import Mapping

import ml_dtypes
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from attntrace.ops import Softmax
from attntrace.render import npz
from attntrace.render.view import View, select
from attntrace.tape import Array, Trace

AXES = ("batch", "head", "query", "key")
SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, max_side=4)


def tape(array: Array) -> Trace:
    axes = AXES[len(AXES) - array.ndim :]
    t = Trace(dict(zip(axes, array.shape, strict=True)), array.dtype)
    x = t.given("x", "X", axes, lambda: array)
    t("weights", "A = softmax(X)", axes, Softmax(), x)
    return t


def view(t: Trace, index: Mapping[str, int] | None = None) -> View:
    return View(t, select(t, None, index or {}))


def written(t: Trace, index: Mapping[str, int] | None = None) -> bytes:
    out = io.BytesIO()
    npz.write(view(t, index), out)
    return out.getvalue()


def load(data: bytes) -> dict[str, Array]:
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        return dict(archive)


@settings(deadline=None)
@given(st.sampled_from([np.float64, np.float32, np.float16]).flatmap(lambda d: hnp.arrays(d, SHAPES)))
def test_arrays_come_back(array: Array) -> None:
    t = tape(array)
    found = load(written(t))
    assert list(found) == ["x", "weights"]
    for name, read in found.items():
        assert read.dtype == array.dtype
        np.testing.assert_array_equal(read, t[name].values)


def test_bfloat16_is_widened() -> None:
    array = np.array([[0.1, -3e38], [np.inf, np.nan]], dtype=ml_dtypes.bfloat16)
    read = load(written(tape(array)))["x"]
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read, array.astype(np.float32))


def test_numpy_alone_reads_it(tmp_path: pathlib.Path) -> None:
    """In a process that has not imported ml_dtypes, which makes bfloat16 known to NumPy."""
    file = tmp_path / "trace.npz"
    file.write_bytes(written(tape(np.array([1.5, 2.5], dtype=ml_dtypes.bfloat16))))
    code = f"import numpy; print(numpy.load({str(file)!r})['x'].tolist())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[1.5, 2.5]\n"


def test_one_head_of_an_array_laid_out_backwards() -> None:
    array = np.random.default_rng(3).normal(size=(2, 3, 4, 5)).T.copy().T  # Fortran order
    np.testing.assert_array_equal(load(written(tape(array), {"head": 1}))["x"], array[:, 1])


def test_a_pipe_will_do() -> None:
    array = np.random.default_rng(4).normal(size=(300, 300))  # more than a pipe holds
    reading, writing = os.pipe()
    received: list[bytes] = []

    def drain() -> None:
        with os.fdopen(reading, "rb") as pipe:
            received.append(pipe.read())

    reader = threading.Thread(target=drain)
    reader.start()
    with os.fdopen(writing, "wb") as pipe:
        npz.write(view(tape(array)), pipe)
    reader.join()
    np.testing.assert_array_equal(load(received[0])["x"], array)


def test_appending_to_a_file_will_do(tmp_path: pathlib.Path) -> None:
    """A shell's >> opens so: whatever is written goes to the end, wherever one seeks."""
    file = tmp_path / "trace.npz"
    with file.open("ab") as out:
        npz.write(view(tape(np.arange(4.0))), out)
    np.testing.assert_array_equal(load(file.read_bytes())["x"], np.arange(4.0))


def test_the_file_stays_open() -> None:
    out = io.BytesIO()
    npz.write(view(tape(np.ones(2))), out)
    assert not out.closed


def test_no_date_is_written() -> None:
    with zipfile.ZipFile(io.BytesIO(written(tape(np.ones(2))))) as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert archive.testzip() is None
