"""Decoding gives the rows of the causal pass, for every layer that has any; and it must be able to say that it does not."""

from __future__ import annotations

import json
from collections import Counter
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import attntrace
from attntrace import decoding
from attntrace.cli import commands  # noqa: F401 - registers them
from attntrace.cli.app import app
from attntrace.decoding import Pages, Pool, Store, decode, products
from attntrace.parts.rope import Rope
from attntrace.render.decode import Look, filling, write

Config = dict[str, Any]
SEEDS = range(96)


def run(*args: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["decode", *args])
    assert done.exit_code == code, done.output
    return done.stdout


# ------------------------------------------------------------------ random layers


class Draw:
    """Random layers that combine whatever can be combined."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.n = self.one_of(1, 2, 3, 4, 5, 6)
        self.batch = self.one_of(None, None, 1, 2, 3)
        self.heads = self.one_of(None, 2, 4)
        self.groups = None if self.heads is None else self.one_of(self.heads, self.heads // 2, 1)
        self.d_k, self.d_v = self.one_of(2, 4, 6), self.one_of(1, 2, 3)
        self.past = self.one_of(0, 0, 2, 3)
        self.config: Config = {}

    def one_of(self, *choices: Any) -> Any:
        return choices[self.rng.integers(len(choices))]

    def sometimes(self, odds: float = 0.35) -> bool:
        return bool(self.rng.random() < odds)

    def normal(self, *shape: int) -> np.ndarray:
        return self.rng.normal(size=shape)

    @property
    def lead(self) -> tuple[int, ...]:
        return () if self.batch is None else (self.batch,)

    def layer(self) -> Config:
        (self.direct if self.batch is not None and self.heads and self.sometimes(0.25) else self.projected)()
        for part in (self.cache, self.rope, self.masks, self.rest, self.core):
            part()
        return self.config

    def direct(self) -> None:
        for name, heads, width in (("q", self.heads, self.d_k), ("k", self.groups, self.d_k), ("v", self.groups, self.d_v)):
            self.config[name] = self.normal(*self.lead, heads, self.n, width)
        self.config |= {"heads": self.heads, "kv_heads": self.groups}

    def projected(self) -> None:
        h, g, width = self.heads or 1, self.groups or 1, self.one_of(3, 4)
        self.config |= {"x": self.normal(*self.lead, self.n, width)}
        self.config |= {} if self.heads is None else {"heads": h, "kv_heads": g}
        if self.sometimes(0.2):
            self.d_v = self.d_k
            self.config |= {"w_qkv": self.normal(width, (h + 2 * g) * self.d_k), "b_qkv": self.normal((h + 2 * g) * self.d_k)}
        else:
            for letter, columns in (("q", h * self.d_k), ("k", g * self.d_k), ("v", g * self.d_v)):
                self.config[f"w_{letter}"] = self.normal(width, columns)
        if self.sometimes(0.6):
            self.config["w_o"] = self.normal(h * self.d_v, width)
            if self.sometimes(0.6):
                self.block(width)

    def block(self, width: int) -> None:
        mlp = self.one_of("gelu", "gated")
        order = self.one_of("pre", "post", "parallel")
        self.config["block"] = {"norm": self.one_of("layernorm", "rmsnorm"), "mlp": mlp, "order": order}
        self.config |= {"w_up": self.normal(width, 5), "w_down": self.normal(5, width), "w_norm1": self.normal(width)}
        self.config |= {"w_gate": self.normal(width, 5)} if mlp == "gated" else {}

    def cache(self) -> None:
        lead, groups = self.lead, () if self.groups is None else (self.groups,)
        if self.past and self.sometimes(0.5):
            k, v = (self.normal(*lead, *groups, self.past, d) for d in (self.d_k, self.d_v))
            self.config["cache"] = {"k": k, "v": v}
        elif self.past:
            size, pages = 2, 2
            blocks = (self.batch or 1) * pages + 1
            table = self.rng.permutation(blocks)[: (self.batch or 1) * pages].reshape(*lead, pages)
            lengths = [int(n) for n in self.rng.integers(0, 5, self.batch or 1)]
            lengths[0] = max(1, lengths[0])
            k, v = (self.normal(blocks, *groups, size, d) for d in (self.d_k, self.d_v))
            self.config["cache"] = {"blocks": {"k": k, "v": v}, "table": table, "lengths": lengths}
            self.past = max(lengths)

    def rope(self) -> None:
        if not self.sometimes(0.5):
            return
        rope: Config = {"pairs": self.one_of("half", "interleaved")}
        where = self.one_of("after the past", "after the past", "offset", "positions")
        if where == "offset":
            rope["offset"] = 7
        elif where == "positions":
            lead = self.lead if self.sometimes(0.5) else ()
            rope["positions"] = self.rng.integers(0, 20, (*lead, self.n))
        if self.sometimes(0.25):
            rope |= {"cos": self.normal(32, self.d_k // 2), "sin": self.normal(32, self.d_k // 2)}
        elif self.sometimes(0.3):
            rope |= {"dims": 2, "base": 100.0}
        self.config["rope"] = rope

    def masks(self) -> None:
        n, keys = self.n, self.past + self.n
        bits = (self.rng.random((n, keys)) < 0.7).astype(int)
        possible = [
            "causal",
            {"window": {"left": int(self.rng.integers(0, 4)), "right": 1}},
            {"padding": [int(i) for i in self.rng.integers(0, keys + 1, self.batch or 1)]},
            {"keep": bits},
            {"ignore": bits[-1:]},
            {"add": self.normal(*(() if self.heads is None else (self.heads,)), n, keys)},
            {"causal": "bottom-right"},
        ]
        chosen = [m for m in possible if self.sometimes(0.25)]
        self.config |= {"mask": chosen} if chosen else {}

    def rest(self) -> None:
        h = self.heads or 1
        extras = {
            "alibi": self.one_of(True, {"slopes": self.rng.random(h)}),
            "qk_norm": self.one_of("rmsnorm", {"norm": "l2", "q": self.normal(self.d_k)}),
            "softcap": 3.0,
            "sinks": self.normal(h),
            "dropout": {"rate": 0.3, "seed": 1},
        }
        self.config |= {name: extra for name, extra in extras.items() if self.sometimes(0.25)}

    def core(self) -> None:
        if not self.sometimes(0.4):
            return
        tiled = {"tiled": {"queries": self.one_of(1, 2), "keys": self.one_of(1, 2, 3)}}
        ring = {"ring": {"devices": int(self.rng.integers(1, min(4, self.past + self.n) + 1))}}
        self.config["core"] = self.one_of(tiled, ring)


def layers(seed: int) -> tuple[Config, int | None]:
    """A random layer, and the size of the blocks of its cache, or None for a cache that is not paged."""
    draw = Draw(seed)
    return draw.layer(), draw.one_of(None, None, 1, 2, 3, 5)


def causal(config: Config) -> Config:
    """The layer with every later key hidden by a mask written out: neither decode nor the causal mask has a part in it."""
    problem = attntrace.load(config)
    n, keys = problem.queries, problem.sizes["key"]
    own = np.tril(np.ones((n, keys)), keys - n)
    return {**config, "mask": [*config.get("mask", []), {"keep": own}]}


@pytest.mark.parametrize("seed", SEEDS)
def test_decoded_rows_are_those_of_the_causal_pass(seed: int) -> None:
    config, block_size = layers(seed)
    full = attntrace.trace(causal(config))
    found = decode(attntrace.load(config), block_size)
    ragged = len(set(found.past)) > 1
    for t, token in enumerate(found.play()):
        for name in {"output", "block_output", "weights"} & set(full.names):
            rows = full[name].values[..., t : t + 1, :]
            if name == "weights":
                if ragged and block_size:
                    continue  # its keys lie in another order; the output tells
                rows = rows[..., : token.trace.sizes["key"]]
            np.testing.assert_allclose(token.trace[name].values, rows, rtol=1e-8, atol=1e-10, err_msg=f"{name} of {t}")
    assert found.verdict == f"{found.tokens} of {found.tokens} rows equal the causal pass"
    assert found.agrees


def test_the_random_layers_are_of_all_kinds() -> None:
    kinds: Counter[str] = Counter()
    for seed in SEEDS:
        config, block_size = layers(seed)
        cache = config.get("cache", {})
        kinds.update(list(config))
        kinds.update(f"rope {name}" for name in config.get("rope", {}))
        kinds.update(f"core {name}" for name in config.get("core", {}))
        kinds.update(m if isinstance(m, str) else next(iter(m)) for m in config.get("mask", []))
        kinds.update(["paged"] * (block_size is not None))
        kinds.update(["ragged"] * (len(set(cache.get("lengths", []))) > 1))
        kinds.update(["ragged and paged"] * (len(set(cache.get("lengths", []))) > 1 and block_size is not None))
    rare = {"ragged", "ragged and paged", "rope cos", "rope dims", "rope offset", "q", "w_qkv"}
    wanted = [
        "x",
        "cache",
        "block",
        "alibi",
        "qk_norm",
        "softcap",
        "sinks",
        "dropout",
        "rope positions",
        "core tiled",
        "core ring",
    ]
    wanted += ["causal", "window", "padding", "keep", "ignore", "add", "paged", *rare]
    assert {name: kinds[name] for name in wanted if kinds[name] < (2 if name in rare else 6)} == {}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("seed", range(12))
def test_so_it_is_in_smaller_dtypes(seed: int, dtype: str) -> None:
    config, block_size = layers(seed)
    assert decode(attntrace.load({**config, "dtype": dtype}), block_size).agrees


@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 7])
def test_a_paged_cache_gives_what_a_plain_one_gives(block_size: int) -> None:
    rng = np.random.default_rng(1)
    config = {
        "x": rng.normal(size=(2, 6, 4)),
        "heads": 2,
        "kv_heads": 1,
        "rope": {"pairs": "half"},
        "w_q": rng.normal(size=(4, 4)),
        "w_k": rng.normal(size=(4, 2)),
        "w_v": rng.normal(size=(4, 2)),
    }
    plain, paged = (decode(attntrace.load(config), size) for size in (None, block_size))
    for one, other in zip(plain.play(), paged.play(), strict=True):
        for name in ("scores", "weights", "output"):
            np.testing.assert_array_equal(one.trace[name].values, other.trace[name].values)
        assert ("table" in other.trace) == (one.number > 0)


# ------------------------------------------------------------------ numbers by NumPy


def softmax(s: np.ndarray) -> np.ndarray:
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def test_json_has_the_numbers_that_numpy_decodes() -> None:
    """The same decoding written out: one token at a time, its key and value appended to lists."""
    rng = np.random.default_rng(5)
    x, w_q, w_k, w_v = rng.normal(size=(4, 3)), *rng.normal(size=(3, 3, 2))
    given = {"x": x, "w_q": w_q, "w_k": w_k, "w_v": w_v}
    sets = [part for name, a in given.items() for part in ("--set", f"{name}={json.dumps(a.tolist())}")]
    document = json.loads(run("toy", *sets, "--set", "mask=causal", "--format", "json"), parse_constant=pytest.fail)
    keys, values = [], []
    for x_t, token in zip(x, document["tokens"], strict=True):
        keys.append(x_t @ w_k)
        values.append(x_t @ w_v)
        scores = x_t @ w_q @ np.array(keys).T
        weights = softmax(scores / np.sqrt(2))
        steps = {step["name"]: step["values"] for step in token["steps"]}
        np.testing.assert_allclose(steps["scores"], [scores], rtol=1e-12)
        np.testing.assert_allclose(steps["weights"], [weights], rtol=1e-12)
        np.testing.assert_allclose(steps["output"], [weights @ np.array(values)], rtol=1e-12)
        assert token["cache"] == {
            "k_all": {"axes": ["key", "d_k"], "shape": [len(keys), 2]},
            "v_all": {"axes": ["key", "d_v"], "shape": [len(keys), 2]},
        }
        assert token["positions"] == [len(keys) - 1]
        assert all(row["agrees"] for row in token["compared"])
    assert document["agrees"] is True
    assert document["verdict"] == "4 of 4 rows equal the causal pass"


# ------------------------------------------------------------------ blocks


def test_sequences_take_blocks_in_turn() -> None:
    config = {"x": np.ones((2, 5, 2)), "w_q": np.eye(2), "w_k": np.eye(2), "w_v": np.eye(2)}
    pages = decode(attntrace.load(config), 2).pages
    assert [p.tables for p in pages] == [
        *[((0,), (1,))] * 2,
        *[((0, 2), (1, 3))] * 2,
        ((0, 2, 4), (1, 3, 5)),
    ]
    assert [p.lengths for p in pages] == [(t, t) for t in range(5)]
    assert {p.total for p in pages} == {6}


def test_the_past_is_in_blocks_before_the_first_token() -> None:
    """Pasts of 3 and 1: with the first token 4 and 2 slots are taken, which fills two blocks and one."""
    rng = np.random.default_rng(2)
    cache = {
        "blocks": {"k": rng.normal(size=(3, 3, 2)), "v": rng.normal(size=(3, 3, 2))},
        "table": [[2], [0]],
        "lengths": [3, 1],
    }
    config = {"x": rng.normal(size=(2, 2, 2)), "w_q": np.eye(2), "w_k": np.eye(2), "w_v": np.eye(2), "cache": cache}
    found = decode(attntrace.load(config), 2)
    assert [p.tables for p in found.pages] == [((0, 1), (2,)), ((0, 1, 3), (2, 4))]
    first, second = found.play()
    old = cache["blocks"]["k"]
    expected = np.zeros((5, 2, 2))
    expected[0], expected[1, 0], expected[2, 0] = old[2][:2], old[2][2], old[0][0]
    np.testing.assert_array_equal(first.trace["k_blocks"].values, expected)
    expected[1, 1], expected[2, 1] = config["x"][:, 0]
    np.testing.assert_array_equal(second.trace["k_blocks"].values, expected)
    assert (first.positions, second.positions) == ((3, 1), (4, 2))
    assert found.agrees


@pytest.mark.parametrize(
    ("table", "held", "size", "text"),
    [
        ((0,), 1, 4, "block 0 holds 1 of 4  ·  3 slots free"),
        ((0, 2), 8, 4, "block 0 full, block 2 full  ·  0 slots free"),
        ((1, 3), 5, 3, "block 1 full, block 3 holds 2 of 3  ·  1 slot free"),
        (tuple(range(9)), 9, 1, "block 0 full, block 1 full, …, block 7 full, block 8 full  ·  0 slots free"),
    ],
)
def test_a_block_table_says_what_is_full(table: tuple[int, ...], held: int, size: int, text: str) -> None:
    assert filling(table, held, size) == text


# ------------------------------------------------------------------ multiplications


@pytest.mark.parametrize(("n", "d", "heads"), [(1, 4, 1), (5, 8, 2), (7, 6, 3)])
def test_multiplications_by_formula(n: int, d: int, heads: int) -> None:
    """A token takes 3 d² to be projected; with k keys, 2 k d for its scores and its average of values."""
    found = decode(attntrace.load({"seed": 1, "x": drawn(n, d), **{f"w_{a}": drawn(d, d) for a in "qkv"}, "heads": heads}))
    with_cache = sum(3 * d * d + 2 * k * d for k in range(1, n + 1))
    without = sum(k * (3 * d * d + 2 * k * d) for k in range(1, n + 1))
    assert found.multiplications == (with_cache, without)
    assert found.multiplications.ratio == without / with_cache


def test_multiplications_of_a_block_with_grouped_heads_and_a_past() -> None:
    """d_model 4, 2 heads of 3 that share one key and value, d_ff 5, gated; 2 tokens after 3."""
    config = {
        "seed": 1,
        "x": drawn(2, 4),
        "w_q": drawn(4, 6),
        "w_k": drawn(4, 3),
        "w_v": drawn(4, 3),
        "w_o": drawn(6, 4),
        "heads": 2,
        "kv_heads": 1,
        "cache": {"k": drawn(1, 3, 3), "v": drawn(1, 3, 3)},
        "block": {"norm": "rmsnorm", "mlp": "gated"},
        "w_gate": drawn(4, 5),
        "w_up": drawn(4, 5),
        "w_down": drawn(5, 4),
    }
    each = 4 * 6 + 4 * 3 + 4 * 3 + 6 * 4 + 3 * (4 * 5)  # projections and MLP of one token
    keys = 2 * 2 * 3  # of one token with one key: 2 heads, scores and values, 3 wide
    found = decode(attntrace.load(config)).multiplications
    assert found == (2 * each + keys * (4 + 5), (1 + 2) * each + keys * (4 + 2 * 5))


@pytest.mark.parametrize("core", [{"tiled": {"queries": 1, "keys": 2}}, {"ring": {"devices": 3}}])
def test_multiplications_are_those_of_the_traces(core: Config) -> None:
    config = {"seed": 1, "x": drawn(2, 5, 4), **{f"w_{a}": drawn(4, 4) for a in "qkv"}, "heads": 2, "core": core}
    for block_size in (None, 2):
        found = decode(attntrace.load(config), block_size)
        assert found.multiplications.with_cache == sum(products(token.trace) for token in found.play())


def test_counting_computes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    found = decode(attntrace.load({"seed": 1, "mask": "causal", "x": drawn(3, 2), **{f"w_{a}": drawn(2, 2) for a in "qkv"}}))
    monkeypatch.setattr("attntrace.tape.Step._compute", lambda step: pytest.fail(f"{step.name} is computed"))
    assert found.multiplications == (3 * 12 + 4 * 6, 12 * 6 + 4 * 14)


def drawn(*shape: int) -> Config:
    return {"draw": "normal", "shape": list(shape)}


# ------------------------------------------------------------------ it can fail

ROPE = {
    "seed": 3,
    "x": drawn(2, 5, 4),
    **{f"w_{a}": drawn(4, 4) for a in "qkv"},
    "heads": 2,
    "mask": "causal",
    "rope": {"pairs": "half"},
}


def verdict(config: Config, block_size: int | None = None) -> str:
    found = decode(attntrace.load(config), block_size)
    said = found.verdict
    assert found.agrees == said.startswith("5 of 5 rows")
    return said


def test_a_cache_in_another_order_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    add = Store.add
    monkeypatch.setattr(Store, "add", lambda self, k, v: add(self, k[..., ::-1, :], v[..., ::-1, :]))
    said = verdict(ROPE)  # rows 0 and 1 have a past of no key and of one
    assert said.startswith("2 of 5 rows equal the causal pass; t")
    assert "differs most, at weights[" in said  # keys and values move together, so the output stays


def test_positions_off_by_one_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Rope.standing
    monkeypatch.setattr(Rope, "standing", lambda self, p, n: right(self, p, n) + (p.sizes.get("past_key", 0) > 0))
    assert verdict(ROPE).startswith("1 of 5 rows equal")


def test_keys_turned_twice_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept must be turned already, and once: here keys are kept as they come from W_K."""
    keys_and_values = decoding.keys_and_values

    def unturned(t: Any) -> Any:
        k, v = keys_and_values(t)
        return (t["k"] if "k_past" not in t else k), v

    monkeypatch.setattr(decoding, "keys_and_values", unturned)
    assert verdict({**ROPE, "rope": {"pairs": "half", "offset": 1}}).startswith("1 of 5 rows equal")


