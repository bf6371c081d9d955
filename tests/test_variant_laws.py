"""Laws that tie every variant of attention to a plain case. Expected numbers come from another config, or from NumPy here."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import attntrace

LAWS = settings(deadline=None, derandomize=True, max_examples=40, suppress_health_check=[HealthCheck.too_slow])

Array = np.ndarray[Any, Any]
Config = dict[str, Any]
seeds = st.integers(0, 2**32 - 1)


@st.composite
def given_qkv(draw: Any, most: int = 7, alike: bool = False, width: int | None = None) -> Config:
    """q, k and v given directly, with or without a batch and heads, grouped or not; `alike`: as many queries as keys."""
    rng = np.random.default_rng(draw(seeds))
    batch, heads = draw(st.sampled_from([(None, None), (None, 2), (2, 2), (1, 4), (3, 4)]))
    groups = None if heads is None else draw(st.sampled_from([n for n in (1, 2, heads) if heads % n == 0]))
    keys = draw(st.integers(1, most))
    queries = keys if alike else draw(st.integers(1, most))
    d_k, d_v = width or draw(st.integers(1, 5)), draw(st.integers(1, 3))
    lead = () if batch is None else (batch,)
    own, others = ((), ()) if heads is None else ((heads,), (groups,))
    c: Config = {
        "q": rng.normal(size=(*lead, *own, queries, d_k)),
        "k": rng.normal(size=(*lead, *others, keys, d_k)),
        "v": rng.normal(size=(*lead, *others, keys, d_v)),
    }
    return c if heads is None else {**c, "heads": heads, "kv_heads": groups}


@st.composite
def blocks(draw: Any) -> Config:
    """x of three tokens with weights of a transformer block, d_model 4."""
    rng = np.random.default_rng(draw(seeds))
    names = {"w_q": (4, 4), "w_k": (4, 4), "w_v": (4, 4), "w_o": (4, 4), "w_up": (4, 6), "w_gate": (4, 6), "w_down": (6, 4)}
    vectors = {"w_norm1": 4, "w_norm2": 4, "b_norm1": 4, "b_norm2": 4, "b_up": 6, "b_gate": 6, "b_down": 4}
    made = {name: rng.normal(size=shape) for name, shape in {**names, **vectors}.items()}
    lead = draw(st.sampled_from([(), (2,)]))
    return {"x": rng.normal(size=(*lead, 3, 4)), **made, "heads": 2, "weight_layout": "in_out"}


def lengths(c: Config) -> tuple[int, int]:
    return c["q"].shape[-2], c["k"].shape[-2]


def heads_of(c: Config) -> int:
    return int(c.get("heads", 1))


def values(c: Config, name: str = "output", **options: Any) -> Array:
    return attntrace.trace(c, **options)[name].values


def close(a: Array, b: Array, rtol: float = 1e-9, atol: float = 1e-11) -> None:
    np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


def rng_of(data: Any) -> np.random.Generator:
    return np.random.default_rng(data.draw(seeds))


def without(c: Config, *names: str) -> Config:
    return {name: value for name, value in c.items() if name not in names}


# ------------------------------------------------------------------ rotary positions

pairings = st.sampled_from(["half", "interleaved"])


def unturned(c: Config, **rope: Any) -> Config:
    return {**c, "rope": {"pairs": "half", "base": 100.0, **rope}}


@LAWS
@given(given_qkv(width=6, alike=True), pairings, st.sampled_from([2, 4, 6]), st.integers(-50, 50))
def test_a_rotation_keeps_the_length_of_every_pair(c: Config, pairs: str, dims: int, offset: int) -> None:
    t = attntrace.trace(unturned(c, pairs=pairs, dims=dims, offset=offset))
    for name in "qk":
        x, y = t[name].values, t[f"{name}_rot"].values
        for i in range(dims // 2):
            both = (2 * i, 2 * i + 1) if pairs == "interleaved" else (i, i + dims // 2)
            close(np.hypot(*(y[..., j] for j in both)), np.hypot(*(x[..., j] for j in both)))
        np.testing.assert_array_equal(y[..., dims:], x[..., dims:])


@LAWS
@given(given_qkv(width=4, alike=True), pairings, st.integers(-500, 500))
def test_scores_see_the_difference_of_positions_alone(c: Config, pairs: str, offset: int) -> None:
    close(
        values(unturned(c, pairs=pairs, offset=offset), "scores"),
        values(unturned(c, pairs=pairs), "scores"),
        rtol=1e-7,
        atol=1e-9,
    )


@LAWS
@given(given_qkv(width=4), pairings, st.data())
def test_at_position_zero_nothing_turns(c: Config, pairs: str, data: Any) -> None:
    queries, keys = lengths(c)
    still = {"positions": np.zeros(queries), "key_positions": np.zeros(keys)}
    close(values(unturned(c, pairs=pairs, **still)), values(c), rtol=0, atol=0)


@LAWS
@given(given_qkv(width=6, alike=True), st.sampled_from([2, 4, 6]))
def test_neighbours_are_halves_with_the_columns_in_another_order(c: Config, dims: int) -> None:
    order = [*range(0, dims, 2), *range(1, dims, 2), *range(dims, 6)]
    moved = {**c, "q": c["q"][..., order], "k": c["k"][..., order]}
    a, b = attntrace.trace(unturned(c, pairs="interleaved", dims=dims)), attntrace.trace(unturned(moved, dims=dims))
    close(b["q_rot"].values, a["q_rot"].values[..., order])
    close(b["output"].values, a["output"].values)


@LAWS
@given(blocks())
def test_neighbours_are_halves_with_the_columns_of_the_weights_in_another_order(c: Config) -> None:
    """Each head of two columns pairs alike; heads of four do not."""
    c = {**without(c, *[n for n in c if n.endswith(("1", "2", "up", "gate", "down"))]), "heads": 1}
    order = [0, 2, 1, 3]
    moved = {**c, "w_q": c["w_q"][:, order], "w_k": c["w_k"][:, order]}
    close(values(unturned(moved)), values(unturned(c, pairs="interleaved")))


@LAWS
@given(given_qkv(width=6, alike=True), pairings, st.sampled_from([2, 4]))
def test_partial_dims_turn_as_if_alone(c: Config, pairs: str, dims: int) -> None:
    alone = {**c, "q": c["q"][..., :dims], "k": c["k"][..., :dims]}
    a, b = attntrace.trace(unturned(c, pairs=pairs, dims=dims)), attntrace.trace(unturned(alone, pairs=pairs))
    close(a["q_rot"].values[..., :dims], b["q_rot"].values, atol=0)


@LAWS
@given(given_qkv(width=4, alike=True), pairings, st.sampled_from([0.5, 2.0, 3.0]))
def test_linear_scaling_divides_the_positions(c: Config, pairs: str, factor: float) -> None:
    n = lengths(c)[0]
    scaled = unturned(c, pairs=pairs, scaling={"type": "linear", "factor": factor})
    close(values(scaled), values(unturned(c, pairs=pairs, positions=np.arange(n) / factor)))


@LAWS
@given(given_qkv(width=4, alike=True), st.sampled_from([2.0, 8.0]))
def test_llama_3_scaling_between_its_two_ends(c: Config, factor: float) -> None:
    """A context in which every pair turns often enough is not scaled; one in which none does is scaled as a whole."""
    of = {"type": "llama3", "factor": factor}
    close(values(unturned(c, scaling={**of, "original_max_position_embeddings": 1e6})), values(unturned(c)))
    linear = unturned(c, scaling={"type": "linear", "factor": factor})
    close(values(unturned(c, scaling={**of, "original_max_position_embeddings": 1.0})), values(linear))


@LAWS
@given(given_qkv(width=4, alike=True), pairings, st.data())
def test_tables_of_the_same_angles_give_the_same(c: Config, pairs: str, data: Any) -> None:
    n, rng = lengths(c)[0], rng_of(data)
    angles = np.arange(20)[:, None] * 100.0 ** (-np.array([0, 2]) / 4)
    batch = len(c["q"]) if c["q"].ndim == 4 else None
    shape = data.draw(st.sampled_from([(n,)] if batch is None else [(n,), (batch, n)]))
    positions = rng.integers(0, 20, shape)
    computed = unturned(c, pairs=pairs, positions=positions)
    tables = {"pairs": pairs, "cos": np.cos(angles), "sin": np.sin(angles), "positions": positions}
    close(values({**c, "rope": tables}), values(computed))
    if batch is not None:
        by_item = {**tables, "cos": np.stack([np.cos(angles)] * batch), "sin": np.stack([np.sin(angles)] * batch)}
        close(values({**c, "rope": by_item}), values(computed))


@LAWS
@given(given_qkv(width=4, alike=True), pairings, st.data())
def test_positions_of_each_batch_item(c: Config, pairs: str, data: Any) -> None:
    assume(c["q"].ndim == 4)
    positions = rng_of(data).integers(0, 99, (len(c["q"]), lengths(c)[0]))
    together = values(unturned(c, pairs=pairs, positions=positions))
    for i, each in enumerate(positions):
        alone = {name: value[i] if name in "qkv" else value for name, value in c.items()}
        close(values(unturned(alone, pairs=pairs, positions=each)), together[i])


# ------------------------------------------------------------------ grouped heads


@LAWS
@given(given_qkv())
def test_shared_heads_equal_repeated_ones(c: Config) -> None:
    assume("heads" in c)
    times = c["heads"] // c["kv_heads"]
    repeated = {**without(c, "heads", "kv_heads"), "k": c["k"].repeat(times, -3), "v": c["v"].repeat(times, -3)}
    close(values(c), values(repeated), rtol=0, atol=0)


@LAWS
@given(given_qkv())
def test_as_many_groups_as_heads_change_nothing(c: Config) -> None:
    assume("heads" in c and c["heads"] == c["kv_heads"])
    assert attntrace.trace(c).names == attntrace.trace(without(c, "kv_heads")).names
    close(values(c), values(without(c, "kv_heads")), rtol=0, atol=0)


# ------------------------------------------------------------------ tiles and rings


@st.composite
def dressed(draw: Any) -> Config:
    """q, k and v with a few of: masks, softcap, alibi, sinks, dropout, another scale, NaN for rows without keys."""
    c = draw(given_qkv())
    queries, keys = lengths(c)
    rng = np.random.default_rng(draw(seeds))
    lead = c["q"].shape[:-2]
    masks = {
        "causal": {"causal": draw(st.sampled_from(["top-left", "bottom-right", 1, -2]))},
        "window": {"window": {"left": draw(st.integers(0, 3)), "right": draw(st.integers(0, 2)), "align": "bottom-right"}},
        "keep": {"keep": (rng.random((queries, keys)) < 0.6).astype(int)},
        "add": {"add": rng.normal(size=(*lead, queries, keys))},
    }
    parts: Config = {
        "mask": [masks[name] for name in draw(st.sets(st.sampled_from(sorted(masks)), min_size=1))],
        "softcap": 2.0,
        "alibi": {"align": "bottom-right"},
        "sinks": rng.normal(size=heads_of(c)),
        "dropout": {"rate": 0.3, "seed": 5},
        "scale": 0.7,
        "masked_row": "nan",
        "qk_norm": "l2",
    }
    return {**c, **{name: parts[name] for name in draw(st.sets(st.sampled_from(sorted(parts))))}}


cores = st.one_of(
    st.builds(lambda q, k: {"tiled": {"queries": q, "keys": k}}, st.integers(1, 8), st.integers(1, 8)),
    st.builds(lambda n: {"ring": {"devices": n}}, st.integers(1, 7)),
)


@settings(LAWS, max_examples=250)
@given(dressed(), cores)
def test_tiles_and_rings_give_what_the_direct_core_gives(c: Config, core: Config) -> None:
    assume("ring" not in core or core["ring"]["devices"] <= lengths(c)[1])
    close(values({**c, "core": core}), values(c))


def starts(total: int, size: int) -> list[range]:
    return [range(total)[i : i + size] for i in range(0, total, size)]


def hidden_rows_aside(e: Array) -> Array:
    return np.where(np.isnan(e), 0, e)


@LAWS
@given(dressed(), st.integers(1, 4), st.integers(1, 4))
def test_the_running_state_is_what_its_definition_says(c: Config, high: int, wide: int) -> None:
    """After each tile: m the largest score so far, l the sum of exp(s − m), o that of exp(s − m) v."""
    c = without(c, "dropout", "sinks")
    t = attntrace.trace({**c, "core": {"tiled": {"queries": high, "keys": wide}}})
    plain = attntrace.trace(c)
    s = next(plain[name].values for name in ("masked", "biased", "capped", "scaled") if name in plain)
    v = next(plain[name].values for name in ("v_shared", "v") if name in plain)
    queries, keys = lengths(c)
    for i, rows in enumerate(starts(queries, high)):
        for j, run in enumerate(starts(keys, wide)):
            seen = s[..., rows.start : rows.stop, : run.stop]
            with np.errstate(invalid="ignore"):
                e = hidden_rows_aside(np.exp(seen - seen.max(axis=-1, keepdims=True)))
            np.testing.assert_allclose(t[f"max_{i}_{j}"].values, seen.max(axis=-1), rtol=1e-12)
            close(t[f"sum_{i}_{j}"].values, e.sum(axis=-1))
            close(t[f"acc_{i}_{j}"].values, e @ v[..., : run.stop, :])


@LAWS
@given(given_qkv(), st.integers(1, 5))
def test_a_device_has_seen_the_shards_behind_it(c: Config, devices: int) -> None:
    """At hop h device d has merged the shards d, d − 1, … d − h of the keys, the longer shards first."""
    queries, keys = lengths(c)
    assume(devices <= min(queries, keys))
    t, plain = attntrace.trace({**c, "core": {"ring": {"devices": devices}}}), attntrace.trace(c)
    s = plain["scaled"].values
    rows, shards = np.array_split(np.arange(queries), devices), np.array_split(np.arange(keys), devices)
    for d in range(devices):
        for hop in range(devices):
            seen = np.concatenate([shards[(d - h) % devices] for h in range(hop + 1)])
            mine = s[..., rows[d], :][..., seen]
            close(t[f"max_{d}_{hop}"].values, mine.max(axis=-1))
            close(t[f"sum_{d}_{hop}"].values, np.exp(mine - mine.max(axis=-1, keepdims=True)).sum(axis=-1))


# ------------------------------------------------------------------ caches


def cached(c: Config, split: int) -> Config:
    """The first `split` tokens as a cache, the others new."""
    new = {name: c[name][..., split:, :] for name in "qkv"}
    return {**c, **new, "cache": {name: c[name][..., :split, :] for name in "kv"}}


@LAWS
@given(given_qkv(alike=True, width=4), st.data())
def test_a_cache_gives_the_last_rows_of_the_whole(c: Config, data: Any) -> None:
    """With whatever counts positions: causal masks, windows, alibi. Rotated keys are cached as they are after rotation."""
    n = lengths(c)[0]
    assume(n > 1)
    split = data.draw(st.integers(1, n - 1))
    parts = {"mask": data.draw(st.sampled_from(["causal", {"window": {"left": 1}}, {"window": {"left": 2, "right": 1}}]))}
    parts |= data.draw(st.sampled_from([{}, {"alibi": True}, {"softcap": 1.5}]))
    close(values({**cached(c, split), **parts}), values({**c, **parts})[..., split:, :])
    rope = {"pairs": "half", "base": 100.0, "offset": data.draw(st.integers(0, 9))}
    whole = attntrace.trace({**c, **parts, "rope": rope})
    part = cached({**c, **parts, "rope": rope}, split)
    part["cache"]["k"] = whole["k_rot"].values[..., :split, :]
    close(values(part), whole["output"].values[..., split:, :])


@LAWS
@given(given_qkv(alike=True), st.integers(1, 3), st.data())
def test_a_paged_cache_equals_a_plain_one(c: Config, slots: int, data: Any) -> None:
    """Blocks of any size, anywhere: a gather brings them back in order. Slots that are not filled hold rubbish."""
    n, rng = lengths(c)[0], rng_of(data)
    assume(n > 1)
    split = data.draw(st.integers(1, n - 1))
    plain = {**cached(c, split), "mask": "causal"}
    paged = {**plain, "cache": pages(plain["cache"], slots, rng)}
    close(values(paged, "k_all"), values(plain, "k_all"), rtol=0, atol=0)
    close(values(paged), values(plain), rtol=0, atol=0)


def pages(cache: Config, slots: int, rng: np.random.Generator, held: list[int] | None = None) -> Config:
    """A cache ([batch], [head], past, d) cut into blocks, which lie in a random order among others; `held` are its lengths."""
    batched = cache["k"].ndim == 4
    past = cache["k"].shape[-2]
    items = len(cache["k"]) if batched else 1
    count = -(-past // slots)
    order = rng.permutation(items * count + 2)[: items * count].reshape(items, count)
    made: Config = {}
    for name in "kv":
        whole = cache[name] if batched else cache[name][None]
        padding = np.full((*whole.shape[:-2], count * slots - past, whole.shape[-1]), 99.0)
        filled = np.concatenate([whole, padding], axis=-2)
        pool = np.full((items * count + 2, *whole.shape[1:-2], slots, whole.shape[-1]), -99.0)
        for item in range(items):
            for page in range(count):
                pool[order[item, page]] = filled[item, ..., page * slots : (page + 1) * slots, :]
        made[name] = pool
    lengths = held or [past] * items
    return {"blocks": made, "table": order if batched else order[0], "lengths": lengths}


@LAWS
@given(given_qkv(alike=True, width=4), st.integers(1, 3), st.data())
def test_ragged_lengths_equal_every_item_by_itself(c: Config, slots: int, data: Any) -> None:
    """Each sequence sees its own past and no other's rubbish; its new tokens stand right after its past."""
    assume(c["q"].ndim == 4)
    n, rng = lengths(c)[0], rng_of(data)
    past = data.draw(st.integers(1, 5))
    held = [*rng.integers(1, past + 1, len(c["q"]) - 1), past]
    shape = c["k"].shape[:2]
    cache = {name: rng.normal(size=(*shape, past, c[name].shape[-1])) for name in "kv"}
    parts = {"mask": data.draw(st.sampled_from(["causal", {"window": {"left": 2}}, {"window": {"left": 1, "right": 1}}]))}
    sinks = {"sinks": np.full(c["heads"], 0.5)}
    parts |= data.draw(st.sampled_from([{}, {"alibi": True}, {"rope": {"pairs": "half"}}, {"alibi": True, **sinks}]))
    padding = [int(rng.integers(1, h + n + 1)) for h in held]
    padded = data.draw(st.booleans())
    shown = {**c, **parts, "mask": [parts["mask"], *([{"padding": padding}] if padded else [])]}
    together = values({**shown, "cache": pages(cache, slots, rng, [int(h) for h in held])})
    for i, h in enumerate(held):
        alone = {name: value[i] if name in "qkv" else value for name, value in shown.items()}
        alone["mask"] = [parts["mask"], *([{"padding": [padding[i]]}] if padded else [])]
        alone["cache"] = {name: cache[name][i][..., :h, :] for name in "kv"}
        close(together[i], values(alone))
    assert together.shape[-2] == n


