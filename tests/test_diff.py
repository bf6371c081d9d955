"""What `diff` says of two traces: held against NumPy written out, and against what was done to the one to get the other."""

from __future__ import annotations

import json
import re
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import attntrace
from attntrace.cli import commands  # noqa: F401 - registers them
from attntrace.cli.app import app
from attntrace.differ import Comparison, diff
from attntrace.errors import AttnTraceError
from attntrace.render import difference
from attntrace.render.difference import Look, marked, verdict, write

Config = dict[str, Any]


def run(*args: str, code: int = 0, stdin: str | None = None) -> str:
    done = CliRunner().invoke(app, ["diff", *args], input=stdin)
    assert done.exit_code == code, done.output
    return done.stdout if code < 2 else done.stderr


def compared(a: Any, b: Any = None, /, names: list[str] | None = None, index: Any = None, **changes: Any) -> Comparison:
    return diff(attntrace.load(a), attntrace.load(a if b is None else b, **changes), names, index)


def told(c: Comparison, width: int | None = None, **look: Any) -> str:
    out = BytesIO()
    write(c, Look(("a", "b"), width=width, **look), out, marked(c))
    return out.getvalue().decode()


def change(c: Comparison, name: str) -> difference.Change:
    return next(step for step in c.steps if step.name == name)


def layer(seed: int, tokens: int = 5, batch: int | None = None, width: int = 4, **more: Any) -> Config:
    rng = np.random.default_rng(seed)
    lead = () if batch is None else (batch,)
    weights = {name: rng.normal(size=(width, width)) for name in ("w_q", "w_k", "w_v")}
    return {"x": rng.normal(size=(*lead, tokens, width)), **weights, **more}


def softmax(scores: np.ndarray) -> np.ndarray:
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def weights_of(config: Config) -> np.ndarray:
    q, k = config["x"] @ config["w_q"], config["x"] @ config["w_k"]
    return softmax(q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1]))


def entropies(weights: np.ndarray) -> np.ndarray:
    """−Σ w ln w, a row at a time."""
    rows = weights.reshape(-1, weights.shape[-1])
    return np.array([-sum(w * np.log(w) for w in row if w > 0) for row in rows]).reshape(weights.shape[:-1])


# ------------------------------------------------------------------ steps, rows, cells


def test_the_same_trace_twice_differs_in_nothing() -> None:
    c = compared("toy")
    assert not c.differs
    assert verdict(c) == "nothing differs: all 11 steps are the same, number for number"
    assert all(step.same for step in c.steps)
    assert "attends" not in told(c)


def test_nan_is_the_same_as_nan() -> None:
    config = layer(0)
    config["x"][1, 1] = np.nan
    assert not compared(config).differs


def test_a_change_in_the_last_place_is_one() -> None:
    config = layer(1)
    other = config | {"x": config["x"].copy()}
    other["x"][2, 3] = np.nextafter(other["x"][2, 3], np.inf)
    x = change(compared(config, other), "x")
    assert (x.cells, x.at, x.moved("token")) == (1, (2, 3), [2])
    assert x.largest == np.spacing(abs(config["x"][2, 3]))


@pytest.mark.parametrize("seed", range(20))
def test_the_largest_change_of_every_step(seed: int) -> None:
    """Of q, scores and weights, against NumPy: its size and its place."""
    config = layer(seed, batch=[None, 2][seed % 2])
    other = config | {"x": config["x"] + np.random.default_rng(seed).normal(size=config["x"].shape)}
    c = compared(config, other)
    for name, before, after in (
        ("x", config["x"], other["x"]),
        ("q", config["x"] @ config["w_q"], other["x"] @ config["w_q"]),
        ("weights", weights_of(config), weights_of(other)),
    ):
        at = np.unravel_index(np.argmax(np.abs(after - before)), before.shape)
        found = change(c, name)
        assert found.at == at
        assert found.largest == pytest.approx(abs(after[at] - before[at]), rel=1e-10)
        assert (found.before, found.after) == pytest.approx((before[at], after[at]), rel=1e-10)


