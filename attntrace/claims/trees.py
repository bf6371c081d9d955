"""JSON, YAML and Python mappings: names with numbers in lists, or the JSON that `attntrace run` writes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from attntrace.claims import names
from attntrace.claims.claim import (
    CELLS,
    CLAIMS,
    Claim,
    Found,
    Index,
    Reading,
    claim_of,
    exact_claim,
    fault,
    flat,
    shown,
    untitled,
)
from attntrace.claims.number import LONGEST
from attntrace.claims.text import Text
from attntrace.config.yaml import Composer, Node, Scalar, Source
from attntrace.config.yaml import Mapping as YamlMapping
from attntrace.errors import AttnTraceError, Fault, Path, Place

Where = Callable[[Path], Place | None]
POSITION = re.compile(r"[0-9]{1,9}")
NESTED = 8  # levels of lists and mappings that are looked into
NOTHING = ("", "~", "null")
INSIDE = ("expect", "claims", "answers")  # a mapping that has one of these keys says its claims there


class Pairs(list[tuple[str, Any]]):
    """A mapping as its keys and values, so that a key that comes twice is seen."""


def read(tree: Any, name: str, where: Where, reading: Reading) -> None:
    """The claims in lists and mappings whose cells are text. `where` finds a path of the source."""
    if isinstance(tree, list) and not isinstance(tree, Pairs):
        if tree and all(isinstance(item, Pairs) for item in tree):
            steps(tree, name, where, reading, ())
        else:
            reading.collect(partial(listed, "", tree, name, where(())))
        return
    if not isinstance(tree, Pairs):
        raise fault("expected a mapping of step names to numbers in lists", where(()), name)
    mapping(tree, name, where, reading, ())


def mapping(tree: Pairs, name: str, where: Where, reading: Reading, path: Path) -> None:
    """The claims in a mapping, which may have them one level down, or be a trace."""
    keys = dict(tree)
    if isinstance(keys.get("steps"), list) and not isinstance(keys["steps"], Pairs):
        steps(keys["steps"], name, where, reading, (*path, "steps"), exact="attntrace" in keys)
    elif inside := next((key for key in INSIDE if isinstance(keys.get(key), Pairs)), None):
        mapping(keys[inside], name, where, reading, (*path, inside))
    else:
        members(tree, name, where, reading, path)


def members(tree: Pairs, name: str, where: Where, reading: Reading, path: Path) -> None:
    """Each key as a claim, but for the title of a sheet and the name of who filled it in."""
    if len(tree) > CLAIMS:
        raise fault(f"holds more than {CLAIMS} names", where(path), name)
    seen: set[str] = set()
    for called, value in tree:
        place = where((*path, called))
        if isinstance(value, Pairs):
            value = dict(value).get("values", value)
        if called in seen:
            reading.faults += fault(f'"{shown(called)}" twice', place, name).faults
        elif isinstance(value, str | bool | None) and not names.known(called):
            reading.said.append(f'"{shown(called)}" is no list of numbers, and left out')
        else:
            reading.collect(partial(listed, called, value, name, place))
        seen.add(called)


def steps(items: list[Any], name: str, where: Where, reading: Reading, path: Path, exact: bool = False) -> None:
    """The steps of a trace as JSON: each a mapping with a name and values."""
    if len(items) > CLAIMS:
        raise fault(f"holds more than {CLAIMS} steps", where(path), name)
    for i, item in enumerate(items):
        entry = dict(item) if isinstance(item, Pairs) else {}
        place = where((*path, i))
        if "values" not in entry:
            reading.faults += fault(f"entry {i} of the steps has no values", place, name).faults
            continue
        called = entry.get("name")
        title = called if isinstance(called, str) else ""
        reading.collect(partial(listed, title, entry["values"], name, place, index_of(entry.get("index")), exact))


def index_of(part: Any) -> Index:
    """The batch item and head that was picked of a step."""
    pairs = part if isinstance(part, Pairs) else ()
    return tuple((axis, int(i)) for axis, i in pairs if isinstance(i, str) and POSITION.fullmatch(i))


def listed(called: str, value: Any, name: str, place: Place | None, index: Index = (), exact: bool = False) -> Claim:
    origin = f"{name}:{place.line}" if place else name
    if isinstance(value, np.ndarray):
        return exact_claim(called, value, origin, place)
    if isinstance(value, Pairs):
        raise fault(f"{untitled(called)}: expected numbers in lists, found a mapping", place, name)
    try:
        cells, shape = flat(value)
    except ValueError as error:
        raise fault(f"{untitled(called)}: {error}", place, name) from None
    return claim_of(Found(called, cells, shape, place, origin, index, exact=exact))


# ------------------------------------------------------------------ JSON


def read_json(text: Text, reading: Reading) -> None:
    """Numbers are kept as they are written. Raises AttnTraceError where the text is no JSON."""
    if text.text.count(",") > 2 * CELLS:
        raise AttnTraceError(f"{text.name}: holds more than {CELLS} numbers")
    try:
        tree = json.loads(text.text, object_pairs_hook=Pairs, parse_float=str, parse_int=str, parse_constant=str)
    except json.JSONDecodeError as error:
        place = text.place(error.lineno - 1, error.colno)
        raise AttnTraceError(Fault(f"no JSON from here on: {error.msg[:1].lower()}{error.msg[1:]}", place=place)) from None
    except RecursionError:
        raise AttnTraceError(f"{text.name}: lists or mappings nested too deep") from None
    read(tree, text.name, Finder(text).place, reading)


class Finder:
    """Finds keys in a JSON text, which its parser does not tell: the next place where the key is written."""

    def __init__(self, text: Text) -> None:
        self.text, self.at = text, 0

    def place(self, path: Path) -> Place | None:
        if not path:
            return self.text.place(0)
        last = path[-1]
        word = '"name"' if isinstance(last, int) else json.dumps(last, ensure_ascii=False)
        found = self.text.text.find(word, self.at)
        if found < 0:
            return self.text.spot(self.at)
        self.at = found + 1
        return self.text.spot(found)


# ------------------------------------------------------------------ YAML


def read_yaml(text: Text, reading: Reading, key: str | None = None) -> None:
    """Every scalar stays as it was typed. With `key`, what a config has under that key; nothing when it has none."""
    if text.text.count(",") + text.text.count("\n") > 2 * CELLS:
        raise AttnTraceError(f"{text.name}: holds more than {CELLS} numbers")
    source = Source(BLANK.sub(r"\1~", EMPTY.sub("~", text.text)), text.name)
    root = Composer(source).compose()
    node: Node | None = root.child(key) if key else root
    reading.faults += source.faults()
    if node is None:
        return

    def where(path: Path) -> Place | None:
        at: Node | None = node
        spot = node.at if node else 0
        for step in path:
            if at is None:
                break
            found = at.key(step)
            at = at.child(step)
            spot = found if found is not None else at.at if at else spot
        return source.place(spot)

    tree = paired(node.build(scalar))
    if isinstance(node, YamlMapping):  # what has a fault in it was told, and is no claim
        spoilt = source.faulty(node.spots)
        tree = Pairs((called, value) for called, value in tree if called not in spoilt)
    read(tree, text.name, where, reading)


# `[0.1, ?, -, , 0.5]` is no YAML, and how people leave cells blank: each becomes ~ in its place.
BLANK = re.compile(r"([\[,][ \t]{0,9})[?-](?=[ \t]{0,9}[,\]])")
EMPTY = re.compile(r"(?<=[\[,])[ \t](?=[ \t]{0,9},)")


def scalar(node: Scalar) -> str | None:
    """A scalar as it was typed; None where nothing was, which may stand for a whole row."""
    return None if node.tag is None and node.text in NOTHING else node.text


def paired(value: Any) -> Any:
    """Mappings as pairs, in lists and mappings; what is no list or mapping as it is."""
    if isinstance(value, Mapping):
        return Pairs((str(key), paired(item)) for key, item in value.items())
    return [paired(item) for item in value] if isinstance(value, list | tuple) else value


# ------------------------------------------------------------------ Python


def read_mapping(claims: Mapping[str, Any], name: str, reading: Reading) -> None:
    """What Python hands over: numbers say as much as `repr` writes of them; arrays are exact."""
    read(Pairs(written(claims)), name, lambda path: None, reading)


def written(claims: Mapping[str, Any], depth: int = 0) -> Iterator[tuple[str, Any]]:
    for key, value in claims.items():
        exact = isinstance(value, np.ndarray) and value.ndim and value.dtype.kind in "fiub"
        yield str(key), value if exact else as_text(value, depth)


def as_text(value: Any, depth: int = 0) -> Any:
    """Lists of numbers as lists of text, mappings as pairs. What is nested deeper than any claim may be is left as a word."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping) and depth < NESTED:
        return Pairs(written(value, depth + 1))
    if isinstance(value, list | tuple) and depth < NESTED:
        return [as_text(item, depth + 1) for item in value]
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int | float) and (isinstance(value, float) or abs(value) < 10**LONGEST):
        return repr(value)
    return f"a {type(value).__name__}"