def test_a_key_in_the_wrong_slot_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Pages.place

    def wrong(self: Pages, sequence: int, key: int) -> tuple[int, int]:
        return place(self, 1 - sequence if key == 2 else sequence, key)

    monkeypatch.setattr(Pages, "place", wrong)
    assert verdict(ROPE, 2).startswith("3 of 5 rows equal the causal pass; t")


def test_values_that_are_lost_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    add = Pool.add
    monkeypatch.setattr(Pool, "add", lambda self, k, v: add(self, k, 0 * v))
    assert "differs most, at output[" in verdict(ROPE, 4)


def test_a_mask_row_too_late_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    keep = np.tril(np.ones((5, 5))) - np.eye(5, k=-1)
    tile = decoding.Excerpt.tile

    def late(self: Any, read: Any, at: Any) -> Any:
        return tile(decoding.Excerpt(self.whole, range(max(0, self.run.start - 1), self.run.stop)), read, at)

    assert verdict({**ROPE, "mask": {"keep": keep}}).startswith("5 of 5 rows")
    monkeypatch.setattr(decoding.Excerpt, "tile", late)
    assert not verdict({**ROPE, "mask": {"keep": keep}}).startswith("5 of 5 rows")


def test_the_command_exits_1_when_a_row_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("multi-head-causal", "--quiet") == ""
    monkeypatch.setattr(Store, "add", lambda self, k, v: self.__dict__.update(k=k * 1.01, v=v))
    out = run("multi-head-causal", code=1)
    assert out.count("✗ token ") == 4
    assert "\n1 of 5 rows equal the causal pass; t" in out
    assert json.loads(run("multi-head-causal", "--format", "json", code=1))["agrees"] is False
    assert run("multi-head-causal", "--quiet", code=1) == ""


