"""Labels are untrusted text: before they are shown they are made harmless, short and distinct."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from attntrace.errors import cells, plain

WIDTH = 14  # terminal cells of a label
LENGTH = 64  # characters of a label that are looked at, more than fit: marks and joiners take no cell
GAP = "…"


def legible(labels: Sequence[str]) -> list[str]:
    """Labels fit to be shown: no control characters, not too wide, none empty, no two alike."""
    short = [clip(plain(label).strip()) or f"t{i}" for i, label in enumerate(labels)]
    while len(count := Counter(short)) < len(short):
        short = [label if count[label] == 1 else f"{label}({i})" for i, label in enumerate(short)]
    return short


def clip(label: str) -> str:
    if len(label) <= LENGTH and cells(label) <= WIDTH:
        return label
    label = label[:LENGTH]
    while cells(label) > WIDTH - 1:
        label = label[:-1]
    return label + GAP