def test_rows_that_a_causal_mask_protects_stand_still() -> None:
    """The issue's own example, also to the last bit of `run`."""
    out = run("multi-head-causal", "--set", "x[:,3:]=0")
    line = next(line for line in out.splitlines() if line.startswith("output "))
    assert line.endswith("t3, t4; t0 to t2 stand still")
    a, b = attntrace.trace("multi-head-causal"), attntrace.trace("multi-head-causal", sets=["x[:,3:]=0"])
    same = (a["output"].values == b["output"].values).all(axis=(0, 2))
    assert same.tolist() == [True, True, True, False, False]


def test_without_the_mask_they_do_not() -> None:
    found = change(compared("multi-head-causal", sets=["mask=null"]), "output")
    assert found.moved("query") == [0, 1, 2, 3]  # the last token saw all keys before


@pytest.mark.parametrize("seed", range(10))
def test_rows_and_columns_are_those_that_were_touched(seed: int) -> None:
    """One token's x changes: its row of q and k, its row and column of the scores, every row of the weights."""
    rng = np.random.default_rng(seed)
    config, t = layer(seed, tokens=6), int(rng.integers(6))
    other = config | {"x": config["x"].copy()}
    other["x"][t] += rng.normal(size=4)
    c = compared(config, other)
    assert change(c, "q").moved("query") == change(c, "k").moved("key") == [t]
    scores = change(c, "scores").spots
    expected = np.zeros((6, 6), bool)
    expected[t] = expected[:, t] = True
    np.testing.assert_array_equal(scores, expected)
    assert change(c, "weights").moved("query") == list(range(6))
    others = [i for i in range(6) if i != t]
    rows = difference.rows(change(c, "scores"), difference.Names(c))
    assert rows.startswith(f"t{t}; ")
    assert rows.endswith(f"only in column t{t}")
    assert len(others) == scores.sum() - 6


def test_a_batch_item_that_stands_still_is_told() -> None:
    c = compared("multi-head-causal", sets=["x[0,3:]=0"])
    assert difference.rows(change(c, "output"), difference.Names(c)) == "only batch 0: t3, t4; t0 to t2 stand still"
    assert not compared("multi-head-causal", sets=["x[0,3:]=0"], index={"batch": 1}).steps[0].cells


def test_one_batch_item_and_head_keep_their_place_in_the_whole() -> None:
    a, b = attntrace.trace("multi-head-causal"), attntrace.trace("multi-head-causal", sets=["x[:,3:]=0"])
    c = compared("multi-head-causal", sets=["x[:,3:]=0"], index={"batch": 1, "head": -1})
    found, moved = change(c, "scores"), np.abs(a["scores"].values - b["scores"].values)[1, 3]
    assert found.at == (1, 3, *np.unravel_index(np.argmax(moved), moved.shape))
    assert found.largest == moved.max()


def test_a_head_of_a_step_with_no_other_axis() -> None:
    c = compared("sinks", sets=["sinks[1]=4"], index={"head": 1})
    assert (change(c, "sinks").at, change(c, "sinks").largest) == ((1,), 1.0)
    assert change(compared("sinks", sets=["sinks[1]=4"], index={"head": 0}), "sinks").same


def test_steps_of_other_shapes_and_steps_that_one_has() -> None:
    c = compared("toy", "six-tokens")
    assert all(not step.comparable and not step.same for step in c.steps)
    assert "x        4 × 3       6 × 4" in told(c)
    c = compared("toy", sets=["mask=causal"])
    assert c.only == ((), ("mask", "masked"))
    assert c.differs
    assert "only in B: mask, masked" in told(c)
    back = diff(attntrace.load("toy", sets=["mask=causal"]), attntrace.load("toy"))
    assert "only in A: mask, masked" in told(back)