# ------------------------------------------------------------------ what is said

TINY = {
    "title": "Two tokens",
    "tokens": ["a", "b"],
    "x": [[1, 0], [0, 1]],
    "w_q": [[0, 0], [0, 0]],
    "w_k": [[1, 0], [0, 1]],
    "w_v": [[2, 0], [0, 4]],
}
SEEN = """\
Two tokens

✓ token a, position 0
   k_all  key 1 × d_k 2
   v_all  key 1 × d_v 2
   table  block 0 holds 1 of 2  ·  1 slot free
   pool  1 of 1 blocks taken

━━ weights ━━  A = softmax(S′)  ·  query 1 × key 1  ·  float64

         a  │     sum
a  ▸1.0000  │  1.0000

━━ output ━━  Y = A V  ·  query 1 × d_v 2  ·  float64

         0       1  │     sum
a  ▸2.0000  0.0000  │  2.0000

✓ token b, position 1
   k_all  key 2 × d_k 2
   v_all  key 2 × d_v 2
   table  block 0 full  ·  0 slots free
   pool  1 of 1 blocks taken

━━ weights ━━  A = softmax(S′)  ·  query 1 × key 2  ·  float64

         a        b  │     sum
b  ▸0.5000  =0.5000  │  1.0000

━━ output ━━  Y = A V_all  ·  query 1 × d_v 2  ·  float64

        0        1  │     sum
b  1.0000  ▸2.0000  │  3.0000

▸ largest of its row   = equal to it

2 of 2 rows equal the causal pass
"""


