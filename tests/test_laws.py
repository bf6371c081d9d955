"""Laws that hold for every layer, tried on random ones. Expected numbers come from another config, never from a stored run."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import attntrace
from attntrace import compare
from attntrace.dtypes import dtype

# Two cores that are busy with other things are no fault: no deadline. The same examples in every run.
LAWS = settings(deadline=None, derandomize=True, max_examples=60, suppress_health_check=[HealthCheck.too_slow])

Config = dict[str, Any]
DTYPES = ("float64", "float32", "float16", "bfloat16")


@st.composite
def layers(draw: Any, headed: bool | None = None, cross: bool | None = None, fused_widths: bool = False) -> Config:
    """A random layer without mask, from x (and x_kv) through w_q, w_k and w_v, with or without batch, heads, biases, w_o."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    size = st.integers(1, 5)
    batch = draw(st.sampled_from([None, 1, 2, 3]))
    heads = draw(st.sampled_from([2, 3, 4])) if headed or (headed is None and draw(st.booleans())) else None
    d_k = draw(size)
    d_v = d_k if fused_widths else draw(size)
    tokens, width, h = draw(size), draw(size), heads or 1
    lead = () if batch is None else (batch,)
    made: Config = {"x": rng.normal(size=(*lead, tokens, width))}
    if cross or (cross is None and draw(st.booleans())):
        keys, kv_width = draw(size), draw(size)
        made["x_kv"] = rng.normal(size=(*lead, keys, kv_width))
    kv_width = made["x_kv"].shape[-1] if "x_kv" in made else width
    for letter, rows, columns in (("q", width, h * d_k), ("k", kv_width, h * d_k), ("v", kv_width, h * d_v)):
        made[f"w_{letter}"] = rng.normal(size=(rows, columns))
        if draw(st.booleans()) or fused_widths:
            made[f"b_{letter}"] = rng.normal(size=columns)
    if draw(st.booleans()):
        made["w_o"] = rng.normal(size=(h * d_v, draw(size)))
    return made if heads is None else {**made, "heads": heads}


def lengths(c: Config) -> tuple[int, int]:
    return c["x"].shape[-2], c.get("x_kv", c["x"]).shape[-2]


def numbers(c: Config, name: str) -> np.ndarray:
    return attntrace.trace(c)[name].values


def same(one: Config, other: Config, *names: str, exactly: bool = False) -> None:
    """Two configs whose traces agree at `names`, by default at weights and output."""
    a, b = attntrace.trace(one), attntrace.trace(other)
    for name in names or ("weights", "output"):
        if exactly:
            np.testing.assert_array_equal(a[name].values, b[name].values, err_msg=name)
        else:
            np.testing.assert_allclose(a[name].values, b[name].values, rtol=1e-9, atol=1e-11, err_msg=name)


def bits(data: Any, *shape: int) -> np.ndarray:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    return (rng.random(shape) < data.draw(st.sampled_from([0.2, 0.5, 0.8]))).astype(int)


# ------------------------------------------------------------------ rows, tokens, heads


@LAWS
@given(layers(), st.data())
def test_rows_of_weights_sum_to_one_or_are_zero(c: Config, data: Any) -> None:
    keep = bits(data, *lengths(c))
    t = attntrace.trace({**c, "mask": {"keep": keep}})
    expected = np.broadcast_to(keep.any(axis=-1).astype(float), t["weights"].row_sums.shape)
    np.testing.assert_allclose(t["weights"].row_sums, expected, atol=1e-14)
    assert ((t["weights"].values == 0) == (np.broadcast_to(keep, t["weights"].shape) == 0)).all()


@LAWS
@given(layers(cross=False), st.data())
def test_permuting_tokens_permutes_weights_and_output(c: Config, data: Any) -> None:
    order = data.draw(st.permutations(range(lengths(c)[0])))
    a, b = attntrace.trace(c), attntrace.trace({**c, "x": c["x"][..., order, :]})
    np.testing.assert_allclose(b["weights"].values, a["weights"].values[..., order, :][..., order], rtol=1e-9)
    np.testing.assert_allclose(b["output"].values, a["output"].values[..., order, :], rtol=1e-9, atol=1e-11)


@LAWS
@given(layers(cross=False), st.data())
def test_the_option_permute_is_a_permutation_of_x(c: Config, data: Any) -> None:
    order = data.draw(st.permutations(range(lengths(c)[0])))
    moved = attntrace.trace(c, permute=",".join(map(str, order)))
    np.testing.assert_array_equal(moved["output"].values, numbers({**c, "x": c["x"][..., order, :]}, "output"))


