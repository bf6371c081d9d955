"""Hundreds of random layers in which the variants meet: grouped heads, rotations, caches, norms, biases, sinks, softcap, masks,
tiles and rings, in every dtype.

Each is held by `verify`, and by the same layer written out here in float64, from the inputs to the output. What is written out
takes one sequence at a time and only the keys that the cache really holds of it, so that there are no slots to be hidden and
every key stands where it stands in its row. What a trace in its dtype may be off by is worked out by `compare.accumulated`.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import attntrace
from attntrace import compare, layer

torch = pytest.importorskip("torch")
F = torch.nn.functional

COUNT = 300
DTYPES = ("float64", "float64", "float32", "float32", "float16", "bfloat16")
Config = dict[str, Any]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tensors this small are only slowed down by more threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# ------------------------------------------------------------------ random configs


class Draw:
    """Random choices, the same for the same seed, and the lengths of a layer's axes; None for an axis that it lacks."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng([seed, 77])
        self.dtype = DTYPES[seed % len(DTYPES)]
        self.batch, self.heads = self.one(None, 1, 2, 3), self.one(None, 1, 2, 3, 4, 6)
        self.groups = self.heads and self.one(*(g for g in range(1, 7) if self.heads % g == 0))
        self.queries = self.new = self.size(5)
        self.d_k, self.d_v, self.width = self.one(2, 3, 4, 6, 8), self.size(4), self.size(5)
        self.past, self.lengths = 0, [0] * (self.batch or 1)

    def one(self, *choices: Any) -> Any:
        return choices[self.rng.integers(len(choices))]

    def size(self, high: int) -> int:
        return int(self.rng.integers(1, high + 1))

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def array(self, *shape: int, size: float = 1.0) -> np.ndarray:
        """Numbers that the dtype of the trace holds exactly, so that all begin from the same ones."""
        kind = np.dtype(ml_dtypes.bfloat16 if self.dtype == "bfloat16" else self.dtype)
        return (size * self.rng.normal(size=shape)).astype(kind).astype(np.float64)

    def whole(self, *shape: int, high: int) -> list[Any]:
        return self.rng.integers(0, high, size=shape).tolist()

    @property
    def lead(self) -> tuple[int, ...]:
        return () if self.batch is None else (self.batch,)

    @property
    def kv_lead(self) -> tuple[int, ...]:
        return (*self.lead, *(() if self.groups is None else (self.groups,)))

    @property
    def keys(self) -> int:
        return self.past + self.new


def config(seed: int) -> Config:
    """A random config; the key --queries is the option of that name."""
    d = Draw(seed)
    made = {"dtype": d.dtype, **d.one(projected, projected, direct)(d)}
    made |= {} if d.heads is None else {"heads": d.heads, "kv_heads": d.groups}
    for part, likely in ((cache, 0.5), (rope, 0.6), (qk_norm, 0.3), (masked, 0.7), (alibi, 0.3), (core, 0.6)):
        made |= part(d) if d.chance(likely) else {}
    if d.chance(0.3):
        made["softcap"] = d.one(0.5, 2.0, 30.0)
    if d.chance(0.3):
        made["sinks"] = d.array(d.heads or 1, size=2.0)
    if d.chance(0.3):
        made["scale"] = d.one(0.5, 1.0, -0.7)
    if "core" not in made and d.chance(0.1):
        made["softmax_dtype"] = "float32"
    if d.queries > 1 and d.chance(0.2):
        made["--queries"] = d.one("1:", ":-1", "-1")
    return made


def projected(d: Draw) -> Config:
    """Queries from x; keys and values too, or from a sequence of another length."""
    h, g = d.heads or 1, d.groups or 1
    made: Config = {"x": d.array(*d.lead, d.queries, d.width)}
    if d.chance(0.3):
        d.new = d.size(5)
        made["x_kv"] = d.array(*d.lead, d.new, d.width)
    for letter, columns in (("q", h * d.d_k), ("k", g * d.d_k), ("v", g * d.d_v)):
        made[f"w_{letter}"] = d.array(d.width, columns)
    if d.chance(0.3):
        made["b_q"] = d.array(h * d.d_k)
    if d.chance(0.4):
        made["w_o"] = d.array(h * d.d_v, d.size(4))
    return made