# ------------------------------------------------------------------ windows, alibi


@LAWS
@given(given_qkv(), st.integers(0, 4), st.integers(0, 4), st.data())
def test_a_window_leaves_as_many_keys_as_it_says(c: Config, left: int, right: int, data: Any) -> None:
    """Counted with a cache or without, wherever the first query stands."""
    queries, keys = lengths(c)
    past = data.draw(st.integers(0, 4))
    align = data.draw(st.sampled_from(["top-left", "bottom-right", -1, 2]))
    if past:
        c = {**c, "cache": {name: np.ones((*c[name].shape[:-2], past, c[name].shape[-1])) for name in "kv"}}
    total = past + keys
    first = {"top-left": 0, "bottom-right": total - queries}.get(align, align)
    weights = values({**c, "mask": {"window": {"left": left, "right": right, "align": align}}}, "weights")
    for i in range(queries):
        seen = [j for j in range(total) if first + i - left <= j <= first + i + right]
        assert ((weights[..., i, :] > 0) == np.isin(np.arange(total), seen)).all()


def published_slopes(n: int) -> list[float]:
    """The rule of the ALiBi paper and its authors' code, in words: a geometric sequence from 2^(−8/n) for n a power of two;
    else that of the power below, then of the power above every second one from the first, until there are enough."""
    if math.log2(n).is_integer():
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start ** (i + 1) for i in range(n)]
    below = 2 ** math.floor(math.log2(n))
    return published_slopes(below) + published_slopes(2 * below)[0::2][: n - below]


