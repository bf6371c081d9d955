"""A pile of claims marked: marks worked out by hand, files of every kind and no kind, the same by any number of processes."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import signal
import subprocess
import sysconfig
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import attntrace
from attntrace import layer
from attntrace.cli import commands  # noqa: F401 - registers them
from attntrace.cli.app import app
from attntrace.errors import AttnTraceError
from attntrace.grading import Grades, Reviewer, Row, Rubric, grade, pile, pooled, read_rubric, students
from attntrace.render import grades as render

X = np.array([[1.0, 2.0], [0.5, -1.0], [2.0, 0.3]])
W_Q = np.array([[0.7, 0.2], [-0.4, 1.1]])
W_K = np.array([[0.3, -0.8], [0.9, 0.5]])
W_V = np.array([[1.0, 0.25], [-0.6, 0.4]])
CONFIG = {"x": X.tolist(), "w_q": W_Q.tolist(), "w_k": W_K.tolist(), "w_v": W_V.tolist()}
ATTNTRACE = str(Path(sysconfig.get_path("scripts")) / "attntrace")
Numbers = dict[str, np.ndarray]


def softmax(scores: np.ndarray) -> np.ndarray:
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def attention(x: np.ndarray = X, w_k: np.ndarray = W_K) -> Numbers:
    q, k, v = x @ W_Q, x @ w_k, x @ W_V
    scores = q @ k.T
    weights = softmax(scores / np.sqrt(2))
    found = {"q": q, "k": k, "v": v, "scores": scores, "scaled": scores / np.sqrt(2), "weights": weights}
    return found | {"output": weights @ v}


def text(found: Numbers, decimals: int = 4, blank: tuple[str, int, int] | None = None) -> str:
    """Claims as somebody types them: each number to so many decimals, one cell a question mark perhaps."""
    lines = []
    for name, values in found.items():
        rows = [[f"{value:.{decimals}f}" for value in row] for row in values]
        if blank and blank[0] == name:
            rows[blank[1]][blank[2]] = "?"
        lines.append(f"{name} = [[" + "], [".join(map(", ".join, rows)) + "]]")
    return "\n".join(lines) + "\n"


def only(found: Numbers, *names: str) -> Numbers:
    return {name: found[name] for name in names}


def one(tmp_path: Path, content: str, rubric: Rubric | None = None, steps: list[str] | None = None, **more: Any) -> Row:
    """The row of a file with such content."""
    file = tmp_path / "someone.txt"
    file.write_text(content)
    return graded([str(file)], rubric, steps, **more).rows[0]


def graded(files: list[str], rubric: Rubric | None = None, steps: list[str] | None = None, **more: Any) -> Grades:
    return grade(attntrace.load(CONFIG | more), files, rubric, steps)


def run(*args: str, code: int = 0) -> Any:
    done = CliRunner().invoke(app, ["grade", *args])
    assert done.exit_code == code, done.output
    return done


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "layer.yaml"
    path.write_text(json.dumps(CONFIG))
    return str(path)


SCHEME = Rubric({"scores": 2.0, "weights": 3.0, "output": 1.0})


# ------------------------------------------------------------------ marks, by hand


def test_all_right_is_full_marks(tmp_path: Path) -> None:
    row = one(tmp_path, text(only(attention(), "scores", "weights", "output")), SCHEME)
    assert row.marks == {"scores": 2.0, "weights": 3.0, "output": 1.0}
    assert row.total == 6
    assert row.first_wrong is None


def slipped() -> Numbers:
    """Right scores, two wrong weights, and the output that follows from those weights."""
    found = attention()
    weights = found["weights"].copy()
    weights[0, 0], weights[0, 1] = weights[0, 0] + 0.2, weights[0, 1] - 0.1
    return {"scores": found["scores"], "weights": weights, "output": weights @ found["v"]}


def test_an_own_error_loses_the_marks_of_its_step_and_what_follows_from_it_none(tmp_path: Path) -> None:
    row = one(tmp_path, text(slipped()), SCHEME)
    assert row.marks == {"scores": 2.0, "weights": 0.0, "output": 1.0}
    assert (row.total, row.first_wrong) == (3, "weights")


def test_partial_marks_are_in_proportion_to_right_cells(tmp_path: Path) -> None:
    row = one(tmp_path, text(slipped()), replace(SCHEME, partial=True))
    assert row.marks == {"scores": 2.0, "weights": pytest.approx(3 * 7 / 9), "output": 1.0}
    assert row.total == pytest.approx(2 + 7 / 3 + 1)


def test_a_step_that_is_not_handed_in_brings_nothing(tmp_path: Path) -> None:
    row = one(tmp_path, text(only(attention(), "weights")), replace(SCHEME, partial=True))
    assert row.marks == {"scores": 0.0, "weights": 3.0, "output": 0.0}


def test_rounding_on_the_way_costs_nothing(tmp_path: Path) -> None:
    """Every step rounded to two decimals, and the next one computed from the rounded numbers."""
    q, k, v = (np.round(X @ w, 2) for w in (W_Q, W_K, W_V))
    scores = np.round(q @ k.T, 2)
    weights = np.round(softmax(np.round(scores / np.sqrt(2), 2)), 2)
    found = {"scores": scores, "weights": weights, "output": np.round(weights @ v, 2)}
    assert (np.abs(found["scores"] - attention()["scores"]) > 0.005).any()  # right to the digits given it is not
    assert one(tmp_path, text(found, 2), SCHEME).total == 6


def test_a_blank_cell_is_not_right(tmp_path: Path) -> None:
    content = text(only(attention(), "scores", "weights", "output"), blank=("weights", 1, 2))
    assert one(tmp_path, content, SCHEME).marks == {"scores": 2.0, "weights": 0.0, "output": 1.0}
    partial = one(tmp_path, content, replace(SCHEME, partial=True))
    assert partial.marks == {"scores": 2.0, "weights": pytest.approx(3 * 8 / 9), "output": 1.0}
    assert partial.first_wrong is None


def test_numbers_may_be_rounded_as_far_as_the_rubric_allows(tmp_path: Path) -> None:
    found = only(attention(), "scores", "weights", "output")
    for allowed, total in ((None, 6), (2, 6), (3, 0)):
        assert one(tmp_path, text(found, 2), replace(SCHEME, decimals=allowed)).total == total
    assert one(tmp_path, text(found, 3), replace(SCHEME, decimals=3)).total == 6


def test_a_short_number_that_is_right_in_full_is_not_too_coarse(tmp_path: Path) -> None:
    """x = 1 and identities all along: the score is 1, and 1 is as good as 1.000."""
    layer = {"x": [[1.0]], "w_q": [[1.0]], "w_k": [[1.0]], "w_v": [[0.5]]}
    row = one(tmp_path, "scores = [[1]]\noutput = [[0.5]]", Rubric({"scores": 1, "output": 1}, decimals=3), **layer)
    assert row.total == 2


def test_an_input_copied_wrong_costs_the_first_step_and_no_more(tmp_path: Path) -> None:
    wrong = X.copy()
    wrong[1, 1] = 1.0
    found = {"x": wrong} | only(attention(wrong), "q", "k", "v", "scores", "weights", "output")
    row = one(tmp_path, text(found))
    assert row.marks == {"q": 0.0, "k": 0.0, "v": 0.0, "scores": 1.0, "weights": 1.0, "output": 1.0}
    assert row.first_wrong == "x"
    assert row.review.by_step["q"].inputs == ("x",)


def test_nobody_earns_marks_with_inputs_of_their_own(tmp_path: Path) -> None:
    found = {"x": np.zeros((3, 2)), "scores": np.zeros((3, 3)), "output": np.zeros((3, 2))}
    row = one(tmp_path, text(found))
    assert row.marks == {"scores": 0.0, "output": 0.0}


# ------------------------------------------------------------------ which steps are marked


def test_without_a_rubric_each_step_that_some_file_claims_brings_a_mark(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(text(only(attention(), "output", "scores")))
    (tmp_path / "b.txt").write_text(text({"x": X} | only(attention(), "weights")))
    grades = graded([str(tmp_path / "a.txt"), str(tmp_path / "b.txt")])
    assert dict(grades.steps) == {"scores": 1.0, "weights": 1.0, "output": 1.0}  # in the order of the trace
    assert list(grades.steps) == ["scores", "weights", "output"]
    assert [row.total for row in grades.rows] == [2, 1]


def test_the_steps_of_expect_are_marked_where_there_is_one(tmp_path: Path) -> None:
    claims = {"weights": attention()["weights"].round(3).tolist(), "x": X.tolist()}
    row = one(tmp_path, text(attention()), expect=claims)
    assert row.marks == {"weights": 1.0}


def test_steps_choose_among_those_of_the_rubric(tmp_path: Path) -> None:
    content = text(attention())
    assert one(tmp_path, content, SCHEME, ["output", "weights"]).marks == {"weights": 3.0, "output": 1.0}
    assert one(tmp_path, content, None, ["output", "k"]).marks == {"k": 1.0, "output": 1.0}


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (["weigths"], "--steps: there is no step 'weigths' in this trace; did you mean \"weights\"?"),
        (["x"], "--steps: x is given, and not computed: there is nothing to mark"),
        (["q"], "--steps: the rubric gives no marks for q"),
    ],
)
def test_steps_that_cannot_be_marked(steps: list[str], message: str) -> None:
    with pytest.raises(AttnTraceError) as caught:
        graded([], SCHEME, steps)
    assert str(caught.value) == f"error: {message}"


# ------------------------------------------------------------------ the rubric


def rubric(tmp_path: Path, content: str) -> Rubric:
    path = tmp_path / "rubric.yaml"
    path.write_text(content)
    return read_rubric(str(path), attntrace.trace(CONFIG))


def test_a_rubric_is_read(tmp_path: Path) -> None:
    read = rubric(tmp_path, "steps:\n  scores: 2\n  weights: 0.5\npartial: true\nrounding: {allowed: 3}\n")
    assert read == Rubric({"scores": 2.0, "weights": 0.5}, True, 3)
    assert rubric(tmp_path, "steps: [scores, output]") == Rubric({"scores": 1.0, "output": 1.0}, False, None)


@pytest.mark.parametrize(
    ("content", "where", "message"),
    [
        ("step: {scores: 1}\nsteps: [q]", "1:1", "unknown key 'step'; did you mean \"steps\"?"),
        ("steps: [q]\nzzz: 1", "2:1", "unknown key 'zzz'; expected steps or partial or rounding"),
        ("steps:\n  scroes: 1", "2:3", "steps: there is no step 'scroes' in this trace; did you mean \"scores\"?"),
        ("steps: [q, wieghts]", "1:12", "steps: there is no step 'wieghts' in this trace; did you mean \"weights\"?"),
        ("steps: {w_q: 1}", "1:9", "steps: w_q is given, and not computed: there is nothing to mark"),
        ("steps: {q: two}", "1:12", "steps.q: expected a number of marks from 0 on, found 'two'"),
        ("steps: {q: -1}", "1:12", "steps.q: expected a number of marks from 0 on, found -1"),
        ("steps: {q: .nan}", "1:12", "steps.q: expected a number of marks from 0 on, found .nan"),
        ("steps: {q: true}", "1:12", "steps.q: expected a number of marks from 0 on, found true"),
        ("steps: 3", "1:8", 'steps: expected marks for each step, such as "steps: {scores: 2, weights: 1}", found 3'),
        ("steps: [q]\npartial: 1", "2:10", "partial: expected true or false, found 1"),
        ("steps: [q]\nrounding: 3", "2:11", "rounding: expected a mapping such as {allowed: 3}, found 3"),
        ("steps: [q]\nrounding: {allow: 3}", "2:12", "rounding: unknown key 'allow'; did you mean \"allowed\"?"),
        (
            "steps: [q]\nrounding: {allowed: 1.5}",
            "2:21",
            "rounding.allowed: expected a number of decimals from 0 to 15, found 1.5",
        ),
        ("[q]", "1:1", 'expected a mapping such as "steps: {scores: 2, weights: 1}", found a list'),
    ],
)
def test_faults_of_a_rubric(tmp_path: Path, content: str, where: str, message: str) -> None:
    with pytest.raises(AttnTraceError) as caught:
        rubric(tmp_path, content)
    [fault] = caught.value.faults
    assert fault.message == message
    assert f"{fault.place}" == f"{tmp_path / 'rubric.yaml'}:{where}"


def test_all_faults_of_a_rubric_are_told_in_order(tmp_path: Path) -> None:
    with pytest.raises(AttnTraceError) as caught:
        rubric(tmp_path, "partial: 2\nsteps: {q: x, nope: 1}\nroundin: {}\n")
    assert [fault.place.line for fault in caught.value.faults if fault.place] == [1, 2, 2, 3]


def test_a_rubric_needs_steps(tmp_path: Path) -> None:
    with pytest.raises(AttnTraceError, match="steps is missing: say which steps are marked"):
        rubric(tmp_path, "partial: true")


# ------------------------------------------------------------------ a pile of everything


def hand_in(folder: Path) -> None:
    """The same right numbers in every format, one mistake, and whatever else people hand in."""
    folder.mkdir()
    found = only(attention(), "scores", "weights", "output")
    lists = {name: values.tolist() for name, values in found.items()}
    (folder / "json.json").write_text(json.dumps(lists))
    (folder / "yaml.yaml").write_text("".join(f"{name}: {rows}\n" for name, rows in lists.items()))
    np.savez(folder / "npz.npz", **found)
    (folder / "numpy.txt").write_text("".join(f"{name} =\n{values!r}\n" for name, values in found.items()))
    (folder / "markdown.md").write_text("".join(f"## {name}\n\n{pipes(values)}\n" for name, values in found.items()))
    cells = [(name, i, j, v) for name, a in found.items() for (i, j), v in np.ndenumerate(a)]
    (folder / "long.csv").write_text("step,row,column,value\n" + "".join(f"{n},{i},{j},{v:.6f}\n" for n, i, j, v in cells))
    (folder / "transposed.txt").write_text(text(only(attention(w_k=W_K.T), "scores", "weights", "output")))
    (folder / "nothing.txt").write_text("")
    (folder / "words.txt").write_text("I was ill.\n")
    (folder / "bytes.txt").write_bytes(bytes(range(256)) * 4)
    (folder / "latin.txt").write_bytes("Lösung: weights".encode("latin-1"))
    (folder / "broken.npz").write_bytes(b"PK\x03\x04" + b"\0" * 40)
    (folder / "broken.json").write_text('{"weights": [[0.1, 0.2')
    (folder / "gap.txt").write_text("weights = [[0.1, ..., 0.2]]")
    (folder / "shape.txt").write_text("weights = [[0.1, 0.2], [0.3, 0.4]]")
    (folder / "other.txt").write_text("mlp = [[0.1, 0.2, 0.7]]")
    (folder / "huge.txt").write_bytes(b"0" * (1 << 21))


def pipes(values: np.ndarray) -> str:
    rows = [f"| t{i} | {' | '.join(f'{v:.5f}' for v in row)} |" for i, row in enumerate(values)]
    head = f"| | {' | '.join(f'c{j}' for j in range(values.shape[1]))} |\n|{' --- |' * (values.shape[1] + 1)}"
    return "\n".join([head, *rows]) + "\n"


BAD = {
    "bytes": "holds a NUL byte at offset 0 (line 1), expected UTF-8 text",
    "latin": "holds the byte 0xf6 at offset 1 (line 1), expected UTF-8 text",
    "nothing": "holds no numbers, expected claims such as weights = [[0.2, 0.8], [0.5, 0.5]]",
    "words": "holds no numbers, expected claims such as weights = [[0.2, 0.8], [0.5, 0.5]]",
    "broken.npz": "is damaged, expected a sound .npz file",
    "broken.json": "line 1: no JSON from here on:",
    "gap": "line 1: weights: numbers are left out (…)",
    "shape": "line 1: weights: weights is query 3 × key 3; found 2 × 2",
    "other": "line 1: mlp: no step of this trace has the shape 1 × 3",
    "huge": "is larger than 1048576 bytes, the most that is read of one file",
}


def test_a_pile_of_mixed_files(tmp_path: Path, config: str) -> None:
    hand_in(tmp_path / "pile")
    done = run(config, str(tmp_path / "pile"), "--format", "csv", code=1)
    rows = {row["student"]: row for row in table(done.stdout)}
    assert list(rows) == sorted(rows, key=lambda name: Path(rows[name]["file"]).name)
    for name in ("json", "yaml", "npz", "numpy", "markdown", "long"):
        row = rows.pop(name)
        assert [row[key] for key in ("scores", "weights", "output", "total", "out_of")] == ["1", "1", "1", "3", "3"], name
        assert row["first_wrong"] == row["mistake"] == row["not_read"] == ""
    wrong = rows.pop("transposed")
    assert [wrong[key] for key in ("scores", "weights", "output", "total")] == ["0", "1", "1", "2"]
    assert wrong["first_wrong"] == "scores"
    assert "w_k used transposed" in wrong["mistake"]
    assert rows.keys() == BAD.keys()
    for name, why in BAD.items():
        assert [rows[name][key] for key in ("scores", "weights", "output", "total")] == [""] * 4, name
        assert rows[name]["not_read"].startswith(why), rows[name]["not_read"]
    assert "17 files, 10 of which could not be read" in done.stderr


def test_what_is_not_there_or_no_file(tmp_path: Path, config: str) -> None:
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    names = ["missing.txt", "empty", "pipe.txt", "loop"]
    done = run(config, *(str(tmp_path / name) for name in names), "--format", "csv", code=1)
    assert [row["not_read"].split(":")[0] for row in table(done.stdout)] == [
        "does not exist",
        "is a directory without files to read claims from",
        "is a pipe, expected a file",
        "cannot be read",
    ]


def test_a_file_without_permission(tmp_path: Path, config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the system refuses it, also where the tests run as somebody who may read everything."""
    secret, opening = str(tmp_path / "secret.txt"), os.open
    Path(secret).write_text(text(attention()))

    def refusing(path: Any, *more: Any, **options: Any) -> int:
        if path == secret or path == Path(secret):
            raise PermissionError(13, "Permission denied")
        return opening(path, *more, **options)

    monkeypatch.setattr(os, "open", refusing)
    [row] = table(run(config, secret, "--format", "csv", code=1).stdout)
    assert row["not_read"] == "cannot be read: Permission denied"


