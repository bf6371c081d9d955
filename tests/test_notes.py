"""Notes: each is given for a config that deserves it, about the right step and cell, and not for its clean neighbour."""

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attntrace

Config = dict[str, Any]

EYE = [[1, 0], [0, 1]]
X = [[1, 2], [3, 5], [8, 13]]
LAYER: Config = {"x": X, "w_q": [[1, 0, 1], [0, 1, 0]], "w_k": [[0.01, 0, 0.1], [0, 0.01, 0]], "w_v": [[1], [2]]}
DIRECT: Config = {"q": [[1, 0], [0, 1]], "k": [[0.5, 0.25], [0.75, 1]], "v": [[1], [2]]}
BATCHED: Config = {"q": np.ones((2, 2, 2, 1)), "k": np.arange(8.0).reshape(2, 2, 2, 1), "v": np.ones((2, 2, 2, 1))}
RANDOM: Config = {name: {"draw": "normal", "shape": [3, 3], "seed": 1} for name in ("x", "w_q", "w_k", "w_v")}


def notes(config: Any, **options: Any) -> list[Any]:
    return attntrace.notes(attntrace.trace(config, **options))


def with_code(code: str, config: Any, **options: Any) -> list[Any]:
    return [note for note in notes(config, **options) if note.code == code]


def with_cell(name: str, index: tuple[int, ...], value: float, config: Config = LAYER) -> Config:
    array = np.array(config[name], dtype=float)
    array[index] = value
    return {**config, name: array}


# code: (a config that deserves it, one that does not, the step it is about, what its message says)
NOTES: dict[str, tuple[Config, Config, str | None, tuple[str, ...]]] = {
    "tiles": (
        {**LAYER, "core": {"tiled": {"queries": 2, "keys": 1}}},
        LAYER,
        None,
        ("never materialised: the 9 scores (3 × 3)", "the largest tile holds 2"),
    ),
    "nan-input": (with_cell("x", (1, 0), np.nan), LAYER, "x", ("NaN in x[1, 0]",)),
    "nan": (with_cell("w_q", (1, 0), np.nan), LAYER, "q", ("first NaN computed: q[0, 0]", "it comes from w_q[1, 0]")),
    "overflow-input": (with_cell("w_v", (0, 0), np.inf), LAYER, "w_v", ("infinity in w_v[0, 0]",)),
    "overflow": (
        {**DIRECT, "q": [[300, 0], [0, 1]], "k": [[300, 0], [0, 1]], "dtype": "float16"},
        {**DIRECT, "q": [[300, 0], [0, 1]], "k": [[300, 0], [0, 1]], "dtype": "bfloat16"},
        "scores",
        ("scores[0, 0]", "beyond the largest float16, 6.55e+04"),
    ),
    "masked-row": (
        {**DIRECT, "mask": {"keep": [[0, 0], [1, 1]]}},
        {**DIRECT, "mask": {"keep": [[1, 0], [1, 1]]}},
        "weights",
        ("weights[0]", "zeros, as torch's scaled_dot_product_attention"),
    ),
    "tie": ({**DIRECT, "q": [[0, 0], [0, 1]]}, DIRECT, "weights", ("weights[0]", "keys 0, 1 alike; the first is marked")),
    "sunk": (
        {**DIRECT, "sinks": [20]},
        {**DIRECT, "sinks": [2]},
        "sink_weights",
        ("sink_weights[0], sink_weights[1]:", "more than 99.99% of the weight", "next to nothing is left to the keys"),
    ),
    "rope-precision": (
        {**DIRECT, "dtype": "float16", "rope": {"pairs": "half", "positions": [0, 131071]}},
        {**DIRECT, "dtype": "float16", "rope": {"pairs": "half", "positions": [0, 4095]}},
        "angles",
        ("angles reach 131071 radians, where float32 is no finer than about 0.02",),
    ),
    "saturated": ({**DIRECT, "q": [[1, 0], [0, 1000]]}, DIRECT, "weights", ("weights[1]:", "more than 99.99% of the weight")),
    "dropout-sums": (
        {**DIRECT, "dropout": {"rate": 0.5, "seed": 1}},
        DIRECT,
        "dropped",
        ("do not sum to 1",),
    ),
    "mask-added-01": (
        {**DIRECT, "mask": {"add": [[1, 0], [1, 1]]}},
        {**DIRECT, "mask": {"add": [[0, -1.5], [0.5, 0]]}},
        "mask",
        ("hides nothing", "say keep or ignore"),
    ),
    "mask-finite-fill": (
        {**DIRECT, "mask": {"add": [[0, -1e9], [0, 0]]}},
        {**DIRECT, "mask": {"add": [[0, -np.inf], [0, -5]]}},
        "mask",
        ("-1e+09 and not −∞",),
    ),
    "mask-broadcast": (
        {**DIRECT, "mask": {"keep": [[1, 0]]}},
        {**DIRECT, "mask": {"keep": [[1, 0], [1, 0]]}},
        "mask",
        ("the keep mask of shape 1 × 2", "alike for all 2 of query"),
    ),
    "mask-ambiguous": (
        {**BATCHED, "mask": {"keep": np.ones((2, 2, 2))}},
        {**BATCHED, "mask": {"keep": np.ones((2, 2, 2, 2))}},
        "mask",
        ("read as (head, query, key)", "batch and heads are both 2", "(batch, 1, query, key)"),
    ),
    "square-weight": (
        {**LAYER, "w_q": EYE, "w_k": EYE, "w_v": EYE},
        {**LAYER, "w_q": EYE, "w_k": EYE, "w_v": EYE, "weight_layout": "in_out"},
        "w_q",
        ("w_q, w_k and w_v are square", "say weight_layout: out_in"),
    ),
}


