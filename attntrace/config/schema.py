"""The config as pydantic models: what keys there are, of what kind, with which defaults.

The models check a config key by key (`check`), and print themselves as a JSON Schema for editors (`json_schema`). They hold
no numbers: tensors are read by `tensors`, and shapes are checked by `attntrace.fit`, which sees them all together.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
)

from attntrace.config.tensors import FORMS, claim_faults, clipped, found
from attntrace.errors import Fault, KeyFault, Path, nearest
from attntrace.problem import called

Generator = Literal["numpy", "numpy-legacy", "torch"]
DType = Literal["float64", "float32", "float16", "bfloat16"]
Alignment = Literal["top-left", "bottom-right"]
Place = Annotated[int, Field(gt=-(2**31), lt=2**31)]
Align = Annotated[
    Annotated[Alignment, Tag("corner")] | Annotated[Place, Tag("position")],
    Discriminator(lambda value: "position" if isinstance(value, int) else "corner"),
]
Seed = Annotated[int, Field(ge=0, lt=2**64)]
Count = Annotated[int, Field(ge=1, lt=2**31)]


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True, arbitrary_types_allowed=True)


class FileTensor(Model):
    """An array in a file."""

    file: str = Field(description=".npy, .npz, .csv or .safetensors; a relative path is relative to the config")
    key: str | None = Field(None, description="the array's name in an .npz or .safetensors file")


class DrawTensor(Model):
    """A random array, the same each time."""

    draw: Literal["normal", "uniform", "integers"]
    shape: list[Count] = Field(min_length=1, max_length=4)
    mean: float = Field(0.0, allow_inf_nan=False, description="of draw: normal")
    std: float = Field(1.0, ge=0, allow_inf_nan=False, description="of draw: normal")
    low: float = Field(0.0, description="of draw: uniform and integers; included")
    high: float | None = Field(None, description="of draw: uniform (1 unless given) and integers; excluded")
    decimals: int | None = Field(None, ge=0, le=17, description="round to so many decimals")
    dtype: DType | None = Field(None, description="the dtype that the numbers are drawn in, before the dtype of the trace")
    seed: Seed | None = Field(None, description="instead of the config's seed")
    generator: Generator | None = Field(None, description="instead of the config's generator")


def tag(kind: str) -> str:
    """The name of a union's member. Not that of the key which tells it, so that a location has each key once."""
    return f"as {kind}"


def kind_of_tensor(value: Any) -> str | None:
    if isinstance(value, Mapping):
        return next((tag(kind) for kind in ("draw", "file") if kind in value), None)
    return "numbers"


def nested(axes: int) -> dict[str, Any]:
    """The JSON Schema of numbers in lists, in lists of lists, and so on for up to `axes` axes."""
    number: dict[str, Any] = {"type": ["number", "boolean"]}
    return {"type": "array", "minItems": 1, "items": number if axes == 1 else {"anyOf": [number, nested(axes - 1)]}}


NUMBERS = {"description": "numbers in nested lists, a row a list", **nested(4)}
Numbers = Annotated[Any, WithJsonSchema(NUMBERS)]
Tensor = Annotated[
    Annotated[Numbers, Tag("numbers")] | Annotated[FileTensor, Tag("as file")] | Annotated[DrawTensor, Tag("as draw")],
    Discriminator(kind_of_tensor),
]


class CausalMask(Model):
    """Keys at the query's own position and before."""

    causal: Align = Field(
        description="which query and key stand side by side when there are not as many of each; a number is the key at "
        "which the first query stands"
    )


class KeepMask(Model):
    """1 = may attend (the sense of torch's scaled_dot_product_attention)."""

    keep: Tensor


class IgnoreMask(Model):
    """1 = may not attend (the sense of torch.nn.MultiheadAttention)."""

    ignore: Tensor


class AddMask(Model):
    """Numbers added to the scaled scores; −.inf hides a key."""

    add: Tensor


class PaddingMask(Model):
    """How many real keys there are in each batch item."""

    padding: list[Annotated[int, Field(ge=0)]] = Field(min_length=1)