def test_a_step_that_one_alone_has_is_a_difference() -> None:
    """A mask that hides nothing changes no number."""
    c = compared("toy", sets=["mask={keep: [[1, 1, 1, 1]]}"])
    assert [step.name for step in c.steps if not step.same] == []
    assert c.differs
    assert verdict(c) == "2 of 13 steps differ"


def test_infinities_and_nan_are_the_largest_changes() -> None:
    c = compared("toy", sets=["x[1,1]=.inf", "x[2,2]=.nan"])
    assert np.isnan(change(c, "x").largest)
    assert change(c, "x").at == (2, 2)
    line = next(line for line in told(c).splitlines() if line.startswith("x "))
    assert line.split()[1:2] == ["NaN"]
    assert change(compared("toy", sets=["x[1,1]=.inf"]), "x").largest == np.inf


# ------------------------------------------------------------------ what each token attends to


@pytest.mark.parametrize("seed", range(20))
def test_entropies_are_those_of_numpy(seed: int) -> None:
    config = layer(seed, batch=[None, 3][seed % 2])
    other = config | {"x": config["x"] * 2}
    a = compared(config, other).attention
    assert a is not None
    for ours, weights in zip(a.entropy, (weights_of(config), weights_of(other)), strict=True):
        np.testing.assert_allclose(ours, entropies(weights), rtol=1e-10)
    assert ((a.entropy[0] >= 0) & (a.entropy[0] <= np.log(5) + 1e-12)).all()


def test_the_entropy_of_known_rows() -> None:
    """An even row over n keys has ln n nats; a row with all on one key has none."""
    rows = {"q": [[0.0, 0.0]], "k": [[1.0, 0.0]] * 4, "v": [[1.0]] * 4}
    a = compared(rows, rows | {"k": [[2000.0, 0.0]] + [[0.0, 0.0]] * 3, "q": [[1.0, 0.0]]}).attention
    assert a is not None
    assert a.entropy[0][0] == pytest.approx(np.log(4), rel=1e-15)
    assert a.entropy[1][0] == 0


def test_what_a_sink_takes_counts_as_a_weight() -> None:
    config = {"q": [[1.0]], "k": [[1.0], [2.0]], "v": [[1.0], [2.0]], "sinks": [0.5], "scale": 1}
    a = compared(config, sets=["sinks[0]=1.5"]).attention
    assert a is not None
    for ours, z in zip(a.entropy, (0.5, 1.5), strict=True):
        assert ours[0] == pytest.approx(entropies(softmax(np.array([1.0, 2.0, z]))), rel=1e-12)
    one, other = (float(softmax(np.array([1.0, 2.0, z]))[2]) for z in (0.5, 1.5))
    assert f"; the sink takes {one:.4f} → {other:.4f}" in told(compared(config, sets=["sinks[0]=1.5"]))


def test_sharper_evener_and_another_key_in_words() -> None:
    """Exercise 3 of Module 05, its numbers by NumPy: token 0 becomes very unlike the others."""
    x, w_q, w_k = (attntrace.trace("module05")[name].values for name in ("x", "w_q", "w_k"))
    other = np.array([[5.0] * 4, x[1], x[2]])
    before, after = (softmax((y @ w_q) @ (y @ w_k).T / 2) for y in (x, other))
    h, g = entropies(before), entropies(after)
    out = run("module05", "--set", "x[0]=[5,5,5,5]")
    assert f"t0 attends more sharply: entropy {h[0]:.2f} → {g[0]:.2f} nats, now t0 ({after[0, 0]:.4f}) instead of t1" in out
    assert f"t1 attends more sharply: entropy {h[1]:.2f} → {g[1]:.2f} nats, still t1 ({before[1, 1]:.4f} → " in out
    back = told(diff(attntrace.load("module05", sets=["x[0]=[5,5,5,5]"]), attntrace.load("module05")))
    assert f"t0 attends more evenly: entropy {g[0]:.2f} → {h[0]:.2f} nats, now t1" in back