@pytest.mark.parametrize("heads", range(1, 41))
def test_alibi_slopes_are_those_of_the_paper(heads: int) -> None:
    c = {"q": np.ones((heads, 2, 1)), "k": np.ones((heads, 2, 1)), "v": np.ones((heads, 2, 1)), "alibi": True}
    np.testing.assert_allclose(values(c, "slopes"), published_slopes(heads), rtol=1e-14)


def test_alibi_slopes_of_eight_heads_as_printed_in_the_paper() -> None:
    c = {"q": np.ones((8, 2, 1)), "k": np.ones((8, 2, 1)), "v": np.ones((8, 2, 1)), "alibi": True}
    assert values(c, "slopes").tolist() == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]


@LAWS
@given(given_qkv(), st.sampled_from(["top-left", "bottom-right", 3]), st.booleans())
def test_alibi_is_an_additive_mask(c: Config, align: Any, own: bool) -> None:
    queries, keys = lengths(c)
    n = heads_of(c)
    slopes = np.linspace(0.1, 1, n) if own else np.array(published_slopes(n))
    first = {"top-left": 0, "bottom-right": keys - queries}.get(align, align)
    apart = np.abs(np.arange(queries)[:, None] + first - np.arange(keys))
    bias = -slopes[:, None, None] * apart if "heads" in c else -slopes[0] * apart
    close(
        values({**c, "alibi": {"align": align, **({"slopes": slopes} if own else {})}}),
        values({**c, "mask": {"add": bias}}),
        rtol=1e-10,
    )