def test_what_a_person_sees() -> None:
    out = BytesIO()
    found = decode(attntrace.load(TINY), 2)
    write(found, Look(["weights", "output"]), out)
    text = out.getvalue().decode()
    assert [line.split() for line in text.splitlines()][: SEEN.count("\n")] == [line.split() for line in SEEN.splitlines()]
    # 12 for each token's projections, 4 for each key that it meets: 16 + 20, and anew 16 + 2 × 20
    assert text.endswith("\nmultiplications: 36 with the cache, 56 without it, 1.56 times as many\n")


def test_each_token_shows_its_cache_and_its_rows() -> None:
    out = run("--seed", "3", "--tokens", "5", "--d-model", "8", "--heads", "2", "--causal")
    assert out.count("━━ scores ━━") == out.count("━━ weights ━━") == out.count("━━ output ━━") == 5
    for t in range(5):
        assert f"token t{t}, position {t}\n   k_all  head 2 × key {t + 1} × d_k 4\n" in out
    assert "5 of 5 rows equal the causal pass\nlargest error " in out
    assert "multiplications: 1,200 with the cache, 3,760 without it, 3.13 times as many\n" in out


def test_steps_head_and_precision_choose_what_is_shown() -> None:
    out = run("multi-head-causal", "--steps", "k_past,weights", "--head", "1", "--batch", "0", "--precision", "2")
    assert out.count("━━ k_past ━━") == 4  # the first token has none
    assert out.count("weights[0, 1]  batch 0, head 1") == 5
    assert "scores" not in out.replace("scores of", "")
    assert "1.00" in out
    assert "1.000" not in out