class WindowSize(Model):
    left: int | None = Field(None, ge=0, lt=2**31, description="keys before the query's position; no limit unless given")
    right: int | None = Field(None, ge=0, lt=2**31, description="keys after the query's position; no limit unless given")
    align: Align | None = Field(None, description="needed when there are not as many queries as keys")


class WindowMask(Model):
    """Keys near the query's position, both ends included."""

    window: WindowSize


MASKS: dict[str, type[Model]] = {
    "causal": CausalMask,
    "keep": KeepMask,
    "ignore": IgnoreMask,
    "add": AddMask,
    "padding": PaddingMask,
    "window": WindowMask,
}


def kind_of_mask(value: Any) -> str | None:
    if isinstance(value, Mapping):
        return next((tag(kind) for kind in MASKS if kind in value), None)
    return "name"


Mask = Annotated[
    Annotated[Literal["causal"], Tag("name")]
    | Annotated[CausalMask, Tag("as causal")]
    | Annotated[KeepMask, Tag("as keep")]
    | Annotated[IgnoreMask, Tag("as ignore")]
    | Annotated[AddMask, Tag("as add")]
    | Annotated[PaddingMask, Tag("as padding")]
    | Annotated[WindowMask, Tag("as window")],
    Discriminator(kind_of_mask),
]
Masks = Annotated[
    Annotated[list[Mask], Tag("all")] | Annotated[Mask, Tag("one")],
    Discriminator(lambda value: "all" if isinstance(value, list) else "one"),
]


class Dropout(Model):
    """Dropout on the attention weights."""

    rate: float = Field(ge=0, lt=1, description="the probability that a weight is set to zero")
    seed: Seed | None = Field(None, description="instead of the config's seed")
    generator: Generator | None = Field(None, description="instead of the config's generator")


class RopeScaling(Model):
    """How the angles are slowed down for contexts longer than those of the training."""

    type: Literal["linear", "llama3"]
    factor: float = Field(gt=0, allow_inf_nan=False)
    low_freq_factor: float = Field(1.0, gt=0, allow_inf_nan=False, description="of llama3")
    high_freq_factor: float = Field(4.0, gt=0, allow_inf_nan=False, description="of llama3; larger than low_freq_factor")
    original_max_position_embeddings: float = Field(8192, gt=0, allow_inf_nan=False, description="of llama3")


class Rope(Model):
    """Rotary position embeddings."""

    pairs: Literal["interleaved", "half"] = Field(
        description="which entries turn together: (0, 1), (2, 3), … as in GPT-J and RoFormer, or (0, d/2), (1, d/2 + 1), … "
        "as in GPT-NeoX and Llama"
    )
    base: float = Field(10000.0, gt=0, allow_inf_nan=False, description="pair i turns by base^(−2i/dims) a position")
    dims: Count | None = Field(None, description="how many entries turn, the first ones; all unless given")
    positions: Tensor | None = Field(None, description="(token) or (batch, token); 0, 1, 2, … after the cache unless given")
    key_positions: Tensor | None = Field(None, description="of the keys, where they are not those of the queries")
    offset: Annotated[int, Field(gt=-(2**31), lt=2**31)] = Field(0, description="the position of the first token")
    scaling: RopeScaling | None = None
    cos: Tensor | None = Field(None, description="a table of cosines, (position, pair) or (batch, position, pair)")
    sin: Tensor | None = Field(None, description="a table of sines, as cos")


class AlibiOptions(Model):
    """Linear biases with slopes or an alignment of one's own."""

    slopes: Tensor | None = Field(None, description="(head); the paper's unless given")
    align: Align | None = Field(None, description="where the first query stands; that of the mask unless given")


