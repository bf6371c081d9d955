"""One length for each axis name: what einsum and jaxtyping check, with sentences a reader can act on."""

from __future__ import annotations

from collections.abc import Sequence

from attntrace.errors import Clash, Fault


class Ledger:
    """One length for each axis name, and who set it; whatever disagrees becomes a fault.

    A `loose` ledger does not know the heads: axes that hang on them are then a matter of each letter alone.
    """

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.reasons: dict[str, str] = {}
        self.makers: dict[str, tuple[str, ...]] = {}  # the keys that set a length
        self.faults: list[Fault] = []
        self.disputed: set[str] = set()
        self.loose = False

    def set(self, axis: str, size: int, reason: str, *makers: str) -> None:
        self.sizes[axis], self.reasons[axis], self.makers[axis] = size, reason, makers

    def fault(self, message: str, key: str, *others: str) -> None:
        self.faults.append(Clash(message, tuple(key.split(".")), others=tuple(o.split(".")[0] for o in others)))

    def sure(self, *axes: str) -> bool:
        """Whether the lengths of these axes are known, and nobody disagrees."""
        return all(axis in self.sizes and axis not in self.disputed for axis in axes)

    def enter(self, name: str, shape: Sequence[int], axes: Sequence[str]) -> tuple[str, ...]:
        """Hold the shape of an input against what is known of its axes; returns its axes."""
        if len(shape) != len(axes):
            names = ", ".join(NAMES.get(axis, axis) for axis in axes)
            self.fault(f"{name}: expected {_count(len(axes), 'axis', 'axes')} ({names}), found {len(shape)}", name)
            self.disputed.update(axes)
            return tuple(axes)
        for position, (axis, size) in enumerate(zip(axes, shape, strict=True)):
            self._enter(name, self._own(name, axis), size, _word(axes, position))
        return tuple(axes)

    def _own(self, name: str, axis: str) -> str:
        """Which length an axis is about: in a loose ledger the outputs of w_q and the numbers of b_q are "q.d_k"."""
        return f"{name[-1]}.{axis}" if self.loose and axis.endswith(("d_k", "d_v", "head")) else axis

    def _enter(self, name: str, axis: str, size: int, word: str) -> None:
        if size == 0:
            self.fault(f"{name}: has 0 {word}; every axis needs at least one entry", name)
            self.disputed.add(axis)
        elif axis not in self.sizes:
            self.set(axis, size, f"the {word} of {name}", name)
        elif self.sizes[axis] != size:
            wanted = amount(self.sizes[axis], word)
            self.fault(f"{name}: expected {wanted} ({self.reasons[axis]}), found {size}", name, *self.makers[axis])
            self.disputed.add(axis)


def _count(n: int, one: str, many: str) -> str:
    return f"{n} {one if n == 1 else many}"


def listed(names: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


def amount(n: int, things: str) -> str:
    """`1 row`, `2 rows`; `things` are many."""
    return _count(n, {"queries": "query"}.get(things, things.removesuffix("s")), things)


WORDS = {
    "batch": "batch items",
    "head": "heads",
    "kv_head": "key/value heads",
    "token": "tokens",
    "kv_token": "tokens",
    "query": "queries",
    "all_query": "queries",
    "key": "keys",
    "new_key": "keys",
    "past_key": "past keys",
    "block": "blocks",
    "slot": "slots",
    "page": "pages",
    "token_position": "positions",
    "key_position": "positions",
}


# Axes whose name in a trace says more than a sentence needs.
NAMES = {"one": "head", "token_position": "token", "key_position": "token", "table": "position", "past_key": "past"}


def _word(axes: Sequence[str], position: int) -> str:
    """What the entries along an axis are called in a sentence."""
    if axes[position] in WORDS:
        return WORDS[axes[position]]
    if len(axes) == 1:
        return "numbers"
    return "rows" if position == len(axes) - 2 else "columns"
