"""From a request (a config, a seed, changes on the command line) to a problem, or to everything that is wrong with it."""

from __future__ import annotations

import copy
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

import numpy as np

from attntrace.cell import Cell, parse
from attntrace.config import bundled
from attntrace.config.draw import Kept
from attntrace.config.files import read_text, text
from attntrace.config.tensors import FORMS, Edited, Maker, Permuted, found, numbers
from attntrace.config.yaml import Document, parse_value
from attntrace.config.yaml import parse as parse_yaml
from attntrace.dtypes import dtype
from attntrace.errors import AttnTraceError, Fault, Path, nearest, plain
from attntrace.parts import mask as masks
from attntrace.problem import INPUTS, Clash, Mask, Options, Problem, Source, called, clashes, pose
from attntrace.tape import Note

DEFAULT = "module05"
TEXT_KEYS = ("tokens", "kv_tokens", "title", "source")


@dataclass
class Request:
    """What to trace: `config` names a file or a bundled example, or is the mapping itself; the rest changes it.

    `tokens`, `d_model`, `heads`, `kv_heads` and `causal` shape the default example and go without a config.
    """

    config: str | Mapping[str, Any] | None = None
    seed: int | None = None
    sets: Sequence[str] = ()
    permute: str | None = None
    tokens: int | None = None
    d_model: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    causal: bool = False


@dataclass
class Draft:
    """A config on its way to a problem: its data, where they come from, what was changed and by which option.

    `faults` are those of the text that leave the rest readable.
    """

    data: dict[str, Any]
    folder: FilePath
    document: Document | None = None
    trusted: bool = False  # a bundled example as it is, which the tests hold against the schema
    faults: list[Fault] = field(default_factory=list)
    changes: list[tuple[Path, str]] = field(default_factory=list)
    edits: list[tuple[Cell, Any]] = field(default_factory=list)

    def change(self, path: Path, value: Any, option: str) -> None:
        put(self.data, path, value, option)
        self.changes.append((path, option))
        seeded = path == ("seed",) and type(value) is int and 0 <= value < 2**64
        self.trusted = self.trusted and seeded

    def option(self, at: Path) -> str | None:
        """The last option that changed something at `at`, above or below it."""
        touching = (option for path, option in reversed(self.changes) if path == at[: len(path)] or at == path[: len(at)])
        return next(touching, None)

    def locate(self, fault: Fault) -> Fault:
        """The fault with the place of its key in the file, or the option that brought it about."""
        if fault.place or not fault.path:
            return fault
        if option := self.option(fault.path):
            return Fault(f"{option}: {fault.message}", fault.path)
        others = fault.others if isinstance(fault, Clash) else ()
        causes = dict.fromkeys(option for key in others if (option := self.option((key,))))
        message = fault.message + (f", after {' and '.join(causes)}" if causes else "")
        if self.document is None:
            return Fault(message, fault.path)
        if fault.path[0] not in self.document.data:
            return Fault(f"{self.document.name}: {message}", fault.path)
        place = (self.document.key_place if is_of_key(fault) else self.document.place)(fault.path)
        return Fault(message, fault.path, place)

    def order(self, fault: Fault) -> tuple[int, int, int]:
        """First what the options brought about, then the faults of the text, then what it lacks."""
        if fault.place:
            return 1, fault.place.line, fault.place.column
        return (2 if fault.path and not self.option(fault.path) else 0), 0, 0


def is_of_key(fault: Fault) -> bool:
    """Whether a fault is about a key, and not its value. Without the schema nobody has found such faults."""
    schema = sys.modules.get("attntrace.config.schema")
    return schema is not None and isinstance(fault, schema.KeyFault)


def load(request: Request) -> Problem:
    """The problem that is asked for. Raises AttnTraceError with every fault, each with its place in the file."""
    draft = read(request)
    apply(request, draft)
    try:
        return build(draft, request)
    except AttnTraceError as error:
        error.faults = tuple(sorted(dict.fromkeys(map(draft.locate, error.faults)), key=draft.order))
        raise


# ------------------------------------------------------------------ the text, and what the command line changes in it


def read(request: Request) -> Draft:
    """The config as data: a mapping as it is, a bundled example by name, a file, or standard input for "-"."""
    config = request.config
    if isinstance(config, Mapping):
        return Draft(copy.deepcopy(dict(config)), FilePath())
    path = find(config)
    name = "standard input" if config == "-" else path.name if config in (None, *bundled.names()) else str(config)
    faults: list[Fault] = []
    document = parse_yaml(text_of(path, config), name, TEXT_KEYS, faults)
    trusted = path.parent == bundled.folder() and not faults
    return Draft(copy.copy(document.data), path.parent, document, trusted, faults)