@LAWS
@given(layers(headed=True))
def test_heads_apart_equal_heads_together(c: Config) -> None:
    together = attntrace.trace(c)
    alone = {name: value for name, value in c.items() if name not in ("heads", "w_o")}
    parts = []
    for h in range(c["heads"]):
        mine = dict(alone)
        for name in ("w_q", "w_k", "w_v", "b_q", "b_k", "b_v"):
            if name in alone:
                d = alone[name].shape[-1] // c["heads"]
                mine[name] = alone[name][..., h * d : (h + 1) * d]
        t = attntrace.trace(mine)
        np.testing.assert_allclose(t["weights"].values, together["weights"].values[..., h, :, :], rtol=1e-9)
        parts.append(t["output"].values)
    np.testing.assert_allclose(np.concatenate(parts, axis=-1), together["concat"].values, rtol=1e-9, atol=1e-11)


@LAWS
@given(layers())
def test_batch_items_apart_equal_the_batch(c: Config) -> None:
    assume(c["x"].ndim == 3)
    together = attntrace.trace(c)
    for i in range(len(c["x"])):
        alone = {name: value[i] if name in ("x", "x_kv") else value for name, value in c.items()}
        np.testing.assert_allclose(numbers(alone, "output"), together["output"].values[i], rtol=1e-9, atol=1e-11)


@LAWS
@given(layers(cross=False))
def test_cross_attention_to_oneself_is_self_attention(c: Config) -> None:
    same(c, {**c, "x_kv": c["x"]}, exactly=True)


@LAWS
@given(layers())
def test_projections_given_directly(c: Config) -> None:
    """q, k and v of a trace, handed in, give the same trace from there on (3 axes of them mean heads, not a batch)."""
    t = attntrace.trace(c)
    assume("heads" in c or c["x"].ndim == 2)
    given_directly = {name: t[name].values for name in "qkv"} | ({"w_o": c["w_o"]} if "w_o" in c else {})
    same(c, given_directly, exactly=True)


# ------------------------------------------------------------------ masks


@LAWS
@given(layers(), st.data())
def test_keep_ignore_and_add_say_the_same(c: Config, data: Any) -> None:
    keep = bits(data, *lengths(c))
    kept = {**c, "mask": {"keep": keep}}
    same(kept, {**c, "mask": {"ignore": 1 - keep}}, exactly=True)
    same(kept, {**c, "mask": {"keep": keep.astype(bool)}}, exactly=True)
    same(kept, {**c, "mask": {"add": np.where(keep, 0.0, -np.inf)}}, exactly=True)
    same(kept, {**c, "mask": [{"keep": keep}, {"keep": keep}]}, exactly=True)


@LAWS
@given(layers(), st.data())
def test_padding_says_the_same_as_keep(c: Config, data: Any) -> None:
    queries, keys = lengths(c)
    batch = len(c["x"]) if c["x"].ndim == 3 else 1
    real = data.draw(st.lists(st.integers(0, keys), min_size=batch, max_size=batch))
    keep = np.zeros((batch, *((1,) if "heads" in c else ()), queries, keys))
    for i, n in enumerate(real):
        keep[i, ..., :n] = 1
    same({**c, "mask": {"padding": real}}, {**c, "mask": {"keep": keep if c["x"].ndim == 3 else keep[0]}}, exactly=True)


@LAWS
@given(layers(), st.sampled_from(["top-left", "bottom-right"]))
def test_causal_is_a_window_and_a_triangle(c: Config, align: str) -> None:
    queries, keys = lengths(c)
    causal = {**c, "mask": {"causal": align}}
    triangle = np.tril(np.ones((queries, keys)), k=keys - queries if align == "bottom-right" else 0)
    same(causal, {**c, "mask": {"keep": triangle}}, exactly=True)
    same(causal, {**c, "mask": {"window": {"right": 0, "align": align}}}, exactly=True)
    if queries == keys:
        same(causal, {**c, "mask": "causal"}, exactly=True)


@LAWS
@given(layers(), st.data())
def test_a_list_of_masks_is_their_product(c: Config, data: Any) -> None:
    one, two = bits(data, *lengths(c)), bits(data, *lengths(c))
    same({**c, "mask": [{"keep": one}, {"keep": two}]}, {**c, "mask": {"keep": one * two}}, exactly=True)