def test_tiles_show_their_scores() -> None:
    out = run("flash")
    assert "━━ scores_0_0 ━━" in out
    assert "━━ scores_0_1 ━━" in out
    assert "━━ weights ━━" not in out


def test_positions_are_those_of_each_sequence_and_of_rope() -> None:
    rope = {**ROPE, "rope": {"pairs": "half", "positions": [[5, 6, 7, 8, 9], [1, 2, 3, 4, 5]]}}
    out = BytesIO()
    write(decode(attntrace.load(rope)), Look([]), out)
    assert "token t2, position 2; rope positions 7, 3\n" in out.getvalue().decode()


def test_notes_say_what_decoding_changes() -> None:
    assert [n.code for n in decode(attntrace.load("module05")).notes] == ["decode-causal"]
    assert [n.code for n in decode(attntrace.load("multi-head-causal")).notes] == []
    assert [n.code for n in decode(attntrace.load("ring")).notes] == ["decode-ring"]
    window = {**ROPE, "mask": {"window": {"left": 2, "right": 0}}}
    assert decode(attntrace.load(window)).notes == []
    wide = {**ROPE, "mask": {"window": {"left": 2, "right": 1}}}
    assert decode(attntrace.load(wide)).notes[0].message == (
        "the mask lets tokens attend to later ones; a token that is decoded has only those before it, so the pass it is held "
        "against gets a causal mask"
    )
    done = CliRunner().invoke(app, ["decode"])
    assert "note: there is no mask; a token" in done.stderr
    assert "note:" not in done.stdout