Alibi = Annotated[
    Annotated[bool, Tag("switch")] | Annotated[AlibiOptions, Tag("alibi")],
    Discriminator(lambda value: "alibi" if isinstance(value, Mapping) else "switch"),
]
Norm = Literal["rmsnorm", "layernorm", "l2"]
Eps = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class QKNormOptions(Model):
    """Queries and keys brought to unit size, head by head."""

    norm: Norm
    eps: Eps | None = Field(None, description="1e-6 for rmsnorm, 1e-5 for layernorm, 1e-12 for l2 unless given")
    q: Tensor | None = Field(None, description="(d_k), what the entries of each query are multiplied by")
    k: Tensor | None = Field(None, description="(d_k), what the entries of each key are multiplied by")


QKNorm = Annotated[
    Annotated[Norm, Tag("name")] | Annotated[QKNormOptions, Tag("qk_norm")],
    Discriminator(lambda value: "qk_norm" if isinstance(value, Mapping) else "name"),
]


class Blocks(Model):
    """The physical blocks of a paged cache."""

    k: Tensor | None = Field(None, description="(block, slot, d_k) or (block, kv_head, slot, d_k)")
    v: Tensor | None = Field(None, description="(block, slot, d_v) or (block, kv_head, slot, d_v)")


class Cache(Model):
    """Keys and values of earlier tokens: k and v, or blocks and a table of them."""

    k: Tensor | None = Field(None, description="(past, d_k) or ([batch], kv_head, past, d_k), turned already where rope is on")
    v: Tensor | None = Field(None, description="(past, d_v) or ([batch], kv_head, past, d_v)")
    blocks: Blocks | None = None
    table: Tensor | None = Field(None, description="(page) or (batch, page): the block that each page of a sequence lies in")
    lengths: list[Annotated[int, Field(ge=0)]] | None = Field(
        None, min_length=1, description="how many slots are filled, for each batch item; all unless given"
    )


class TileSize(Model):
    queries: Count = Field(description="queries in a tile")
    keys: Count = Field(description="keys in a tile")


class TiledCore(Model):
    """Tile by tile, as FlashAttention."""

    tiled: TileSize


class RingSize(Model):
    devices: Count = Field(description="devices in the ring")


class RingCore(Model):
    """Around a ring of devices."""

    ring: RingSize


CORE = "direct, {tiled: {queries: 2, keys: 2}} or {ring: {devices: 2}}"
CORES: dict[str, type[Model]] = {"tiled": TiledCore, "ring": RingCore}


def kind_of_core(value: Any) -> str | None:
    if isinstance(value, Mapping):
        return next((tag(kind) for kind in CORES if kind in value), None)
    return "name"


Core = Annotated[
    Annotated[Literal["direct"], Tag("name")] | Annotated[TiledCore, Tag("as tiled")] | Annotated[RingCore, Tag("as ring")],
    Discriminator(kind_of_core),
]


class Block(Model):
    """The transformer block around the attention layer."""

    norm: Literal["layernorm", "rmsnorm"]
    mlp: Literal["gelu", "gelu_tanh", "silu", "relu", "gated", "gated_gelu"] = Field(
        description="gelu is the exact one; gated is down(silu(gate x) ∘ up x), as in Llama"
    )
    order: Literal["pre", "post", "parallel"] = Field("pre", description="where the normalisations stand")
    eps: Eps | None = Field(None, description="1e-5 for layernorm, 1e-6 for rmsnorm unless given")


Scale = Annotated[
    Annotated[Literal["auto"], Tag("auto")] | Annotated[float, Field(allow_inf_nan=False), Tag("number")],
    Discriminator(lambda value: "auto" if value == "auto" else "number"),
]
Label = Annotated[str, WithJsonSchema({"type": ["string", "number", "boolean", "null"]})]  # an editor reads yes as true
Labels = Annotated[list[Label], Field(min_length=1)]