@pytest.mark.parametrize(("code", "deserving", "clean", "step", "parts"), [(code, *rest) for code, rest in NOTES.items()])
def test_a_note_and_its_clean_neighbour(code: str, deserving: Config, clean: Config, step: str, parts: tuple[str, ...]) -> None:
    found = with_code(code, deserving)
    assert [note.step for note in found] == [step]
    for part in parts:
        assert part in found[0].message
    assert with_code(code, clean) == []


def test_notes_that_options_bring_about() -> None:
    assert [n.message for n in with_code("seed-unused", LAYER, seed=3)] == [
        "--seed 3 changes nothing: no tensor draws from the config's seed"
    ]
    assert with_code("seed-unused", RANDOM, seed=3), "each has a seed of its own"
    assert with_code("seed-unused", LAYER) == with_code("seed-unused", "module05", seed=3) == []
    causal = {**LAYER, "mask": "causal"}
    assert [n.step for n in with_code("permute-mask", causal, permute="2,0,1")] == ["mask"]
    assert with_code("permute-mask", causal) == with_code("permute-mask", LAYER, permute="2,0,1") == []


ROOMS = ("remarks.py", "config/*.py", "parts/*.py", "cores/*.py")  # notes of other rooms are about commands, tested with them


def test_every_code_is_tested() -> None:
    """Each literal first argument of Note(…) in the rooms that know a layer is a code of this file."""
    written: set[str] = set()
    home = Path(attntrace.__file__).parent
    for file in (file for room in ROOMS for file in home.glob(room)):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Note":
                written |= {node.args[0].value} if isinstance(node.args[0], ast.Constant) else set()
    assert written >= {"tie", "square-weight", "mask-broadcast", "tiles"}
    assert written <= {*NOTES, "seed-unused", "permute-mask"}


@pytest.mark.parametrize("config", ["module05", LAYER | {"weight_layout": "in_out"}, DIRECT, {**DIRECT, "mask": "causal"}])
def test_a_clean_config_has_no_notes(config: Any) -> None:
    assert notes(config) == []


# ------------------------------------------------------------------ where NaN and infinity come from


@pytest.mark.parametrize(
    ("name", "index", "first"),
    [("x", (2, 1), "q"), ("w_k", (0, 1), "k"), ("w_v", (1, 0), "v")],
)
def test_the_first_step_that_nan_reaches(name: str, index: tuple[int, int], first: str) -> None:
    place = f"{name}[{', '.join(map(str, index))}]"
    found = [n for n in notes(with_cell(name, index, np.nan)) if n.code == "nan"]
    assert found[0].step == first
    assert found[0].message.startswith(f"first NaN computed: {first}[")
    assert found[0].message.endswith(f"it comes from {place}")
    assert {n.step for n in found} <= {"q", "k", "v"}, "steps after the first are not named again"


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_saturation_is_seen_in_every_dtype(dtype: str) -> None:
    (found,) = with_code("saturated", {**DIRECT, "q": [[30, 0], [0, 0]], "k": [[30, 0], [0, 30]], "dtype": dtype})
    assert found.message.startswith("weights[0]: one key takes more than 99.99%")