def direct(d: Draw) -> Config:
    d.new = d.one(d.queries, d.size(5))
    if d.heads is None and d.batch is not None:
        d.heads = d.groups = 1  # q of three axes has heads
    lead = (*d.lead, *(() if d.heads is None else (d.heads,)))
    return {
        "q": d.array(*lead, d.queries, d.d_k),
        "k": d.array(*d.kv_lead, d.new, d.d_k),
        "v": d.array(*d.kv_lead, d.new, d.d_v),
    }


def cache(d: Draw) -> Config:
    return {"cache": paged(d) if d.chance(0.5) else plain(d)}


def plain(d: Draw) -> Config:
    d.past = d.size(4)
    d.lengths = [d.past] * (d.batch or 1)
    return {"k": d.array(*d.kv_lead, d.past, d.d_k), "v": d.array(*d.kv_lead, d.past, d.d_v)}


def paged(d: Draw) -> Config:
    blocks, slot, pages = d.size(5) + 1, d.size(3), d.size(3)
    head = () if d.groups is None else (d.groups,)
    d.lengths = [pages * slot] * (d.batch or 1)
    made: Config = {
        "blocks": {"k": d.array(blocks, *head, slot, d.d_k), "v": d.array(blocks, *head, slot, d.d_v)},
        "table": d.whole(*d.lead, pages, high=blocks),
    }
    if d.chance(0.7):
        d.lengths = d.whole(d.batch or 1, high=pages * slot + 1)
        d.lengths[0] = max(1, d.lengths[0])
        made["lengths"] = list(d.lengths)
    d.past = max(d.lengths)
    return made