def test_a_mistake_of_ours_is_the_row_of_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text(text(attention()))
    (tmp_path / "b.txt").write_text(text(attention()))
    judge = Reviewer.judge

    def failing(self: Reviewer, file: str, reading: Any) -> Any:
        if file.endswith("a.txt"):
            raise RuntimeError("boom\x1b[2J")
        return judge(self, file, reading)

    monkeypatch.setattr(Reviewer, "judge", failing)
    first, second = graded([str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]).rows
    assert first.review.faults == (r"attntrace itself failed (RuntimeError: boom\x1b[2J)",)
    assert (first.total, second.total) == (None, 7)


def test_part_of_a_file_that_cannot_be_read_costs_that_part(tmp_path: Path, config: str) -> None:
    file = tmp_path / "half.txt"
    file.write_text(text(only(attention(), "weights")) + "output = [[1, 2, 3]]\n")
    [row] = table(run(config, str(file), "--steps", "weights,output", "--format", "csv", code=1).stdout)
    assert (row["weights"], row["output"], row["total"]) == ("1", "0", "1")
    assert row["not_read"].startswith("line 2: output: output is query 3 × d_v 2; found 1 × 3")


def test_of_numbers_that_are_made_up_two_steps_are_looked_into(tmp_path: Path, config: str) -> None:
    rng = np.random.default_rng(1)
    (tmp_path / "a.txt").write_text(text({name: rng.normal(size=values.shape) for name, values in attention().items()}))
    [row] = table(run(config, f"{tmp_path}/a.txt", "--format", "csv").stdout)
    assert [sentence.split(" (")[0] for sentence in row["mistake"].split("; ")] == [
        *(f"{name}: no known mistake explains it" for name in ("q", "k")),
        *(f"{name}: wrong too" for name in ("v", "scores", "scaled", "weights", "output")),
    ]