def test_a_cause_is_told_once_with_the_first_step_that_it_reaches() -> None:
    (found,) = with_code("nan", with_cell("x", (0, 0), np.nan))
    assert found.step == "q"
    assert found.message.endswith("; it comes from x[0, 0]")


def test_two_causes_are_told_both() -> None:
    both = with_cell("w_v", (0, 0), np.nan, with_cell("w_k", (0, 0), np.nan))
    assert [n.step for n in with_code("nan", both)] == ["k", "v"]


def test_notes_are_about_what_is_shown_and_where_its_nan_comes_from() -> None:
    from attntrace.remarks import about

    found = notes({**with_cell("x", (0, 0), np.nan), "dropout": {"rate": 0.5, "seed": 0}})
    assert {n.step for n in about(found, {"dropped"})} == {"dropped", "q"}
    assert about(found, None) == found


def test_nan_born_of_an_overflow() -> None:
    """∞ − ∞ in softmax: the infinity is named where it was computed, and the NaN that comes of it."""
    config = {**DIRECT, "q": [[300, 0], [0, 1]], "k": [[300, 0], [0, 1]], "dtype": "float16"}
    found = {n.code: n for n in notes(config)}
    assert found["overflow"].step == "scores"
    assert found["nan"].step == "weights"
    assert "it comes from scaled[0, 0]" in found["nan"].message


def test_places_are_counted_beyond_the_first_few() -> None:
    x = np.full((3, 2), np.nan)
    (found,) = with_code("nan-input", {**LAYER, "x": x})
    assert found.message == "NaN in x[0, 0], x[0, 1], x[1, 0], x[1, 1] and 2 more"


def test_the_infinities_of_a_mask_are_as_they_should_be() -> None:
    masked = {**DIRECT, "mask": {"add": [[0, -np.inf], [0, 0]]}}
    assert notes(masked) == []
    (found,) = with_code("overflow-input", {**DIRECT, "mask": {"add": [[0, np.inf], [0, 0]]}})
    assert (found.step, found.message) == ("mask", "infinity in mask[0, 1]")


# ------------------------------------------------------------------ rows


def test_a_row_without_keys_as_nan() -> None:
    empty = {**DIRECT, "mask": {"keep": [[1, 1], [0, 0]]}, "masked_row": "nan"}
    (found,) = with_code("masked-row", empty)
    assert "weights[1]" in found.message
    assert "NaN, as plain softmax gives" in found.message


def test_rows_without_keys_of_every_batch_item() -> None:
    (found,) = with_code("masked-row", {**BATCHED, "mask": {"padding": [2, 0]}})
    assert "weights[1, 0, 0], weights[1, 0, 1], weights[1, 1, 0], weights[1, 1, 1]:" in found.message


def test_ties_are_counted() -> None:
    (found,) = with_code("tie", {**DIRECT, "q": [[0, 0], [0, 0]]})
    assert "(and so in 1 more row)" in found.message
    assert with_code("tie", {**DIRECT, "q": [[0, 0], [0, 0]], "mask": {"keep": [[1, 0], [0, 0]]}}) == []


def test_one_key_alone_is_not_saturated() -> None:
    """A causal mask leaves the first query one key, which takes everything without any choice."""
    assert with_code("saturated", {**DIRECT, "mask": "causal"}) == []


def test_dropout_of_rate_zero() -> None:
    """Rows do sum to 1 then."""
    assert with_code("dropout-sums", {**DIRECT, "dropout": {"rate": 0.0, "seed": 1}}) == []


# ------------------------------------------------------------------ sinks, tiles, rings, caches

CORES = [{"tiled": {"queries": 1, "keys": 1}}, {"tiled": {"queries": 2, "keys": 2}}, {"ring": {"devices": 2}}]
EMPTY: Config = {**DIRECT, "mask": {"keep": [[1, 1], [0, 0]]}}


def codes(config: Config) -> list[str]:
    return [note.code for note in notes(config)]


@pytest.mark.parametrize("core", CORES)
def test_a_row_without_keys_in_tiles(core: Config) -> None:
    """The tile that holds the row is named, and the row within it; the −∞ on the way are as they should be."""
    found = notes({**EMPTY, "core": core})
    assert [n.code for n in found] == ["tiles", "masked-row"]
    context = "context_0[1]" if core == CORES[1] else "context_1[0]"
    zeros = "its context is zeros, as torch's scaled_dot_product_attention and ONNX give"
    assert found[1].message == f"{context}: a query that may attend to nothing has every score −∞; {zeros}"
    assert codes({**DIRECT, "core": core, "mask": "causal"}) == ["tiles"]


