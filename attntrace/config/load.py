"""From a request to a problem, or to everything that is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from attntrace.config.changes import apply, edited, permuted
from attntrace.config.draft import SHOWN, Draft, Request, collected, read, touched
from attntrace.config.draw import Kept
from attntrace.config.tensors import FORMS, Maker
from attntrace.cores.ring import Ring
from attntrace.cores.tiled import Tiled
from attntrace.dtypes import dtype
from attntrace.errors import AttnTraceError, Fault, KeyFault, Path
from attntrace.fit import clashes, pose
from attntrace.ledger import listed
from attntrace.parts import mask as masks
from attntrace.parts.alibi import Alibi
from attntrace.parts.block import Block
from attntrace.parts.cache import Cache
from attntrace.parts.qk_norm import QKNorm
from attntrace.parts.rope import Rope
from attntrace.problem import COUNTS, INPUTS, Mask, Options, Part, Place, Problem, Source, called
from attntrace.tape import Note


def load(request: Request) -> Problem:
    """The problem that is asked for. Raises AttnTraceError with every fault, each with its place in the file."""
    draft = read(request)
    apply(request, draft)
    try:
        return build(draft, request)
    except AttnTraceError as error:
        error.faults = tuple(sorted(dict.fromkeys(map(draft.locate, error.faults)), key=draft.order))
        raise


def build(draft: Draft, request: Request) -> Problem:
    """Check the keys, then make sources of the tensors, then see whether the shapes fit; faults of all three together."""
    unreadable = draft.document.faulty if draft.document else set()
    faults = [*draft.faults, *([] if draft.trusted else check(draft, unreadable))]
    sound = {key: value for key, value in draft.data.items() if value is not None and not lost(key, faults, unreadable)}
    maker = new_maker(draft, sound, faults)
    sources = make_sources(sound, maker, faults)
    options, arrays = make_options(sound, maker, faults)
    options.queries = queries_of(request, faults)
    if "dropout" in sound:
        with collected(faults):
            maker.stream(sound["dropout"], ("dropout",))
    faults += maker.seed_faults()
    sources = permuted(request, edited(draft, sources | arrays, faults), options, faults)
    sources = in_file_order(sources, draft.data)
    if faults:
        unmade = {name for name in INPUTS if draft.data.get(name) is not None and name not in sources}
        raise AttnTraceError(*faults, *clashes(sources, options, broken(faults) | unreadable | unmade))
    problem = pose(sources, options, draft.data)
    if isinstance(problem, list):
        raise AttnTraceError(*problem)
    add_dropout(problem, sound, maker)
    problem.remarks += remarks(problem, request, maker)
    problem.changes += [f"--set {text}" for text in request.sets]
    problem.changes += [f"--permute {request.permute}"] if request.permute else []
    return problem


def check(draft: Draft, unreadable: Collection[str]) -> list[Fault]:
    from attntrace.config import schema  # here, since an untouched bundled example does not need it

    plain = {k: v.tolist() if isinstance(v, np.ndarray) and v.ndim < 1 else v for k, v in draft.data.items()}
    faults = [f for f in schema.check(plain) if f.path[0] not in unreadable]
    blank = [key for key in INPUTS if key not in unreadable and is_blank(key, draft)]
    return faults + [Fault(f"{key}: expected {FORMS}, found nothing", (key,)) for key in blank]


def is_blank(key: str, draft: Draft) -> bool:
    """Whether the file has an input without a value. A null of --set, or of a mapping in Python, is a way to leave it out."""
    return draft.document is not None and key in draft.data and draft.data[key] is None and not draft.option((key,))


def lost(key: str, faults: Sequence[Fault], unreadable: Collection[str]) -> bool:
    """Whether nothing can be read of a key; of a list of masks, the sound ones can."""
    entries = key == "mask" and all(len(f.path) > 1 and isinstance(f.path[1], int) for f in faults if f.path[:1] == (key,))
    return key in unreadable or (touched(key, faults) and not entries)


def broken(faults: Iterable[Fault]) -> set[str]:
    """The keys that have faults, and those that a misspelt one was meant for."""
    meant = {f.meant for f in faults if isinstance(f, KeyFault)}
    return {str(f.path[0]) for f in faults if f.path} | {key for key in meant if key}


def new_maker(draft: Draft, sound: Mapping[str, Any], faults: Sequence[Fault]) -> Maker:
    """A faulty seed counts as one: that draws lack it is no further fault."""
    seed = 0 if touched("seed", faults) else sound.get("seed")
    return Maker(draft.folder, seed, sound.get("generator", "numpy"), draft.locate)


def make_sources(data: Mapping[str, Any], maker: Maker, faults: list[Fault]) -> dict[str, Source]:
    sources = {}
    for name in data:
        if name in INPUTS:
            with collected(faults):
                sources[name] = maker.source(data[name], (name,))
    return sources


def make_options(data: Mapping[str, Any], maker: Maker, faults: list[Fault]) -> tuple[Options, dict[str, Source]]:
    """The options, and the arrays that its masks are made of."""
    arrays: dict[str, Source] = {}
    options = Options(
        dtype=dtype(data.get("dtype", "float64")),
        heads=data.get("heads"),
        kv_heads=data.get("kv_heads"),
        scale=None if data.get("scale", "auto") == "auto" else float(data["scale"]),
        masks=tuple(make_masks(data.get("mask"), maker, arrays, faults)),
        masked_row=data.get("masked_row", "zero"),
        dropout=data["dropout"]["rate"] if "dropout" in data else None,
        softcap=None if data.get("softcap") is None else float(data["softcap"]),
        softmax_dtype=dtype(data["softmax_dtype"]) if "softmax_dtype" in data else None,
        parts=make_parts(data, maker, arrays, faults),
        transposed=data.get("weight_layout") == "out_in",
        qkv_layout=data.get("qkv_layout", "q|k|v"),
        tokens=tuple(data["tokens"]) if "tokens" in data else None,
        kv_tokens=tuple(data["kv_tokens"]) if "kv_tokens" in data else None,
        title=data.get("title", ""),
    )
    return options, arrays


def make_parts(data: Mapping[str, Any], maker: Maker, arrays: dict[str, Source], faults: list[Fault]) -> dict[str, Part]:
    """The further parts of the layer that the config names, each made of the mapping under its key."""
    parts: dict[str, Part] = {}
    for key in filter(data.__contains__, PARTS):

        def place(value: Any, *path: str | int, key: str = key) -> str:
            name = called((key, *path))
            if name in COUNTS and isinstance(value, Mapping) and "draw" in value:
                raise AttnTraceError(Fault(f"{name}: expected numbers in lists or {{file: …}}, found a draw", (key, *path)))
            arrays[name] = maker.source(value, (key, *path))
            return name

        with collected(faults):
            part = PARTS[key](said(data[key]), place)
            parts |= {} if part is None else {key: part}
    return parts


def said(detail: Any) -> Any:
    """A part's mapping without options that are null, which is to leave them out. A tensor that is null is a fault."""
    if not isinstance(detail, Mapping):
        return detail
    return {key: value for key, value in detail.items() if value is not None or key not in OPTIONAL}


