"""From a request (a config, a seed, changes on the command line) to a problem, or to everything that is wrong with it."""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

import numpy as np

from attntrace.cell import Cell, parse
from attntrace.config import bundled
from attntrace.config.draw import Kept
from attntrace.config.files import TEXT_LIMIT, read_text
from attntrace.config.tensors import Edited, Inline, Maker, Permuted, called, found, numbers
from attntrace.config.yaml import Document
from attntrace.config.yaml import parse as parse_yaml
from attntrace.config.yaml import parse_value
from attntrace.dtypes import dtype
from attntrace.errors import AttnTraceError, Fault, Path, nearest, plain
from attntrace.parts import mask as masks
from attntrace.problem import INPUTS, Options, Problem, Source, pose
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
    """A config on its way to a problem: its data, where they come from, what was changed and by which option."""

    data: dict[str, Any]
    folder: FilePath
    document: Document | None = None
    trusted: bool = False  # a bundled example as it is, which the tests hold against the schema
    changes: list[tuple[Path, str]] = field(default_factory=list)
    edits: list[tuple[Cell, Any, str]] = field(default_factory=list)

    def change(self, path: Path, value: Any, option: str) -> None:
        put(self.data, path, value, option)
        self.changes.append((path, option))
        self.trusted = self.trusted and path == ("seed",) and type(value) is int and 0 <= value < 2**64

    def locate(self, fault: Fault) -> Fault:
        """The fault with the place of its key in the file, or the option that brought it about."""
        if fault.place or not fault.path:
            return fault
        for path, option in reversed(self.changes):
            if path == fault.path[: len(path)] or fault.path == path[: len(fault.path)]:
                return Fault(f"{option}: {fault.message}", fault.path)
        if self.document is None:
            return fault
        unknown = "unknown key" in fault.message
        place = self.document.key_place(fault.path) if unknown else self.document.place(fault.path)
        return Fault(fault.message, fault.path, place)


def load(request: Request) -> Problem:
    """The problem that is asked for. Raises AttnTraceError with every fault, each with its place in the file."""
    draft = read(request)
    apply(request, draft)
    try:
        return build(draft, request)
    except AttnTraceError as error:
        error.faults = tuple(sorted(map(draft.locate, error.faults), key=order))
        raise


def order(fault: Fault) -> tuple[int, int]:
    return (fault.place.line, fault.place.column) if fault.place else (0, 0)


# ------------------------------------------------------------------ the text, and what the command line changes in it


def read(request: Request) -> Draft:
    """The config as data: a mapping as it is, a bundled example by name, a file, or standard input for "-"."""
    config = request.config
    if isinstance(config, Mapping):
        return Draft(copy.deepcopy(dict(config)), FilePath())
    path = find(config)
    name = "standard input" if config == "-" else path.name if config in (None, *bundled.names()) else str(config)
    document = parse_yaml(text_of(path, config), name, TEXT_KEYS)
    return Draft(document.data, path.parent, document, trusted=path.parent == bundled.folder())


def find(config: str | None) -> FilePath:
    names = bundled.names()
    if config is None or config in names:
        return bundled.folder() / f"{config or DEFAULT}.yaml"
    path = FilePath(config)
    if config == "-" or path.exists() or path.suffix or path.parent != FilePath():
        return path
    raise AttnTraceError(
        f"{plain(config)}: there is no such file, and no bundled example of that name{nearest(config, names)} "
        "(attntrace examples lists them)"
    )


def text_of(path: FilePath, config: str | None) -> str:
    if config != "-":
        return read_text(path)
    data = sys.stdin.buffer.read(TEXT_LIMIT + 1)
    if len(data) > TEXT_LIMIT:
        raise AttnTraceError("standard input: too large for a config")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise AttnTraceError(f"standard input: expected UTF-8 text, found byte 0x{data[error.start]:02x} at {error.start}") from None


def apply(request: Request, draft: Draft) -> None:
    """The options of the command line, in the data."""
    shape_default(request, draft)
    if request.seed is not None:
        draft.change(("seed",), request.seed, f"--seed {request.seed}")
    for text in request.sets:
        set_value(draft, text)


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
        shapes = " ".join([f"{option} {value}" for option, value in asked.items() if option != "--causal"] + ["--causal"] * request.causal)
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
    if size is not None:
        draft.change((*path, "shape", axis), size, f"{option} {getattr(request, option[2:].replace('-', '_'))}")


SET = re.compile(r"([^=]*?)\s*=(.*)", re.DOTALL)
PART = re.compile(r"\.?([A-Za-z_]\w*)|\[\s*(\d+)\s*\]", re.ASCII)


def set_value(draft: Draft, text: str) -> None:
    """`--set KEY=VALUE`: a key of the config (scale, mask.padding, tokens[1]), or cells of a tensor (x[0], x[:, 3:])."""
    option = f"--set {text}"
    match = SET.fullmatch(text)
    if not match:
        raise AttnTraceError(f"{option}: expected KEY=VALUE, such as --set scale=1 or --set 'x[0]=[5,5,5,5]'")
    target, source = match[1].strip(), match[2].strip()
    name = re.split(r"[.\[]", target)[0]
    value = value_of(name, source, option)
    if name in INPUTS and target[len(name) : len(name) + 1] == "[":
        draft.edits.append((parse(target), value, option))
        draft.changes.append(((name,), option))
    else:
        draft.change(path_of(target, option), value, option)