@pytest.mark.parametrize("core", CORES)
def test_a_row_without_keys_in_tiles_as_nan(core: Config) -> None:
    (found,) = with_code("masked-row", {**EMPTY, "core": core, "masked_row": "nan"})
    assert "its context is NaN, as plain softmax gives" in found.message


@pytest.mark.parametrize("masked_row", ["zero", "nan"])
def test_a_row_without_keys_but_with_a_sink(masked_row: str) -> None:
    """The sink takes everything, and softmax is defined: NaN has no place here."""
    config = {**EMPTY, "sinks": [0], "masked_row": masked_row}
    (found,) = notes(config)
    assert (found.code, found.step) == ("masked-row", "weights")
    assert found.message.endswith("its weights are zeros, since the sink takes everything")
    for core in CORES:
        tiles, found = notes({**config, "core": core})
        assert (tiles.code, found.code, found.step[:6]) == ("tiles", "masked-row", "total_")
        assert found.message.endswith("its context is zeros, since the sink takes everything")
        assert attntrace.trace({**config, "core": core})["output"].values[1].tolist() == [0]


def test_a_sink_beside_a_key_that_takes_nearly_everything() -> None:
    assert codes({**DIRECT, "q": [[1, 0], [0, 1000]], "sinks": [0]}) == ["saturated"]


def test_what_all_tiles_have_alike_is_told_once() -> None:
    core = {"tiled": {"queries": 1, "keys": 1}}
    filled = {**DIRECT, "mask": {"add": [[-1e9, -1e9], [-1e9, 0]]}, "core": core}
    assert codes(filled) == ["tiles", "mask-finite-fill"]
    dropped = {**DIRECT, "dropout": {"rate": 0.5, "seed": 1}, "core": core}
    assert codes(dropped) == ["tiles", "dropout-sums"]


def test_nan_and_infinity_in_tiles_are_named_where_they_come_from() -> None:
    core = {"tiled": {"queries": 1, "keys": 1}}
    found = notes({**with_cell("x", (0, 0), np.nan), "core": core})
    assert [(n.code, n.step) for n in found] == [("tiles", None), ("nan-input", "x"), ("nan", "q")]
    large = {**DIRECT, "q": [[300, 0], [0, 1]], "k": [[300, 0], [0, 1]], "dtype": "float16", "core": core}
    assert ("overflow", "scores_0_0") in [(n.code, n.step) for n in notes(large)]


def test_a_sequence_of_a_ragged_batch_that_sees_nothing() -> None:
    """Its padding leaves none of its keys, old or new."""
    blocks = {name: np.ones((3, 1, 2, 1)) for name in "kv"}
    cache = {"blocks": blocks, "table": [[0, 1], [2, 2]], "lengths": [4, 1]}
    layer = {name: np.ones((2, 1, 1, 1)) for name in "qkv"}
    config = {**layer, "cache": cache, "mask": [{"window": {"left": 3, "right": 0}}, {"padding": [5, 0]}]}
    (found,) = with_code("masked-row", config)
    assert "weights[1, 0, 0]:" in found.message
    assert with_code("masked-row", {**config, "mask": "causal"}) == []


# ------------------------------------------------------------------ weights


def test_one_square_weight_is_named_in_the_singular() -> None:
    (found,) = with_code("square-weight", {**LAYER, "w_v": EYE})
    assert found.message.startswith("w_v is square")


def test_drawn_weights_and_those_of_other_shapes_are_not_in_doubt() -> None:
    assert with_code("square-weight", RANDOM) == with_code("square-weight", LAYER) == []


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_notes_in_every_dtype(name: str) -> None:
    config = {**DIRECT, "q": [[0, 0], [0, 1]], "mask": {"keep": [[1, 1], [0, 0]]}, "dtype": name}
    assert {n.code for n in notes(config)} == {"tie", "masked-row"}
    assert {n.code for n in notes({**with_cell("x", (0, 0), np.nan), "dtype": name})} >= {"nan-input", "nan"}


def test_notes_while_the_tape_is_let_go_of() -> None:
    """Looks read a step and its operands, so they find the same while steps are released."""
    from attntrace.remarks import about, look_at

    config = {**with_cell("x", (0, 0), np.nan), "mask": "causal"}
    trace = attntrace.trace(config)
    released = [*trace.remarks, *(n for step in trace.play(keep={"output"}) for n in look_at(step))]
    assert about(released, None) == notes(config)