def make_core(detail: Any, place: Place) -> Part | None:
    """`direct`, {tiled: …} or {ring: …}."""
    if detail == "direct":
        return None
    return Tiled.make(detail["tiled"], place) if "tiled" in detail else Ring.make(detail["ring"], place)


OPTIONAL = ("dims", "scaling", "align", "eps", "blocks", "lengths")  # of the parts' options, those that may be null
# What a key of the config makes; nothing, when it switches its part off.
PARTS: dict[str, Callable[[Any, Place], Part | None]] = {
    "qk_norm": QKNorm.make,
    "rope": Rope.make,
    "cache": Cache.make,
    "alibi": Alibi.make,
    "block": Block.make,
    "core": make_core,
}


def queries_of(request: Request, faults: list[Fault]) -> slice | None:
    """--queries 0:4, -1 or 2: as a slice."""
    text = request.queries
    if text is None:
        return None
    match = re.fullmatch(r"\s*(-?\d{1,12})?\s*(:)?\s*(-?\d{1,12})?\s*", text)
    if not match or not (match[1] or match[2]):
        faults.append(Fault(f"--queries {text[:SHOWN]}: expected a run of queries, such as 0:4, -1: or 3"))
        return None
    start, stop = (None if group is None else int(group) for group in (match[1], match[3]))
    if match[2] is None:
        assert start is not None
        return slice(start, start + 1 if start != -1 else None)
    return slice(start, stop)