class Config(Model):
    """An attention layer to trace."""

    title: str | None = Field(None, description="shown as the heading")
    source: str | None = Field(None, description="where the numbers come from")
    tokens: Labels | None = Field(None, description="labels of the tokens of x; always text")
    kv_tokens: Labels | None = Field(None, description="labels of the tokens of x_kv; always text")
    dtype: DType = Field("float64", description="of every step")
    seed: Seed | None = Field(None, description="of every draw that has none of its own")
    generator: Generator = Field("numpy", description="of every draw that has none of its own")
    x: Tensor | None = Field(None, description="(token, d_model) or (batch, token, d_model)")
    x_kv: Tensor | None = Field(None, description="what keys and values are made from, in cross-attention")
    w_q: Tensor | None = Field(None, description="(d_model, heads · d_k)")
    w_k: Tensor | None = Field(None, description="(d_model, kv_heads · d_k)")
    w_v: Tensor | None = Field(None, description="(d_model, kv_heads · d_v)")
    w_qkv: Tensor | None = Field(None, description="w_q, w_k and w_v in one matrix; see qkv_layout")
    b_q: Tensor | None = Field(None, description="(heads · d_k)")
    b_k: Tensor | None = Field(None, description="(kv_heads · d_k)")
    b_v: Tensor | None = Field(None, description="(kv_heads · d_v)")
    b_qkv: Tensor | None = Field(None, description="the biases in one, laid out as w_qkv")
    w_o: Tensor | None = Field(None, description="(heads · d_v, d_out)")
    b_o: Tensor | None = Field(None, description="(d_out)")
    q: Tensor | None = Field(None, description="(token, d), (head, token, d) or (batch, head, token, d), with k and v")
    k: Tensor | None = Field(None, description="see q")
    v: Tensor | None = Field(None, description="see q")
    weight_layout: Literal["in_out", "out_in"] = Field("in_out", description="x @ W, or x @ Wᵀ as torch.nn.Linear stores it")
    qkv_layout: Literal["q|k|v", "per-head", "per-group"] = Field("q|k|v", description="how w_qkv holds its three parts")
    heads: Count | None = Field(None, description="number of query heads; without it there is no head axis")
    kv_heads: Count | None = Field(None, description="number of key/value heads; must divide heads")
    scale: Scale = Field("auto", description="what scores are multiplied by; auto is 1/√d_k")
    mask: Masks | None = Field(None, description="one mask or a list of them; a key must pass all")
    masked_row: Literal["zero", "nan"] = Field("zero", description="the weights of a query that may attend to nothing")
    dropout: Dropout | None = None
    softcap: float | None = Field(None, gt=0, allow_inf_nan=False, description="c: scaled scores become c · tanh(score / c)")
    softmax_dtype: DType | None = Field(None, description="the dtype that softmax is computed in; dtype unless given")
    sinks: Tensor | None = Field(None, description="(head): a logit that takes its share of each row, and gives no value")
    rope: Rope | None = None
    alibi: Alibi | None = Field(None, description="linear biases: true, or a mapping")
    qk_norm: QKNorm | None = Field(None, description="rmsnorm, layernorm, l2, or a mapping")
    cache: Cache | None = None
    core: Core = Field("direct", description=CORE)
    block: Block | None = None
    w_norm1: Tensor | None = Field(None, description="(d_model), of a block's first normalisation")
    b_norm1: Tensor | None = Field(None, description="(d_model)")
    w_norm2: Tensor | None = Field(None, description="(d_model), of a block's second normalisation")
    b_norm2: Tensor | None = Field(None, description="(d_model)")
    w_gate: Tensor | None = Field(None, description="(d_model, d_ff), of a block's gated MLP")
    b_gate: Tensor | None = Field(None, description="(d_ff)")
    w_up: Tensor | None = Field(None, description="(d_model, d_ff), of a block's MLP")
    b_up: Tensor | None = Field(None, description="(d_ff)")
    w_down: Tensor | None = Field(None, description="(d_ff, d_model), of a block's MLP")
    b_down: Tensor | None = Field(None, description="(d_model)")
    expect: dict[str, Any] | None = Field(None, description="claimed numbers: a step name to numbers in lists")