@LAWS
@given(layers(), st.data())
def test_a_hidden_key_might_as_well_not_be_there(c: Config, data: Any) -> None:
    """Taking the last key away gives the same as hiding it."""
    c = {**c, "x_kv": c.get("x_kv", c["x"])}
    keys = lengths(c)[1]
    assume(keys > 1)
    hidden = attntrace.trace({**c, "mask": {"keep": np.arange(keys) < keys - 1}})
    without = attntrace.trace({**c, "x_kv": c["x_kv"][..., :-1, :]})
    np.testing.assert_allclose(hidden["weights"].values[..., :-1], without["weights"].values, rtol=1e-9)
    np.testing.assert_allclose(hidden["output"].values, without["output"].values, rtol=1e-9, atol=1e-11)


@LAWS
@given(layers(), st.floats(-50, 50))
def test_softmax_does_not_see_a_constant(c: Config, constant: float) -> None:
    np.testing.assert_allclose(
        numbers({**c, "mask": {"add": np.full(lengths(c), constant)}}, "weights"), numbers(c, "weights"), rtol=1e-9
    )


# ------------------------------------------------------------------ weights in other forms


@LAWS
@given(layers(headed=True))
def test_as_many_groups_as_heads_change_nothing(c: Config) -> None:
    grouped = {**c, "kv_heads": c["heads"]}
    assert attntrace.trace(grouped).names == attntrace.trace(c).names
    same(c, grouped, *attntrace.trace(c).names, exactly=True)