def test_keys_that_are_alike_are_named_together() -> None:
    assert "now t0 (0.8259), before t0 and t3 alike (0.3202)" in run("toy", "--set", "x[0]=[5,5,5]")
    rows = {"q": [[0.0]], "k": [[1.0]] * 3, "v": [[1.0]] * 3}
    assert "now t1 (0.7870), before all keys alike (0.3333)" in told(compared(rows, sets=["q=[[1]]", "k[1]=3"]))


def test_rows_that_attend_to_nothing() -> None:
    hidden, shown = attntrace.load("fully-masked-row"), attntrace.load("fully-masked-row", sets=["mask.keep[0,1]=1"])
    assert "<pad> attends to something now: entropy 0.00 nats, mostly to good (1.0000)" in told(diff(hidden, shown))
    assert "<pad> attends to nothing now, before mostly to good (1.0000)" in told(diff(shown, hidden))


def test_weights_that_became_nan() -> None:
    assert "t2: its weights are NaN now" in told(compared("toy", sets=["x[0,0]=.nan"]))


def test_of_many_rows_those_that_changed_most_are_told() -> None:
    config = layer(5, tokens=40)
    other = config | {"x": config["x"] * np.linspace(1, 2, 40)[:, None]}
    moved = np.abs(entropies(weights_of(other)) - entropies(weights_of(config)))
    out = told(compared(config, other))
    sentences = [int(i) for i in re.findall(r"^  t(\d+) attends", out, re.MULTILINE)]
    assert sentences == np.argsort(-moved.round(2), kind="stable")[: difference.FEW].tolist()
    counted = re.search(r"and (\d+) more rows: ([^;\n]*)", out)
    assert counted
    assert int(counted[1]) == sum(map(int, re.findall(r"(\d+) more (?:sharply|evenly)", counted[2])))
    assert len(out.splitlines()) < 40


def test_rows_that_changed_too_little_to_show() -> None:
    config = layer(6)
    out = told(compared(config, config | {"x": config["x"] * (1 + 1e-9)}))
    assert "5 rows changed too little to show, and still give most to the same key" in out


# ------------------------------------------------------------------ the same tokens in another order


@pytest.mark.parametrize("seed", range(40))
def test_an_order_is_found_without_being_told(seed: int) -> None:
    """Of tokens that are all different there is one order. Rows and columns of the weights move, and rows of the output."""
    rng = np.random.default_rng(seed)
    tokens = int(rng.integers(2, 9))
    config = layer(seed, tokens, batch=[None, 1, 3][seed % 3], heads=[None, 2][seed % 2])
    order = rng.permutation(tokens)
    while (order == np.arange(tokens)).all():
        order = rng.permutation(tokens)
    c = compared(config, config | {"x": config["x"][..., order, :]})
    r = c.reordering
    assert r is not None
    assert r.places.query == r.places.key == tuple(order)
    assert r.agrees, r.first
    assert {m.name: m.axes for m in r.steps if m.name in ("weights", "output")} == {
        "weights": ("query", "key"),
        "output": ("query",),
    }
    assert c.attention is not None
    assert c.attention.steady.all()
    assert verdict(c) == "B is A with its tokens in another order, and nothing else"


@pytest.mark.parametrize("seed", range(20))
def test_tokens_that_are_alike_do_not_hide_an_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    config = layer(seed, 6)
    config["x"] = config["x"][rng.integers(0, 3, 6)]
    order = rng.permutation(6)
    moved = config["x"][order]
    c = compared(config, config | {"x": moved})
    if (moved == config["x"]).all():
        assert not c.differs
    else:
        assert c.reordering is not None
        assert c.reordering.agrees
        np.testing.assert_array_equal(config["x"][list(c.reordering.places.query)], moved)