def test_nan_in_a_later_token_reaches_only_the_causal_pass() -> None:
    """NaN − ∞ is NaN: a fact about masks, which no decoding can show."""
    x = [[1.0, 0.0], [0.0, 1.0], [np.nan, 0.0]]
    found = decode(attntrace.load({**TINY, "tokens": ["a", "", "c"], "x": x, "w_q": np.eye(2), "mask": "causal"}))
    tokens = list(found.play())
    assert [token.agrees for token in tokens] == [False, False, True]
    assert [token.label for token in tokens] == ["a", "t1", "c"]
    assert found.verdict == "1 of 3 rows equal the causal pass; a differs most, at weights[0, 0] of its trace"
    assert found.notes[-1].code == "decode-nan"
    assert np.isnan(found.full["weights"].values).all()


def test_inputs_are_drawn_once() -> None:
    """Reading a draw a second time would go on in its stream."""
    problem = attntrace.load(ROPE | {"mask": None})
    before = attntrace.trace(problem)["x"].values
    found = decode(problem)
    tokens = [token.trace["x"].values for token in found.play()]
    np.testing.assert_array_equal(np.concatenate(tokens, axis=-2), before)
    np.testing.assert_array_equal(found.full["x"].values, before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["cross-attention"],
            "error: x_kv: the keys of cross-attention do not grow from token to token; leave x_kv out to decode\n",
        ),
        (["toy", "--queries", "0:2"], "error: --queries: decode takes every token in its turn; leave it out\n"),
        (["toy", "--block-size", "2"], "error: --block-size: goes with --paged\n"),
        (["toy", "--steps", "wieghts"], "error: there is no step 'wieghts' in this trace; did you mean \"weights\"?\n"),
        (["toy", "--head", "0"], "error: --head 0: this trace has no head axis\n"),
        (
            ["multi-head-causal", "--head", "9"],
            "error: --head 9: out of range: there are 4, numbered 0 to 3\n",
        ),
    ],
)
def test_what_cannot_be_decoded(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["decode", *arguments])
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", message)


@pytest.mark.parametrize(
    ("queries", "keys", "message"),
    [
        (
            2,
            5,
            "k: to decode, each query comes with a key of its own; found 2 queries and 5 keys: give the first 3 as cache: "
            "{k: …, v: …}",
        ),
        (3, 1, "k: to decode, each query comes with a key of its own; found 3 queries and 1 key: give as many of each"),
    ],
)
def test_each_query_needs_a_key(queries: int, keys: int, message: str) -> None:
    problem = attntrace.load({"q": np.ones((queries, 2)), "k": np.ones((keys, 2)), "v": np.ones((keys, 2))})
    with pytest.raises(attntrace.AttnTraceError) as error:
        decode(problem)
    assert error.value.faults[0].message == message


def test_what_does_not_fit_in_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "available", lambda: 1000)
    monkeypatch.setattr("attntrace.tape.Step._compute", lambda step: pytest.fail(f"{step.name} is computed"))
    with pytest.raises(attntrace.AttnTraceError, match=r"decoding needs .* 1000 bytes are free: it is held against the causal"):
        decode(attntrace.load("multi-head-causal"))
