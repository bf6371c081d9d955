"""YAML text to plain data, with the place of every key and value.

PyYAML only scans here. Its own constructor follows YAML 1.1 (`yes` is a boolean, `1e-3` is text), drops duplicate keys
in silence, recurses as deep as a text nests and lets tags run code. This one follows the core schema of YAML 1.2,
collects every fault before it complains, and bounds depth and aliases before it builds anything.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Container
from dataclasses import dataclass, field
from functools import cached_property, partial
from operator import attrgetter
from typing import Any

import yaml

from attntrace.errors import AttnTraceError, Fault, Path, Place

DEPTH = 64  # of nested lists and mappings
EXPANSION = 10  # values after aliases are expanded, for each one written
ROOM = 100_000  # values that a text may always expand to, however short it is
DIGITS = 640  # of an integer: every setting of Python's own limit (4300 by default) lets as many through
CLIP = 40  # characters of the text that a message quotes
MOST = 20  # faults that are reported, each with its line

TOO_DEEP = f"lists and mappings nested more than {DEPTH} deep"
EXAMPLE = '"x: [[1, 0], [0, 1]]"'
CORE = "tag:yaml.org,2002:"
BREAK = re.compile(r"\r\n|\r|\n")  # where an editor starts a new line; YAML 1.1 has three more, which YAML 1.2 dropped
FORBIDDEN = re.compile("[^\t\n\r -~\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
FLOW = re.compile(r"[\s\[\]{},'\"]")  # what ends a word inside of lists and mappings
TAG = re.compile(r"""(&[^\s\[\]{},]+[ \t]+)?!(<[^>\s]*>|[^\s\[\]{},'"]*)""")  # with the anchor before it
WORD = re.compile(r"""\s*([^\s\[\]{},:"']+|\S|)""")
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml is ten times as fast, but not everywhere

# What PyYAML says (libyaml and its Python twin differ in words), then what a reader is told; the first match counts.
SENTENCES = (
    ("tab character|\t", "a tab cannot be used for indentation: use spaces"),
    ("nesting depth", TOO_DEEP),  # libyaml reads ahead, and has a limit of its own
    ("cannot start any token|mapping keys", "{found} cannot start a value: put it in quotes if it is text"),
    ("flow sequence", 'expected "," or "]" in the list that starts on line {line}, found {found}'),
    ("flow mapping", 'expected "," or "}}" in the mapping that starts on line {line}, found {found}'),
    ("block mapping", "expected the next key on a line of its own, indented as on line {line}, found {found}"),
    ("block collection", 'expected the next "-" on a line of its own, indented as on line {line}, found {found}'),
    ("mapping values", 'unexpected ":": put text that holds ": " in quotes, end keys with ":" and indent them alike'),
    ("sequence entries", 'a list written with "-" must start on a line of its own'),
    ("simple key", 'expected ":" after the key on line {line}'),
    ("quoted scalar.*found unexpected", "the quotes that open here are never closed"),
    ("quoted scalar", "an escape that YAML does not have: double the backslash, or use single quotes"),
    ("block scalar", 'expected a line break after the "{opener}" that starts a block of text, found {found}'),
    ("an alias|an anchor", '"{opener}" must be followed by a name: put it in quotes if it is text'),
    ("directive|incompatible", 'a line that starts with "%" is a directive, and this one is not known'),
    ("a tag|tag handle", '"!" starts a tag, and this one is not known: put it in quotes if it is text'),
    ("node", 'expected a value, found {found}: text that starts with a sign, as ":" or "#", needs quotes'),
    ("<document start>", "expected the end of the text, found {found}"),
    ("", "YAML cannot be read here: {problem}"),
)


class Document:
    """A YAML text as plain Python data, with the place of every key and value; `faulty` keys have faults below them."""

    def __init__(self, source: Source, root: Mapping, data: Any) -> None:
        self.data = data
        self.faulty = source.faulty(root.spots)
        self.name = source.name
        self._source = source
        self._root = root

    def place(self, path: Path) -> Place:
        """Of the value at `path`, or of the nearest one around it that the text has."""
        while (node := self._find(path)) is None:
            path = path[:-1]
        return self._source.place(node.at)

    def key_place(self, path: Path) -> Place:
        """Of the key that `path` ends with; the place of the value where that is no key."""
        parent = self._find(path[:-1])
        at = parent.key(path[-1]) if parent and path else None
        return self.place(path) if at is None else self._source.place(at)

    def _find(self, path: Path) -> Node | None:
        node: Node | None = self._root
        for step in path:
            node = node.child(step) if node else None
        return node


def parse(text: str, name: str, text_keys: Container[str] = (), faults: list[Fault] | None = None) -> Document:
    """The config in `text`, which must be a mapping. Everything below a key among `text_keys` stays as it was typed.

    Faults that leave the rest readable are added to `faults` where there is such a list, and raised where there is none."""
    source = Source(text, name)
    root = Composer(source).compose()
    if not isinstance(root, Mapping):
        raise source.error(root.at, not_a_mapping(root))
    read = partial(resolve, source)
    data = {key: texts(node) if key in text_keys else node.build(read) for key, node in root.values.items()}
    if faults is None:
        source.check()
    else:
        faults += source.faults()
    return Document(source, root, data)


def parse_value(text: str, name: str) -> Any:
    """Any YAML value, by the rules of `parse`; an empty text is None."""
    source = Source(text, name)
    data = Composer(source).compose().build(partial(resolve, source))
    source.check()
    return data


def texts(node: Node) -> Any:
    """The value of a text key: every scalar as it was typed, None where nothing was."""
    return None if empty(node) else node.build(attrgetter("text"))


def empty(node: Node) -> bool:
    return isinstance(node, Scalar) and node.tag is None and not node.text


def not_a_mapping(root: Node) -> str:
    if empty(root):
        return f"the file is empty: expected a mapping such as {EXAMPLE}"
    found = quoted(root.text) if isinstance(root, Scalar) else "a list"
    return f"expected a mapping such as {EXAMPLE}, found {found}"


class Source:
    """A text and what is wrong with it. Spots are offsets of characters; lines are counted when someone asks."""

    def __init__(self, text: str, name: str) -> None:
        self.text = text.removeprefix("\ufeff")
        self.name = name
        self._faults: set[tuple[int, str]] = set()  # a set, since an alias may bring the same fault many times
        self._tags: list[tuple[int, int]] = []  # refused ones, from where to where

    def place(self, at: int) -> Place:
        line = self.line(at)
        start, end = self._starts[line - 1 : line + 1]
        return Place(self.name, line, at - start + 1, self._shown(start, end, at).rstrip("\r\n"))

    def _shown(self, start: int, end: int, at: int) -> str:
        """A line of the text, but what stands behind a refused tag: payloads are not repeated. It ends with the tag, or
        `at` a fault further on."""
        tags = [(first, last) for first, last in self._tags if start <= first < end]
        if not tags:
            return self.text[start:end]
        line = self.text[start : tags[0][1]]
        for first, last in tags[1:]:
            if first <= at:
                line += "…" * (first - start - len(line)) + self.text[first:last]
        return line + "…" * (at - start - len(line))

    def refuse(self, at: int, message: str) -> None:
        """Note the fault of a tag, behind which nothing is shown."""
        match = TAG.match(self.text, at)
        self._tags.append((at, match.end() if match else at))
        self.fault(at, message)

    def line(self, at: int) -> int:
        return bisect_right(self._starts, at, hi=len(self._starts) - 1)

    @cached_property
    def _starts(self) -> list[int]:
        """Where each line starts, and where the last one ends."""
        return [0, *(match.end() for match in BREAK.finditer(self.text)), len(self.text)]

    def fault(self, at: int, message: str) -> None:
        """Note a fault that does not keep the rest of the text from being read."""
        self._faults.add((at, message))

    def error(self, at: int, message: str) -> AttnTraceError:
        """All faults so far and this last one, to be raised."""
        self.fault(at, message)
        return self._report()

    def check(self) -> None:
        if self._faults:
            raise self._report()

    def faulty(self, spots: list[tuple[int, str]]) -> set[str]:
        """The keys, each with its offset, that have a fault before the next one."""
        return {spots[max(0, bisect_right(spots, (at, "\U0010ffff")) - 1)][1] for at, _ in self._faults if spots}

    def faults(self) -> list[Fault]:
        """In the order of the text; of many, the first ones."""
        faults = [Fault(message, place=self.place(at)) for at, message in sorted(self._faults)[:MOST]]
        more = len(self._faults) - MOST
        return [*faults, *([Fault(f"{self.name}: and {more} more faults")] if more > 0 else [])]

    def _report(self) -> AttnTraceError:
        return AttnTraceError(*self.faults())


@dataclass(slots=True)
class Node:
    """A value as it was written, at an offset of the text."""

    at: int

    def child(self, step: str | int) -> Node | None:
        """The value one step down, if there is one."""
        return None

    def key(self, step: str | int) -> int | None:
        """Where the key `step` of a mapping is."""
        return None

    def build(self, read: Callable[[Scalar], Any]) -> Any:
        """The plain data, every scalar read by `read`. Recursive, as the composer lets nothing nest too deep."""
        raise NotImplementedError


@dataclass(slots=True)
class Scalar(Node):
    """A tag of None leaves the type to the form of the text; quoted text comes with the tag `!!str`."""

    text: str
    tag: str | None

    def build(self, read: Callable[[Scalar], Any]) -> Any:
        return read(self)


@dataclass(slots=True)
class Sequence(Node):
    items: list[Node] = field(default_factory=list)

    def add(self, node: Node, source: Source) -> None:
        self.items.append(node)

    def child(self, step: str | int) -> Node | None:
        return self.items[step] if isinstance(step, int) and 0 <= step < len(self.items) else None

    def build(self, read: Callable[[Scalar], Any]) -> Any:
        return [node.build(read) for node in self.items]


@dataclass(slots=True)
class Mapping(Node):
    """Keys are text whatever they look like: `1: a` and `null: b` have the keys "1" and "null"."""

    keys: dict[str, int] = field(default_factory=dict)
    values: dict[str, Node] = field(default_factory=dict)
    waiting: str | None = None  # the key whose value comes next
    spots: list[tuple[int, str]] = field(default_factory=list)  # of all keys, duplicates too, in the order of the text

    def add(self, node: Node, source: Source) -> None:
        """Keys and values come in turn."""
        if self.waiting is None:
            self.waiting = self.name(node, source)
        else:
            self.values[self.waiting] = node
            self.waiting = None

    def name(self, node: Node, source: Source) -> str:
        scalar = node.node if isinstance(node, Alias) else node
        if not isinstance(scalar, Scalar):
            source.fault(node.at, "a key must be a word, found a list or a mapping")
            self.spots.append((node.at, ""))
            return ""
        self.spots.append((node.at, scalar.text))
        first = self.keys.setdefault(scalar.text, node.at)
        if first != node.at:
            source.fault(node.at, f"duplicate key {quoted(scalar.text)} (first on line {source.line(first)})")
        return scalar.text

    def child(self, step: str | int) -> Node | None:
        return self.values.get(step) if isinstance(step, str) else None

    def key(self, step: str | int) -> int | None:
        return self.keys.get(step) if isinstance(step, str) else None

    def build(self, read: Callable[[Scalar], Any]) -> Any:
        return {key: node.build(read) for key, node in self.values.items()}


@dataclass(slots=True)
class Alias(Node):
    """Another node once more: placed where the alias is, while what is inside keeps the place where it was written."""

    node: Node

    def child(self, step: str | int) -> Node | None:
        return self.node.child(step)

    def key(self, step: str | int) -> int | None:
        return self.node.key(step)

    def build(self, read: Callable[[Scalar], Any]) -> Any:
        return self.node.build(read)


@dataclass(slots=True)
class Sized:
    """A node and what it comes to once its aliases are expanded: values in all, and lists and mappings nested."""

    node: Node
    size: int = 1
    height: int = 0


@dataclass(slots=True)
class Open:
    """A list or mapping whose end is still to come."""

    node: Sequence | Mapping
    anchor: str | None = None
    size: int = 1
    height: int = 1

    def add(self, part: Sized, source: Source) -> None:
        self.size += part.size
        self.height = max(self.height, part.height + 1)
        self.node.add(part.node, source)


class Composer:
    """Events in, one node out. What is open is kept on a list of its own, so that nesting costs no Python frames."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.stream = Sequence(0)  # of documents: one, or none
        self.open = [Open(self.stream, size=0)]
        self.anchors: dict[str, Sized | None] = {}  # None while the node is open
        self.written = 0
        self.largest = Sized(self.stream, 0)  # of the aliases

    @property
    def depth(self) -> int:
        return len(self.open) - 1  # the stream is none of the lists that a reader sees

    def compose(self) -> Node:
        """The only document of the text; an empty scalar if there is none."""
        self.refuse_characters()
        try:
            for event in yaml.parse(self.source.text, Loader=LOADER):
                self.take(event)
        except yaml.MarkedYAMLError as error:
            raise self.source.error(*syntax(error, self.source)) from None
        self.refuse_expansion()
        return self.stream.items[0] if self.stream.items else Scalar(0, "", None)

    def refuse_characters(self) -> None:
        if match := FORBIDDEN.search(self.source.text):
            message = f"the character U+{ord(match[0]):04X} is not allowed in YAML"
            raise self.source.error(match.start(), message)

    def refuse_expansion(self) -> None:
        limit = max(ROOM, EXPANSION * self.written)
        if self.open[0].size > limit:
            message = f"aliases expand the {self.written} values written here to more than {limit}: write them out"
            raise self.source.error(self.largest.node.at, message)

    def take(self, event: yaml.Event) -> None:
        at = offset(event.start_mark)
        match event:
            case yaml.ScalarEvent():
                self.add(Sized(self.scalar(at, event)), event.anchor)
            case yaml.SequenceStartEvent():
                self.enter(Sequence(at), event, "!!seq")
            case yaml.MappingStartEvent():
                self.enter(Mapping(at), event, "!!map")
            case yaml.CollectionEndEvent():
                self.leave()
            case yaml.AliasEvent():
                self.add(self.alias(at, str(event.anchor)), None)
            case yaml.DocumentStartEvent() if self.stream.items:
                raise self.source.error(at, "a second document starts here: expected one")

    def add(self, part: Sized, anchor: str | None) -> None:
        self.written += 1
        self.open[-1].add(part, self.source)
        if anchor is not None:
            self.anchors[anchor] = part

    def enter(self, node: Sequence | Mapping, event: yaml.CollectionStartEvent, kind: str) -> None:
        if self.depth == DEPTH:
            raise self.source.error(node.at, TOO_DEEP)
        self.tag(node.at, event.tag, (kind,))
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        self.open.append(Open(node, event.anchor))

    def leave(self) -> None:
        whole = self.open.pop()
        self.add(Sized(whole.node, whole.size, whole.height), whole.anchor)

    def scalar(self, at: int, event: yaml.ScalarEvent) -> Scalar:
        plain = not event.style
        if event.tag == "!" and plain and not event.value:  # YAML for "", but whoever types [wait, !] means the mark
            self.source.fault(at, '"!" alone is a tag: put it in quotes if it is text')
        return Scalar(at, event.value, self.tag(at, event.tag, FORMS) if plain or event.tag else "!!str")

    def alias(self, at: int, name: str) -> Sized:
        named = self.anchors.get(name)
        if named is None or self.depth + named.height > DEPTH:
            self.source.fault(at, f"the alias *{clip(name)} cannot be expanded: {self.obstacle(name)}")
            return Sized(Scalar(at, "", None))
        part = Sized(Alias(at, named.node), named.size, named.height)
        self.largest = max(self.largest, part, key=attrgetter("size"))
        return part

    def obstacle(self, name: str) -> str:
        if name not in self.anchors:
            return f"nothing above it is named &{clip(name)}; put it in quotes if it is text"
        if self.anchors[name] is None:
            return f"it is a part of &{clip(name)} itself"
        return TOO_DEEP

    def tag(self, at: int, tag: str | None, fitting: Collection[str]) -> str | None:
        """The tag that a node is read by; None if its form decides. Nothing that a tag names is ever run."""
        if tag is None:
            return None
        if tag == "!":  # "not by its form": makes text of a scalar, and nothing new of a list or a mapping
            return "!!str"
        short = "!!" + tag.removeprefix(CORE) if tag.startswith(CORE) else tag
        if short not in fitting:
            expected = f"expected {', '.join(fitting)} or none, or quotes if it is text"
            name = re.split(FLOW, short)[0]
            self.source.refuse(at, f"the tag {clip(name)} is refused and nothing is executed: {expected}")
            return None
        return short


def resolve(source: Source, scalar: Scalar) -> Any:
    """The value of a scalar; None, and a fault of the source, if it has none."""
    try:
        return interpret(scalar.text, scalar.tag)
    except ValueError as error:
        source.fault(scalar.at, str(error))


def interpret(text: str, tag: str | None) -> Any:
    """The value of `text` by the core schema of YAML 1.2."""
    for name in (tag,) if tag else FORMS:
        form, read = FORMS[name]
        if form.fullmatch(text):
            return read(text)
    raise ValueError(f"{quoted(text)} does not fit the tag {tag}")


def integer(text: str) -> int:
    if len(text) > DIGITS:
        raise ValueError(f"an integer of {len(text)} digits: at most {DIGITS} are read")
    return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))


def real(text: str) -> float:
    """Python's own notation, but for the point that YAML writes before `inf` and `nan`."""
    return float(text.replace(".", "") if text[-1] in "fFnN" else text)


# How each type of YAML 1.2 is written (section 10.3.2 of its specification) and read, in the order they are tried.
FORMS: dict[str, tuple[re.Pattern[str], Callable[[str], Any]]] = {
    "!!int": (re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"), integer),
    "!!float": (
        re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"),
        real,
    ),
    "!!bool": (re.compile(r"true|True|TRUE|false|False|FALSE"), lambda text: text[0] in "tT"),
    "!!null": (re.compile(r"null|Null|NULL|~|"), lambda text: None),
    "!!str": (re.compile(r".*", re.DOTALL), str),
}


def syntax(error: yaml.MarkedYAMLError, source: Source) -> tuple[int, str]:
    """Where and how a text stops being YAML."""
    at = offset(error.problem_mark)
    start = offset(error.context_mark)
    subject = f"{error.context}: {error.problem} {source.text[at : at + 1]}"
    sentence = next(sentence for pattern, sentence in SENTENCES if re.search(pattern, subject))
    if sentence.endswith("never closed"):  # which shows nowhere but at the end of the text
        at = start
    return at, sentence.format(
        found=found(source.text, at),
        line=source.line(start),
        opener=source.text[start : start + 1],
        problem=error.problem,
    )


def found(text: str, at: int) -> str:
    """The word at an offset, as a message shows it."""
    match = WORD.match(text, at)
    return quoted(match[1]) if match and match[1] else "the end of the text"


def quoted(text: str) -> str:
    return f'"{clip(text)}"'


def clip(text: str) -> str:
    return text if len(text) <= CLIP else f"{text[:CLIP]}…"


def offset(mark: Any) -> int:
    """Where a mark of PyYAML is, which the C and the Python scanner make of different classes."""
    return mark.index if mark else 0