def test_labels_tell_alike_tokens_apart() -> None:
    config = {**layer(0, 3), "tokens": ["a", "b", "c"]}
    config["x"][1] = config["x"][0]
    c = compared(config, permute="1,0,2")
    assert c.reordering is None  # x is the same as before
    c = compared(config, permute="1,2,0")
    assert c.reordering is not None
    assert c.reordering.places.query == (1, 2, 0)


def test_a_mask_that_moves_along_tells_alike_tokens_apart() -> None:
    """Tokens 1 and 3 are alike and may attend to different keys: only one of the two orders moves the mask too."""
    config, order = layer(3), [3, 0, 4, 2, 1]
    config["x"][3] = config["x"][1]
    keep = np.tril(np.ones((5, 5)))
    c = compared(config | {"mask": {"keep": keep}}, config | {"x": config["x"][order], "mask": {"keep": keep[order][:, order]}})
    assert c.reordering is not None
    assert c.reordering.places.query == tuple(order)
    assert c.reordering.agrees


@pytest.mark.parametrize(
    "change",
    [
        lambda config: {"x": config["x"] + np.eye(5, 4)},
        lambda config: {"x": config["x"][[0, 0, 1, 2, 3]]},
        lambda config: {"x": config["x"][[1, 0, 2, 3, 4]], "w_q": config["w_q"] * 2},
        lambda config: {"x": config["x"][[1, 0, 2, 3, 4]], "dtype": "float32"},
        lambda config: {"x": config["x"][:, ::-1]},
        lambda config: {"w_v": config["w_v"][:, ::-1]},
    ],
    ids=["other numbers", "a token twice", "other weights", "another dtype", "features reordered", "the same tokens"],
)
def test_no_order_is_found_where_there_is_none(change: Any) -> None:
    config = layer(7)
    c = compared(config, config | change(config))
    assert c.differs
    assert c.reordering is None


def test_one_order_for_all_batch_items_or_none() -> None:
    config = layer(8, batch=2)
    other = np.stack([config["x"][0], config["x"][1][[1, 0, 2, 3, 4]]])
    assert compared(config, config | {"x": other}).reordering is None


def test_keys_and_queries_may_be_reordered_apart() -> None:
    rng = np.random.default_rng(9)
    config = {"q": rng.normal(size=(3, 2)), "k": rng.normal(size=(5, 2)), "v": rng.normal(size=(5, 3))}
    order = [3, 0, 4, 2, 1]
    c = compared(config, config | {"k": config["k"][order], "v": config["v"][order]})
    assert c.reordering is not None
    assert (c.reordering.places.query, c.reordering.places.key) == ((0, 1, 2), tuple(order))
    assert c.reordering.agrees
    out = told(c)
    assert "B has the keys of A in another order: t3, t0, t4, t2, t1\n" in out
    assert re.search(r"✓ output: the same numbers( \(to rounding: \S+\))?, where they were", out)
    assert compared(config, config | {"k": config["k"][order]}).reordering is None  # values belong to their keys


def test_keys_of_a_cache_stay() -> None:
    rng = np.random.default_rng(10)
    cache = {"k": rng.normal(size=(2, 4)), "v": rng.normal(size=(2, 4))}
    c = compared(layer(10, 3, cache=cache), permute="2,0,1")
    assert c.reordering is not None
    assert c.reordering.agrees
    assert "t4, t2, t3 (--permute 2,0,1)" in told(c)