# ------------------------------------------------------------------ softcap, sinks, qk_norm, softmax in another dtype


@LAWS
@given(given_qkv(), st.sampled_from([0.1, 1.0, 5.0]))
def test_a_softcap_bounds_the_scores_and_a_large_one_leaves_them(c: Config, cap: float) -> None:
    t = attntrace.trace({**c, "softcap": cap})
    assert (np.abs(t["capped"].values) <= cap).all()
    np.testing.assert_array_equal(np.sign(t["capped"].values), np.sign(t["scaled"].values))
    close(values({**c, "softcap": 1e8}), values(c), rtol=1e-9)


@LAWS
@given(dressed())
def test_a_row_and_its_sink_sum_to_one(c: Config) -> None:
    """Also of a query that may attend to nothing, whose sink takes everything."""
    c = {**c, "sinks": np.linspace(-1, 2, heads_of(c))}
    t = attntrace.trace(c)
    close(t["weights"].values.sum(axis=-1) + t["sink_weights"].values, np.ones(t["sink_weights"].shape))
    assert np.isfinite(t["output"].values).all()


@LAWS
@given(dressed())
def test_a_sink_is_a_key_without_a_value(c: Config) -> None:
    """One more key with a score of its own and a value of zeros. (A dropout of its own would draw another key.)"""
    c = {**without(c, "dropout", "alibi", "masked_row", "mask"), "sinks": np.linspace(-1, 2, heads_of(c))}
    t = attntrace.trace(c)
    name = next(name for name in ("capped", "scaled") if name in t)
    s, v = t[name].values, next(t[n].values for n in ("v_shared", "v") if n in t)
    z = c["sinks"][:, None, None] if "heads" in c else c["sinks"][0]
    more = np.concatenate([s, np.broadcast_to(z, (*s.shape[:-1], 1))], axis=-1)
    e = np.exp(more - more.max(axis=-1, keepdims=True))
    a = (e / e.sum(axis=-1, keepdims=True))[..., :-1]
    close(t["weights"].values, a)
    close(t["context" if "heads" in c else "output"].values, a @ v)


