"""What the command line changes: keys of a config and shapes of the default example, then cells and the order of tokens."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attntrace.cell import Cell, Index, parse_index
from attntrace.config.draft import SHOWN, TEXT_KEYS, Draft, Request, collected, touched
from attntrace.config.tensors import Edited, Permuted, found, numbers
from attntrace.config.yaml import parse as parse_yaml
from attntrace.config.yaml import parse_value
from attntrace.errors import AttnTraceError, Fault, Path
from attntrace.problem import INPUTS, Options, Source, called
from attntrace.tape import Array


def apply(request: Request, draft: Draft) -> None:
    """The options of the command line, in the data."""
    shape_default(request, draft)
    if request.seed is not None:
        change(draft, ("seed",), request.seed, f"--seed {request.seed}")
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
        shapes = " ".join(
            [f"{option} {value}" for option, value in asked.items() if option != "--causal"] + ["--causal"] * request.causal
        )
        draft.data["title"] = f"Self-attention on random tokens{': ' if shapes else ''}{shapes}"
        draft.data.pop("source", None)
    shape(draft, f"--tokens {request.tokens}", "x", 0, request.tokens)
    for name, axis in (("x", 1), *((w, a) for w in ("w_q", "w_k", "w_v") for a in (0, 1))):
        shape(draft, f"--d-model {request.d_model}", name, axis, request.d_model)
    if request.kv_heads is not None and request.heads:
        for w in ("w_k", "w_v"):
            columns = draft.data[w]["shape"][1] // request.heads * request.kv_heads
            shape(draft, f"--kv-heads {request.kv_heads}", w, 1, max(1, columns))
    for option, key in (("--heads", "heads"), ("--kv-heads", "kv_heads")):
        if option in asked:
            change(draft, (key,), asked[option], f"{option} {asked[option]}")
    if request.causal:
        change(draft, ("mask",), "causal", "--causal")


def shape(draft: Draft, option: str, name: str, axis: int, size: int | None) -> None:
    """Let `option` set the length of one axis of a draw; None leaves it."""
    if size is None:
        return
    if size >= 2**31:
        raise AttnTraceError(f"{option}: expected less than {2**31}")
    change(draft, (name, "shape", axis), size, option)


SET = re.compile(r"([^=]*?)\s*=(.*)", re.DOTALL)
PART = re.compile(r"\.?([A-Za-z_]\w*)|\[([-+\d\s,]{1,90})\]", re.ASCII)
ENTRY = r"\[\s*[-+]?\d{1,9}\s*\]"  # of a list of masks
TENSOR = re.compile(  # a tensor of the config, and the cells of it
    rf"({'|'.join(INPUTS)}|mask\s*(?:{ENTRY})?\.(?:keep|ignore|add)|rope\.(?:positions|key_positions|cos|sin)|alibi\.slopes"
    r"|qk_norm\.[qk]|cache\.(?:[kv]|table|blocks\.[kv]))\s*(\[.*)",
    re.ASCII | re.DOTALL,
)


def set_value(draft: Draft, text: str) -> None:
    """`--set KEY=VALUE`: a key of the config (scale, mask.padding, tokens[1]), or cells of a tensor (x[0], cache.k[:, 3:])."""
    option = f"--set {text if len(text) <= SHOWN else text[:SHOWN] + '…'}"
    match = SET.fullmatch(text)
    if not match:
        raise AttnTraceError(f"{option}: expected KEY=VALUE, such as --set scale=1 or --set 'x[0]=[5,5,5,5]'")
    target, source = match[1].strip(), match[2].strip()
    value = value_of(re.split(r"[.\[]", target)[0].strip(), source, target)
    if tensor := TENSOR.fullmatch(target):
        set_cells(draft, tensor[1], cells_of(tensor[2], target, option), value, option)
    else:
        path = settled(path_of(target, option), draft.data)
        value = here(value, str(path[-1]))
        draft.edits = [edit for edit in draft.edits if path_of(edit[0].name, "")[: len(path)] != path]  # they are gone
        change(draft, path, value, option)


def set_cells(draft: Draft, name: str, index: Index, value: Any, option: str) -> None:
    """Take note of what is to be changed once the tensor is known."""
    path = settled(path_of(name, option), draft.data)
    draft.edits.append((Cell(called(path), index), value))
    draft.changes.append((path, option))


def here(value: Any, key: str) -> Any:
    """A file named on the command line is looked for where the command is given, and not beside the config."""
    if isinstance(value, dict):
        return {name: here(item, name) for name, item in value.items()}
    return os.path.abspath(value) if key == "file" and isinstance(value, str) and value else value


def cells_of(brackets: str, target: str, option: str) -> Index:
    try:
        return parse_index(brackets, target)
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
    """mask[0].padding as the path ("mask", 0, "padding"); expect.weights[0, 1] as that of a list in a list."""
    parts = list(PART.finditer(re.sub(r"\s+(?=[.\[])", "", target)))
    whole = "".join(match[0] for match in parts) == re.sub(r"\s+(?=[.\[])", "", target)
    if not parts or not whole or not parts[0][1]:
        raise no_path(target, option)
    numbers = [[n.strip() for n in match[2].split(",")] if match[2] else [] for match in parts]
    if not all(re.fullmatch(r"[-+]?\d{1,9}", n) for group in numbers for n in group):
        raise no_path(target, option)
    return tuple(
        step for match, group in zip(parts, numbers, strict=True) for step in ([match[1]] if match[1] else map(int, group))
    )


def no_path(target: str, option: str) -> AttnTraceError:
    """A slice is asked of what is no tensor, or there is no key at all."""
    if match := re.fullmatch(r"([A-Za-z_][\w.]*)\s*\[[^\]]*(?::|\.\.\.)[^\]]*\]", target, re.ASCII):
        return AttnTraceError(f"{option}: slices go with tensors; of {match[1]} name one entry, such as {match[1]}[0]")
    what = repr(target[:SHOWN]) if target else "nothing"
    return AttnTraceError(f"{option}: expected a key before the =, such as scale, mask.padding or tokens[1], found {what}")


def settled(path: Path, data: Any) -> Path:
    """A path whose negative numbers count from the end of their list, as they do in NumPy, with what they stand for."""
    steps: list[str | int] = []
    for step in path:
        if isinstance(step, int) and isinstance(data, list):
            step = step + len(data) if -len(data) <= step < 0 else step
            data = data[step] if 0 <= step < len(data) else None
        else:
            data = data.get(step) if isinstance(data, dict) else None
        steps.append(step)
    return tuple(steps)


def change(draft: Draft, path: Path, value: Any, option: str) -> None:
    put(draft.data, path, value, option)
    draft.changed(path, value, option)


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
    if isinstance(data, list) and isinstance(step, int) and 0 <= step < len(data):
        return data[step]
    what = f"a list of {len(data)}, numbered from 0" if isinstance(data, list) else found(data)
    state = "not set" if data is None else what
    raise AttnTraceError(f"{option}: there is no {called(path)}: {called(path[:-1])} is {state}")


# ------------------------------------------------------------------ what is changed once the tensors are known


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
        options.tokens = reordered(options.tokens or [f"t{i}" for i in range(len(order))], order)
        if options.kv_tokens is not None and "x_kv" not in sources:  # then the keys move too
            options.kv_tokens = reordered(options.kv_tokens, order)
        return {name: Permuted(s, order) if name in names else s for name, s in sources.items()}
    return dict(sources)


def reordered(labels: Sequence[str], order: Sequence[int]) -> tuple[str, ...]:
    """Labels in another order; as many as there should be, or they are faulty and told as such."""
    return tuple(labels[i] for i in order) if len(labels) == len(order) else tuple(labels)


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
        path = path_of(cell.name, "")
        if cell.name not in sources:
            if not touched(str(path[0]), faults):
                faults.append(Fault(f"{draft.option(path)}: there is no {cell.name} here to change"))
            continue
        with collected(faults):
            sources[cell.name] = edit(sources[cell.name], cell, value, path)
    return sources


def edit(source: Source, cell: Cell, value: Any, path: Path) -> Source:
    try:
        taken = cell.within([str(i) for i in range(len(source.shape))], source.shape)
    except AttnTraceError as error:
        raise AttnTraceError(Fault(str(error.faults[0].message), path)) from None
    binary = path[-1] in ("keep", "ignore")
    scalar = isinstance(value, (int, float)) and (binary or not isinstance(value, bool))
    if not scalar and not isinstance(value, list):
        raise AttnTraceError(Fault(f"{cell}: expected a number, or numbers in lists, found {found(value)}", path))
    new = new_numbers(value, scalar, cell, path, binary)
    if not spreads(new.shape, taken):
        wanted = " × ".join(map(str, taken)) + " numbers" if taken else "a single number"
        raise AttnTraceError(Fault(f"{cell}: expected {wanted}, found {' × '.join(map(str, new.shape))}", path))
    return Edited(source, cell.index, new)


def new_numbers(value: Any, scalar: bool, cell: Cell, path: Path, binary: bool) -> Array:
    """What the cells are set to; what is wrong with it is told of the cells, and of the place in the value."""
    try:
        return np.asarray(numbers([value], path, binary)[0] if scalar else numbers(value, path, binary))
    except AttnTraceError as error:
        error.faults = tuple(retold(fault, scalar, cell, path) for fault in error.faults)
        raise


def retold(fault: Fault, scalar: bool, cell: Cell, path: Path) -> Fault:
    inside = fault.path[len(path) :]
    if not inside:
        return fault
    what = fault.message.partition(": ")[2]
    of_cell = fault.message.startswith(f"{called(fault.path)}: ")
    place = f"at {called(inside)} of the value: " if of_cell and not scalar else ""
    return Fault(f"{cell}: {place}{what}", path)


def spreads(shape: tuple[int, ...], over: tuple[int, ...]) -> bool:
    """Whether NumPy would repeat an array of `shape` to fill one of shape `over`; axes of 1 in front count for nothing."""
    while len(shape) > len(over) and shape[0] == 1:
        shape = shape[1:]
    pairs = zip(reversed(shape), reversed(over), strict=False)
    return len(shape) <= len(over) and all(n in (1, size) for n, size in pairs)