def find(config: str | None) -> FilePath:
    names = bundled.names()
    if config is None or config in names:
        return bundled.folder() / f"{config or DEFAULT}.yaml"
    if not config.strip():
        raise AttnTraceError("CONFIG: expected a file or the name of an example, found nothing")
    path = FilePath(config)
    if config == "-" or os.path.exists(config) or path.suffix or path.parent != FilePath():
        return path
    raise AttnTraceError(
        f"{plain(config[:SHOWN])}: there is no such file, and no bundled example of that name{nearest(config, names)} "
        "(attntrace examples lists them)"
    )


def text_of(path: FilePath, config: str | None) -> str:
    return text(sys.stdin.buffer, "standard input") if config == "-" else read_text(path)


def apply(request: Request, draft: Draft) -> None:
    """The options of the command line, in the data."""
    shape_default(request, draft)
    if request.seed is not None:
        draft.change(("seed",), request.seed, f"--seed {request.seed}")
    for change in request.sets:
        set_value(draft, change)


def shape_default(request: Request, draft: Draft) -> None:
    """--tokens, --d-model and their like: other shapes for the default example, drawn in the same way."""
    options = {
        "--tokens": request.tokens,
        "--d-model": request.d_model,
        "--heads": request.heads,
        "--kv-heads": request.kv_heads,
        "--causal": request.causal or None,
    }
    asked = {option: value for option, value in options.items() if value is not None}
    if request.config is not None:
        for option in asked:
            raise AttnTraceError(f"{option} shapes the default example and goes without a CONFIG; change a config with --set")
        return
    if asked or request.seed not in (None, 42):
        shapes = " ".join(
            [f"{option} {value}" for option, value in asked.items() if option != "--causal"] + ["--causal"] * request.causal
        )
        draft.data["title"] = f"Self-attention on random tokens{': ' if shapes else ''}{shapes}"
        draft.data.pop("source", None)
    shape(draft, request, "--tokens", ("x",), 0, request.tokens)
    width = request.d_model
    for path, axis in ((("x",), 1), *(((w,), a) for w in ("w_q", "w_k", "w_v") for a in (0, 1))):
        shape(draft, request, "--d-model", path, axis, width)
    if request.kv_heads is not None and request.heads:
        for w in ("w_k", "w_v"):
            columns = draft.data[w]["shape"][1] // request.heads * request.kv_heads
            shape(draft, request, "--kv-heads", (w,), 1, max(1, columns))
    for option, key in (("--heads", "heads"), ("--kv-heads", "kv_heads")):
        if option in asked:
            draft.change((key,), asked[option], f"{option} {asked[option]}")
    if request.causal:
        draft.change(("mask",), "causal", "--causal")


def shape(draft: Draft, request: Request, option: str, path: Path, axis: int, size: int | None) -> None:
    if size is None:
        return
    if size >= 2**31:
        raise AttnTraceError(f"{option} {size}: expected less than {2**31}")
    draft.change((*path, "shape", axis), size, f"{option} {getattr(request, option[2:].replace('-', '_'))}")


SET = re.compile(r"([^=]*?)\s*=(.*)", re.DOTALL)
PART = re.compile(r"\.?([A-Za-z_]\w*)|\[\s*(\d{1,9})\s*\]", re.ASCII)
SHOWN = 60  # characters of an option that a message repeats


def set_value(draft: Draft, text: str) -> None:
    """`--set KEY=VALUE`: a key of the config (scale, mask.padding, tokens[1]), or cells of a tensor (x[0], x[:, 3:])."""
    option = f"--set {text if len(text) <= SHOWN else text[:SHOWN] + '…'}"
    match = SET.fullmatch(text)
    if not match:
        raise AttnTraceError(f"{option}: expected KEY=VALUE, such as --set scale=1 or --set 'x[0]=[5,5,5,5]'")
    target, source = match[1].strip(), match[2].strip()
    name = re.split(r"[.\[]", target)[0]
    if name in INPUTS and target[len(name) : len(name) + 1] == "[":
        cell = cell_of(target, option)
        draft.edits.append((cell, value_of(name, source, target)))
        draft.changes.append(((name,), option))
    else:
        path = path_of(target, option)
        draft.change(path, value_of(name, source, target), option)


def cell_of(target: str, option: str) -> Cell:
    try:
        return parse(target)
    except AttnTraceError as error:
        raise AttnTraceError(f"{option}: {error.faults[0].message}") from None