@LAWS
@given(layers(headed=True), st.data())
def test_grouped_heads_equal_weights_repeated_by_hand(c: Config, data: Any) -> None:
    h = c["heads"]
    groups = data.draw(st.sampled_from([g for g in range(1, h + 1) if h % g == 0]))
    few, many = {**c, "kv_heads": groups}, dict(c)
    for name in ("w_k", "w_v", "b_k", "b_v"):
        if name in c:
            d = c[name].shape[-1] // h
            few[name] = c[name][..., : groups * d]
            blocks = [few[name][..., g * d : (g + 1) * d] for g in range(groups)]
            many[name] = np.concatenate([blocks[head // (h // groups)] for head in range(h)], axis=-1)
    same(few, many)


@LAWS
@given(layers())
def test_weights_stored_out_in(c: Config) -> None:
    turned = {name: value.T if name.startswith("w_") else value for name, value in c.items()}
    same(c, {**turned, "weight_layout": "out_in"})


def by_layout(c: Config, kind: str, layout: str, groups: int) -> np.ndarray:
    """One matrix (or bias) of the three, as `layout` says."""
    q, k, v = (c[f"{kind}_{letter}"] for letter in "qkv")
    if layout == "q|k|v":
        return np.concatenate([q, k, v], axis=-1)
    pieces = [np.split(part, groups, axis=-1) for part in (q, k, v)]
    return np.concatenate([piece[g] for g in range(groups) for piece in pieces], axis=-1)


@LAWS
@given(layers(cross=False, fused_widths=True), st.sampled_from(["q|k|v", "per-head", "per-group"]), st.data())
def test_fused_projections_equal_separate_ones(c: Config, layout: str, data: Any) -> None:
    h = c.get("heads", 1)
    groups = data.draw(st.sampled_from([g for g in range(1, h + 1) if h % g == 0]))
    for name in ("w_k", "w_v", "b_k", "b_v"):
        c[name] = c[name][..., : c[name].shape[-1] // h * groups]
    if h > 1:
        c["kv_heads"] = groups
    rest = {name: value for name, value in c.items() if name[:2] not in ("w_", "b_") or name == "w_o"}
    fused = {
        **rest,
        "w_qkv": by_layout(c, "w", layout, groups),
        "b_qkv": by_layout(c, "b", layout, groups),
        "qkv_layout": layout,
    }
    same(c, fused, "q", "k", "v", "weights", "output")
    turned = {name: value.T if name.startswith("w_") else value for name, value in fused.items()}
    same(c, {**turned, "weight_layout": "out_in"}, "q", "k", "v", "weights", "output")


@LAWS
@given(layers(), st.sampled_from([0.25, 0.5, 1.0, 3.0, -2.0]))
def test_a_scale_is_a_factor_of_the_queries(c: Config, factor: float) -> None:
    scaled = {name: value * factor if name in ("w_q", "b_q") else value for name, value in c.items()}
    same({**c, "scale": factor}, {**scaled, "scale": 1.0}, "scaled", "weights", "output")


@LAWS
@given(layers())
def test_the_usual_scale_is_one_over_the_root_of_d_k(c: Config) -> None:
    t = attntrace.trace(c)
    assert t.sizes["d_k"] == c["w_q"].shape[-1] // c.get("heads", 1)
    same(c, {**c, "scale": 1 / np.sqrt(c["w_q"].shape[-1] // c.get("heads", 1))}, "scaled", "weights")


# ------------------------------------------------------------------ dropout


@LAWS
@given(layers(), st.sampled_from([0.1, 0.5, 0.9]), st.integers(0, 1000))
def test_dropped_weights_are_zero_or_enlarged(c: Config, rate: float, seed: int) -> None:
    t = attntrace.trace({**c, "dropout": {"rate": rate, "seed": seed}})
    weights, dropped, keep = t["weights"].values, t["dropped"].values, t["keep"].values
    assert set(np.unique(keep)) <= {0, 1}
    np.testing.assert_allclose(dropped, np.where(keep == 1, weights / (1 - rate), 0), rtol=1e-14)
    np.testing.assert_array_equal(weights, numbers(c, "weights"))
    same({**c, "dropout": {"rate": rate, "seed": seed}}, {**c, "dropout": {"rate": rate, "seed": seed}}, exactly=True)


@LAWS
@given(layers())
def test_dropout_of_rate_zero_changes_nothing(c: Config) -> None:
    same(c, {**c, "dropout": {"rate": 0.0, "seed": 1}}, exactly=True)


@pytest.mark.parametrize("generator", ["numpy", "numpy-legacy"])
def test_dropout_keeps_as_many_as_it_says(generator: str) -> None:
    """10,000 draws at a rate of 0.3 keep 7,000, give or take four standard deviations (√(10,000 · 0.3 · 0.7) = 46)."""
    c = {name: np.zeros((100, 1)) for name in "qkv"}
    keep = numbers({**c, "dropout": {"rate": 0.3, "seed": 5, "generator": generator}}, "keep")
    assert abs(keep.sum() - 7000) < 4 * 46


# ------------------------------------------------------------------ dtypes


@LAWS
@given(layers(), st.sampled_from(DTYPES), st.booleans())
def test_every_step_has_the_dtype_of_the_config(c: Config, name: str, dropped: bool) -> None:
    more = {"dropout": {"rate": 0.5, "seed": 1}} if dropped else {}
    for step in attntrace.trace({**c, **more, "dtype": name, "mask": {"causal": "top-left"}, "scale": 0.3}):
        assert step.values.dtype == step.dtype == dtype(name), step.name


@LAWS
@given(layers(), st.sampled_from(DTYPES[1:]), st.sampled_from([None, {"causal": "bottom-right"}]))
def test_a_smaller_dtype_lies_within_the_accumulated_bound(c: Config, name: str, mask: Any) -> None:
    """From the same inputs, every step is off the float64 one by no more than compare says; and not by nothing."""
    kind = dtype(name)
    held = {key: value.astype(kind).astype(float) if isinstance(value, np.ndarray) else value for key, value in c.items()}
    held |= {} if mask is None else {"mask": mask}
    small, exact = attntrace.trace({**held, "dtype": name}), attntrace.trace(held)
    for step in small:
        bound = compare.accumulated(step, {}) + compare.accumulated(exact[step.name], {})
        found = compare.difference(step.values, exact[step.name].values, bound, step)
        assert found.agrees, (step.name, found)


def test_a_smaller_dtype_is_really_computed_in() -> None:
    rng = np.random.default_rng(0)
    c = {name: rng.normal(size=(8, 8)) for name in ("x", "w_q", "w_k", "w_v")}
    exact = numbers(c, "output")
    off = [np.abs(numbers({**c, "dtype": name}, "output").astype(float) - exact).max() for name in DTYPES]
    assert off[0] == 0 < off[1] < 1e-5 < off[2] < off[3] < 1


# ------------------------------------------------------------------ NaN and infinity go where arithmetic sends them


@LAWS
@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 4), st.data())
def test_where_nan_goes(queries: int, keys: int, width: int, data: Any) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    c = {"q": rng.normal(size=(queries, 3)), "k": rng.normal(size=(keys, 3)), "v": rng.normal(size=(keys, width))}
    right = attntrace.trace(c)
    i, j, column = (data.draw(st.integers(0, n - 1)) for n in (queries, keys, width))

    def spoilt(name: str, row: int, at: int) -> Any:
        array = c[name].copy()
        array[row, at] = np.nan
        return attntrace.trace({**c, name: array})

    in_q = spoilt("q", i, 0)
    assert (np.isnan(in_q["output"].values).all(axis=-1) == (np.arange(queries) == i)).all()
    others = np.arange(queries) != i
    np.testing.assert_array_equal(in_q["weights"].values[others], right["weights"].values[others])
    in_k = spoilt("k", j, 1)
    assert (np.isnan(in_k["scores"].values).all(axis=0) == (np.arange(keys) == j)).all()
    assert np.isnan(in_k["weights"].values).all(), "softmax spreads it over the row"
    in_v = spoilt("v", j, column)
    assert (np.isnan(in_v["output"].values) == (np.arange(width) == column)).all()


def test_a_masked_nan_still_poisons() -> None:
    """−∞ + NaN is NaN, and 0 · NaN is NaN: a mask hides a key's score and not what the key is made of."""
    c = {"q": np.ones((2, 1)), "k": np.array([[1.0], [np.nan]]), "v": np.ones((2, 1)), "mask": {"keep": [[1, 0]]}}
    assert np.isnan(numbers(c, "weights")).all()
    hidden = {**c, "k": np.ones((2, 1)), "v": np.array([[1.0], [np.nan]])}
    assert (numbers(hidden, "weights") == [1, 0]).all()
    assert np.isnan(numbers(hidden, "output")).all()


def test_where_infinity_goes() -> None:
    """A score of −∞ has weight zero; one of +∞ has ∞ − ∞ in its exponent."""
    c = {"q": np.ones((1, 1)), "k": np.array([[-np.inf], [0.0], [0.0]]), "v": np.eye(3)}
    np.testing.assert_array_equal(numbers(c, "weights"), [[0, 0.5, 0.5]])
    assert np.isnan(numbers({**c, "k": -c["k"]}, "weights")).any()


def test_the_two_ways_with_a_row_without_keys() -> None:
    c = {"q": np.ones((2, 1)), "k": np.ones((2, 1)), "v": np.ones((2, 1)), "mask": {"keep": [[0, 0], [1, 1]]}}
    np.testing.assert_array_equal(numbers(c, "weights"), [[0, 0], [0.5, 0.5]])
    np.testing.assert_array_equal(numbers({**c, "masked_row": "nan"}, "weights"), [[np.nan, np.nan], [0.5, 0.5]])


# ------------------------------------------------------------------ the tape


@LAWS
@given(layers(), st.data())
def test_one_step_read_alone_equals_the_tape_played(c: Config, data: Any) -> None:
    c = {**c, "mask": {"causal": "top-left"}, "dropout": {"rate": 0.5, "seed": 3}}
    played = {step.name: step.values.copy() for step in attntrace.trace(c).play()}
    name = data.draw(st.sampled_from(list(played)))
    np.testing.assert_array_equal(numbers(c, name), played[name])


@LAWS
@given(layers(), st.data())
def test_play_lets_go_of_what_is_not_kept_and_holds_what_peak_says(c: Config, data: Any) -> None:
    t = attntrace.trace({**c, "mask": {"causal": "top-left"}})
    keep = data.draw(st.none() | st.sets(st.sampled_from(t.names), min_size=1))
    inputs = sum(step.nbytes for step in t if step.given)  # read all at once, and held
    held = [inputs]
    for _ in t.play(keep):
        held.append(inputs + sum(step.values.nbytes for step in t if step.computed and not step.given))
    assert max(held) == t.peak(keep)
    results = [step.name for step in t if step.computed and not step.given]
    assert results == [step.name for step in t if not step.given and (keep is None or step.name in keep)]


@LAWS
@given(layers(), st.data())
def test_play_computes_what_is_kept_and_what_it_needs_and_nothing_else(c: Config, data: Any) -> None:
    t = attntrace.trace(c)
    name = data.draw(st.sampled_from(t.names))
    played = [step.name for step in t.play({name})]
    assert played[-1] == name
    for step in map(t.__getitem__, played):
        assert {o.name for o in step.operands} <= set(played)
        assert step.name == name or any(step in t[other].operands for other in played)


@LAWS
@given(layers())
def test_letting_go_changes_no_number(c: Config) -> None:
    kept, released = attntrace.trace(c), attntrace.trace(c)
    for step in released.play(keep={"output"}):
        np.testing.assert_array_equal(step.values, kept[step.name].values)
    np.testing.assert_array_equal(released["weights"].values, kept["weights"].values)  # computed once more


@LAWS
@given(layers())
def test_inputs_are_left_as_they_are(c: Config) -> None:
    problem = attntrace.load({**c, "mask": {"causal": "top-left"}})
    before = {name: value.copy() for name, value in problem.arrays.items()}
    list(attntrace.trace(problem).play())
    for name, value in before.items():
        np.testing.assert_array_equal(problem.arrays[name], value)


@LAWS
@given(layers())
def test_shapes_are_known_before_anything_is_computed(c: Config) -> None:
    t = attntrace.trace(c)
    shapes = {step.name: step.shape for step in t}
    assert not any(step.computed for step in t)
    assert shapes == {step.name: step.values.shape for step in t}
    assert all(step.row_sums.shape == step.argmax.shape == step.shape[:-1] for step in t)