@LAWS
@given(given_qkv(), st.sampled_from([None, {"tiled": {"queries": 2, "keys": 2}}]))
def test_a_sink_far_below_every_score_changes_nothing(c: Config, core: Any) -> None:
    c = {**c, **({} if core is None else {"core": core})}
    close(values({**c, "sinks": np.full(heads_of(c), -1e30)}), values(c), rtol=0, atol=0)


@LAWS
@given(given_qkv(width=4), st.sampled_from(["l2", "rmsnorm", "layernorm"]), st.data())
def test_qk_norm_makes_rows_of_unit_size(c: Config, norm: str, data: Any) -> None:
    g = rng_of(data).normal(size=4)
    t = attntrace.trace({**c, "qk_norm": {"norm": norm, "eps": 0, "k": g}})
    q = t["q_norm"].values
    size = np.square(q).sum(axis=-1) if norm == "l2" else np.square(q).mean(axis=-1)
    close(size, np.ones(size.shape))
    if norm == "layernorm":
        close(q.mean(axis=-1), np.zeros(size.shape))
    close(t["k_norm"].values, values({**c, "qk_norm": {"norm": norm, "eps": 0}}, "k_norm") * g)


@LAWS
@given(given_qkv(most=6))
def test_a_wider_softmax_is_nearer(c: Config) -> None:
    """In a float32 trace, weights from a float64 softmax are the float32 numbers nearest to it, and so never further off."""
    plain = attntrace.trace({**c, "dtype": "float32"})
    s = plain["scaled"].values.astype(np.float64)
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    exact = e / e.sum(axis=-1, keepdims=True)
    wide = values({**c, "dtype": "float32", "softmax_dtype": "float64"}, "weights")
    assert wide.dtype == np.float32
    off, before = np.abs(wide - exact), np.abs(plain["weights"].values - exact)
    assert (off <= np.spacing(wide) / 2 + 1e-15).all()
    assert off.sum() <= before.sum() + 1e-15
    narrow = values({**c, "dtype": "float32", "softmax_dtype": "float16"}, "weights")
    np.testing.assert_array_equal(narrow, narrow.astype(np.float16).astype(np.float32))