def value_of(name: str, source: str, target: str) -> Any:
    """VALUE as YAML; labels and titles stay as typed."""
    option = f"--set {target}"
    if name not in TEXT_KEYS:
        return parse_value(source, option)
    if source.startswith("["):
        return parse_yaml(f"{name}: {source}", option, TEXT_KEYS).data[name]
    return source


def path_of(target: str, option: str) -> Path:
    """mask[0].padding as the path ("mask", 0, "padding")."""
    parts = list(PART.finditer(target))
    if not parts or "".join(match[0] for match in parts) != target or not parts[0][1]:
        what = repr(target[:SHOWN]) if target else "nothing"
        raise AttnTraceError(f"{option}: expected a key before the =, such as scale, mask.padding or tokens[1], found {what}")
    return tuple(match[1] or int(match[2]) for match in parts)


def put(data: Any, path: Path, value: Any, option: str) -> None:
    """Set the value at `path`; mappings on the way are made where they are missing."""
    *way, last = path
    for depth, step in enumerate(way):
        if not (isinstance(data, dict) and isinstance(step, str)):
            data = entry(data, step, path[: depth + 1], option)
            continue
        if isinstance(path[depth + 1], str) and not isinstance(data.get(step), (dict, list)):
            data[step] = {}
        data = data.get(step)
    if not (isinstance(data, dict) and isinstance(last, str)):
        entry(data, last, path, option)
    data[last] = value


def entry(data: Any, step: str | int, path: Path, option: str) -> Any:
    if isinstance(data, list) and isinstance(step, int) and step < len(data):
        return data[step]
    what = f"a list of {len(data)}, numbered from 0" if isinstance(data, list) else found(data)
    state = "not set" if data is None else what
    raise AttnTraceError(f"{option}: there is no {called(path)}: {called(path[:-1])} is {state}")


# ------------------------------------------------------------------ the data, and the problem that they pose


def build(draft: Draft, request: Request) -> Problem:
    """Check the keys, then make sources of the tensors, then see whether the shapes fit; faults of all three together."""
    unreadable = draft.document.faulty if draft.document else set()
    faults = [*draft.faults, *([] if draft.trusted else check(draft, unreadable))]
    sound = {key: value for key, value in draft.data.items() if value is not None and not lost(key, faults, unreadable)}
    maker = new_maker(draft, sound, faults)
    sources = make_sources(sound, maker, faults)
    options, arrays = make_options(sound, maker, faults)
    if "dropout" in sound:
        with collected(faults):
            maker.stream(sound["dropout"], ("dropout",))
    faults += maker.seed_faults()
    sources = edited(draft, permuted(request, sources | arrays, options, faults), faults)
    sources = in_file_order(sources, draft.data)
    if faults:
        unmade = {name for name in INPUTS if draft.data.get(name) is not None and name not in sources}
        raise AttnTraceError(*faults, *clashes(sources, options, broken(faults) | unreadable | unmade))
    problem = pose(sources, options, draft.data)
    if isinstance(problem, list):
        raise AttnTraceError(*problem)
    add_dropout(problem, sound, maker)
    problem.remarks += remarks(problem, request, maker)
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
    meant = {f.meant for f in faults if is_of_key(f) and hasattr(f, "meant")}
    return {str(f.path[0]) for f in faults if f.path} | {key for key in meant if key}


def new_maker(draft: Draft, sound: Mapping[str, Any], faults: Sequence[Fault]) -> Maker:
    """A faulty seed counts as one: that draws lack it is no further fault."""
    seed = 0 if touched("seed", faults) else sound.get("seed")
    return Maker(draft.folder, seed, sound.get("generator", "numpy"), draft.locate)


def touched(key: str, faults: Sequence[Fault]) -> bool:
    return any(f.path[:1] == (key,) for f in faults)


def make_sources(data: Mapping[str, Any], maker: Maker, faults: list[Fault]) -> dict[str, Source]:
    sources = {}
    for name in data:
        if name in INPUTS:
            with collected(faults):
                sources[name] = maker.source(data[name], (name,))
    return sources


class collected:
    """A block whose AttnTraceError is added to `faults` instead of raised; a missing package still ends everything."""

    def __init__(self, faults: list[Fault]) -> None:
        self.faults = faults

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if type(error) is not AttnTraceError:
            return False
        self.faults.extend(error.faults)
        return True


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
        transposed=data.get("weight_layout") == "out_in",
        qkv_layout=data.get("qkv_layout", "q|k|v"),
        tokens=tuple(data["tokens"]) if "tokens" in data else None,
        kv_tokens=tuple(data["kv_tokens"]) if "kv_tokens" in data else None,
        title=data.get("title", ""),
        source=data.get("source", ""),
    )
    return options, arrays


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