@pytest.mark.parametrize(
    ("part", "culprit"),
    [
        ({"mask": "causal"}, "mask"),
        ({"mask": {"window": {"left": 1, "right": 1}}}, "mask"),
        ({"rope": {"pairs": "half"}}, "positions"),
        ({"alibi": True}, "distance"),
        ({"dropout": {"rate": 0.5, "seed": 1}}, "keep"),
        ({"mask": "causal", "core": {"tiled": {"queries": 2, "keys": 2}}}, "mask"),
        ({"alibi": True, "core": {"ring": {"devices": 2}}}, "distance"),
    ],
)
def test_what_goes_by_place_is_named(part: Config, culprit: str) -> None:
    c = compared(layer(11, **part), permute="2,0,1,4,3")
    r = c.reordering
    assert r is not None
    assert not r.agrees
    assert difference.cause(r) == culprit
    assert difference.BY_PLACE[culprit] in told(c)
    assert verdict(c) != "B is A with its tokens in another order, and nothing else"


def test_something_else_that_changed_is_no_matter_of_place() -> None:
    c = compared(layer(12), sets=["scale=1"], permute="1,0,2,3,4")
    assert c.reordering is not None
    assert c.reordering.first is not None
    assert c.reordering.first.name == "scaled"
    assert "the first step that has not merely moved is scaled\n" in told(c)


@pytest.mark.parametrize("core", [{"tiled": {"queries": 2, "keys": 2}}, {"ring": {"devices": 2}}])
def test_tiles_meet_other_tokens(core: Config) -> None:
    c = compared(layer(13, core=core), permute="4,3,2,1,0")
    assert c.reordering is not None
    assert c.reordering.agrees
    assert "scores_0_0" in c.reordering.silent
    assert [m.name for m in c.reordering.steps if m.name == "output"] == ["output"]


def test_rows_that_are_traced_are_told_of_and_others_are_not() -> None:
    config = layer(14, tokens=6)
    moved = config | {"x": config["x"][[1, 0, 2, 3, 5, 4]]}
    for queries, silent in (("0:3", False), ("0:1", True)):
        r = diff(attntrace.load(config, queries=queries), attntrace.load(moved, queries=queries)).reordering
        assert r is not None
        assert ("weights" in r.silent) is silent
        assert r.agrees


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_orders_in_every_dtype(dtype: str) -> None:
    pytest.importorskip("ml_dtypes")
    c = compared(layer(15, tokens=9, dtype=dtype), permute="3,1,4,8,0,5,2,6,7")
    assert c.reordering is not None
    assert c.reordering.agrees, c.reordering.first


def test_a_planted_fault_is_not_taken_for_rounding() -> None:
    config = layer(16)
    c = compared(config, config | {"x": config["x"][[1, 0, 2, 3, 4]], "scale": 0.5 * (1 + 1e-9)})
    assert c.reordering is not None
    assert c.reordering.first is not None