# ------------------------------------------------------------------ the pile, the processes


def test_one_process_and_two_find_the_same(tmp_path: Path, config: str) -> None:
    hand_in(tmp_path / "pile")
    for i in range(20):
        (tmp_path / "pile" / f"s{i:02d}.txt").write_text(text(only(attention(X + i % 3), "scores", "weights"), 3))
    kinds = {"csv": tmp_path / "a.csv", "json": tmp_path / "b.json"}
    found = []
    for jobs in ("1", "2"):
        for kind, file in kinds.items():
            run(
                config,
                str(tmp_path / "pile"),
                "--jobs",
                jobs,
                "--output",
                str(file),
                "--feedback",
                f"{tmp_path}/{jobs}",
                code=1,
            )
            assert file.stat().st_size > 2000, kind
        told = {path.name: path.read_bytes() for path in sorted((tmp_path / jobs).iterdir())}
        found.append([*(file.read_bytes() for file in kinds.values()), told])
    assert found[0] == found[1]
    assert len(found[0][-1]) == 37


class Deadly:
    """Ends the process that unpickles it."""

    def __reduce__(self) -> Any:
        return os._exit, (1,)


def test_a_process_that_dies_costs_the_rows_of_its_files_only(tmp_path: Path) -> None:
    problem = attntrace.load(CONFIG)
    problem.remarks.append(Deadly())  # type: ignore[arg-type]
    files = [str(tmp_path / f"{i}.txt") for i in range(3)]
    found = pooled(problem, files, None, 2, lambda done, of: None)
    assert [review.file for review in found] == files
    assert {review.faults for review in found} == {
        ("ended the process that read it: it takes more memory than there is, perhaps",)
    }