# ------------------------------------------------------------------ only some queries


@settings(LAWS, max_examples=150)
@given(dressed(), st.sampled_from([None, {"tiled": {"queries": 2, "keys": 3}}, {"ring": {"devices": 2}}]), st.data())
def test_the_rows_that_are_traced_are_those_of_the_whole(c: Config, core: Any, data: Any) -> None:
    """Of every variant, dropout included, which is drawn for all queries."""
    queries, keys = lengths(c)
    assume(core is None or "tiled" in core or keys > 1)
    c = {**c, **({} if core is None else {"core": core})}
    if data.draw(st.booleans()):
        rope = {"pairs": "half", "dims": 2, "positions": np.arange(queries), "key_positions": np.arange(keys)}
        c = {**c, "rope": rope} if c["q"].shape[-1] > 1 else c
    given_whole = any({"keep", "add"} & mask.keys() for mask in c.get("mask", []))
    if not given_whole and data.draw(st.booleans()):
        c = {**c, "cache": {name: np.ones((*c[name].shape[:-2], 2, c[name].shape[-1])) for name in "kv"}}
    start = data.draw(st.integers(0, queries - 1))
    stop = data.draw(st.integers(start + 1, queries))
    part = attntrace.trace(c, queries=f"{start}:{stop}")
    whole = attntrace.trace(c)
    for name in whole.names:
        if name in part and "query" in whole[name].axes and "query" in part[name].axes:
            axis = whole[name].axes.index("query")
            close(part[name].values, np.take(whole[name].values, range(start, stop), axis))
    close(part["output"].values, whole["output"].values[..., start:stop, :])