def test_two_files_and_the_swap_of_module_05(tmp_path: Path) -> None:
    """The independent challenge: two rows of X change places, and nobody says so."""
    x = attntrace.trace("six-tokens")["x"].values
    text = "".join(f"{name}: {attntrace.trace('six-tokens')[name].values.tolist()}\n" for name in ("w_q", "w_k", "w_v"))
    for name, order in (("a", [0, 1, 2, 3, 4, 5]), ("b", [0, 1, 4, 3, 2, 5])):
        (tmp_path / f"{name}.yaml").write_text(f"x: {x[order].tolist()}\n{text}")
    out = run(str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml"))
    assert "B has the tokens of A in another order: t2 and t4 have changed places\n" in out
    assert re.search(r"✓ weights: the same numbers.*, moved with the tokens: its rows and columns\n", out)
    assert re.search(r"✓ output: the same numbers.*, moved with the tokens: its rows\n", out)
    line = next(line for line in out.splitlines() if line.startswith("output "))
    assert line.endswith("t2, t4; t0, t1, t3, t5 stand still")


# ------------------------------------------------------------------ the command


def test_exit_codes_are_those_of_git() -> None:
    run("toy", "toy", "--exit-code")
    run("toy", "--set", "x[0]=5", code=0)
    run("toy", "--set", "x[0]=5", "--exit-code", code=1)
    run("toy", "--set", "mask={keep: [[1, 1, 1, 1]]}", "--exit-code", code=1)
    run("toy", "six-tokens", "--exit-code", code=1)
    run("toy", "--set", "scale=auto", "--exit-code", code=0)
    run("multi-head-causal", "--set", "x[0]=0", "--batch", "1", "--exit-code", code=0)
    assert run("toy", "--set", "x[0]=5", "--exit-code", "--quiet", code=1) == ""


def test_options_that_change_go_to_b_and_those_that_pick_to_both(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text(
        "x: [[1, 0], [0, 1], [1, 1]]\nw_q: [[1, 2], [0, 1]]\nw_k: [[1, 0], [1, 1]]\nw_v: [[2, 0], [0, 3]]\n"
    )
    b = str(tmp_path / "b.yaml")
    assert "nothing differs" in run(b, b)
    x = json.loads(run(b, b, "--set", "x[1]=7", "--format", "json"))["steps"][0]
    assert (x["before"], x["after"]) == (0.0, 7.0)
    found = json.loads(run("--tokens", "6", "--seed", "3", "--queries", "0:2", "--steps", "x,weights", "--format", "json"))
    assert [step["shape"] for step in found["steps"]] == [[6, 4], [2, 6]]
    assert found["a"]["title"] != "Module 05: self-attention, three tokens"


def test_standard_input_serves_both() -> None:
    text = "x: [[1, 0], [0, 1]]\nw_q: [[1, 2], [0, 1]]\nw_k: [[1, 0], [1, 1]]\nw_v: [[2, 0], [0, 3]]\n"
    assert "B  A with --permute 1,0" in run("-", "--permute", "1,0", stdin=text)
    assert "nothing differs" in run("-", "-", stdin=text)
    out = run("-", "toy", stdin=text)
    assert out.startswith("A  standard input\nB  toy · ")


def test_json_holds_everything_exactly() -> None:
    strict = json.loads(run("multi-head-causal", "--set", "x[:,3:]=0", "--format", "json"), parse_constant=pytest.fail)
    a, b = attntrace.trace("multi-head-causal"), attntrace.trace("multi-head-causal", sets=["x[:,3:]=0"])
    output = strict["steps"][-1]
    assert output["name"] == "output"
    assert output["changed"] == {"batch": [0, 1], "query": [3, 4]}
    at = tuple(output["at"])
    assert (output["before"], output["after"]) == (a["output"].values[at], b["output"].values[at])
    assert output["cells"] == (a["output"].values != b["output"].values).sum()
    np.testing.assert_allclose(strict["attention"]["entropy"]["after"], entropies(b["weights"].values), rtol=1e-12, atol=1e-15)
    assert strict["attention"]["argmax"]["before"] == a["weights"].argmax.tolist()
    assert (strict["differs"], strict["reordering"], strict["only_in_a"]) == (True, None, [])
    moved = json.loads(run("six-tokens", "--permute", "0,1,4,3,2,5", "--format", "json"))["reordering"]
    assert (moved["query"], moved["agrees"], moved["first_that_is_not_moved"]) == ([0, 1, 4, 3, 2, 5], True, None)
    masked = json.loads(
        run("toy", "--set", "mask=causal", "--set", "x[0,0]=.nan", "--format", "json"), parse_constant=pytest.fail
    )
    assert masked["steps"][0]["after"] == "NaN"
    assert masked["only_in_b"] == ["mask", "masked"]


def test_only_some_steps() -> None:
    found = json.loads(run("toy", "--set", "mask=causal", "--steps", "output,masked", "--format", "json"))
    assert [step["name"] for step in found["steps"]] == ["output"]
    assert found["only_in_b"] == ["masked"]
    assert found["attention"] is None


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ("toy",),
            "error: nothing to hold A against: give another config as B, or a change such as --set scale=1, --permute 1,0,2 or "
            "--seed 7",
        ),
        (
            ("toy", "--steps", "weights"),
            "error: nothing to hold A against: give another config as B, or a change such as --set scale=1, --permute 1,0,2 or "
            "--seed 7",
        ),
        (
            ("toy", "toi"),
            'error: toi: there is no such file, and no bundled example of that name; did you mean "toy"? (attntrace '
            "examples lists them)",
        ),
        (("toy", "--permute", "1,0"), "error: --permute 1,0: expected each of 0 to 3 once, such as 1,0,2,3"),
        (
            ("toy", "--set", "x[9]=1"),
            "error: --set x[9]=1: x[9]: index 9 is out of range: axis 0 has 4 entries, numbered 0 to 3",
        ),
        (("toy", "toy", "--steps", "wieghts"), "error: there is no step 'wieghts' in either trace; did you mean \"weights\"?"),
        (("toy", "toy", "--head", "1"), "error: --head 1: this trace has no head axis"),
        (
            ("multi-head-causal", "--set", "scale=1", "--batch", "2"),
            "error: --batch 2: out of range: there are 2, numbered 0 to 1",
        ),
        (
            ("toy", "--set", "scale=1", "--tokens", "3"),
            "error: --tokens shapes the default example and goes without a CONFIG; change a config with --set",
        ),
        (("toy", "toy", "--format", "csv"), None),
    ],
)
def test_errors_word_for_word(args: tuple[str, ...], message: str | None) -> None:
    err = run(*args, code=2)
    assert message is None or err == f"{message}\n"