def make_masks(value: Any, maker: Maker, arrays: dict[str, Source], faults: list[Fault]) -> Iterator[Mask]:
    several = isinstance(value, list)
    for i, item in enumerate(value if several else [value] if value is not None else []):
        path: Path = ("mask", i) if several else ("mask",)
        if any(f.path[: len(path)] == path for f in faults):
            continue
        if item == "causal":
            yield masks.Causal(None, path)
        else:
            kind, detail = next(iter(item.items()))
            with collected(faults):
                yield make_mask(kind, detail, (*path, kind), maker, arrays)


def make_mask(kind: str, detail: Any, path: Path, maker: Maker, arrays: dict[str, Source]) -> Mask:
    if kind == "causal":
        return masks.Causal(detail, path)
    if kind == "padding":
        return masks.Padding(tuple(detail), path)
    if kind == "window":
        return masks.Window(detail.get("left"), detail.get("right"), detail.get("align"), path)
    name = called(path)
    arrays[name] = maker.source(detail, path, binary=kind != "add")
    return masks.Array(kind, name, path)


def in_file_order(sources: Mapping[str, Source], data: Mapping[str, Any]) -> dict[str, Source]:
    """Sources in the order in which the config has them, since those that share a stream are drawn in that order."""
    position = {key: i for i, key in enumerate(data)}
    return dict(sorted(sources.items(), key=lambda item: position[re.split(r"[.\[]", item[0])[0]]))


def add_dropout(problem: Problem, data: Mapping[str, Any], maker: Maker) -> None:
    """The weights that dropout keeps are drawn too, in their place in the file; their shape is known only now."""
    if "dropout" not in data:
        return
    generator, seed = maker.stream(data["dropout"], ("dropout",))
    shape = (*(problem.sizes[axis] for axis in problem.lead), problem.queries, problem.sizes["key"])
    kept = Kept(maker.streams, generator, seed, data["dropout"]["rate"], shape)
    after = list(data)[list(data).index("dropout") :]
    before = {name: s for name, s in problem.sources.items() if re.split(r"[.\[]", name)[0] not in after}
    problem.sources = before | {"keep": kept} | problem.sources


# ------------------------------------------------------------------ what a careful reader should know of it


def remarks(problem: Problem, request: Request, maker: Maker) -> Iterator[Note]:
    if request.seed is not None and not maker.used_seed:
        yield Note("seed-unused", None, f"--seed {request.seed} changes nothing: no tensor draws from the config's seed")
    square = [name for name in ("w_q", "w_k", "w_v", "w_o") if ambiguous(problem, name)]
    if square and "weight_layout" not in problem.config:
        yield Note(
            "square-weight",
            square[0],
            f"{listed(square)} {'are' if square[1:] else 'is'} square, so the shape cannot tell the layout: used as x @ W; "
            "if stored as torch.nn.Linear does, say weight_layout: out_in",
        )
    if request.permute is not None and problem.options.masks:
        yield Note("permute-mask", "mask", "--permute moves the tokens; the mask stays where it is")


def ambiguous(problem: Problem, name: str) -> bool:
    """Whether a weight that somebody wrote down or stored is square."""
    source = problem.sources.get(name)
    return source is not None and source.shape[0] == source.shape[1] and not source.origin.startswith("drawn")
