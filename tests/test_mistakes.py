"""Every mistake that `check` knows, planted by other means: attention is written out in NumPy, in benchmarks/slips.py, with the
mistake made in it. What comes out is claimed, and the mistake must be named, alone or with others that NumPy says come to the
same. How often that goes well on random layers is counted by benchmarks/diagnosis.py, of which a little is run here."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attntrace
from attntrace.claims import Claim
from attntrace.marking import Marker
from attntrace.mistakes import known

BENCHMARKS = Path(__file__).parent / "benchmarks"


def loaded(name: str) -> Any:
    spec = spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


slips = loaded("slips")


def normal(seed: int, *shape: int, size: float = 1.0) -> np.ndarray:
    return size * np.random.default_rng(seed).normal(size=shape)


def square(width: int, *names: str) -> dict[str, np.ndarray]:
    return {name: normal(10 + i, width, width, size=0.6) for i, name in enumerate(names)}


def biases(width: int, *names: str) -> dict[str, np.ndarray]:
    return {name: normal(20 + i, width) for i, name in enumerate(names)}


WEIGHTS, BIASES = ("w_q", "w_k", "w_v", "w_o"), ("b_q", "b_k", "b_v", "b_o")
BATCH = {"x": normal(1, 2, 5, 12), **square(12, *WEIGHTS)}
SELF = {"x": normal(1, 5, 6), **square(6, "w_q", "w_k", "w_v")}
CACHED = {"cache": {"k": normal(5, 2, 3, 4), "v": normal(6, 2, 3, 4)}}
WINDOW = {"window": {"left": 1, "right": 1}}
# Small layers in which, together, every mistake can be made and seen.
LAYERS: dict[str, dict[str, Any]] = {
    "plain": SELF | {"scale": 0.3},
    "long": {"x": normal(1, 4, 8), **square(8, "w_q", "w_k", "w_v"), "heads": 4},
    "large": {"x": 60 * normal(1, 4, 6), **square(6, "w_q", "w_k", "w_v")},
    "larger": {"x": 60 * normal(1, 2, 4, 6), **square(6, "w_q", "w_k", "w_v"), "heads": 2},
    "heads": BATCH | biases(12, *BIASES) | {"heads": 2},
    "no w_o": {"x": normal(1, 5, 12), **square(12, "w_q", "w_k", "w_v"), "heads": 3, "mask": "causal"},
    "fused": {"x": normal(1, 4, 6), "w_qkv": normal(2, 6, 18), "b_qkv": normal(3, 18), "heads": 3},
    "by head": {"x": normal(1, 4, 6), "w_qkv": normal(2, 6, 18), "heads": 3, "qkv_layout": "per-head"},
    "by group": {"x": normal(1, 4, 16), "w_qkv": normal(2, 16, 16), "heads": 4, "kv_heads": 2},
    "grouped": {
        "x": normal(1, 4, 8), "w_q": normal(2, 8, 16), "w_k": normal(3, 8, 8), "w_v": normal(4, 8, 8),
        "heads": 4, "kv_heads": 2,
    },
    "given": {"q": normal(1, 4, 3), "k": normal(2, 4, 3), "v": normal(3, 4, 3)},
    "cross": {"x": normal(1, 4, 6), "x_kv": normal(2, 4, 6), **square(6, "w_q", "w_k", "w_v")},
    "causal and padding": BATCH | {"heads": 2, "mask": ["causal", {"padding": [3, 5]}]},
    "causal in batch": BATCH | {"heads": 3, "mask": "causal"},
    "window and padding": BATCH | {"heads": 2, "mask": [WINDOW, {"padding": [2, 4]}]},
    "window": SELF | {"mask": WINDOW},
    "empty rows": SELF | {"mask": {"keep": [[0] * 5, [0] * 5, [0] * 5, [1, 0, 1, 1, 0], [1, 1, 1, 0, 0]]}},
    "kept": SELF | {"mask": {"keep": [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 0, 1, 1, 0], [1, 1, 1, 1, 0]]}},
    "kept and causal": SELF | {"mask": [{"keep": [[1, 1, 0, 1, 1]] * 5}, WINDOW]},
    "top left": {"q": normal(1, 3, 4), "k": normal(2, 5, 4), "v": normal(3, 5, 4), "mask": {"causal": "top-left"}},
    "bottom right": {"q": normal(1, 3, 4), "k": normal(2, 5, 4), "v": normal(3, 5, 4), "mask": {"causal": "bottom-right"}},
    "padded top left": {
        "q": normal(1, 2, 2, 3, 4), "k": normal(2, 2, 2, 6, 4), "v": normal(3, 2, 2, 6, 4), "heads": 2,
        "mask": [{"causal": "top-left"}, {"padding": [4, 5]}],
    },
    "rope half": SELF | {"rope": {"pairs": "half"}, "mask": "causal"},
    "rope interleaved": SELF | {"rope": {"pairs": "interleaved", "base": 100}},
    "rope and cache": BATCH
    | {"x": normal(1, 2, 8), **square(8, "w_q", "w_k", "w_v"), "w_o": normal(4, 8, 8), "heads": 2, **CACHED}
    | {"rope": {"pairs": "half"}},
    "cache": {"x": normal(1, 2, 8), **square(8, "w_q", "w_k", "w_v"), "b_k": 3 * normal(8, 8), "heads": 2, **CACHED},
    "cache and mask": {"x": normal(1, 2, 8), **square(8, "w_q", "w_k", "w_v"), "heads": 2, **CACHED, "mask": "causal"},
    "alibi": {"x": normal(1, 5, 6), **square(6, "w_q", "w_k", "w_v"), "heads": 3, "alibi": True},
    "alibi slopes": {"x": normal(1, 5, 6), **square(6, "w_q", "w_k", "w_v"), "heads": 2, "alibi": {"slopes": [0.3, 0.7]}},
    "softcap": SELF | {"softcap": 1.0, "mask": "causal"},
    "sinks": {"x": normal(1, 5, 6), **square(6, "w_q", "w_k", "w_v"), "heads": 2, "sinks": [0.5, 1.5]},
    "dropout": SELF | {"dropout": {"rate": 0.25, "seed": 3}},
    "linear": SELF | {"weight_layout": "out_in", "b_q": normal(7, 6), "b_k": normal(8, 6), "b_v": normal(9, 6)},
}  # fmt: skip


class Posed:
    """A layer, its right numbers by NumPy, and the marker of claims about it."""

    def __init__(self, name: str) -> None:
        self.config = dict(LAYERS[name])
        problem = attntrace.load(self.config)
        if "keep" in problem.arrays:
            self.config["--keep"] = problem.arrays["keep"]
        self.marker, self.right = Marker(problem), slips.layer(self.config)
        self.slips = slips.possible(self.config)

    def made(self, slip: str) -> dict[str, np.ndarray]:
        steps = slips.layer(self.config, [slip])
        return {n: a for n, a in steps.items() if n in self.marker.truth and self.marker.truth[n].shape == a.shape}

    def visible(self, slip: str) -> bool:
        """Whether the output shows it, to four decimals: by one unit in the last place or more."""
        with np.errstate(all="ignore"):
            off = ~(np.abs(self.made(slip)["output"] - self.right["output"]) <= 2e-4)
        return bool(off.sum() > off.size / 3)


@cache
def posed(name: str) -> Posed:
    return Posed(name)


def claim(name: str, values: np.ndarray, decimals: int | None) -> Claim:
    half = 0.0 if decimals is None else 0.5 * 10.0**-decimals
    written = values if decimals is None else np.round(values, decimals)
    return Claim(name, name, written, np.ones(values.shape, bool), np.full(values.shape, half), "test")


def close(a: np.ndarray, b: np.ndarray, tolerance: float) -> bool:
    return np.allclose(a, b, rtol=1e-8, atol=tolerance, equal_nan=True)


@cache
def seen_in() -> dict[str, list[str]]:
    """Every slip, and the layers whose output shows it."""
    layers: dict[str, list[str]] = {}
    for name in LAYERS:
        for slip in posed(name).slips:
            layers.setdefault(slip, []).extend([name] if posed(name).visible(slip) else [])
    return layers


ALWAYS = ("rope-all", "rounded", "dtype", "softmax-matrix-max-float32")  # of which the output may show nothing
SLIPS = sorted({slip for name in LAYERS for slip in slips.possible(LAYERS[name])})


@pytest.mark.parametrize("slip", [s for s in SLIPS if not s.startswith(ALWAYS)])
@pytest.mark.parametrize("decimals", [4, None])
def test_a_mistake_is_named_by_the_output_alone(slip: str, decimals: int | None) -> None:
    layers = seen_in()[slip]
    assert layers, "no layer of these shows it"
    lay = posed(layers[0])
    output = lay.made(slip)["output"]
    (finding,) = lay.marker.mark([claim("output", output, decimals)]).findings
    assert finding.complete
    named = [[m.key for m in each] for each in finding.alternatives]
    assert [slip] in named
    for key in (k for (k,) in named if k in lay.slips):
        assert close(lay.made(key)["output"], output, 0 if decimals is None else 1.01e-4), f"{key} is not {slip}"


@pytest.mark.parametrize("slip", [s for s in SLIPS if not s.startswith(("dtype", "rounded", "softmax-matrix-max-float32"))])
def test_a_mistake_is_named_where_it_is_made(slip: str) -> None:
    """All steps are claimed: the first one that the mistake changes is wrong here, and what follows from it is carried over."""
    name = next(n for n in (*seen_in()[slip], *LAYERS) if slip in posed(n).slips)
    lay, made = posed(name), posed(name).made(slip)
    order = [n for n in lay.marker.truth.names if n in made]
    changed = [n for n in order if not close(made[n], lay.right[n], 1e-9)] if order else []
    marked = lay.marker.mark([claim(n, made[n], 6) for n in order])
    first = marked.first_wrong
    assert first is not None
    assert first.name == changed[0]
    finding = marked.finding(first)
    assert finding is not None
    assert slip in [m.key for each in finding.alternatives for m in each]


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
def test_a_coarser_dtype_is_named(kind: str) -> None:
    lay = posed("heads")
    output = lay.made(f"dtype-{kind}")["output"]
    (finding,) = lay.marker.mark([claim("output", output, None)]).findings
    assert [[m.key for m in each] for each in finding.alternatives] == [[f"dtype-{kind}"]]


@pytest.mark.parametrize("n", range(4))
def test_rounding_on_the_way_is_named_where_more_digits_are_claimed(n: int) -> None:
    lay = posed("plain")
    for slip in (f"rounded-{n}", f"rounded-{n}-too"):
        written = 6 if slip == f"rounded-{n}" else n + 2
        marked = lay.marker.mark([claim(name, a, written) for name, a in lay.made(slip).items()])
        assert not marked.right
        assert {m.key for f in marked.findings for each in f.alternatives for m in each} >= {slip}


@pytest.mark.parametrize("n", [2, 3, 4])
def test_rounding_on_the_way_is_right_where_no_more_digits_are_claimed(n: int) -> None:
    lay = posed("plain")
    assert lay.marker.mark([claim(name, a, n) for name, a in lay.made(f"rounded-{n}-too").items()]).right


# ------------------------------------------------------------------ two mistakes


@pytest.mark.parametrize(
    ("layer", "made"),
    [
        ("heads", ("transposed-w_k", "scale-none")),
        ("heads", ("without-b_q", "merge-without-transpose")),
        ("causal in batch", ("mask-transposed", "softmax-base-2")),
        ("causal and padding", ("swapped-w_q-w_k", "mask-zero")),
        ("grouped", ("groups-tiled", "average-by-columns")),
        ("rope half", ("rope-pairs", "scale-no-root")),
        ("softcap", ("softcap-none", "scale-multiplied")),
        ("fused", ("layout-per-head", "softmax-over-queries")),
        ("cache and mask", ("cache-order", "scale-none")),
        ("no w_o", ("heads-2", "scale-no-root")),
        ("alibi", ("alibi-sign", "transposed-w_v")),
    ],
)
def test_two_mistakes_made_together_are_named_by_the_output(layer: str, made: tuple[str, str]) -> None:
    lay = posed(layer)
    output = slips.layer(lay.config, made)["output"]
    (finding,) = lay.marker.mark([claim("output", output, 5)]).findings
    assert finding.complete
    assert set(made) in [{m.key for m in each} for each in finding.alternatives]


def test_two_steps_with_a_mistake_each_are_told_apart() -> None:
    lay = posed("heads")
    made = slips.layer(lay.config, ("transposed-w_k", "softmax-over-queries", "merge-without-transpose"))
    marked = lay.marker.mark([claim(n, a, 5) for n, a in made.items()])
    status = {v.name: v.status for v in marked.verdicts}
    assert [n for n, s in status.items() if s == "wrong here"] == ["k", "weights", "concat"]
    assert {n for n, s in status.items() if s == "carried over"} == {"scores", "scaled", "context", "output"}
    assert [f.alternatives[0][0].key for f in marked.findings] == [
        "transposed-w_k",
        "softmax-over-queries",
        "merge-without-transpose",
    ]


def test_what_explains_most_claims_is_named_first() -> None:
    lay = posed("heads")
    made = slips.layer(lay.config, ("transposed-w_q-w_k-w_v",))
    marked = lay.marker.mark([claim(n, a, 4) for n, a in made.items()])
    assert [f.step for f in marked.findings] == ["q", "k", "v"]
    assert {f.alternatives[0][0].key for f in marked.findings} == {"transposed-w_q-w_k-w_v"}


# ------------------------------------------------------------------ the catalogue


@cache
def everything() -> dict[str, list[Any]]:
    return {name: list(known(posed(name).marker.plain)) for name in LAYERS}


def test_every_known_mistake_is_planted_here() -> None:
    """But for other numbers of the same: bases, heads and decimals, and transposed weights some of which are square."""
    keys = {m.key for mistakes in everything().values() for m in mistakes}
    numbered = ("rope-base-", "heads-", "rounded-")
    others = {"mask-row-nan", "average-plain-q", "transposed-w_q-w_k", "transposed-w_k-w_v"}
    assert {k for k in keys - set(SLIPS) if not k.startswith(numbered)} <= others
    assert set(SLIPS) <= keys


@pytest.mark.parametrize("name", LAYERS)
def test_descriptions_are_whole_and_distinct(name: str) -> None:
    mistakes = everything()[name]
    for m in mistakes:
        assert m.says.strip() == m.says != ""
        assert m.used
        assert m.right
        assert m.used != m.right
        assert m.teach.endswith(".")
        assert len(m.teach) > 20
    assert len({m.key for m in mistakes}) == len(mistakes)
    assert len({m.says for m in mistakes}) == len(mistakes)


def test_a_row_without_keys_may_be_nan() -> None:
    """0 / 0, where this trace gives zeros."""
    config = SELF | {"mask": {"keep": [[0] * 5, *[[1] * 5] * 4]}}
    marker = Marker(attntrace.load(config))
    weights = slips.layer(config)["weights"]
    weights[0] = np.nan
    (finding,) = marker.mark([claim("weights", weights, 4)]).findings
    assert "mask-row-nan" in [m.key for each in finding.alternatives for m in each]


# ------------------------------------------------------------------ what the numbers themselves suggest


def test_another_order_of_rows_and_a_transposed_matrix_are_recognised() -> None:
    lay = posed("plain")
    order = [2, 0, 1, 4, 3]
    for values, key in (
        (lay.right["weights"][order], "order-rows"),
        (lay.right["weights"][:, order], "order-columns"),
        (lay.right["weights"].T, "order-transposed"),
    ):
        (finding,) = lay.marker.mark([claim("weights", values, 4)]).findings
        assert [m.key for m in finding.alternatives[0]] == [key]
    says = lay.marker.mark([claim("weights", lay.right["weights"][order], 4)]).findings[0].alternatives[0][0].says
    assert "0 is 2, 1 is 0, 2 is 1, 3 is 4, 4 is 3" in says


@pytest.mark.parametrize("rate", [0.1, 0.25, 0.5])
def test_dropout_that_should_be_off_is_recognised_by_its_zeros(rate: float) -> None:
    lay = posed("plain")
    keep = np.random.default_rng(4).random((5, 5)) >= rate
    keep[0, 0] = False
    for factor, key in ((1 / (1 - rate), "dropout-on"), (1.0, "dropout-on-not-rescaled")):
        (finding,) = lay.marker.mark([claim("weights", lay.right["weights"] * keep * factor, 4)]).findings
        (mistake,) = finding.alternatives[0]
        assert mistake.key == key
        if key == "dropout-on":
            assert f"{rate:g}" in mistake.says


# ------------------------------------------------------------------ nearly, and not at all


def test_a_mistake_that_explains_nearly_all_is_offered_with_the_cells_left_open() -> None:
    lay = posed("heads")
    output = lay.made("transposed-w_v")["output"].copy()
    output[1, 2, 3] += 0.7
    (finding,) = lay.marker.mark([claim("output", output, 5)]).findings
    assert not finding.complete
    assert finding.alternatives[0][0].key == "transposed-w_v"
    assert (finding.explained, finding.cells, finding.open) == (119, 120, ((1, 2, 3),))


def test_noise_is_no_mistake() -> None:
    lay = posed("plain")
    noise = np.random.default_rng(5)
    for size in (1e-3, 0.1, 1.0):
        claims = [claim(n, a + noise.normal(scale=size, size=a.shape), 6) for n, a in lay.right.items()]
        marked = lay.marker.mark(claims)
        assert not marked.findings
        assert {v.status for v in marked.verdicts} == {"wrong here"}


def test_a_single_wrong_cell_is_no_mistake() -> None:
    lay = posed("plain")
    for name in ("scores", "weights", "output"):
        for by in (1e-4, 0.01, 0.5):
            values = np.round(lay.right[name], 4)
            values[1, 1] += by
            steps = {n: lay.right[n] for n in ("q", "k", "v", "scores", "scaled", "weights", "output")} | {name: values}
            marked = lay.marker.mark([claim(n, a, 4) for n, a in steps.items()])
            assert not marked.findings
            assert all(v.status != "wrong here" or v.name in (name, "scaled", "output", "weights") for v in marked.verdicts)


def test_the_benchmark_runs_and_accuses_nobody() -> None:
    command = [sys.executable, str(BENCHMARKS / "diagnosis.py"), "--quick"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert "ALL SINGLE MISTAKES" in run.stdout, run.stderr
    found = re.search(r"(\d+) right claims, (\d+) sets with a claim found wrong", run.stdout)
    assert found is not None
    assert int(found[1]) >= 150
    assert int(found[2]) == 0
    rows = [line.split() for line in run.stdout.splitlines() if line.startswith("ALL SINGLE")]
    visible, named = (int(n) for n in rows[0][-4:-2])
    assert visible >= 40
    assert named >= 0.95 * visible