@LAWS
@given(blocks(), st.sampled_from(["pre", "post", "parallel"]), st.integers(0, 2))
def test_the_rows_of_a_block_that_are_traced(c: Config, order: str, row: int) -> None:
    c = {**c, "block": {"norm": "layernorm", "mlp": "gated", "order": order}, "mask": "causal", "rope": {"pairs": "half"}}
    close(values(c, "block_output", queries=str(row)), values(c, "block_output")[..., row : row + 1, :])


# ------------------------------------------------------------------ the block around the layer


def normed(kind: str, x: Array, g: Array, b: Array | None) -> Array:
    if kind == "rmsnorm":
        return np.asarray(x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + 1e-6) * g)
    y = x - x.mean(axis=-1, keepdims=True)
    return np.asarray(y / np.sqrt(np.square(y).mean(axis=-1, keepdims=True) + 1e-5) * g + b)


def gelu(x: Array) -> Array:
    return np.asarray(x / 2 * np.vectorize(lambda z: math.erfc(-z / math.sqrt(2)))(x))


def silu(x: Array) -> Array:
    return np.asarray(x * 0.5 * (1 + np.tanh(x / 2)))


ACTIVATIONS = {
    "relu": lambda x: x * (x > 0),
    "gelu": gelu,
    "gelu_tanh": lambda x: x / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": silu,
    "gated": silu,
}
ACTIVATIONS["gated_gelu"] = ACTIVATIONS["gelu_tanh"]