def test_two_traces_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attntrace.differ.available", lambda: 1000)
    with pytest.raises(AttnTraceError) as caught:
        compared("toy", sets=["scale=1"])
    assert re.fullmatch(
        r"these two traces need \S+ KiB of memory and 1000 bytes are free: use fewer tokens, a smaller dtype, only some "
        "queries with --queries, or only some steps with --steps",
        caught.value.faults[0].message,
    )


def test_labels_are_harmless() -> None:
    config = {**layer(17, 2), "tokens": ["\x1b[31mred", "[bold]x[/]"]}
    out = told(compared(config, permute="1,0"))
    assert "\x1b" not in out
    assert "[bold]x[/]" in out


def test_notes_that_one_trace_alone_gives_rise_to() -> None:
    notes = [note.message for note in marked(compared("module05", sets=["x[0]=[5,5,5,5]"]))]
    assert len(notes) == 1
    assert notes[0].startswith("in B alone: weights[0]: one key takes more than 99.99%")
    assert not marked(compared("toy"))


# ------------------------------------------------------------------ presentation

CASES: dict[str, tuple[Comparison, dict[str, Any]]] = {
    "exercise-3": (compared("module05", sets=["x[0]=[5,5,5,5]"]), {"width": 80}),
    "challenge": (compared("six-tokens", permute="0,1,4,3,2,5"), {}),
    "challenge-60": (compared("six-tokens", permute="0,1,4,3,2,5"), {"width": 60}),
    "challenge-40": (compared("six-tokens", permute="0,1,4,3,2,5", names=["x", "output"]), {"width": 40}),
    "causal-80": (compared("multi-head-causal", sets=["x[:,3:]=0"]), {"width": 80}),
    "rope-140": (compared("rope-half", permute="1,0,2,3"), {"width": 140}),
    "tiles": (compared("flash", permute="1,0,2,3,4"), {"width": 100}),
    "other-shapes": (compared("toy", "kv-cache"), {"width": 80}),
    "colour": (compared("sinks", sets=["sinks[1]=4"]), {"width": 100, "colour": True}),
    "nothing": (compared("toy"), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str, file_regression: Any) -> None:
    c, look = CASES[name]
    text = told(c, **look)
    file_regression.check(text, basename=name, encoding="utf-8", extension=".txt")
    if look.get("width") and not look.get("colour"):
        assert all(len(line) <= look["width"] for line in text.splitlines())