def test_files_come_as_given_and_those_of_directories_sorted(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", ".hidden", "a.txt~", "sub/c.txt", "sub/.git/d.txt", "out/e.md"):
        (tmp_path / "pile" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "pile" / name).write_text("x")
    (tmp_path / "z.txt").write_text("x")
    last, folder = str(tmp_path / "z.txt"), str(tmp_path / "pile")
    found = pile([last, folder, f"{folder}/../z.txt", f"{folder}/b.txt"], [f"{folder}/out"])
    assert [os.path.relpath(file, tmp_path) for file in found] == ["z.txt", "pile/a.txt", "pile/b.txt", "pile/sub/c.txt"]


def test_what_grading_wrote_into_a_pile_is_no_claim(tmp_path: Path, config: str) -> None:
    folder = tmp_path / "pile"
    folder.mkdir()
    (folder / "anna.txt").write_text(text(attention()))
    (folder / "rubric.yaml").write_text("steps: [output]")
    for name in ("first.csv", "second.json", "third.csv"):
        args = ("--rubric", f"{folder}/rubric.yaml", "--output", f"{folder}/{name}", "--feedback", f"{folder}/{name}-fb")
        run(config, str(folder), *args)
        assert len(list((folder / f"{name}-fb").iterdir())) == 1
    assert [row["student"] for row in table((folder / "third.csv").read_text())] == ["anna"]


def test_files_of_the_same_name_are_told_apart() -> None:
    assert students(["p/anna.txt", "p/ben.txt"]) == ["anna", "ben"]
    assert students(["p/anna.txt", "p/anna.csv", "p/ben.txt"]) == ["anna.txt", "anna.csv", "ben"]
    assert students(["p/anna/answer.txt", "p/ben/answer.txt"]) == ["anna/answer.txt", "ben/answer.txt"]
    assert students(["p/1/a/s.txt", "p/2/a/s.txt", "s.txt"]) == ["1/a/s.txt", "2/a/s.txt", "s.txt"]


def test_mistakes_are_replayed_once_for_the_whole_pile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty files that no mistake explains take a few traces each, where the first takes hundreds."""
    rng = np.random.default_rng(0)
    files = [tmp_path / f"{i:02d}.txt" for i in range(21)]
    for file in files:
        file.write_text(text({"output": rng.normal(size=(3, 2))}))
    traced, trace = [0], layer.trace

    def counting(problem: Any) -> Any:
        traced[0] += 1
        return trace(problem)

    monkeypatch.setattr(layer, "trace", counting)
    reviewer, calls = Reviewer(attntrace.load(CONFIG)), []
    for file in files:
        before = traced[0]
        assert reviewer.review(str(file)).own_errors
        calls.append(traced[0] - before)
    assert calls[0] > 100
    assert sum(calls[1:]) < 20 * calls[0] / 5


# ------------------------------------------------------------------ what is written


@pytest.mark.parametrize("name", ["=cmd", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " =1", "a;=1", "＝1", "a\n=1", "'=1"])
def test_no_cell_is_a_formula(tmp_path: Path, config: str, name: str) -> None:
    file = tmp_path / f"{name}.txt"
    file.write_text(f'"{name}" = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]\n')
    out = run(config, str(file), str(tmp_path / f"{name}-none"), "--format", "csv", code=1).stdout
    for line in csv.reader(io.StringIO(out)):
        for cell in (part for field in line for part in re.split(r"[;\t\r\n]", field)):
            assert not re.match(r"\s*[=+\-@＝＋－＠]", cell), cell
    assert len(out.splitlines()) == 3
    assert not re.search(r"[\t\r\x00-\x09]", out)


def test_json_has_everything(tmp_path: Path, config: str) -> None:
    hand_in(tmp_path / "pile")
    run(config, str(tmp_path / "pile"), "--output", str(tmp_path / "grades.json"), code=1)
    document = json.loads((tmp_path / "grades.json").read_text())
    assert document["steps"] == {"scores": 1, "weights": 1, "output": 1}
    rows = {row["student"]: row for row in document["rows"]}
    assert rows["json"]["total"] == 3
    assert rows["words"]["marks"] is None
    assert rows["transposed"]["first_wrong"] == "scores"
    assert [step["status"] for step in rows["transposed"]["steps"]] == ["wrong here", "carried over", "carried over"]
    assert document["summary"]["mean"] == pytest.approx((6 * 3 + 2) / 7)
    assert document["summary"] | {"mean": 0} == {
        "files": 17,
        "read": 7,
        "mean": 0,
        "first_wrong": {"scores": 1},
        "mistakes": dict.fromkeys(document["summary"]["mistakes"], 1),
    }


def test_the_table_on_a_screen(tmp_path: Path, config: str) -> None:
    (tmp_path / "anna.txt").write_text(text(only(attention(), "scores", "weights")))
    (tmp_path / "b\x1b[31m.txt").write_text(text(only(attention(w_k=W_K.T), "scores")))
    out = run(config, f"{tmp_path}/anna.txt", f"{tmp_path}/b\x1b[31m.txt", f"{tmp_path}/c.txt", code=1).stdout
    head, anna, ben, gone, _, *summary = out.splitlines()
    assert head.split() == ["student", "scores", "weights", "total", "remarks"]
    assert anna.split() == ["✓", "anna", "1", "1", "2"]
    assert ben.startswith(r"✗  b\x1b[31m       0        0      0  scores: w_k used transposed")
    assert ben.endswith("; not handed in: weights")
    assert gone.split(maxsplit=5) == ["?", "c", "–", "–", "–", "could not be read: does not exist"]
    assert summary[:3] == ["3 files, 1 of which could not be read", "mean: 1 of 2 marks", "first wrong step: scores (1)"]
    assert summary[3].startswith("most common: w_k used transposed")
    assert "\x1b" not in out


def test_nothing_to_grade_and_formats_that_there_are_not(tmp_path: Path, config: str) -> None:
    assert "nothing to grade: give files or directories after CONFIG" in run(config, code=2).stderr
    done = run(config, "x.txt", "--output", str(tmp_path / "g.tex"), code=2)
    assert "this command writes rich and csv and json, not latex" in done.stderr
    (tmp_path / "file").write_text("")
    done = run(config, "x.txt", "--feedback", str(tmp_path / "file"), code=2)
    assert done.stderr == f"error: --feedback {tmp_path}/file: is not a directory\n"


def test_a_progress_bar_is_for_terminals(tmp_path: Path, config: str) -> None:
    folder = tmp_path / "pile"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(32):
        (folder / f"{i}.txt").write_text(text({"scores": rng.normal(size=(3, 3))}))
    ours, its = pty.openpty()
    command = [ATTNTRACE, "grade", config, str(folder), "--output", str(tmp_path / "g.csv"), "--jobs", "2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=its, env=os.environ | {"TERM": "xterm"})
    os.close(its)
    seen = b""
    try:
        while chunk := os.read(ours, 1 << 16):
            seen += chunk
    except OSError:  # the other end is closed
        pass
    assert process.communicate(timeout=60)[0] == b""
    os.close(ours)
    assert process.returncode == 0
    assert b"reading" in seen
    assert b"/32" in seen


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "pile"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(3000):
        (folder / f"{i}.json").write_text(json.dumps({"scores": rng.normal(size=(3, 3)).tolist()}))
    out, feedback = tmp_path / "out", tmp_path / "feedback"
    out.mkdir()
    command = [ATTNTRACE, "grade", "module05", str(folder), "--output", str(out / "g.csv"), "--feedback", str(feedback)]
    process = subprocess.Popen([*command, "--jobs", "2"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not feedback.exists():
        time.sleep(0.05)
    time.sleep(1)
    os.kill(process.pid, signal.SIGINT)
    told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert told == ("", "")
    assert list(out.iterdir()) == list(feedback.iterdir()) == []


# ------------------------------------------------------------------ feedback


def test_feedback_shows_wrong_cells_beside_the_right_ones_and_teaches(tmp_path: Path, config: str) -> None:
    (tmp_path / "ben.txt").write_text(text(only(attention(w_k=W_K.T), "scores", "weights")))
    (tmp_path / "zoe.txt").write_text(text(only(attention(), "scores", "weights")))
    run(config, f"{tmp_path}/ben.txt", f"{tmp_path}/zoe.txt", "--feedback", f"{tmp_path}/fb", "--quiet")
    ben, zoe = ((tmp_path / "fb" / f"{name}.md").read_text() for name in ("ben", "zoe"))
    assert "**1 of 2 marks**" in ben
    assert "| ✗ | `scores` | 0 / 1 | wrong here: " in ben
    assert "| → | `weights` | 1 / 1 | follows from the steps before it, as they were handed in |" in ben
    mine, right = attention(w_k=W_K.T)["scores"], attention()["scores"]
    assert f"| t0 | {' | '.join(f'{a:.4f} **[{b:.4f}]**' for a, b in zip(mine[0], right[0], strict=True))} |" in ben
    assert "**w\\_k used transposed**" in ben.replace("**w_k", "**w\\_k")
    assert "- used: `" in ben
    assert "- right: `" in ben
    assert "zoe" not in ben
    assert "**2 of 2 marks**" in zoe
    assert "ben" not in zoe
    assert "**[" not in zoe
    assert str(tmp_path) not in ben + zoe


def test_feedback_for_what_could_not_be_read_and_for_blanks(tmp_path: Path, config: str) -> None:
    (tmp_path / "a.txt").write_text("I was ill")
    (tmp_path / "b.txt").write_text(text(only(attention(), "weights"), blank=("weights", 0, 0)))
    run(config, f"{tmp_path}/a.txt", f"{tmp_path}/b.txt", "--steps", "weights,output", "--feedback", f"{tmp_path}/fb", code=1)
    a, b = ((tmp_path / "fb" / f"{name}.md").read_text() for name in "ab")
    assert "**No marks: the file could not be read.**" in a
    assert "- holds no numbers" in a
    assert "| ✓ | `weights` | 0 / 1 | right; 1 cell left blank |" in b
    assert "| – | `output` | 0 / 1 | not handed in |" in b


def test_a_large_step_is_shown_by_its_first_wrong_cells(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(20, 2))
    q, k = x @ W_Q, x @ W_K
    scores = q @ k.T
    wrong = scores.copy()
    wrong[2, :] += 0.5
    (tmp_path / "a.txt").write_text(text({"scores": wrong}))
    problem = attntrace.load(CONFIG | {"x": x.tolist()})
    grades = grade(problem, [str(tmp_path / "a.txt")])
    told = render.feedback(grades.rows[0], grades, attntrace.trace(problem)).decode()
    assert f"| `scores[2, 0]` | {wrong[2, 0]:.4f} | {scores[2, 0]:.4f} |" in told
    assert "… and 8 more." in told
    assert told.count("| `scores[2, ") == 12


def test_names_of_feedback_are_harmless_and_distinct(tmp_path: Path) -> None:
    names = ["../../etc/x", "x", ".hidden", "CON", "Anna", "anna", "ä ö", "-rf", "a" * 300, "", "..", "a/b", "a-b", "\udc80"]
    problem = attntrace.load(CONFIG)
    row = grade(problem, [str(tmp_path / "none.txt")]).rows[0]
    found = render.feedback_names(Grades(tuple(replace(row, student=name) for name in names), {}))
    assert found[:8] == ["etc-x.md", "x.md", "hidden.md", "CON-.md", "Anna.md", "anna-2.md", "ä-ö.md", "rf.md"]
    assert found[9:] == ["student.md", "student-2.md", "a-b.md", "a-b-2.md", "student-3.md"]
    for name in found:
        (tmp_path / name).write_text("")  # each is a possible name of a file here
        assert len(name.encode()) < 220


def test_feedback_of_a_hostile_name_is_text(tmp_path: Path, config: str) -> None:
    file = tmp_path / "<img src=x onerror=alert(1)>[a](javascript:x)`|.txt"
    file.write_text(text(only(attention(), "weights")))
    run(config, str(file), "--feedback", f"{tmp_path}/fb")
    [path] = (tmp_path / "fb").iterdir()
    told = path.read_text()
    assert "<img" not in told
    assert "[a](" not in told


def test_feedback_is_replaced_whole(tmp_path: Path, config: str) -> None:
    (tmp_path / "fb").mkdir()
    (tmp_path / "fb" / "a.md").write_text("old " * 10_000)
    (tmp_path / "fb" / "keep.md").write_text("mine")
    (tmp_path / "a.txt").write_text(text(only(attention(), "weights")))
    run(config, f"{tmp_path}/a.txt", "--feedback", f"{tmp_path}/fb")
    assert "old" not in (tmp_path / "fb" / "a.md").read_text()
    assert sorted(path.name for path in (tmp_path / "fb").iterdir()) == ["a.md", "keep.md"]
    (tmp_path / "fb" / "a.md").unlink()
    (tmp_path / "fb" / "a.md").mkdir()
    done = run(config, f"{tmp_path}/a.txt", "--feedback", f"{tmp_path}/fb", code=2)
    assert done.stderr.startswith(f"error: --feedback {tmp_path}/fb/a.md: ")