def mlp(c: Config, kind: str, x: Array) -> Array:
    up, act = x @ c["w_up"] + c["b_up"], ACTIVATIONS[kind]
    inner = act(x @ c["w_gate"] + c["b_gate"]) * up if kind.startswith("gated") else act(up)
    return np.asarray(inner @ c["w_down"] + c["b_down"])


@settings(LAWS, max_examples=100)
@given(
    blocks(),
    st.sampled_from(["layernorm", "rmsnorm"]),
    st.sampled_from(sorted(ACTIVATIONS)),
    st.sampled_from(["pre", "post", "parallel"]),
    st.booleans(),
)
def test_blocks_written_out(c: Config, norm: str, kind: str, order: str, transposed: bool) -> None:
    if not kind.startswith("gated"):
        c = without(c, "w_gate", "b_gate")
    if norm == "rmsnorm":
        c = without(c, "b_norm1", "b_norm2")
    plain = {name: c[name] for name in ("x", "w_q", "w_k", "w_v", "w_o", "heads")}

    def attention(x: Array) -> Array:
        return values({**plain, "x": x})

    def n(i: int, x: Array) -> Array:
        return normed(norm, x, c[f"w_norm{i}"], c.get(f"b_norm{i}"))

    x = c["x"]
    if order == "pre":
        h = x + attention(n(1, x))
        expected = h + mlp(c, kind, n(2, h))
    elif order == "post":
        h = n(1, x + attention(x))
        expected = n(2, h + mlp(c, kind, h))
    else:
        expected = x + attention(n(1, x)) + mlp(c, kind, n(2, x))
    asked = {**c, "block": {"norm": norm, "mlp": kind, "order": order}}
    if transposed:
        asked |= {name: value.T for name, value in asked.items() if name.startswith("w_") and value.ndim == 2}
        asked["weight_layout"] = "out_in"
    close(values(asked, "block_output"), expected, rtol=1e-8, atol=1e-9)


@LAWS
@given(blocks())
def test_one_norm_for_both_as_in_gpt_j(c: Config) -> None:
    """Without w_norm2 attention and MLP read the same: as if the second norm had the weights of the first."""
    c = without(c, "w_gate", "b_gate") | {"block": {"norm": "layernorm", "mlp": "gelu", "order": "parallel"}}
    shared = without(c, "w_norm2", "b_norm2")
    assert "normed2" not in attntrace.trace(shared)
    close(values(shared, "block_output"), values({**c, "w_norm2": c["w_norm1"], "b_norm2": c["b_norm1"]}, "block_output"))
