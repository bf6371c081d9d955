"""`attntrace check`: claims against the trace, step by step, and what is said of them. Right numbers come from NumPy, written
out here, or from published pages; which mistake it was is the subject of test_mistakes.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attntrace
from attntrace.claims import Claim
from attntrace.errors import AttnTraceError
from attntrace.marking import Marked, Marker, claims_about
from attntrace.render import marks

ATTNTRACE = str(Path(sysconfig.get_path("scripts")) / "attntrace")
PLAIN = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TERM")}

X = np.array([[1.0, 0.5], [0.25, 2.0], [-1.0, 1.5]])
W = {
    "w_q": np.array([[1.0, 0.3], [-0.7, 1.1]]),
    "w_k": np.array([[0.6, -0.4], [0.9, 0.2]]),
    "w_v": np.array([[0.5, 1.5], [1, -1]]),
}
LAYER: dict[str, Any] = {"x": X, **W, "tokens": ["ash", "birch", "cedar"]}


def softmax(s: np.ndarray) -> np.ndarray:
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def steps(scores: np.ndarray | None = None, decimals: int | None = None, **given: np.ndarray) -> dict[str, np.ndarray]:
    """The layer by NumPy; from other scores or weights on, if they are given; each step rounded before the next, if asked."""
    r = (lambda a: a) if decimals is None else lambda a: np.round(a, decimals)
    q, k, v = (r(X @ W[f"w_{n}"]) for n in "qkv")
    s = r(q @ k.T) if scores is None else scores
    scaled = r(s / np.sqrt(2))
    weights = given.get("weights", r(softmax(scaled)))
    return {"q": q, "k": k, "v": v, "scores": s, "scaled": scaled, "weights": weights, "output": r(weights @ v)}


RIGHT = steps()


def claim(name: str, values: np.ndarray, decimals: int | None = 4, there: np.ndarray | None = None) -> Claim:
    half = 0.0 if decimals is None else 0.5 * 10.0**-decimals
    written = values if decimals is None else np.round(values, decimals)
    return Claim(
        name, name, written, np.ones(values.shape, bool) if there is None else there, np.full(values.shape, half), "test"
    )


def mark(numbers: dict[str, np.ndarray], decimals: int | None = 4) -> Marked:
    return Marker(attntrace.load(LAYER)).mark([claim(n, a, decimals) for n, a in numbers.items()])


def status(marked: Marked) -> dict[str, str]:
    return {v.name: v.status for v in marked.verdicts}


def some(numbers: dict[str, np.ndarray], names: str) -> dict[str, np.ndarray]:
    return {name: numbers[name] for name in names.split()}


def seen(marked: Marked, config: Any = LAYER, **screen: Any) -> str:
    out = BytesIO()
    reading = claims_about(attntrace.load(config), {"q": [[0.0]]})
    reading.faults.clear()
    reading.said.clear()
    marks.write(marked, reading, attntrace.trace(config), out, screen.get("width"), screen.get("colour", False))
    return out.getvalue().decode()


def run(*args: str, stdin: str | None = None, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ATTNTRACE, *args], capture_output=True, text=True, encoding="utf-8", input=stdin, cwd=cwd, env=PLAIN)


def written(numbers: dict[str, np.ndarray], decimals: int = 4) -> str:
    """Claims as a person writes them into a YAML file."""
    rows = lambda a: ", ".join(f"[{', '.join(f'{x:.{decimals}f}' for x in row)}]" for row in a)  # noqa: E731
    return "".join(f"{name}: [{rows(a)}]\n" for name, a in numbers.items())


# ------------------------------------------------------------------ right, and right by rounding


@pytest.mark.parametrize("decimals", [1, 2, 3, 4, 5, 6, None])
def test_right_numbers_are_right_to_any_number_of_digits(decimals: int | None) -> None:
    marked = mark(RIGHT, decimals)
    assert marked.right
    assert set(status(marked).values()) == {"right"}
    assert not marked.findings
    assert marked.first_wrong is None


@pytest.mark.parametrize("decimals", [1, 2, 3, 4, 5, 6])
def test_numbers_rounded_from_step_to_step_are_right_and_told_apart(decimals: int) -> None:
    rounded = steps(decimals=decimals)
    assert mark(rounded, decimals).right
    off = [n for n, a in rounded.items() if (np.abs(a - RIGHT[n]) > 0.5 * 10.0**-decimals * (1 + 1e-9)).any()]
    marked = mark(rounded, decimals)
    assert [n for n, s in status(marked).items() if s == "rounded"] == off
    assert all(v.decimals == decimals for v in marked.verdicts if v.status == "rounded")


def test_the_last_step_alone_may_be_rounded_on_the_way() -> None:
    output = steps(decimals=2)["output"]
    assert (np.abs(output - RIGHT["output"]) > 0.005).any()
    (v,) = mark({"output": output}, 2).verdicts
    assert v.status == "rounded"


def test_rounding_excuses_no_more_than_it_does() -> None:
    off = RIGHT["output"] + np.array([[0.0, 0.0], [0.03, 0.0], [0.0, 0.0]])
    assert mark({"output": off}, 3).first_wrong is not None
    assert mark(steps(decimals=3) | {"output": off}, 3).first_wrong is not None


def test_who_rounds_the_inputs_too_is_right() -> None:
    """As one who copies them off a screen that shows four decimals."""
    config = LAYER | {"x": X + 0.00004}
    copied = np.round(X + 0.00004, 4)
    q = copied @ W["w_q"]
    truth = (X + 0.00004) @ W["w_q"]
    assert (np.abs(np.round(q, 4) - truth) > 0.5e-4).any()
    marked = Marker(attntrace.load(config)).mark([claim("q", q, 4)])
    assert marked.right


def test_exact_claims_must_be_exact() -> None:
    marked = mark({"output": RIGHT["output"] * (1 + 1e-9)}, None)
    assert not marked.right
    assert mark({"output": RIGHT["output"] * (1 + 1e-15)}, None).right


# ------------------------------------------------------------------ wrong here, or carried over


def test_what_follows_from_a_wrong_step_is_carried_over() -> None:
    wrong = RIGHT["scores"].copy()
    wrong[0, 1] += 1.0
    marked = mark(steps(scores=wrong))
    assert status(marked) == {
        **dict.fromkeys(("q", "k", "v"), "right"),
        "scores": "wrong here",
        **dict.fromkeys(("scaled", "weights", "output"), "carried over"),
    }
    first = marked.first_wrong
    assert first is not None
    assert first.name == "scores"
    assert np.argwhere(first.off).tolist() == [[0, 1]]
    assert [w.name for w in marked.consequences(first)] == ["scaled", "weights", "output"]


def test_steps_left_out_in_between_do_not_matter() -> None:
    wrong = RIGHT["scores"] + 0.5 * np.eye(3)
    assert status(mark(some(steps(scores=wrong), "scores output"))) == {"scores": "wrong here", "output": "carried over"}


def test_a_second_error_is_wrong_by_itself() -> None:
    wrong = steps(scores=RIGHT["scores"] + np.diag([0.5, 0.0, 1.0]))
    wrong["output"] = wrong["output"] + np.array([[0.0, 0.4], [0.0, 0.0], [0.0, 0.0]])
    marked = mark(wrong)
    assert [n for n, s in status(marked).items() if s == "wrong here"] == ["scores", "output"]
    output = marked.verdicts[-1]
    assert np.argwhere(output.off).tolist() == [[0, 1]]
    np.testing.assert_allclose(output.expected, wrong["weights"] @ RIGHT["v"], atol=2e-4)


def test_blank_cells_are_neither_right_nor_wrong() -> None:
    values = RIGHT["weights"].copy()
    there = np.array([[True, True, False], [False] * 3, [True, True, True]])
    values[1] = 7.0
    marker = Marker(attntrace.load(LAYER))
    assert marker.mark([claim("weights", values, 4, there), claim("output", RIGHT["output"])]).right
    values[2, 0] += 0.1
    marked = marker.mark([claim("weights", values, 4, there)])
    assert np.argwhere(marked.verdicts[0].off).tolist() == [[2, 0]]


def test_claims_come_in_any_order() -> None:
    shuffled = dict(reversed(list(steps(scores=RIGHT["scores"] + 1.0).items())))
    assert [v.name for v in mark(shuffled).verdicts] == ["q", "k", "v", "scores", "scaled", "weights", "output"]


# ------------------------------------------------------------------ pages as they are published


def test_three_wrong_dot_products_are_named_and_everything_else_follows() -> None:
    wrong = RIGHT["scores"].copy()
    for at, by in (((0, 1), 0.5), ((1, 2), -0.25), ((2, 0), 1.0)):
        wrong[at] += by
    marked = mark(steps(scores=wrong))
    text = seen(marked)
    assert "scores: exactly 3 of its 9 cells are wrong: [0, 1] (" in text
    assert "), [1, 2] (" in text
    assert "), [2, 0] (" in text
    assert "The other 6 are right" in text
    assert "Everything claimed after it follows from it: scaled, weights and output are carried over" in text
    assert not marked.findings


def test_a_number_that_is_off_in_the_fourth_decimal() -> None:
    weights = np.round(RIGHT["weights"], 4)
    weights[1, 1] += 1e-4
    marked = mark(RIGHT | {"weights": weights})
    text = seen(marked)
    assert status(marked)["weights"] == "wrong here"
    assert f"[1, 1] ({weights[1, 1]:.4f}, should be {RIGHT['weights'][1, 1]:.4f}) is off by one in the last digit given" in text
    assert "the other 8 are right" in text
    assert not marked.findings


def test_a_number_that_was_cut_off_instead_of_rounded() -> None:
    cut = np.trunc(RIGHT["scores"] * 1e4) / 1e4
    assert (np.abs(cut - RIGHT["scores"]) > 0.5e-4).any()
    text = seen(mark({"q": RIGHT["q"], "k": RIGHT["k"], "scores": cut}))
    assert "off by one in the last digit given, cut off and not rounded" in text


def test_off_in_the_last_digit_as_rounding_may_have_it_is_right_and_said() -> None:
    output = np.round(RIGHT["output"], 4)
    output[2, 1] += 1e-4
    marked = mark({"output": output})
    assert marked.right
    assert "[2, 1] (" in seen(marked)
    assert "is off by one in the last digit given, as rounding on the way may have it" in seen(marked)


OTHER = RIGHT["scores"] + np.random.default_rng(3).normal(size=(3, 3))


def test_scores_and_weights_of_different_runs_where_the_weights_are_right() -> None:
    marked = mark(some(RIGHT, "weights output") | {"scores": OTHER})
    assert status(marked) == {"scores": "wrong here", "weights": "right", "output": "right"}
    text = seen(marked)
    assert "right to the 4 decimals given, though the claimed scores leads elsewhere" in text
    assert "weights and output do not follow from the claimed scores, but are right for the true scores" in text
    assert "from different runs" in text


def test_scores_and_weights_of_different_runs_where_the_scores_are_right() -> None:
    weights = softmax(OTHER / np.sqrt(2))
    marked = mark(some(RIGHT, "scores") | {"weights": weights, "output": weights @ RIGHT["v"]})
    assert status(marked) == {"scores": "right", "weights": "wrong here", "output": "carried over"}
    text = seen(marked)
    assert "It does not follow from the claimed scores, which is right: it may come from another run." in text
    assert "Its rows have the right sums, so it may be a softmax of other scores." in text
    assert "output is carried over" in text


def test_weights_that_are_no_softmax_at_all() -> None:
    weights = softmax(OTHER) + np.array([[0.0], [0.0], [0.02]])
    text = seen(mark(some(RIGHT, "scores") | {"weights": weights}))
    assert "Row [2] sums to 1.06, so it is no softmax." in text


def test_an_input_that_was_copied_wrong() -> None:
    x = X.copy()
    x[1, 0] = 0.52
    text = seen(mark({"x": x}, 2))
    assert "x: copied wrong: [1, 0] (0.52, should be 0.25). It is an input of this layer" in text


# ------------------------------------------------------------------ the command


def test_exit_codes(tmp_path: Path) -> None:
    cases = {"right": RIGHT, "wrong": RIGHT | {"output": RIGHT["output"] + 1}}
    for name, numbers in cases.items():
        (tmp_path / f"{name}.yaml").write_text(written(some(numbers, "weights output")))
    config = "".join(f"{n}: {LAYER[n].tolist()}\n" for n in ("x", "w_q", "w_k", "w_v"))
    (tmp_path / "layer.yaml").write_text(config)
    assert run("check", "layer.yaml", "right.yaml", cwd=tmp_path).returncode == 0
    wrong = run("check", "layer.yaml", "wrong.yaml", cwd=tmp_path)
    assert wrong.returncode == 1
    assert wrong.stdout.rstrip().endswith("1 of 2 steps is right; the first wrong one is output")
    assert run("check", "layer.yaml", cwd=tmp_path).returncode == 2  # nothing is claimed
    assert run("check", "layer.yaml", "nowhere.yaml", cwd=tmp_path).returncode == 2
    some_unread = run("check", "layer.yaml", "-", stdin=written(some(RIGHT, "weights")) + "nonsense: [[1, 2]]\n", cwd=tmp_path)
    assert some_unread.returncode == 1
    assert "not read: " in some_unread.stdout
    quiet = run("check", "layer.yaml", "wrong.yaml", "--quiet", cwd=tmp_path)
    assert (quiet.returncode, quiet.stdout) == (1, "")


def test_json_has_all_that_is_said(tmp_path: Path) -> None:
    wrong = RIGHT["weights"].copy()
    wrong[0, 2] += 0.25
    (tmp_path / "layer.yaml").write_text("".join(f"{n}: {LAYER[n].tolist()}\n" for n in ("x", "w_q", "w_k", "w_v")))
    (tmp_path / "claims.yaml").write_text(written({"A": wrong, "output": wrong @ RIGHT["v"]}))
    result = run("check", "layer.yaml", "claims.yaml", "--format", "json", cwd=tmp_path)
    assert result.returncode == 1
    document = json.loads(result.stdout)
    assert document["right"] is False
    assert document["first_wrong"] == "weights"
    assert document["understood"]
    weights, output = document["steps"]
    assert (weights["name"], weights["claimed_as"], weights["status"]) == ("weights", "A", "wrong here")
    assert (weights["decimals"], weights["wrong"]) == (4, [[0, 2]])
    assert weights["claimed"][0] - weights["right"][0] == pytest.approx(0.25, abs=1e-4)
    assert (output["status"], output["after"], output["after_wrong"]) == ("carried over", ["weights"], ["weights"])
    assert document["findings"] == []


def test_json_of_a_finding(tmp_path: Path) -> None:
    document = json.loads(run("check", "toy", "--format", "json").stdout)
    (finding,) = document["findings"]
    assert (finding["step"], finding["explained"], finding["cells"], finding["open"]) == ("scaled", 15, 16, [[3, 3]])
    first = finding["alternatives"][0][0]
    assert first["key"] == "transposed-w_k"
    assert first["says"] == "w_k used transposed"
    assert all(first[part] for part in ("used", "right", "teaches"))


def test_infinities_and_nan_in_json() -> None:
    config = LAYER | {"mask": "causal"}
    masked = np.where(np.tril(np.ones((3, 3))) == 1, RIGHT["scaled"], -np.inf)
    marker = Marker(attntrace.load(config))
    assert marker.mark([claim("masked", masked, None)]).right
    masked[0, 0], masked[1, 2] = np.nan, 1.0
    marked = marker.mark([claim("masked", masked, 4)])
    out = BytesIO()
    reading = claims_about(attntrace.load(config), {"q": [[0.0]]})
    marks.write_json(marked, reading, attntrace.trace(config), out, None, False)
    (step,) = json.loads(out.getvalue())["steps"]
    assert step["wrong"] == [[0, 0], [1, 2]]
    assert step["claimed"][0] == "NaN"
    assert step["right"][1] == "-Infinity"
    assert "NaN [" in seen(marked, config)
    assert "[−∞]" in seen(marked, config)


def test_labels_and_names_are_untrusted() -> None:
    evil = "\x1b[31mred\x07[bold]x[/]"
    config = LAYER | {"tokens": [evil, "b", "c"]}
    problem = attntrace.load(config)
    marker = Marker(problem)
    wrong = claim("weights", RIGHT["weights"] + 0.3)
    marked = marker.mark([Claim(wrong.name, f"{evil}\nA", wrong.values, wrong.there, wrong.half, evil)])
    for colour in (False, True):
        text = seen(marked, config, colour=colour)
        assert "\x07" not in text
        assert "\x1b[31mred" not in text
    assert r"\x1b[31mred" in seen(marked, config)
    assert "[bold]x[/]" in seen(marked, config) or "…" in seen(marked, config)


def test_colour_and_width_change_no_word() -> None:
    marked = mark(steps(scores=OTHER))
    plain = seen(marked)
    assert "\x1b[" in seen(marked, colour=True)
    assert " ".join(seen(marked, width=70).split()) == " ".join(plain.split())


def test_a_large_matrix_lists_its_first_wrong_cells() -> None:
    q = np.random.default_rng(1).normal(size=(40, 4))
    config = {"q": q, "k": q, "v": q}
    scores = q @ q.T
    scores[3, 7] += 1
    marked = Marker(attntrace.load(config)).mark([claim("scores", scores)])
    text = seen(marked, config)
    assert f"scores[3, 7]  {scores[3, 7]:.4f} [{scores[3, 7] - 1:.4f}]" in text
    assert "exactly 1 of its 1600 cells is wrong: [3, 7]" in text


def test_the_python_face() -> None:
    assert attntrace.check(LAYER, {"weights": np.round(RIGHT["weights"], 3).tolist()}).right
    assert not attntrace.check(LAYER, {"weights": (RIGHT["weights"] + 0.1).tolist()}).right
    with pytest.raises(AttnTraceError, match="nothing is claimed"):
        attntrace.check(LAYER)


def test_the_toy_page_looks_like_this(file_regression: Any) -> None:
    file_regression.check(run("check", "toy").stdout, basename="toy", encoding="utf-8", extension=".txt")


def test_checking_costs_little_more_than_running() -> None:
    """A generous bound; the ratio itself is measured by hand, on a machine that does nothing else."""
    code = (
        "import time, attntrace\n"
        "from attntrace.marking import Marker, claims_about\n"
        "p = attntrace.load('toy'); start = time.process_time()\n"
        "Marker(p).mark(claims_about(p).claims); print(time.process_time() - start)"
    )
    taken = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert float(taken) < 3
