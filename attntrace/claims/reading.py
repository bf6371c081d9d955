"""From what somebody hands in to claims: the extension tells the kind, and where it does not, the content."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from attntrace.claims import delimited, names, pasted, trees
from attntrace.claims.arrays import read_npy, read_npz
from attntrace.claims.claim import CELLS, Claim, Reading, shown
from attntrace.claims.text import Text
from attntrace.config.files.opening import opened, text
from attntrace.errors import AttnTraceError, Fault, plain

STDIN = "standard input"
PASTED = "the text"  # what a text without a file is called
TextReader = Callable[[Text, Reading], None]
MARKS = {b"\x93NUMPY": ".npy", b"PK\x03\x04": ".npz", b"PK\x05\x06": ".npz"}
JSON = re.compile(r"\s{0,1000}\{\s{0,1000}\"")
YAML = re.compile(r"^[ \t]{0,40}-[ \t]+(?:\[|- )|^[\w ]{1,40}:[ \t]*\n[ \t]{0,40}-[ \t]+[-+.\d]|^expect:", re.MULTILINE)
LONG = re.compile(r"\s{0,1000}step\s{0,9}[,;\t][^\n]{0,400}value\s{0,9}(?:\n|$)", re.IGNORECASE)
INLINE = re.compile(r"[\n\[{|&;]")  # no name of a file has one of these, as a rule


def read(source: str | os.PathLike[str] | Mapping[str, Any], steps: Collection[str] = ()) -> Reading:
    """The claims in a file, in a text, in standard input (`-`), or in a mapping of names to lists or arrays.

    `steps` are the names that steps have. Raises AttnTraceError where nothing can be read; what is wrong with one of several
    claims is in `faults`.
    """
    if isinstance(source, Mapping):
        return read_mapping(source, steps)
    if source == "-":
        return read_text(text(sys.stdin.buffer, STDIN), STDIN, steps)
    name = os.fspath(source)
    if isinstance(source, str) and INLINE.search(source) and not (len(source) < 1000 and os.path.exists(source)):
        return read_text(source, PASTED, steps)
    return read_file(Path(name), steps)


def read_file(path: Path, steps: Collection[str] = ()) -> Reading:
    """The claims of a file; an unknown extension leaves the kind to the content."""
    with opened(path) as file:
        head = file.read(16)
        file.seek(0)
        suffix = next((suffix for mark, suffix in MARKS.items() if head.startswith(mark)), path.suffix.lower())
        if suffix not in (".npy", ".npz"):
            return read_text(text(file, path), str(path), steps, suffix)
    reading = Reading()
    (read_npy if suffix == ".npy" else read_npz)(path, reading)
    return named(reading, str(path), steps)


def read_text(content: str, name: str, steps: Collection[str] = (), suffix: str = "") -> Reading:
    reading = Reading()
    words = Text(content, name)
    reader = READERS.get(suffix) or by_content(words.text)
    if reader is None:
        pasted.read(words, steps, reading)
    else:
        reader(words, reading)
    return named(reading, name, steps)


READERS: dict[str, TextReader] = {
    ".json": trees.read_json,
    ".yaml": trees.read_yaml,
    ".yml": trees.read_yaml,
    ".csv": delimited.read,
    ".tsv": delimited.read,
}


def by_content(content: str) -> TextReader | None:
    """The reader of a text whose name tells nothing; None for text as it may have been pasted."""
    if JSON.match(content):
        return json_or_printed(content)
    if LONG.match(content):
        return delimited.read
    return trees.read_yaml if YAML.search(content) else None


def json_or_printed(content: str) -> TextReader | None:
    """JSON, unless it is what Python prints of a mapping with arrays."""
    return None if re.search(r"\b[aA]rray\(|\btensor\(", content) else trees.read_json


def read_expect(content: str, name: str, steps: Collection[str] = ()) -> Reading:
    """The claims below the key `expect` of a config, whose text is `content`."""
    reading = Reading()
    trees.read_yaml(Text(content, name), reading, "expect")
    return named(reading, name, steps, needed=False)


def read_mapping(claims: Mapping[str, Any], steps: Collection[str] = (), name: str = "expect") -> Reading:
    reading = Reading()
    trees.read_mapping(claims, name, reading)
    return named(reading, name, steps)


def named(reading: Reading, name: str, steps: Collection[str], needed: bool = True) -> Reading:
    """The claims with the steps that their names mean beyond doubt, which is said where it is not plain."""
    if needed and not reading.claims and not reading.faults:
        raise AttnTraceError(f"{name}: holds no numbers, expected claims such as weights = [[0.2, 0.8], [0.5, 0.5]]")
    if sum(claim.values.size for claim in reading.claims) > CELLS:
        raise AttnTraceError(f"{name}: holds more than {CELLS} numbers")
    reading.claims = [with_name(claim, steps, reading) for claim in reading.claims]
    reading.faults.sort(key=lambda fault: (fault.place.line, fault.place.column) if fault.place else (0, 0))
    return reading


def with_name(claim: Claim, steps: Collection[str], reading: Reading) -> Claim:
    bare, index = (claim.called, claim.index) if claim.called in steps else names.split(claim.called)
    found = [step for step in names.candidates(bare, steps) if step in steps]
    claim = replace(claim, index=claim.index or index)
    if len(found) != 1:
        return claim
    if bare.strip().lower() != found[0].lower():
        reading.said.append(understood(claim, found[0]))
    return replace(claim, name=found[0])


def understood(claim: Claim, step: str, why: str = "") -> str:
    """`"attn_weights" (page.txt:3) is read as weights`."""
    who = f'"{shown(claim.called)}"' if claim.called else "an array without a name"
    return f"{who} ({plain(claim.origin)}) is read as {step}{why}"


def fault_of(claim: Claim, message: str) -> Fault:
    return Fault(message, place=claim.place) if claim.place else Fault(f"{plain(claim.origin)}: {message}")
