"""What is asked for, and the config on its way to a problem: its data, where they come from, what was changed in it."""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

import numpy as np

from attntrace.cell import Cell
from attntrace.config import bundled
from attntrace.config.files.opening import read_text, text
from attntrace.config.yaml import Document, parse
from attntrace.errors import AttnTraceError, Clash, Fault, KeyFault, Path, nearest, plain

DEFAULT = "module05"
TEXT_KEYS = ("tokens", "kv_tokens", "title", "source")
SHOWN = 60  # characters of an option that a message repeats


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
    queries: str | None = None


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

    def changed(self, path: Path, value: Any, option: str) -> None:
        """Take note that `option` has put `value` at `path`; only a seed leaves a bundled example as trusted as it was."""
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
        place = (self.document.key_place if isinstance(fault, KeyFault) else self.document.place)(fault.path)
        return Fault(message, fault.path, place)

    def order(self, fault: Fault) -> tuple[int, int, int]:
        """First what the options brought about, then the faults of the text, then what it lacks."""
        if fault.place:
            return 1, fault.place.line, fault.place.column
        return (2 if fault.path and not self.option(fault.path) else 0), 0, 0


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


def touched(key: str, faults: Sequence[Fault]) -> bool:
    return any(f.path[:1] == (key,) for f in faults)


def read(request: Request) -> Draft:
    """The config as data: a mapping as it is, a bundled example by name, a file, or standard input for "-"."""
    config = request.config
    if isinstance(config, Mapping):
        return Draft(as_yaml({str(key): value for key, value in config.items()}), FilePath())
    path = find(config)
    name = "standard input" if config == "-" else path.name if config in (None, *bundled.names()) else str(config)
    faults: list[Fault] = []
    document = parse(text_of(path, config), name, TEXT_KEYS, faults)
    trusted = path.parent == bundled.folder() and not faults
    return Draft(copy.copy(document.data), path.parent, document, trusted, faults)


def as_yaml(value: Any) -> Any:
    """What Python hands over, as a YAML text would have it: mappings, lists, plain numbers. Arrays stay arrays, copied."""
    if isinstance(value, Mapping):
        return {key: as_yaml(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_yaml(item) for item in value]
    return value.item() if isinstance(value, np.generic) else copy.deepcopy(value)


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