# The model that a mapping is checked by, from the step before its keys in pydantic's locations.
OWNERS: dict[str, type[Model]] = {
    "as file": FileTensor,
    "as draw": DrawTensor,
    **{tag(kind): model for kind, model in MASKS.items()},
    "window": WindowSize,
    "dropout": Dropout,
    "rope": Rope,
    "scaling": RopeScaling,
    "alibi": AlibiOptions,
    "qk_norm": QKNormOptions,
    "cache": Cache,
    "blocks": Blocks,
    **{tag(kind): model for kind, model in CORES.items()},
    "tiled": TileSize,
    "ring": RingSize,
    "block": Block,
}
EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "list_type": "a list",
    "model_type": "a mapping",
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "too_short": "at least one entry",
    "too_long": "at most {max_length} entries",
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "literal_error": "{expected}",
}
# What a list or a mapping is to look like, by the key that it stands at.
EXAMPLES = {
    "tokens": "a list of labels",
    "kv_tokens": "a list of labels",
    "shape": "a list such as [3, 4]",
    "padding": "a list such as [4, 2], a length for each batch item",
    "window": "a mapping such as {left: 2, right: 0}",
    "dropout": "a mapping such as {rate: 0.1}",
    "expect": "a mapping of step names to numbers in lists",
    "rope": "a mapping such as {pairs: half}",
    "scaling": "a mapping such as {type: linear, factor: 4}",
    "cache": "a mapping such as {k: …, v: …}",
    "blocks": "a mapping such as {k: …, v: …}",
    "lengths": "a list such as [4, 2], a length for each batch item",
    "tiled": "a mapping such as {queries: 2, keys: 2}",
    "ring": "a mapping such as {devices: 2}",
    "block": "a mapping such as {norm: rmsnorm, mlp: gated, order: pre}",
}
# How a key is written that is missing.
NEEDED = {
    "shape": "shape: [3, 4]",
    "rate": "rate: 0.1",
    "pairs": "pairs: half, or pairs: interleaved",
    "type": "type: linear, or type: llama3",
    "factor": "factor: 4",
    "norm": "norm: rmsnorm, or norm: layernorm",
    "mlp": "mlp: gelu, or mlp: gated",
    "queries": "queries: 2",
    "keys": "keys: 2",
    "devices": "devices: 2",
}


def check(data: Mapping[str, Any]) -> list[Fault]:
    """Everything that is wrong with the keys of a config, each value taken by itself."""
    known = {name: value for name, value in data.items() if name in Config.model_fields}
    strange = [name for name in data if name not in known]
    faults: list[Fault] = [unknown((name,), Config.model_fields) for name in strange[:MOST]]
    if strange[MOST:]:
        faults.append(KeyFault(f"and {len(strange) - MOST} more unknown keys", (strange[MOST],)))
    try:
        Config.model_validate(known)
    except ValidationError as error:
        faults += [translate(e, data) for e in error.errors(include_url=False) if not is_twofold(e)]
    claims = data.get("expect")
    for name, value in claims.items() if isinstance(claims, dict) else ():
        faults += claim_faults(value, ("expect", name))
    return faults


def is_twofold(error: Mapping[str, Any]) -> bool:
    """Whether something is missing in a tensor that is two in one, which is a fault of its own."""
    return error["type"] == "missing" and {"draw", "file"} <= set(error["input"])


def unknown(path: Path, keys: Iterable[str], otherwise: str = "") -> KeyFault:
    """The fault of a key that is none of `keys`, with the nearest of them; spelling it W_Q or w-q is as near as can be."""
    key, known = str(path[-1]), list(keys)
    folded = key.lower().replace("-", "_")[:LONGEST]
    near = difflib.get_close_matches(folded, known, n=1, cutoff=0.62)
    where = f"{called(path[:-1])}: " if path[1:] else ""
    hint = nearest(near[0], near) if near else otherwise
    return KeyFault(f"{where}unknown key {clipped(key)!r}{hint}", path, meant=near[0] if near else None)


MOST = 20  # unknown keys that are named
LONGEST = 40  # characters of a word that is compared with all known ones


