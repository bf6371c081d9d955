"""The command as scripts meet it: exit codes, what goes where, files, colours, pipes, interrupts."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sysconfig
import time
from pathlib import Path

import numpy as np
import pytest

ATTNTRACE = str(Path(sysconfig.get_path("scripts")) / "attntrace")
PLAIN = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TERM")}
ROW = [0.12402870376521613, 0.8734700885708858, 0.002501207663898045]  # softmax of Module 05's first row, by NumPy


def run(*args: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ATTNTRACE, *args], capture_output=True, text=True, encoding="utf-8", cwd=cwd, env=PLAIN | env, check=False, timeout=60
    )


def on_a_terminal(*args: str, columns: int = 80, **env: str) -> str:
    """What the command sends to a terminal of that width."""
    import fcntl
    import struct
    import termios

    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen([ATTNTRACE, *args], stdout=its, stderr=its, env=PLAIN | {"TERM": "xterm-256color"} | env)
    os.close(its)
    chunks = []
    try:
        while chunk := os.read(ours, 1 << 16):
            chunks.append(chunk)
    except OSError:  # the other end is closed
        pass
    process.wait(timeout=60)
    os.close(ours)
    return b"".join(chunks).decode().replace("\r\n", "\n")


# ------------------------------------------------------------------ numbers for scripts


def test_get_prints_a_bare_exact_number() -> None:
    assert float(run("get", "weights[0,1]").stdout) == pytest.approx(ROW[1], abs=1e-15)


def test_get_prints_a_row_a_line() -> None:
    lines = run("get", "weights[0:2]").stdout.splitlines()
    assert len(lines) == 2
    assert list(map(float, lines[0].split())) == pytest.approx(ROW, abs=1e-15)


@pytest.mark.parametrize(
    ("cell", "count"),
    [("weights[-1]", 3), ("x[:, 3:]", 3), ("q[..., -1]", 3), ("weights[0][1]", 1), ("w_q[::2, 0]", 2), ("output", 12)],
)
def test_get_takes_numpy_indexes(cell: str, count: int) -> None:
    assert len(run("get", cell).stdout.split()) == count


def test_get_as_json_is_strict() -> None:
    got = json.loads(run("get", "masked[0]", "--causal", "--format", "json").stdout, parse_constant=pytest.fail)
    assert got[1:] == ["-Infinity", "-Infinity"]


def test_rounded_numbers_are_never_minus_zero() -> None:
    assert run("get", "v[0]", "--set", "w_v=[[-1e-9,0],[0,0],[0,0],[0,0]]", "--precision", "4").stdout.split()[0] == "0.0000"
    assert run("get", "v[0]", "--set", "w_v=[[-1e-9,0],[0,0],[0,0],[0,0]]", "--precision", "0").stdout.split()[0] == "0"


def test_steps_computes_nothing() -> None:
    """A trace that would take petabytes can still be listed."""
    listed = run("steps", "--tokens", "10000000")
    assert listed.returncode == 0
    assert "query 10000000 × key 10000000" in listed.stdout


def test_steps_as_json_has_shapes_and_no_values() -> None:
    steps = json.loads(run("steps", "--format", "json").stdout)["steps"]
    assert [s["name"] for s in steps][-3:] == ["scaled", "weights", "output"]
    assert all("values" not in s for s in steps)


# ------------------------------------------------------------------ exit codes, and what goes where


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("run",), 0),
        (("run", "--seed", "-1"), 2),
        (("run", "nowhere.yaml"), 2),
        (("run", "--format", "xml"), 2),
        (("run", "--no-such-option"), 2),
        (("nonsense",), 2),
        (("get", "weigths"), 2),
        (("steps", "--format", "npz"), 2),
        (("--version",), 0),
        (("--help",), 0),
    ],
)
def test_exit_codes(args: tuple[str, ...], code: int) -> None:
    done = run(*args)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert (done.stdout == "") == (code == 2)


def test_notes_go_to_standard_error_when_piped() -> None:
    done = run("run", "--set", "x[0]=[50,50,50,50]")
    assert "note: " in done.stderr
    assert "note: " not in done.stdout


def test_notes_end_the_output_on_a_terminal() -> None:
    last = [line for line in on_a_terminal("run", "--set", "x[0]=[50,50,50,50]", NO_COLOR="1").splitlines() if line][-3:]
    assert any(line.startswith("note: ") for line in last)


def test_quiet_says_nothing() -> None:
    done = run("run", "--quiet", "--set", "x[0]=[50,50,50,50]")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_debug_shows_the_traceback_of_an_error() -> None:
    assert "Traceback" in run("run", "nowhere.yaml", "--debug").stderr


# ------------------------------------------------------------------ colour and width


def test_piped_output_has_no_colour_and_no_width() -> None:
    narrow, wide = run("run", COLUMNS="40").stdout, run("run", COLUMNS="200").stdout
    assert narrow == wide
    assert "\x1b" not in narrow


@pytest.mark.parametrize(
    ("args", "env", "coloured"),
    [
        (("--color", "always"), {}, True),
        (("--color", "always"), {"NO_COLOR": "1"}, True),
        (("--color", "never"), {"FORCE_COLOR": "1"}, False),
        ((), {"FORCE_COLOR": "1"}, True),
        ((), {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_colour_when_piped(args: tuple[str, ...], env: dict[str, str], coloured: bool) -> None:
    assert ("\x1b[" in run("run", *args, **env).stdout) == coloured


@pytest.mark.parametrize(("env", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_colour_on_a_terminal(env: dict[str, str], coloured: bool) -> None:
    assert ("\x1b[" in on_a_terminal("run", **env)) == coloured


@pytest.mark.parametrize("columns", [60, 80, 140])
def test_nothing_is_wider_than_the_terminal_and_nothing_is_lost(columns: int) -> None:
    args = ("run", "multi-head-causal", "--steps", "x,weights,output", "--full")
    text = on_a_terminal(*args, columns=columns, NO_COLOR="1")
    assert max(map(len, text.splitlines())) <= columns
    numbers = re.compile(r"-?\d+\.\d+|−∞")
    assert sorted(numbers.findall(text)) == sorted(numbers.findall(run(*args).stdout))


def test_output_survives_an_encoding_without_the_characters_of_formulas() -> None:
    done = run("run", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0
    assert "0.8735" in done.stdout


# ------------------------------------------------------------------ files


@pytest.mark.parametrize("name", ["t.json", "t.csv", "t.npz", "t.md", "t.tex", "t.txt", "T.JSON"])
def test_the_extension_decides_the_format(name: str, tmp_path: Path) -> None:
    assert run("run", "--output", name, cwd=tmp_path).returncode == 0
    begins = {"json": b"{", "csv": b"step,", "npz": b"PK", "md": b"# Module", "tex": b"%", "txt": b"Module"}
    assert (tmp_path / name).read_bytes().startswith(begins[name.split(".")[1].lower()])
    assert os.listdir(tmp_path) == [name]


def test_a_format_overrules_the_extension(tmp_path: Path) -> None:
    run("run", "--output", "numbers.dat", "--format", "npz", cwd=tmp_path)
    with np.load(tmp_path / "numbers.dat", allow_pickle=False) as arrays:
        np.testing.assert_allclose(arrays["weights"][0], ROW, atol=1e-15)


@pytest.mark.parametrize(
    ("target", "words"),
    [("no/such/dir/t.json", "no such file"), (".", "extension|directory"), ("t.xyz", ".xyz tells no format")],
)
def test_a_file_that_cannot_be_written(target: str, words: str, tmp_path: Path) -> None:
    done = run("run", "--output", target, cwd=tmp_path)
    assert done.returncode == 2
    assert re.search(words, done.stderr)
    assert os.listdir(tmp_path) == []


def test_an_interrupt_leaves_the_old_file_and_no_half_written_one(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("old")
    args = [ATTNTRACE, "run", "--tokens", "4000", "--output", "t.json"]
    process = subprocess.Popen(args, cwd=tmp_path, env=PLAIN, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 30
    while len(os.listdir(tmp_path)) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"Traceback" not in stderr
    assert os.listdir(tmp_path) == ["t.json"]
    assert (tmp_path / "t.json").read_text() == "old"


def test_a_failure_while_writing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from attntrace.cli.session import whole_file

    monkeypatch.chdir(tmp_path)

    def fail() -> None:
        with whole_file("t.json") as file:
            file.write(b"{")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert os.listdir(tmp_path) == []


def test_a_pipe_is_written_to_as_it_is(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = subprocess.Popen(["cat", "pipe"], cwd=tmp_path, stdout=subprocess.PIPE)
    assert run("run", "--output", "pipe", "--format", "json", cwd=tmp_path).returncode == 0
    assert json.loads(reader.communicate(timeout=30)[0])["title"]


@pytest.mark.parametrize("change", ["x={file: x.csv}", "x.file=x.csv"])
def test_a_file_named_on_the_command_line_is_looked_for_there(change: str, tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "c.yaml").write_text("x: {file: other.csv}\nw_q: [[1]]\nw_k: [[1]]\nw_v: [[1]]\n")
    (tmp_path / "x.csv").write_text("5\n6\n")
    assert run("get", "x", "configs/c.yaml", "--set", change, cwd=tmp_path).stdout == "5.0\n6.0\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_behind_standard_output_is_told() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([ATTNTRACE, "run"], stdout=full, stderr=subprocess.PIPE, text=True, env=PLAIN, check=False)
    assert (done.returncode, done.stderr) == (2, "error: no space left on device\n")


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "link.json").symlink_to("real.json")
    assert run("run", "--output", "link.json", cwd=tmp_path).returncode == 0
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads((tmp_path / "real.json").read_text())["title"]


def test_a_closed_pipe_ends_in_silence() -> None:
    done = subprocess.run(
        f"{ATTNTRACE} run --tokens 300 --full | head -1",
        shell=True,
        capture_output=True,
        text=True,
        env=PLAIN,
        check=False,
        timeout=60,
    )
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""


def test_a_config_may_come_from_standard_input() -> None:
    text = "q: [[1.0]]\nk: [[1.0]]\nv: [[7.0]]\n"
    done = subprocess.run([ATTNTRACE, "get", "output", "-"], input=text, capture_output=True, text=True, env=PLAIN, check=False)
    assert done.stdout == "7.0\n"


# ------------------------------------------------------------------ which part


def test_batch_and_head_keep_one_index() -> None:
    whole = json.loads(run("run", "multi-head-causal", "--format", "json").stdout)["steps"]
    part = json.loads(run("run", "multi-head-causal", "--format", "json", "--batch", "1", "--head", "-1").stdout)["steps"]
    arrays = {s["name"]: s["values"] for s in whole}
    for s in part:
        if s["name"] == "weights":
            assert (s["axes"], s["index"]) == (["query", "key"], {"batch": 1, "head": 3})
            assert s["values"] == arrays["weights"][1][3]
        if s["name"] == "output":
            assert s["values"] == arrays["output"][1]


def test_steps_come_in_the_order_asked_for() -> None:
    steps = json.loads(run("run", "--steps", "output, weights", "--format", "json").stdout)["steps"]
    assert [s["name"] for s in steps] == ["output", "weights"]


def test_completion_knows_the_bundled_examples() -> None:
    from attntrace.cli.options import examples

    assert "toy" in examples("to")
    assert examples("zzz") == []