def permuted(request: Request, sources: Mapping[str, Source], options: Options, faults: list[Fault]) -> dict[str, Source]:
    """The tokens of x (of q, k and v, where they are given) in the order of --permute; labels go along."""
    if request.permute is None:
        return dict(sources)
    if any(touched(name, faults) for name in ("x", *"qkv")):
        return dict(sources)
    names = [name for name in (("x",) if "x" in sources else tuple("qkv")) if name in sources]
    lengths = {sources[name].shape[-2] for name in names if len(sources[name].shape) > 1}
    if len(lengths) != 1:
        faults.append(Fault(f"--permute {request.permute}: needs x, or q, k and v with as many tokens each"))
        return dict(sources)
    with collected(faults):
        order = order_of(request.permute, lengths.pop())
        if options.tokens is not None and len(options.tokens) == len(order):
            options.tokens = tuple(options.tokens[i] for i in order)
        return {name: Permuted(s, order) if name in names else s for name, s in sources.items()}
    return dict(sources)


def order_of(text: str, length: int) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    complete = len(parts) == length and all(re.fullmatch(r"\d{1,9}", part, re.ASCII) for part in parts)
    if not complete or sorted(map(int, parts)) != list(range(length)):
        example = ",".join(map(str, [1, 0, *range(2, length)][:length] if length < 12 else ["1", "0", "2", "…"]))
        wanted = f"each of 0 to {length - 1} once, such as {example}" if length > 1 else "0, since there is one token"
        raise AttnTraceError(f"--permute {text[:SHOWN]}: expected {wanted}")
    return tuple(map(int, parts))


def edited(draft: Draft, sources: dict[str, Source], faults: list[Fault]) -> dict[str, Source]:
    """The cells that --set changes."""
    for cell, value in draft.edits:
        if cell.name not in sources:
            if not touched(cell.name, faults):
                faults.append(Fault(f"{draft.option((cell.name,))}: there is no {cell.name} here to change"))
            continue
        with collected(faults):
            sources[cell.name] = edit(sources[cell.name], cell, value)
    return sources


def edit(source: Source, cell: Cell, value: Any) -> Source:
    path = (cell.name,)
    try:
        taken = cell.within([str(i) for i in range(len(source.shape))], source.shape)
    except AttnTraceError as error:
        raise AttnTraceError(Fault(str(error.faults[0].message), path)) from None
    scalar = isinstance(value, (int, float)) and not isinstance(value, bool)
    new = numbers([value], path)[0] if scalar else numbers(value, path)
    if not spreads(new.shape, taken):
        sizes = " × ".join(map(str, taken)) or "a single number"
        raise AttnTraceError(Fault(f"{cell}: expected {sizes}, found {' × '.join(map(str, new.shape))}", path))
    return Edited(source, cell.index, new)


def spreads(shape: tuple[int, ...], over: tuple[int, ...]) -> bool:
    """Whether NumPy would repeat an array of `shape` to fill one of shape `over`."""
    pairs = zip(reversed(shape), reversed(over), strict=False)
    return len(shape) <= len(over) and all(n in (1, size) for n, size in pairs)


def in_file_order(sources: Mapping[str, Source], data: Mapping[str, Any]) -> dict[str, Source]:
    """Sources in the order in which the config has them, since those that share a stream are drawn in that order."""
    position = {key: i for i, key in enumerate(data)}
    return dict(sorted(sources.items(), key=lambda item: position[re.split(r"[.\[]", item[0])[0]]))


def add_dropout(problem: Problem, data: Mapping[str, Any], maker: Maker) -> None:
    """The weights that dropout keeps are drawn too, in their place in the file; their shape is known only now."""
    if "dropout" not in data:
        return
    generator, seed = maker.stream(data["dropout"], ("dropout",))
    shape = tuple(problem.sizes[axis] for axis in (*problem.lead, "query", "key"))
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
        names = " and ".join([", ".join(square[:-1]), square[-1]] if square[1:] else square)
        yield Note(
            "square-weight",
            square[0],
            f"{names} {'are' if square[1:] else 'is'} square, so the shape cannot tell the layout: used as x @ W; if stored as "
            "torch.nn.Linear does, say weight_layout: out_in",
        )
    if request.permute is not None and problem.options.masks:
        yield Note("permute-mask", "mask", "--permute moves the tokens; the mask stays where it is")


def ambiguous(problem: Problem, name: str) -> bool:
    """Whether a weight that somebody wrote down or stored is square."""
    source = problem.sources.get(name)
    return source is not None and source.shape[0] == source.shape[1] and not source.origin.startswith("drawn")