def translate(error: Mapping[str, Any], data: Mapping[str, Any]) -> Fault:
    """A pydantic error as a fault: our sentence, and the path in the config."""
    loc, kind, value = error["loc"], error["type"], error["input"]
    path = locate(loc, data)
    if kind == "missing":
        need = NEEDED.get(loc[-1], loc[-1])
        return Fault(f"{called(path)}: {loc[-1]} is missing: say {need}", path)
    if kind == "extra_forbidden":
        return stranger(path, OWNERS[loc[-2]])
    if kind == "union_tag_not_found":
        return untold(path, value)
    expected = EXPECTED.get(kind, error["msg"]).format(**{k: whole(v) for k, v in error.get("ctx", {}).items()})
    hint = nearest(value, words(expected)) if kind == "literal_error" and isinstance(value, str) else ""
    return Fault(f"{called(path)}: expected {alternatives(path, expected)}, found {found(value)}{hint}", path)


# What may stand at a path, where pydantic settles on one kind out of several.
WHOLE: dict[Path, str] = {
    ("scale",): "auto or a finite number",
    ("core",): CORE,
    ("alibi",): "true, false or a mapping such as {slopes: [0.5, 0.25]}",
    ("qk_norm",): "rmsnorm, layernorm, l2 or a mapping such as {norm: rmsnorm}",
}


def whole(limit: Any) -> Any:
    """1.0 as 1; quotes around words left out."""
    return limit.replace("'", "") if isinstance(limit, str) else int(limit) if limit == int(limit) else limit


def stranger(path: Path, owner: type[Model]) -> Fault:
    """A key beside the ones that a mapping may have."""
    key, where = str(path[-1]), called(path[:-1])
    told = next((kind for kind in ("draw", "file", *MASKS, *CORES) if OWNERS.get(tag(kind)) is owner), "")
    if told in CORES and key in CORES:
        return KeyFault(f"core: expected one core, found {told} and {key}; leave one of them out", path)
    if told in MASKS and key in MASKS:
        cure = f"write a list: [{{{told}: …}}, {{{key}: …}}]"
        return KeyFault(f"{where}: expected one kind of mask, found {told} and {key}; for both {cure}", path)
    if told in ("draw", "file") and key in {*FileTensor.model_fields, *DrawTensor.model_fields}:
        return KeyFault(f"{where}: {key} does not go with {told}; leave one of them out", path)
    return unknown(path, owner.model_fields)


def untold(path: Path, value: Any) -> Fault:
    """A mapping without the key that tells what it is."""
    if path[0] == "mask" and not set(path) & set(MASKS):
        kinds, expected = list(MASKS), f"one of {', '.join(f'{{{kind}: …}}' for kind in MASKS)}"
    elif path == ("core",):
        kinds, expected = list(CORES), CORE
    else:
        kinds, expected = ["file", "draw"], FORMS
    known = [*FileTensor.model_fields, *DrawTensor.model_fields] if "file" in kinds else kinds
    strange = next((key for key in value if key not in known), None)
    if strange is not None:
        return unknown((*path, strange), kinds, f"; expected {expected}")
    which = f"a mapping with {', '.join(value)}" if value else "an empty mapping"
    return Fault(f"{called(path)}: expected {expected}, found {which}", path)


def locate(loc: Sequence[str | int], data: Any) -> Path:
    """The path in the data that pydantic's location means: the same, without the names of the union members it tried."""
    if not loc:
        return ()
    head, *rest = loc
    skipped = locate(rest, data)
    listed = isinstance(data, list) and isinstance(head, int) and head < len(data)
    inside = listed or (isinstance(data, Mapping) and head in data)
    taken = (head, *locate(rest, data[head])) if inside else ()
    return taken if len(taken) > len(skipped) else skipped


def words(expected: str) -> list[str]:
    """The choices in pydantic's list of them: "a, b or c"."""
    return expected.replace(" or ", ", ").split(", ")


def alternatives(path: Path, expected: str) -> str:
    """What may stand at `path`, where that is more than the one kind that pydantic settled on."""
    if path in WHOLE:
        return WHOLE[path]
    if expected == "causal":
        return f"causal, or one of {', '.join(f'{{{kind}: …}}' for kind in MASKS)}"
    return EXAMPLES.get(str(path[-1]), expected) if expected in ("a list", "a mapping") else expected


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a config."""
    schema = TypeAdapter(Config).json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