def value_of(name: str, source: str, option: str) -> Any:
    """VALUE as YAML; labels and titles stay as typed."""
    if name not in TEXT_KEYS:
        return parse_value(source, option)
    if source.startswith("["):
        return parse_yaml(f"{name}: {source}", option, TEXT_KEYS).data[name]
    return source


def path_of(target: str, option: str) -> Path:
    """mask[0].padding as the path ("mask", 0, "padding")."""
    parts = [match for match in PART.finditer(target)]
    if not parts or "".join(match[0] for match in parts) != target or not parts[0][1]:
        raise AttnTraceError(f"{option}: {target!r} is not a key; expected one such as scale, mask.padding or tokens[1]")
    return tuple(match[1] or int(match[2]) for match in parts)


def put(data: Any, path: Path, value: Any, option: str) -> None:
    """Set the value at `path`; mappings on the way are made where they are missing."""
    *way, last = path
    for depth, step in enumerate(way):
        if isinstance(data, dict) and isinstance(step, str):
            if not isinstance(data.get(step), (dict, list)):
                data[step] = {}
            data = data[step]
        else:
            data = entry(data, step, path[: depth + 1], option)
    if isinstance(data, dict) and isinstance(last, str):
        data[last] = value
    else:
        entry(data, last, path, option)
        data[last] = value


def entry(data: Any, step: str | int, path: Path, option: str) -> Any:
    if isinstance(data, list) and isinstance(step, int) and step < len(data):
        return data[step]
    what = f"a list of {len(data)}, numbered from 0" if isinstance(data, list) else found(data)
    raise AttnTraceError(f"{option}: there is no {called(path)}: {called(path[:-1])} is {what}")


# ------------------------------------------------------------------ the data, and the problem that they pose


def build(draft: Draft, request: Request) -> Problem:
    """Check the keys, then make sources of the tensors, then see whether the shapes fit; faults of all three together."""
    faults = [] if draft.trusted else check(draft.data)
    sound = {key: value for key, value in draft.data.items() if value is not None and not touched(key, faults)}
    maker = Maker(draft.folder, sound.get("seed"), sound.get("generator", "numpy"))
    sources = make_sources(sound, maker, faults)
    options, arrays = make_options(sound, maker, faults)
    sources = edited(draft, permuted(request, sources | arrays, options, faults), faults)
    sources = in_file_order(sources, draft.data)
    if {f.path[0] for f in faults if f.path} & {*INPUTS, "heads", "kv_heads", "mask", "weight_layout"}:
        raise AttnTraceError(*faults, *(partial_faults(sources, options, faults)))
    problem = pose(sources, options, draft.data)
    if isinstance(problem, list) or faults:
        raise AttnTraceError(*faults, *(problem if isinstance(problem, list) else ()))
    add_dropout(problem, sound, maker)
    problem.remarks += remarks(problem, request, maker)
    return problem


def check(data: Mapping[str, Any]) -> list[Fault]:
    from attntrace.config import schema  # here, since an untouched bundled example does not need it

    plain_data = {k: v.tolist() if isinstance(v, np.ndarray) and v.ndim < 1 else v for k, v in data.items()}
    return schema.check(plain_data)


def touched(key: str, faults: Sequence[Fault]) -> bool:
    return any(f.path[:1] == (key,) for f in faults)


def partial_faults(sources: Mapping[str, Source], options: Options, faults: Sequence[Fault]) -> list[Fault]:
    """Faults among the inputs that could be read; those about a missing one are left out when it is there, but faulty."""
    problem = pose(sources, options)
    broken = {f.path[0] for f in faults if f.path}
    return [f for f in problem if f.path and f.path[0] not in broken] if isinstance(problem, list) else []


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


def make_masks(value: Any, maker: Maker, arrays: dict[str, Source], faults: list[Fault]) -> Iterator[masks.Mask]:
    several = isinstance(value, list)
    for i, item in enumerate(value if several else [value] if value is not None else []):
        path: Path = ("mask", i) if several else ("mask",)
        if item == "causal":
            yield masks.Causal(None, path)
        else:
            kind, detail = next(iter(item.items()))
            with collected(faults):
                yield make_mask(kind, detail, (*path, kind), maker, arrays)


def make_mask(kind: str, detail: Any, path: Path, maker: Maker, arrays: dict[str, Source]) -> masks.Mask:
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
    numbers_only = all(re.fullmatch(r"\d{1,9}", part, re.ASCII) for part in parts)
    if not numbers_only or sorted(map(int, parts)) != list(range(length)):
        example = ",".join(map(str, [1, 0, *range(2, length)][:length] if length < 12 else ["1", "0", "2", "…"]))
        raise AttnTraceError(f"--permute {text}: expected each of 0 to {length - 1} once, such as {example}")
    return tuple(map(int, parts))


def edited(draft: Draft, sources: dict[str, Source], faults: list[Fault]) -> dict[str, Source]:
    """The cells that --set changes."""
    for cell, value, option in draft.edits:
        if cell.name not in sources:
            if not touched(cell.name, faults):
                faults.append(Fault(f"there is no {cell.name} here to change", (cell.name,)))
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
    new = np.array(float(value)) if scalar else numbers(value, path)
    try:
        np.broadcast_to(new, taken)
    except ValueError:
        sizes = " × ".join(map(str, taken)) or "a single number"
        raise AttnTraceError(Fault(f"expected {sizes}, found {' × '.join(map(str, new.shape))}", path)) from None
    return Edited(source, cell.index, new)


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
    after = [key for key in list(data)[list(data).index("dropout") :]]
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