def rope(d: Draw) -> Config:
    dims = 2 * d.size(d.d_k // 2)
    made: Config = {"pairs": d.one("interleaved", "half"), "dims": dims}
    if d.queries != d.new or d.chance(0.3):
        made["positions"] = d.whole(*(d.lead if d.chance(0.5) else ()), d.queries, high=30)
    elif d.chance(0.3):
        made["offset"] = d.size(9)
    if d.chance(0.2):
        made["key_positions"] = d.whole(*(d.lead if d.chance(0.5) else ()), d.new, high=30)
    if d.chance(0.2):
        lead = d.lead if d.chance(0.5) else ()
        return {"rope": made | {"cos": d.array(*lead, 40, dims // 2), "sin": d.array(*lead, 40, dims // 2)}}
    if d.chance(0.5):
        made["base"] = d.one(10.0, 500000.0)
    if d.chance(0.4):
        llama = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": d.one(8, 64)}
        made["scaling"] = d.one({"type": "linear", "factor": 4.0}, {"type": "llama3", "factor": 8.0, **llama})
    return {"rope": made}


def qk_norm(d: Draw) -> Config:
    made: Config = {"norm": d.one("rmsnorm", "layernorm", "l2"), "eps": d.one(1e-3, 1e-5)}
    return {"qk_norm": made | {name: d.array(d.d_k) for name in "qk" if d.chance(0.5)}}


def masked(d: Draw) -> Config:
    return {"mask": [one_mask(d) for _ in range(d.one(1, 1, 2, 3))]}


def alignment(d: Draw) -> str | int | None:
    """What must be said where lengths are unequal, and may be said where they are not."""
    return None if d.queries == d.new and d.chance(0.6) else d.one("top-left", "bottom-right", d.size(3))


def one_mask(d: Draw) -> Any:
    kind, align = d.one("causal", "causal", "window", "window", "padding", "keep", "add"), alignment(d)
    if kind == "causal":
        return "causal" if align is None else {"causal": align}
    if kind == "window":
        sides = {"left": d.size(4), "right": int(d.rng.integers(0, 3))}
        return {"window": sides | ({} if align is None else {"align": align})}
    if kind == "padding":
        return {"padding": [int(d.rng.integers(0, d.keys + 1)) for _ in d.lengths]}
    full = (*d.lead, *(() if d.heads is None else (d.heads,)))
    shape = (*(d.one(n, 1) for n in full[d.rng.integers(0, len(full) + 1) :]), d.queries, d.keys)
    return {"add": d.array(*shape)} if kind == "add" else {"keep": (d.rng.random(shape) < 0.7).astype(int)}


def alibi(d: Draw) -> Config:
    made: Config = {"slopes": np.abs(d.array(d.heads or 1))} if d.chance(0.4) else {}
    align = alignment(d)
    made |= {} if align is None else {"align": align}
    return {"alibi": made or True}


def core(d: Draw) -> Config:
    tiles = {"queries": d.size(3), "keys": d.size(3)}
    return {"core": d.one({"tiled": tiles}, {"tiled": tiles}, {"ring": {"devices": d.size(min(4, d.keys))}})}


# ------------------------------------------------------------------ the same layer, written out


class Sequence(NamedTuple):
    """One sequence: its queries (head, query, d), its past and new keys and values together, and which slots they lie in."""

    number: int
    q: Any
    k: Any
    v: Any
    held: int
    slots: list[int]


def tensor(array: Any) -> Any:
    return torch.tensor(np.asarray(array), dtype=torch.float64)


def four(c: Config, t: Any) -> Any:
    """(batch, head, …, …), axes of 1 where the layer lacks them."""
    t = t.unsqueeze(-3) if t.dim() == 3 and "heads" not in c else t
    return t.reshape(*(1,) * (4 - t.dim()), *t.shape)


def by_hand(c: Config) -> np.ndarray:
    """The output of the layer: (batch, query, heads · d_v), or what w_o makes of it."""
    q, k, v = (of_input(c, letter) for letter in "qkv")
    rows = []
    for b in range(len(q)):
        rows.append(one_sequence(c, b, q[b], k[b], v[b]))
    out = torch.stack(rows)
    out = F.linear(out, tensor(c["w_o"]).T) if "w_o" in c else out
    return out.numpy()


def of_input(c: Config, letter: str) -> Any:
    """Queries, keys or values as (batch, head, token, d)."""
    if "q" in c:
        return four(c, tensor(c[letter]))
    heads = c.get("heads", 1) if letter == "q" else c.get("kv_heads", 1)
    x = tensor(c["x"] if letter == "q" or "x_kv" not in c else c["x_kv"])
    x = x if x.dim() == 3 else x[None]
    y = x @ tensor(c[f"w_{letter}"]) + tensor(c.get(f"b_{letter}", 0.0))
    return torch.stack(y.chunk(heads, dim=-1), dim=1)


def one_sequence(c: Config, b: int, q: Any, k: Any, v: Any) -> Any:
    past_k, past_v = past(c, b)
    held = 0 if past_k is None else past_k.shape[-2]
    q, k = normed(c, q, "q"), normed(c, k, "k")
    q, k = turned(c, b, q, held, "positions", k.shape[-2]), turned(c, b, k, held, "key_positions", q.shape[-2])
    if past_k is not None:
        k, v = torch.cat([past_k, k], dim=-2), torch.cat([past_v, v], dim=-2)
    all_past = max(c["cache"].get("lengths", [held])) if held or "cache" in c else 0
    new = k.shape[-2] - held
    s = Sequence(b, q, k, v, held, [*range(held), *range(all_past, all_past + new)])
    return torch.cat(heads(c, s), dim=-1)


def past(c: Config, b: int) -> Any:
    """The past of one sequence, (head, key, d): as many keys as it has, page after page."""
    if "cache" not in c:
        return None, None
    given = c["cache"]
    if "blocks" not in given:
        return tuple(four(c, tensor(given[name]))[b] for name in "kv")
    pages = given["table"][b] if np.ndim(given["table"]) == 2 else given["table"]
    found = []
    for name in "kv":
        blocks = tensor(given["blocks"][name])
        blocks = blocks if blocks.dim() == 4 else blocks[:, None]
        keys = torch.cat([blocks[page] for page in pages], dim=-2)
        found.append(keys[:, : given["lengths"][b]] if "lengths" in given else keys)
    return tuple(found)


def normed(c: Config, x: Any, letter: str) -> Any:
    if "qk_norm" not in c:
        return x
    part = c["qk_norm"]
    weight, eps = tensor(part.get(letter, 1.0)), part["eps"]
    if part["norm"] == "layernorm":
        x = x - x.mean(-1, keepdim=True)
    if part["norm"] == "l2":
        return x / x.norm(dim=-1, keepdim=True).clamp(min=eps) * weight
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def turned(c: Config, b: int, x: Any, held: int, name: str, others: int) -> Any:
    """Each pair turned by a matrix of its own; `others` is how many tokens there are on the other side."""
    if "rope" not in c:
        return x
    part, count = c["rope"], x.shape[-2]
    given = part.get(name, part.get("positions") if name == "key_positions" and others == count else None)
    row = np.asarray(given) if given is not None else held + part.get("offset", 0) + np.arange(count)
    row = row[b] if row.ndim == 2 else row
    result = x.clone()
    for i in range(part["dims"] // 2):
        first, second = (2 * i, 2 * i + 1) if part["pairs"] == "interleaved" else (i, i + part["dims"] // 2)
        for token, position in enumerate(row):
            cos, sin = cos_sin(part, b, i, int(position))
            pair = x[:, token, [first, second]]
            result[:, token, [first, second]] = pair @ torch.tensor([[cos, sin], [-sin, cos]], dtype=torch.float64)
    return result


def cos_sin(part: Config, b: int, i: int, position: int) -> tuple[float, float]:
    if "cos" in part:
        tables = (part[name] if part[name].ndim == 2 else part[name][b] for name in ("cos", "sin"))
        cos, sin = (float(table[position, i]) for table in tables)
        return cos, sin
    angle = position * frequency(part, part.get("base", 10000.0) ** (-2 * i / part["dims"]))
    return math.cos(angle), math.sin(angle)


def frequency(part: Config, theta: float) -> float:
    """Linear: slower by the factor. Llama 3: only pairs that do not turn 4 times within the original context are slower."""
    if "scaling" not in part:
        return theta
    how = part["scaling"]
    if how["type"] == "linear":
        return theta / how["factor"]
    turns = how["original_max_position_embeddings"] * theta / (2 * math.pi)
    if turns < how["low_freq_factor"]:
        return theta / how["factor"]
    if turns > how["high_freq_factor"]:
        return theta
    fast = (turns - how["low_freq_factor"]) / (how["high_freq_factor"] - how["low_freq_factor"])
    return (1 - fast) * theta / how["factor"] + fast * theta


def heads(c: Config, s: Sequence) -> list[Any]:
    """The output of each head: (query, d_v)."""
    count, groups = len(s.q), len(s.k)
    made = []
    for h in range(count):
        group = h * groups // count
        made.append(weights(c, s, h, s.q[h] @ s.k[group].T) @ s.v[group])
    return made


def weights(c: Config, s: Sequence, h: int, scores: Any) -> Any:
    scores = scores * c["scale"] if "scale" in c else scores / math.sqrt(s.q.shape[-1])
    if "softcap" in c:
        scores = c["softcap"] * torch.tanh(scores / c["softcap"])
    if "alibi" in c:
        scores = scores - slope(c, h, len(s.q)) * distances(c, s).abs().double()
    for mask in c.get("mask", []):
        scores = scores + added(c, s, h, mask)
    e = torch.exp(scores - scores.max().clamp(min=-1e300))
    total = e.sum(-1, keepdim=True)
    if "sinks" in c:
        total = total + torch.exp(tensor(c["sinks"])[h] - scores.max().clamp(min=-1e300))
    return torch.where(total == 0, 0.0, e / total)


def slope(c: Config, h: int, count: int) -> float:
    """Of heads that are no power of two, the ones too many have the odd steps of twice as many heads."""
    if c["alibi"] is not True and "slopes" in c["alibi"]:
        return float(c["alibi"]["slopes"][h])
    full = 2 ** int(math.log2(count))
    return 2 ** (-8 * (h + 1) / full) if h < full else 2 ** (-8 * (2 * (h - full) + 1) / (2 * full))


def distances(c: Config, s: Sequence) -> Any:
    """ALiBi counts as it is told, or as the first mask that is told does."""
    own = None if c["alibi"] is True else c["alibi"].get("align")
    told = [own, *(align_of(mask) for mask in c.get("mask", []))]
    return apart(c, s, next((align for align in told if align is not None), None))


def align_of(mask: Any) -> Any:
    if mask == "causal":
        return None
    return mask.get("causal", mask.get("window", {}).get("align"))


def apart(c: Config, s: Sequence, align: Any) -> Any:
    """Query position minus key position. The keys of a sequence stand in a row, from 0 on."""
    queries, keys = s.q.shape[-2], s.k.shape[-2]
    start = s.held if align is None else 0 if align == "top-left" else align
    if align == "bottom-right":
        real = [mask["padding"][s.number] for mask in c["mask"] if "padding" in mask] if "mask" in c else []
        start = min([keys, *real]) - queries
    return (torch.arange(queries) + start)[:, None] - torch.arange(keys)[None, :]


def added(c: Config, s: Sequence, h: int, mask: Any) -> Any:
    """What a mask adds to the scores of a head: (query, key)."""
    kind, detail = ("causal", None) if mask == "causal" else next(iter(mask.items()))
    if kind == "causal":
        return hidden(apart(c, s, detail) < 0)
    if kind == "window":
        gap = apart(c, s, detail.get("align"))
        return hidden((gap > detail["left"]) | (-gap > detail["right"]))
    if kind == "padding":
        return hidden(torch.arange(s.k.shape[-2])[None, :] >= detail[s.number])
    numbers = four(c, tensor(detail))
    numbers = numbers[s.number if len(numbers) > 1 else 0]
    numbers = numbers[h if len(numbers) > 1 else 0][:, s.slots]
    return numbers if kind == "add" else hidden(numbers == 0)


def hidden(where: Any) -> Any:
    return torch.zeros(where.shape, dtype=torch.float64).masked_fill(where, -torch.inf)


# ------------------------------------------------------------------ held


def posed(c: Config) -> Any:
    return attntrace.load({key: value for key, value in c.items() if key != "--queries"}, queries=c.get("--queries"))


def asked(c: Config, out: np.ndarray) -> np.ndarray:
    rows = {"1:": slice(1, None), ":-1": slice(None, -1), "-1": slice(-1, None), None: slice(None)}
    return out[:, rows[c.get("--queries")]]


@pytest.mark.parametrize("seed", range(COUNT))
def test_a_random_combination(seed: int) -> None:
    c = config(seed)
    problem = posed(c)
    found = attntrace.verify(problem)
    assert found.agrees, f"{found.verdict}: {found.first}"
    step = layer.trace(problem)["output"]
    off = compare.difference(step.values, asked(c, by_hand(c)).reshape(step.shape), compare.accumulated(step, {}), step)
    assert off.agrees, off


def test_the_combinations_have_everything() -> None:
    """What the parametrised test is there for does come up in it, and its tolerances say something."""
    configs = [config(seed) for seed in range(COUNT)]
    assert {c["dtype"] for c in configs} == set(DTYPES)
    for key, least in (("rope", 120), ("cache", 100), ("alibi", 60), ("sinks", 60), ("softcap", 60), ("qk_norm", 60)):
        assert sum(key in c for c in configs) > least, key
    assert sum(len({"rope", "mask", "softcap", "cache"} & c.keys()) == 4 for c in configs) > 10
    assert sum({"rope", "mask", "cache"} <= c.keys() and c.get("kv_heads") != c.get("heads") for c in configs) > 20
    rotations = [c["rope"] for c in configs if "rope" in c]
    assert {rope["pairs"] for rope in rotations} == {"half", "interleaved"}
    for key in ("positions", "key_positions", "offset", "scaling", "cos", "base"):
        assert sum(key in rope for rope in rotations) > 10, key
    caches = [c["cache"] for c in configs if "cache" in c]
    assert sum("k" in given for given in caches) > 40
    assert sum(len(set(given.get("lengths", []))) > 1 for given in caches) > 15
    kinds = {"causal" if mask == "causal" else next(iter(mask)) for c in configs for mask in c.get("mask", [])}
    assert kinds == {"causal", "window", "padding", "keep", "add"}
    assert {next(iter(c["core"])) for c in configs if "core" in c} == {"tiled", "ring"}
    assert {c["qk_norm"]["norm"] for c in configs if "qk_norm" in c} == {"rmsnorm", "layernorm", "l2"}
    for key in ("softmax_dtype", "--queries", "scale", "x_kv", "q"):
        assert sum(key in c for c in configs) > 10, key


@pytest.mark.parametrize(("name", "wide"), [("float64", 1e-9), ("float32", 1e-1)])
def test_the_tolerances_say_something(name: str, wide: float) -> None:
    steps = [layer.trace(posed(c))["output"] for c in map(config, range(60)) if c["dtype"] == name]
    bounds = [float((compare.accumulated(step, {}) / (1 + np.abs(step.values))).max()) for step in steps]
    assert np.median(bounds) < wide / 100
    assert np.quantile(bounds, 0.9) < wide
