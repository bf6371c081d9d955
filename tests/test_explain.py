"""What `explain` prints is done again here, as a reader with a calculator would: from the text, and from the JSON."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from decimal import ROUND_HALF_UP, Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attntrace
from attntrace import ops
from attntrace.cell import Cell, parse
from attntrace.config.bundled import names
from attntrace.explaining import DEEPEST, MOST, Explanation, explain
from attntrace.problem import Problem
from attntrace.render.explanation import json as as_json
from attntrace.render.explanation import latex, markdown, rich
from attntrace.tape import Step, Trace

ATTNTRACE = str(Path(sysconfig.get_path("scripts")) / "attntrace")
EXAMPLES = names()
Config = dict[str, Any]


def explained(config: Any, cell: str, depth: int = 1, decimals: int | None = 4, **options: Any) -> Explanation:
    return explain(attntrace.load(config, **options), parse(cell), depth, decimals)


def as_text(e: Explanation, width: int | None = None) -> str:
    out = BytesIO()
    rich.write(e, out, width, False)
    return out.getvalue().decode()


def document(e: Explanation) -> Any:
    out = BytesIO()
    as_json.write(e, out)
    return json.loads(out.getvalue())


def in_format(e: Explanation, module: Any) -> str:
    out = BytesIO()
    module.write(e, out)
    return out.getvalue().decode()


def told(config: Any, cell: str, **more: Any) -> list[str]:
    """The lines of the text, without the headings and without the spaces around them."""
    lines = as_text(explained(config, cell, **more)).splitlines()
    return [re.sub(r"\s+", " ", line.strip()) for line in lines if line.startswith("   ")]


# ------------------------------------------------------------------ a calculator


def erf(x: float) -> float:
    return math.erf(x)


def saturating(function: Callable[[float], float]) -> Callable[[float], float]:
    """What a calculator that knows infinity shows."""

    def of(x: float) -> float:
        try:
            return function(x)
        except OverflowError:
            return math.inf

    return of


KEYS: dict[str, Any] = {
    "exp": saturating(math.exp),
    "sqrt": math.sqrt,
    "tanh": math.tanh,
    "erf": erf,
    "cos": math.cos,
    "sin": math.sin,
    "max": max,
    "min": min,
    "pi": math.pi,
    "inf": math.inf,
    "nan": math.nan,
    "__builtins__": {},
}


def evaluate(expression: str) -> float:
    try:
        return float(eval(expression, KEYS))
    except ZeroDivisionError:
        return math.nan


def rounds_to(value: float, written: str) -> bool:
    """Whether a number, as a calculator with thirteen digits shows it, is rounded (a five up) to what is written."""
    shown = written.replace("−", "-").replace("∞", "inf")
    if not math.isfinite(value) or not math.isfinite(float(shown)):
        return value == float(shown) or (math.isnan(value) and math.isnan(float(shown)))
    mantissa, _, exponent = shown.partition("e")
    unit = Decimal(1).scaleb(int(exponent or 0) - len(mantissa.partition(".")[2]))
    return Decimal(f"{value:.12e}").quantize(unit, rounding=ROUND_HALF_UP) == Decimal(shown)


# ------------------------------------------------------------------ doing the printed text again

SIGNS = {"×": "*", "∘": "*", "−": "-", "∞": "inf", "²": "**2", "³": "**3", "^": "**", "π": "pi", "NaN": "nan"}


def python(formula: str) -> str:
    for sign, own in SIGNS.items():
        formula = formula.replace(sign, own)
    formula = re.sub(r"√([\w.]+)", r"sqrt(\1)", formula).replace("√", "sqrt")
    formula = re.sub(r"\b(exp|cos|sin) (\(.*?\))", r"\1(\2)", formula)
    return re.sub(r"(?<=\d)([ih])\b", r"*\1", formula)


def numeric(side: str) -> bool:
    """Whether there is nothing in it but numbers and functions."""
    return not set(re.findall(r"[^\W\d]+", re.sub(r"\de[-+]?\d", "", python(side)))) - KEYS.keys()


class Reader:
    """Reads a section of the text from its top, and does every line of it again.

    `known` has a number for each name that stands above, or one for each column of a row; `done` counts what was computed."""

    def __init__(self, axes: set[str]) -> None:
        self.axes, self.done = axes, 0
        self.known: dict[str, float | dict[int, float]] = {}
        self.formulas: dict[str, str] = {}
        self.ends: dict[int, int] = {}
        self.heads: dict[str, list[str]] = {}

    def read(self, lines: list[str]) -> None:
        for line in joined(lines):
            line = re.sub(r"(= \S+) {3}\(.*\)$", r"\1", line)  # the formula of a number that is found elsewhere
            if re.search(r"\S {2,}\S", line):
                self.row(line)
            elif " = " in line:
                self.equation(line)

    def equation(self, line: str) -> None:
        name, *sides = line.split(" = ")
        sides = [re.sub(r" \(\d+ between\)", "", side) for side in sides]
        if not numeric(sides[-1]):  # a formula that is too long to stand beside its row
            self.formulas[name] = sides[-1]
            return
        if len(sides) > 1 and numeric(sides[-2]):
            assert rounds_to(evaluate(python(sides[-2])), sides[-1]), line
            self.done += 1
        self.known[re.sub(r"\[.*", "", name)] = value_of(sides[-1])

    def row(self, line: str) -> None:
        label, cells = re.match(r"(.*?\S) {2,}(.*)", line).groups()  # type: ignore[union-attr]
        start = len(line) - len(cells)
        found = {m.end() + start: m[0] for m in re.finditer(r"\([^)]*\)|\S+", cells)}
        if label in self.axes:
            heads = self.heads.setdefault(label, [])
            heads += [head for head in found.values() if head not in heads]
            self.ends = {end: heads.index(head) for end, head in found.items()}
            return
        written = {self.ends[end]: text for end, text in found.items() if text != "…"}
        symbol, _, formula = label.partition(" = ")
        if symbol != "in the trace":
            self.redo(symbol, formula or self.formulas.get(symbol, ""), written)

    def redo(self, symbol: str, formula: str, written: dict[int, str]) -> None:
        """A row whose formula speaks of rows above is computed again, column by column."""
        for column, text in written.items():
            filled = self.filled(formula.split(" = ")[-1], column)
            if filled and symbol != formula and numeric(filled):
                value = 0.0 if hidden(filled) else evaluate(filled)
                assert rounds_to(value, text), (symbol, formula, filled, text)
                self.done += 1
        before = self.known.get(symbol)
        self.known[symbol] = (before if isinstance(before, dict) else {}) | {c: value_of(text) for c, text in written.items()}

    def filled(self, formula: str, column: int) -> str:
        """The formula in Python, numbers put in for the names."""
        formula, clipped, _ = formula.partition(", at least")
        for name in sorted(self.known, key=len, reverse=True):
            value = self.known[name]
            number = value.get(column) if isinstance(value, dict) else value
            if number is not None:
                formula = re.sub(rf"(?<!\w){re.escape(name)}(?![\w′″̂̃])", f"({number!r})", formula)
        formula = python(formula).replace("*i", f"*{column}").replace("*h", f"*{column + 1}")
        return f"max(0, min(1, {formula}))" if clipped else formula


def hidden(filled: str) -> bool:
    """exp(−∞ − m) is 0 whatever m is, as a remark below the row says."""
    return filled.startswith("exp((-inf) - (")


def value_of(text: str) -> float:
    return float(text.replace("−", "-").replace("∞", "inf"))


def joined(lines: list[str]) -> Iterator[str]:
    """Lines without the three spaces before them; an equation on several lines as one. Remarks are left out."""
    current = ""
    for line in [*(line[3:] for line in lines if line.startswith("   ")), "."]:
        if line.startswith("  ") and (line.lstrip()[0] in "=+−" or current.endswith(",")):
            current += " " + line.strip()
        elif not line.startswith("  ") or (current.endswith(",") and line.strip()):
            if current:
                yield current
            current = line


def redo(text: str, axes: set[str]) -> int:
    """Do a printed explanation again; how many numbers were computed."""
    done = 0
    text = re.sub(r"(\w)[\u0302\u0303]", lambda m: chr(0x4E00 + ord(m[1])), text)  # Q̃ takes one column, and two characters
    for section in re.split(r"(?m)^━━ .*$", text)[1:]:
        reader = Reader(axes)
        reader.read(section.splitlines())
        done += reader.done
    return done


def axes_of(t: Trace) -> set[str]:
    return {axis for s in t for axis in s.axes}


def computed_here(step: Step) -> bool:
    """Whether there is arithmetic to be done: not in what is given or only moved."""
    moving = ops.Copying | ops.Concat | ops.Gather | ops.LookUp
    single = ops.RowSum | ops.RowMax  # a tile may have one key
    return step.operation is not None and not isinstance(step.operation, moving | single)


def portions(step: Step) -> Iterator[str]:
    """Cells whose explanations together cover a step: all of it, or where that is too much every row."""
    if int(np.prod(step.shape)) <= MOST:
        yield step.name
        return
    for row in np.ndindex(*step.shape[:-1]):
        yield f"{step.name}[{', '.join(map(str, row))}]"


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_step_of_every_example_can_be_done_again_from_the_text(name: str) -> None:
    p = attntrace.load(name)
    t = attntrace.trace(p)
    for step in t:
        for cell in list(portions(step))[-2:]:
            for width, decimals in ((None, 4), (60, 3)):
                text = as_text(explain(p, parse(cell), 1, decimals), width)
                done = redo(text, axes_of(t))
                assert done or not computed_here(step) or all_hidden(step, parse(cell)), text


def all_hidden(step: Step, cell: Cell) -> bool:
    return not np.any(step.values[cell.index])


@pytest.mark.parametrize(
    ("old", "new"), [("8.508", "8.500"), ("4.254", "4.255"), ("70.386", "70.385"), ("= 80.581", "= 80.580"), ("0.873", "0.874")]
)
def test_a_wrong_digit_would_be_seen(old: str, new: str) -> None:
    text = as_text(explained("module05", "weights[0]", decimals=3))
    assert redo(text, {"key"}) == 10  # three quotients, three exponentials, a sum, three weights
    with pytest.raises(AssertionError):
        redo(text.replace(f"{old} ", f"{new} ", 1) if old in text and f"{old} " in text else text.replace(old, new, 1), {"key"})


# ------------------------------------------------------------------ doing the JSON again


def check_json(e: Explanation) -> int:
    """Every number is what its expression is rounded to; every symbol names the number that was put in for it."""
    done = 0
    by_symbol: dict[str, list[Step]] = {}
    for s in e.trace:
        by_symbol.setdefault(s.symbol, []).append(s)
        by_symbol.setdefault(s.name, []).append(s)
    for paragraph in document(e)["paragraphs"]:
        for line in paragraph["lines"]:
            for number in line["numbers"]:
                value = value_of(str(number["value"]))
                assert is_rounded(evaluate(number["expression"]), value, e.carry.decimals or 0), (paragraph["cells"], number)
                done += 1
                if e.depth == 1:
                    check_names(number, by_symbol, e.carry.decimals or 0)
    return done


def is_rounded(exact: float, value: float, decimals: int) -> bool:
    """Whether `value` is a number with so many decimals; or with so many digits after the first, where it has an exponent."""
    if not math.isfinite(value):
        return rounds_to(exact, str(value))
    return rounds_to(exact, f"{value:.{decimals}f}") or rounds_to(exact, f"{value:.{decimals}e}")


NAME = re.compile(r"[^\s×+−/(),\[\]√²³^]+\[[\d, ]+\]")
DIGITS = re.compile(r"\(?-?(?:\d+(?:\.\d+)?(?:e[-+]?\d+)?|inf)\)?|nan")


def check_names(number: Any, by_symbol: dict[str, list[Step]], decimals: int) -> None:
    """Where there are as many names as numbers, each number is that of a step of that name at that place."""
    found, put_in = NAME.findall(number["symbols"]), DIGITS.findall(re.sub(r" \*\* \d", "", number["expression"]))
    if len(found) != len(put_in):
        return
    for name, digits in zip(found, put_in, strict=True):
        symbol, _, index = name.partition("[")
        cell = tuple(int(i) for i in index[:-1].split(","))
        values = [float(s.values[cell]) for s in by_symbol.get(symbol, []) if within(cell, s.shape)]
        size = abs(value_of(digits.strip("()")))  # its sign may be that of the name
        near = [abs(abs(v) - size) <= 3 * 10.0**-decimals * (1 + abs(v)) or abs(v) == size for v in values]  # it was carried
        assert not values or any(near) or np.isnan([size, *values]).any(), (number, values)


def within(cell: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return len(cell) == len(shape) and all(i < n for i, n in zip(cell, shape, strict=True))


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_step_of_every_example_can_be_done_again_from_the_json(name: str) -> None:
    p = attntrace.load(name)
    for step in attntrace.trace(p):
        for cell in list(portions(step))[-2:]:
            for decimals in (0, 4, 7):
                assert check_json(explain(p, parse(cell), 1, decimals))


@pytest.mark.parametrize("name", EXAMPLES)
def test_as_deep_as_it_goes(name: str) -> None:
    """Down to the inputs; every operand but these has a paragraph of its own, before it is used."""
    p = attntrace.load(name)
    last = list(attntrace.trace(p))[-1]
    e = explain(p, parse(f"{last.name}[{','.join('0' for _ in last.shape)}]"), 40, 5)
    assert check_json(e)
    assert redo(as_text(e), axes_of(e.trace))
    order = [s.step.name for s in e.paragraphs]
    told = {s.step.name for s in e.paragraphs}
    for s in e.paragraphs:
        for operand in s.step.operands if not isinstance(s.step.operation, ops.Concat) else ():
            assert operand.given or operand.operation.elementwise or operand.name in told  # type: ignore[union-attr]
            assert operand.name not in told or order.index(operand.name) < order.index(s.step.name)


# ------------------------------------------------------------------ random layers


class Draw:
    """Random choices; None where there is no such axis."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng([seed, 4])
        self.batch, self.heads = self.one(None, None, 2), self.one(None, 2, 4)
        self.groups = self.heads and self.one(*(g for g in (1, 2, 4) if self.heads % g == 0))
        self.n, self.d_k, self.d_v, self.width = self.size(1, 5), 2 * self.size(1, 3), self.size(1, 3), self.size(1, 4)
        self.lead = () if self.batch is None else (self.batch,)
        self.kv_lead = self.lead if self.groups is None else (*self.lead, self.groups)

    def one(self, *choices: Any) -> Any:
        return choices[self.rng.integers(len(choices))]

    def size(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def array(self, *shape: int) -> np.ndarray:
        return self.rng.normal(size=shape) * self.one(0.1, 1.0, 1.0, 4.0)


def layer(seed: int) -> Config:
    """A random layer of many parts."""
    d = Draw(seed)
    made = projected(d) if d.one(True, True, False) else direct(d)
    if d.heads:
        made |= {"heads": d.heads, "kv_heads": d.groups}
    for part in (cache, rope, norms, masked, alibi, core):
        if d.one(True, False):
            made |= part(d)
    extras = {
        "softcap": 2.0,
        "sinks": d.array(d.heads or 1),
        "scale": d.one(0.3, 1, -2.5),
        "dropout": {"rate": 0.3, "seed": seed},
    }
    return made | {key: value for key, value in extras.items() if d.rng.random() < 0.25} | d.one({}, {"masked_row": "nan"})


def direct(d: Draw) -> Config:
    if d.heads and d.one(True, False):  # heads side by side, to be split
        d.d_v, groups = d.d_k, d.groups or 1
        return {name: d.array(*d.lead, d.n, n * d.d_k) for name, n in (("q", d.heads), ("k", groups), ("v", groups))}
    own = d.lead if d.heads is None else (*d.lead, d.heads)
    return {
        "q": d.array(*own, d.n, d.d_k),
        "k": d.array(*d.kv_lead, d.n, d.d_k),
        "v": d.array(*d.kv_lead, d.n, d.d_v),
    }


def projected(d: Draw) -> Config:
    heads, groups = d.heads or 1, d.groups or 1
    if d.one(True, False):
        d.d_v = d.d_k
        made = {"w_qkv": d.array(d.width, (heads + 2 * groups) * d.d_k), "qkv_layout": d.one("q|k|v", "per-group")}
        if d.one(True, False):
            made["b_qkv"] = d.array((heads + 2 * groups) * d.d_k)
    else:
        made = {"w_q": d.array(d.width, heads * d.d_k), "w_k": d.array(d.width, groups * d.d_k)}
        made |= {"w_v": d.array(d.width, groups * d.d_v), "b_k": d.array(groups * d.d_k)}
    made |= {"x": d.array(*d.lead, d.n, d.width), "w_o": d.array(heads * d.d_v, d.width)}
    if d.one(True, False):
        made |= block(d)
    if d.one(True, False):
        return made
    return {k: v.T.copy() if k.startswith("w_") and v.ndim == 2 else v for k, v in made.items()} | {"weight_layout": "out_in"}


def block(d: Draw) -> Config:
    norm, mlp = d.one("layernorm", "rmsnorm"), d.one("gelu", "gelu_tanh", "silu", "relu", "gated", "gated_gelu")
    made = {"block": {"norm": norm, "mlp": mlp, "order": d.one("pre", "post", "parallel")}, "w_norm1": d.array(d.width)}
    made |= {
        "w_up": d.array(d.width, 3),
        "w_down": d.array(3, d.width),
        "b_down": d.array(d.width),
        "w_norm2": d.array(d.width),
    }
    if norm == "layernorm":
        made["b_norm1"] = d.array(d.width)
    return made | ({"w_gate": d.array(d.width, 3)} if mlp.startswith("gated") else {})


def cache(d: Draw) -> Config:
    if d.one(True, False):
        past = d.size(1, 3)
        return {"cache": {"k": d.array(*d.kv_lead, past, d.d_k), "v": d.array(*d.kv_lead, past, d.d_v)}}
    heads = () if d.groups is None else (d.groups,)
    blocks = {"k": d.array(4, *heads, 2, d.d_k), "v": d.array(4, *heads, 2, d.d_v)}
    lengths = [d.size(1, 4) for _ in range(d.batch or 1)]
    return {"cache": {"blocks": blocks, "table": d.rng.integers(0, 4, (*d.lead, 2)).tolist(), "lengths": lengths}}


def rope(d: Draw) -> Config:
    made = {"pairs": d.one("half", "interleaved"), "dims": d.one(2, d.d_k)}
    if d.one(True, False, False):
        table = 0.3 * np.arange(12)[:, None] * (1 + np.arange(made["dims"] // 2))
        return {"rope": made | {"cos": np.cos(table), "sin": np.sin(table)}}
    llama = {"type": "llama3", "factor": 4.0, "original_max_position_embeddings": 60}
    scaling = d.one({}, {"scaling": {"type": "linear", "factor": 2.0}}, {"scaling": llama})
    return {"rope": made | {"base": d.one(100.0, 10000.0)} | scaling}


def norms(d: Draw) -> Config:
    made = {"norm": d.one("rmsnorm", "l2", "layernorm")}
    return {"qk_norm": made | ({"q": d.array(d.d_k)} if d.one(True, False) else {})}


def masked(d: Draw) -> Config:
    window = {"window": {"left": d.size(0, 2), "right": d.size(0, 1)}}
    return {"mask": d.one("causal", window, ["causal", window], {"causal": "top-left"}, {"causal": -1})}


def alibi(d: Draw) -> Config:
    return {"alibi": True}


def core(d: Draw) -> Config:
    tiled = {"tiled": {"queries": d.size(1, 3), "keys": d.size(1, 3)}}
    return {"core": d.one(tiled, tiled, {"ring": {"devices": d.size(1, min(d.n, 3))}})}


def layers(count: int) -> Iterator[tuple[int, Problem]]:
    """The first `count` seeds that make a layer that fits together."""
    seed = found = 0
    while found < count:
        try:
            yield seed, attntrace.load(layer(seed))
            found += 1
        except attntrace.AttnTraceError:
            assert seed < 3 * count
        seed += 1


def test_random_layers_come_to_the_numbers_of_the_trace() -> None:
    """With all digits, every cell that is explained is the trace's."""
    kinds: set[str] = set()
    for seed, p in layers(100):
        for step in attntrace.trace(p):
            kinds.add(type(step.operation).__name__)
            for cell in list(portions(step))[:2]:
                come_to_the_trace(explain(p, parse(cell), 1, None), f"{seed}: {cell}")
    assert set(ops.__all__) - {"Copying", "Operation"} <= kinds | {"Same"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_come_to_the_numbers_of_the_trace(name: str) -> None:
    p = attntrace.load(name)
    for step in attntrace.trace(p):
        for cell in portions(step):
            come_to_the_trace(explain(p, parse(cell), 1, None), cell)


def come_to_the_trace(e: Explanation, what: str) -> None:
    for paragraph in e.paragraphs:
        values = paragraph.step.values
        size = float(np.abs(values, where=np.isfinite(values), out=np.zeros(values.shape)).max(initial=0))
        found = [value for value, _ in e.carry.results(paragraph.lines[-1])]
        np.testing.assert_allclose(found, paragraph.values, rtol=1e-12, atol=1e-12 * size, err_msg=what)


def test_random_layers_can_be_done_again() -> None:
    """A sample of the cells of each: from the JSON, deep and shallow, and from the text."""
    done = 0
    for seed, p in layers(60):
        rng = np.random.default_rng(seed)
        t = attntrace.trace(p)
        for step in rng.permutation(np.array(list(t), dtype=object))[:12]:
            cell = f"{step.name}[{', '.join(str(rng.integers(n)) for n in step.shape[: rng.integers(len(step.shape)) + 1])}]"
            e = explain(p, parse(cell), int(rng.integers(1, 4)), int(rng.integers(2, 8)))
            check_json(e)
            done += redo(as_text(e, [None, 60, 80, 140][rng.integers(4)]), axes_of(t))
    assert done > 2000


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_nan_and_infinities_are_explained_too(dtype: str) -> None:
    """In every dtype and format, without a warning; in float64 they come to what the trace has."""
    for seed in range(40):
        config, rng = layer(seed) | {"dtype": dtype}, np.random.default_rng(seed)
        name = next(key for key in ("x", "q") if key in config)
        flat = config[name] = np.array(config[name])
        flat.reshape(-1)[rng.integers(flat.size)] = [np.nan, np.inf, -np.inf, 1e5][seed % 4]
        try:
            p = attntrace.load(config)
        except attntrace.AttnTraceError:
            continue
        for step in list(attntrace.trace(p))[:: rng.integers(2, 5)]:
            cell = Cell(step.name, tuple(int(rng.integers(n)) for n in step.shape[:-1]))
            e = explain(p, cell, 1, 3)
            assert all([as_text(e, 60), in_format(e, markdown), in_format(e, latex), document(e)])
            if dtype == "float64":
                come_to_the_trace(explain(p, cell, 1, None), f"{seed}: {cell}")


# ------------------------------------------------------------------ each operation

QKV = {"q": [[1, 2]], "k": [[3, 4]], "v": [[5, 6]]}
NORMED: Config = {"x": [[1, 2], [0, 0]], "w_q": [[1], [0]], "w_k": [[1], [0]], "w_v": [[1, 0], [0, 1]]}
BLOCK: Config = {**NORMED, "w_up": [[1, 0], [0, -1]], "w_down": [[1, 0], [0, 1]]}
TILES: Config = {"q": [[2], [0]], "k": [[1], [3]], "v": [[10], [20]], "scale": 1, "core": {"tiled": {"queries": 2, "keys": 1}}}


def with_block(**block: str) -> Config:
    return {**BLOCK, "block": {"norm": "rmsnorm", "mlp": "silu", "order": "parallel", **block}}


def mlp(kind: str) -> Config:
    made = with_block(mlp=kind)
    return made | {"w_gate": [[1, 0], [0, 1]]} if kind.startswith("gated") else made


# The last lines of an explanation, worked out by hand and with a pocket calculator: operation, config, cell, what is said.
BY_HAND: list[tuple[str, Config, str, list[str]]] = [
    ("MatMul", QKV, "scores[0,0]", ["S[0, 0] = Q[0, 0] × K[0, 0] + Q[0, 1] × K[0, 1] = 1 × 3 + 2 × 4 = 11.0000"]),
    (
        "MatMul",
        {**QKV, "k": [[3, 4], [0, 0]], "v": [[5], [7]], "mask": {"keep": [[1, 0]]}},
        "output[0,0]",
        ["Y[0, 0] = A[0, 0] × V[0, 0] + A[0, 1] × V[1, 0] = 1.0000 × 5 + 0.0000 × 7 = 5.0000"],
    ),
    (
        "Project",
        {**NORMED, "b_v": [7, 8]},
        "v[0,1]",
        ["V[0, 1] = X[0, 0] × W_V[0, 1] + X[0, 1] × W_V[1, 1] + b_V[1] = 1 × 0 + 2 × 1 + 8 = 10.0000"],
    ),
    (
        "Project",
        {"x": [[3]], "w_qkv": [[1, 2, 4, 5, 7, 8]], "heads": 2},
        "k[1,0,0]",
        ["K[1, 0, 0] = X[0, 0] × W_QKV[0, 3] = 3 × 5 = 15.0000", "entry 0 of head 1 is column 3 of W_QKV"],
    ),
    (
        "Scale",
        {**QKV, "scale": 0.25},
        "scaled[0,0]",
        ["S[0, 0] = 11.0000 (Q Kᵀ)", "S′[0, 0] = S[0, 0] × 0.25 = 11.0000 × 0.25 = 2.7500"],
    ),
    ("Divide", QKV, "scaled[0,0]", ["S′[0, 0] = S[0, 0] / √d_k = 11.0000 / √2 = 7.7782"]),
    (
        "Softcap",
        {**QKV, "scale": 1, "softcap": 5},
        "capped[0,0]",
        ["Ŝ[0, 0] = 5 × tanh(S′[0, 0] / 5) = 5 × tanh(11.0000 / 5) = 4.8787"],
    ),
    (
        "AddMask",
        {**QKV, "scale": 1, "mask": {"add": [[-1.5]]}},
        "masked[0,0]",
        ["S″[0, 0] = S′[0, 0] + M[0, 0] = 11.0000 + (-1.5) = 9.5000"],
    ),
    (
        "Softmax",
        {**QKV, "q": [[0.25, 0.25]], "k": [[4, 0], [8, 0]], "v": [[1], [2]], "scale": 1},
        "weights[0]",
        [
            "key t0 t1",
            "S = Q Kᵀ 1.0000 2.0000",
            "S′ = S × 1 1.0000 2.0000",
            "e = exp S′ 2.7183 7.3891",
            "sum = e[0] + e[1] = 2.7183 + 7.3891 = 10.1074",
            "A = e / sum 0.2689 0.7311",
        ],
    ),
    (
        "SinkWeight",
        {**QKV, "scale": 0, "sinks": [0]},
        "sink_weights[0]",
        [
            "e = exp(S′[0, 0]) = exp(0.0000) = 1.0000",
            "e_z = exp(z[0]) = exp(0) = 1.0000",
            "sum = e + e_z = 1.0000 + 1.0000 = 2.0000",
            "a_z[0] = e_z / sum = 1.0000 / 2.0000 = 0.5000",
        ],
    ),
    (
        "Dropout",
        {**QKV, "dropout": {"rate": 0.2, "seed": 1}},
        "dropped[0,0]",
        [
            "A[0, 0] = 1.0000 (softmax(S′))",
            "D[0, 0] = 1",
            "A′[0, 0] = A[0, 0] × D[0, 0] / (1 − 0.2) = 1.0000 × 1 / (1 − 0.2) = 1.2500",
        ],
    ),
    (
        "Merge",
        {"q": [[[1]], [[1]]], "k": [[[1]], [[1]]], "v": [[[4, 5]], [[6, 7]]], "heads": 2},
        "concat[0,3]",
        ["H[0, 3] = C[1, 0, 1] = 7.0000", "head h is columns 2h to 2h + 1"],
    ),
    (
        "Split",
        {"q": [[1, 2]], "k": [[1, 2]], "v": [[6, 7]], "heads": 2},
        "v[1,0,0]",
        ["V[1, 0, 0] = V₀[0, 1] = 7", "head h is column h"],
    ),
    ("Same", {"q": [[[1]]], "k": [[[1]]], "v": [[[4]]], "heads": 1}, "output[0,0]", ["Y[0, 0] = H[0, 0] = 4.0000"]),
    (
        "Repeat",
        {"q": [[[1]], [[2]]], "k": [[[3]]], "v": [[[4]]], "heads": 2, "kv_heads": 1},
        "k_shared[1,0,0]",
        ["K′[1, 0, 0] = K[0, 0, 0] = 3", "head 1 reads group 1 // 2 = 0"],
    ),
    ("Take", TILES, "k_1[0,0]", ["K_1[0, 0] = K[1, 0] = 3"]),
    (
        "Concat",
        {**QKV, "cache": {"k": [[7, 8]], "v": [[1, 1]]}},
        "k_all[1,0]",
        ["K_all[1, 0] = K[0, 0] = 3", "row 1 is row 0 of K"],
    ),
    (
        "Gather",
        {**QKV, "cache": {"blocks": {"k": [[[0, 0]], [[7, 8]]], "v": [[[0, 0]], [[1, 1]]]}, "table": [1]}},
        "k_past[0,1]",
        ["K_past[0, 1] = K_blocks[1, 0, 1] = 8", "slot 0 of the sequence is slot 0 of its page 0, T[0] = block 1"],
    ),
    (
        "LookUp",
        {**QKV, "rope": {"pairs": "half", "cos": [[1], [0]], "sin": [[0], [1]], "positions": [1]}},
        "cos[0,0]",
        ["c[0, 0] = T_cos[1, 0] = 0", "p[0] = 1: row 1 of T_cos"],
    ),
    (
        "Frequencies",
        {"q": [[1, 2, 3, 4]], "k": [[1, 2, 3, 4]], "v": [[1]], "rope": {"pairs": "half", "base": 100}},
        "frequencies[1]",
        ["θ[1] = 100^(−2i/4) = 100^(−2 / 4) = 0.1000"],
    ),
    (
        "Angles",
        {**QKV, "rope": {"pairs": "half", "positions": [3]}},
        "angles[0,0]",
        ["p[0] = 3", "θ[0] = 1.0000 (10000^(−2i/2))", "φ[0, 0] = p[0] × θ[0] = 3 × 1.0000 = 3.0000"],
    ),
    (
        "Cos",
        {**QKV, "rope": {"pairs": "half", "positions": [1]}},
        "cos[0,0]",
        ["c[0, 0] = cos(φ[0, 0]) = cos(1.0000) = 0.5403"],
    ),
    (
        "Sin",
        {**QKV, "rope": {"pairs": "half", "positions": [1]}},
        "sin[0,0]",
        ["s[0, 0] = sin(φ[0, 0]) = sin(1.0000) = 0.8415"],
    ),
    (
        "Rotate",
        {**QKV, "rope": {"pairs": "half", "positions": [1]}},
        "q_rot[0,1]",
        [
            "φ[0, 0] = 1.0000 (p θ)",
            "c[0, 0] = cos(φ[0, 0]) = cos(1.0000) = 0.5403",
            "s[0, 0] = sin(φ[0, 0]) = sin(1.0000) = 0.8415",
            "Q̃[0, 1] = Q[0, 0] × s[0, 0] + Q[0, 1] × c[0, 0] = 1 × 0.8415 + 2 × 0.5403 = 1.9221",
            "entries 0 and 1 are a pair",
        ],
    ),
    (
        "Slopes",
        {"q": [[[1]], [[2]]], "k": [[[3]], [[3]]], "v": [[[4]], [[4]]], "heads": 2, "alibi": True},
        "slopes",
        ["head 0 1", "m = 2^(−8h/2) 0.0625 0.0039", "h counts heads from 1"],
    ),
    (
        "LinearBias",
        {"q": [[1], [1]], "k": [[1], [1]], "v": [[1], [1]], "alibi": {"slopes": [0.5]}},
        "alibi[0,1]",
        ["m[0] = 0.5", "|i − j|[0, 1] = 1", "B[0, 1] = −m[0] × |i − j|[0, 1] = −0.5 × 1 = -0.5000"],
    ),
    (
        "Normalise",
        {**QKV, "q": [[3, 4]], "qk_norm": {"norm": "l2", "q": [2, 5]}},
        "q_norm[0]",
        [
            "d_k 0 1",
            "Q 3 4",
            "g_Q 2 5",
            "size = max(√(Σ Q²), ε) = max(√(3² + 4²), 1e-12) = 5.0000",
            "Q̂ = Q / size ∘ g_Q 1.2000 4.0000",
        ],
    ),
    (
        "Normalise",
        with_block(norm="layernorm"),
        "normed1[0]",
        [
            "d_model 0 1",
            "X 1 2",
            "mean = mean of X = (1 + 2) / 2 = 1.5000",
            "centred = X − mean -0.5000 0.5000",
            "size = √(mean of centred² + ε) = √(((-0.5000)² + 0.5000²) / 2 + 1e-05) = 0.5000",
            "N₁ = centred / size -1.0000 1.0000",
        ],
    ),
    (
        "Add",
        with_block(order="pre"),
        "residual[0,0]",
        ["X[0, 0] = 1", "Y[0, 0] = 0.3786 (A V)", "R[0, 0] = X[0, 0] + Y[0, 0] = 1 + 0.3786 = 1.3786"],
    ),
    (
        "Multiply",
        mlp("gated"),
        "gated[0,0]",
        ["F[0, 0] = 0.4130 (silu(G))", "U[0, 0] = 0.6325 (N₁ W_up)", "F′[0, 0] = F[0, 0] × U[0, 0] = 0.4130 × 0.6325 = 0.2612"],
    ),
    ("Activate", mlp("relu"), "activated[0,1]", ["F[0, 1] = max(0, U[0, 1]) = max(0, -1.2649) = 0.0000"]),
    (
        "Activate",
        mlp("silu"),
        "activated[0,0]",
        ["F[0, 0] = U[0, 0] / (1 + exp(−U[0, 0])) = 0.6325 / (1 + exp(−0.6325)) = 0.4131", "in the trace F[0, 0] is 0.4130"],
    ),
    (
        "Activate",
        mlp("gelu"),
        "activated[0,0]",
        ["F[0, 0] = U[0, 0] × (1 + erf(U[0, 0] / √2)) / 2 = 0.6325 × (1 + erf(0.6325 / √2)) / 2 = 0.4658"],
    ),
    (
        "Activate",
        mlp("gelu_tanh"),
        "activated[0,0]",
        [
            "F[0, 0] = U[0, 0] × (1 + tanh(√(2 / π) × (U[0, 0] + 0.044715 × U[0, 0]³))) / 2",
            "= 0.6325 × (1 + tanh(√(2 / π) × (0.6325 + 0.044715 × 0.6325³))) / 2",
            "= 0.4658",
            "in the trace F[0, 0] is 0.4657",
        ],
    ),
    (
        "RowMax",
        {**TILES, "core": {"tiled": {"queries": 2, "keys": 2}}},
        "max_0_0[0]",
        ["m[0] = max(S′[0, 0], S′[0, 1]) = max(2.0000, 6.0000) = 6.0000"],
    ),
    (
        "RowSum",
        {**TILES, "core": {"tiled": {"queries": 2, "keys": 2}}},
        "sum_0_0[1]",
        ["l[1] = P[1, 0] + P[1, 1] = 1.0000 + 1.0000 = 2.0000"],
    ),
    (
        "Maximum",
        TILES,
        "max_0_1[0]",
        [
            "max_0_0[0] = 2.0000 (row max of S′)",
            "m_tile[0] = 6.0000 (row max of S′)",
            "m[0] = max(max_0_0[0], m_tile[0]) = max(2.0000, 6.0000) = 6.0000",
        ],
    ),
    (
        "ExpDifference",
        TILES,
        "rescale_0_1[0]",
        [
            "max_0_0[0] = 2.0000 (row max of S′)",
            "max_0_1[0] = 6.0000 (max(m_old, m_tile))",
            "α[0] = exp(max_0_0[0] − max_0_1[0]) = exp(2.0000 − 6.0000) = 0.0183",
        ],
    ),
    (
        "Combine",
        TILES,
        "sum_0_1[0]",
        [
            "sum_0_0[0] = 1.0000 (row sum of P)",
            "α[0] = 0.0183 (exp(m_old − m))",
            "l_tile[0] = 1.0000 (row sum of P)",
            "l[0] = sum_0_0[0] × α[0] + l_tile[0] = 1.0000 × 0.0183 + 1.0000 = 1.0183",
        ],
    ),
    (
        "Quotient",
        TILES,
        "context_0[1]",
        [
            "O[1, 0] = 30.0000 (α O_old + O_tile)",
            "l[1] = 2.0000 (α l_old + l_tile)",
            "C_0[1, 0] = O[1, 0] / l[1] = 30.0000 / 2.0000 = 15.0000",
        ],
    ),
    (
        "AddSink",
        {**TILES, "sinks": [0]},
        "total_0[1]",
        [
            "l[1] = 2.0000 (α l_old + l_tile)",
            "m[1] = 0.0000 (max(m_old, m_tile))",
            "z[0] = 0",
            "ℓ_0[1] = l[1] + exp(z[0] − m[1]) = 2.0000 + exp(0 − 0.0000) = 3.0000",
        ],
    ),
]


@pytest.mark.parametrize(("operation", "config", "cell", "last"), BY_HAND, ids=[f"{case[0]}-{case[2]}" for case in BY_HAND])
def test_each_operation(operation: str, config: Config, cell: str, last: list[str]) -> None:
    e = explained(config, cell)
    assert type(e.paragraphs[-1].step.operation).__name__ == operation
    assert told(config, cell)[-len(last) :] == last


def test_every_operation_is_told_by_hand() -> None:
    assert {case[0] for case in BY_HAND} == set(ops.__all__) - {"Copying", "Operation"}


# ------------------------------------------------------------------ why a weight is zero

ONES = {"q": np.ones((3, 1)), "k": np.ones((3, 1)), "v": np.ones((3, 1))}
PAST = {"cache": {"k": np.ones((2, 1)), "v": np.ones((2, 1))}}
BATCH = {name: np.ones((2, 1, 3, 1)) for name in "qkv"}
REASONS: list[tuple[Config, str, str]] = [
    ({**ONES, "mask": "causal"}, "mask[0,2]", "key 2 > query 0"),
    ({**ONES, "mask": "causal"}, "mask[0]", "key 1 > query 0; key 2 > query 0"),
    ({**ONES, "mask": "causal", "queries": "1:2"}, "mask[0,2]", "key 2 > query 1"),
    ({**ONES, "mask": "causal", **PAST}, "mask[0,3]", "key 3 > query 2"),
    ({**ONES, "q": np.ones((2, 1)), "mask": {"causal": "bottom-right"}}, "mask[0,2]", "key 2 > query 1"),
    ({**ONES, "mask": {"causal": -1}}, "mask[0,0]", "key 0 > query -1"),
    ({**ONES, "mask": {"window": {"left": 1, "right": 0}}}, "mask[2,0]", "query 2 − 1 > key 0"),
    ({**ONES, "mask": {"window": {"left": 1, "right": 0}}}, "mask[0,1]", "key 1 > query 0 + 0"),
    ({**ONES, "mask": ["causal", {"window": {"left": 1}}]}, "mask[2,0]", "query 2 − 1 > key 0"),
    ({**BATCH, "mask": {"padding": [3, 1]}}, "mask[1,0,2]", "key 2 ≥ length 1"),
    ({**ONES, "mask": {"keep": [[1, 0, 1]]}}, "mask[2,1]", "keep is not 1"),
    ({**ONES, "mask": {"ignore": [[1, 0, 0]]}}, "mask[2,0]", "ignore is not 0"),
    ({**ONES, "mask": {"add": [[0.5, -math.inf, 0]]}}, "mask[0,1]", "the mask has −∞ at M[0, 1]"),
    ({**ONES, "mask": "causal", "core": {"tiled": {"queries": 2, "keys": 2}}}, "mask_0_1[1,0]", "key 2 > query 1"),
    ({**ONES, "mask": "causal", "core": {"ring": {"devices": 3}}}, "mask_1_2[0,0]", "key 2 > query 1"),
]


@pytest.mark.parametrize(("config", "cell", "reason"), REASONS)
def test_a_mask_says_why_with_the_positions_put_in(config: Config, cell: str, reason: str) -> None:
    config = dict(config)
    lines = told(config, cell, queries=config.pop("queries", None))
    assert lines[-1] == f"M = −∞: {reason}"


def test_what_is_not_hidden_has_no_reason() -> None:
    assert told({**ONES, "mask": "causal"}, "mask[1,0]") == ["0 where key ≤ query, −∞ elsewhere", "M[1, 0] = 0"]


def test_a_masked_weight_says_why_it_is_zero() -> None:
    lines = told({**ONES, "mask": "causal"}, "weights[1,2]")
    assert "M = −∞: key 2 > query 1" in lines
    assert lines[-2:] == ["A[1, 2] = e[2] / sum = 0.0000 / 5.4366 = 0.0000", "exp(−∞) = 0: what has S″ = −∞ gets no weight"]


def test_a_row_without_keys_says_so() -> None:
    assert (
        told({**ONES, "mask": {"keep": [[0], [1], [1]]}}, "weights[0]")[-1]
        == "the query may attend to nothing: every weight is 0"
    )
    tiled = {**ONES, "mask": {"keep": [[0], [1], [1]]}, "core": {"tiled": {"queries": 3, "keys": 2}}}
    assert told(tiled, "context_0[0,0]")[-1] == "l = 0: the row has no key, and gets 0"


def test_a_dropped_weight_says_so() -> None:
    config = {**ONES, "dropout": {"rate": 0.5, "seed": 1}}
    i, j = np.argwhere(attntrace.trace(config)["keep"].values == 0)[0]
    lines = told(config, f"dropped[{i},{j}]")
    assert lines[-2].endswith("= 0.3333 × 0 / (1 − 0.5) = 0.0000")
    assert lines[-1] == "D = 0: dropped. What stays is divided by 1 − 0.5"


# ------------------------------------------------------------------ rounding


def test_exercise_2_of_module_05() -> None:
    """Divide by √4, exponentiate, add up, divide: the exercise's numbers, and a last digit that rounding has moved."""
    lines = told(None, "weights[0]", seed=42, decimals=3)
    assert lines[-6:] == [
        "S = Q Kᵀ 4.604 8.508 -3.204",
        "S′ = S / √d_k = S / √4 2.302 4.254 -1.602",
        "e = exp S′ 9.994 70.386 0.201",
        "sum = Σ e = 9.994 + 70.386 + 0.201 = 80.581",
        "A = e / sum 0.124 0.873 0.002",
        "in the trace 0.124 0.873 0.003",
    ]


def test_a_tie_is_rounded_up_as_people_do() -> None:
    """2.135 / 2 is 1.0675; the float64 next to it lies below."""
    config = {"q": [[2.135, 0, 0, 0]], "k": [[1, 0, 0, 0]], "v": [[1]]}
    assert float(f"{2.135 / 2:.3f}") == 1.067
    assert told(config, "scaled[0,0]", decimals=3)[-1] == "S′[0, 0] = S[0, 0] / √d_k = 2.135 / √4 = 1.068"


def test_small_and_large_numbers_keep_their_digits() -> None:
    config = {"q": [[2e-5], [3e9]], "k": [[0.5], [1]], "v": [[1], [1]], "scale": 1}
    assert told(config, "scores[0,0]")[-1] == "S[0, 0] = Q[0, 0] × K[0, 0] = 2.0000e-05 × 0.5 = 1.0000e-05"
    assert told(config, "scores[1,1]")[-1] == "S[1, 1] = Q[1, 0] × K[1, 0] = 3.0000e+09 × 1 = 3.0000e+09"


def test_large_scores_have_their_maximum_subtracted() -> None:
    lines = told({"q": [[100]], "k": [[1], [1.01]], "v": [[1], [1]], "scale": 1}, "weights[0]")
    assert "max = max(S′[0, 0], S′[0, 1]) = max(100.0000, 101.0000) = 101.0000" in lines
    assert lines[-2:] == ["A = e / sum 0.2690 0.7310", "in the trace 0.2689 0.7311"]  # 0.3679 / 1.3679


# ------------------------------------------------------------------ many numbers


def test_very_many_are_elided_and_those_between_come_to_one_number() -> None:
    config = {"q": np.zeros((1, 1)), "k": np.zeros((100, 1)), "v": np.zeros((100, 1))}
    lines = told(config, "weights[0,50]")
    assert lines[0] == "key t0 t1 t2 t3 t4 t5 t6 t7 … t50 … t92 t93 t94 t95 t96 t97 t98 t99"
    assert "+ 84.0000 (84 between) + " in " ".join(lines)
    assert redo(as_text(explained(config, "weights[0,50]")), {"key"}) == 17 + 17 + 1 + 1 + 1  # S′, e, sum, A and A again
    assert check_json(explained(config, "weights[0,50]"))
    assert "+ (84 between) +" in " ".join(told(config, "output[0,0]"))


def test_no_more_is_computed_than_is_read() -> None:
    e = explained("module05", "weights[0]")
    assert [s.name for s in e.trace if s.computed] == ["scores", "scaled", "weights"]
    e = explained("module05", "scores[0]")
    assert "scaled" not in [s.name for s in e.trace if s.computed]


@pytest.mark.parametrize(
    "cell", ["weights", "weights[0]", "weights[1:, -1]", "weights[::2, ::2]", "weights[..., 0]", "weights[[0]]"]
)
def test_any_index(cell: str) -> None:
    if cell == "weights[[0]]":
        with pytest.raises(attntrace.AttnTraceError):
            explained("module05", cell)
        return
    e = explained("module05", cell)
    place = parse(cell)
    values = e.trace["weights"].values
    marked = np.zeros(values.shape, bool)
    marked[place.index] = True
    assert {(*p.run.row, c) for p in e.paragraphs for c in p.run.columns} == set(map(tuple, np.argwhere(marked).tolist()))


def test_a_part_of_a_row_asked_for_by_several_readers_is_told_once() -> None:
    """Two columns of V, each for one column of the output, and both rows of A."""
    e = explained("module05", "output[0:2, 1::2]", depth=2)
    cells = [(p.step.name, p.run.row) for p in e.paragraphs]
    assert len(cells) == len(set(cells))
    assert [list(p.run.columns) for p in e.paragraphs if p.step.name == "v"] == [[1, 3]] * 3
    assert [p.run.row for p in e.paragraphs if p.step.name == "weights"] == [(0,), (1,)]


# ------------------------------------------------------------------ labels are a user's text

NASTY = ["[bold red]x[/]", "\x1b[31mred\x1b[0m", "\\input{/etc/passwd}", "$\\alpha$ & # % _", "| a | <b> `c`", "```"]


def nasty() -> Config:
    n = len(NASTY)
    return {"title": NASTY[2] + NASTY[1] + "<script>", "tokens": NASTY, **{name: np.eye(n) for name in "qkv"}}


@pytest.mark.parametrize("cell", ["weights[0]", "weights[1,2]", "q[3]", "output[4]"])
def test_labels_are_harmless_in_every_format(cell: str) -> None:
    e = explained(nasty(), cell)
    for text in (as_text(e), in_format(e, markdown), in_format(e, latex), in_format(e, as_json)):
        assert "\x1b" not in text
    tex = in_format(e, latex)
    assert "\\input" not in tex
    assert "$\\alpha$" not in tex
    md = in_format(e, markdown)
    assert "<script>" not in md
    assert "<b>" not in md
    fences = [line for line in md.splitlines() if line.startswith("```")]
    assert fences == ["```text", "```"] * (len(fences) // 2)
    for table in re.findall(r"(?m)(?:^\|.*\n)+", md):
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1, "a label has cut a cell"


def test_names_of_files_are_harmless_too(tmp_path: Path) -> None:
    file = tmp_path / "$[bold]{x}_`1`.npy"
    np.save(file, np.eye(2))
    e = explained({"q": {"file": str(file)}, "k": np.eye(2), "v": np.eye(2)}, "q[0]")
    assert "[bold]" in as_text(e)
    assert r"\$" in in_format(e, latex)
    assert "`1`" not in in_format(e, markdown)


def test_latex_is_balanced() -> None:
    for name in ("llama-block", "rope-half", "ring", "sinks", "alibi", "softcap"):
        p = attntrace.load(name)
        for step in attntrace.trace(p):
            text = in_format(explain(p, parse(f"{step.name}[{','.join('0' for _ in step.shape)}]"), 2), latex)
            body = re.sub(r"\\[{}$]", "", text)
            assert body.count("{") == body.count("}")
            assert body.count("$") % 2 == 0
            assert body.count(r"\begin") == body.count(r"\end{")
            assert not re.search(r"[−×∘√²³′θφαβΣ]", body.partition("paragraph")[2]), text


# ------------------------------------------------------------------ the command


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ATTNTRACE, *args], capture_output=True, text=True, encoding="utf-8", check=False, timeout=60)


def refused(*args: str) -> str:
    done = run("explain", *args)
    assert done.returncode == 2
    assert done.stdout == ""
    return done.stderr.strip()


def test_the_command_prints_what_the_library_says() -> None:
    done = run("explain", "weights[0]", "--seed", "42", "--precision", "3")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == as_text(explained(None, "weights[0]", decimals=3, seed=42))


@pytest.mark.parametrize("form", ["markdown", "latex", "json"])
def test_formats(form: str, tmp_path: Path) -> None:
    e = explained("toy", "weights[1,2]", depth=2)
    expected = in_format(e, {"markdown": markdown, "latex": latex, "json": as_json}[form])
    assert run("explain", "weights[1,2]", "toy", "--depth", "2", "--format", form).stdout == expected
    file = tmp_path / f"out.{ {'markdown': 'md', 'latex': 'tex', 'json': 'json'}[form] }"
    assert run("explain", "weights[1,2]", "toy", "--depth", "2", "-o", str(file)).stdout == ""
    assert file.read_text(encoding="utf-8") == expected


def test_the_json_says_what_it_is_about() -> None:
    d = document(explained("toy", "weights[1,2]", depth=2))
    assert (d["cell"], d["depth"], d["precision"]) == ("weights[1, 2]", 2, 4)
    assert [p["cells"] for p in d["paragraphs"]] == ["scores[1]", "weights[1, 2]"]
    last = d["paragraphs"][-1]
    assert (last["step"], last["row"], last["columns"]) == ("weights", [1], [2])
    assert last["values"] == [attntrace.trace("toy")["weights"].values[1, 2]]
    assert [line["symbol"] for line in last["lines"]] == ["S", "S′", "e", "sum", "A"]
    assert last["lines"][-1]["numbers"][0]["symbols"] == "e[2] / sum"


def test_changes_and_depth_reach_the_explanation() -> None:
    out = run("explain", "scores[0,0]", "toy", "--set", "x[0]=[5,5,5]", "--depth", "2").stdout
    assert "--set x[0]=[5,5,5]" in out
    assert "Q[0, 0] = X[0, 0] × W_Q[0, 0] + X[0, 1] × W_Q[1, 0] + X[0, 2] × W_Q[2, 0]" in out
    assert re.search(r"= 5.0000 × 5.0000 \+ 5.0000 × 5.0000 \+ 5.0000 × 5.0000\s+= 75.0000", out)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("x", "--tokens", "101"), f"error: x: 404 cells, and an explanation takes at most {MOST}; name a part, such as x[0]"),
        (("wights", "toy"), "error: there is no step 'wights' in this trace; did you mean \"weights\"?"),
        (("weights[9]", "toy"), "error: weights[9]: index 9 is out of range: axis query has 4 entries, numbered 0 to 3"),
        (("weights[0", "toy"), "error: 'weights[0': expected a name with an index, such as weights, weights[0,1] or x[:,3:]"),
        (
            ("weights[0]", "toy", "-o", "a.csv"),
            "error: --output: this command writes rich and markdown and latex and json, not csv",
        ),
    ],
)
def test_errors(args: tuple[str, ...], said: str) -> None:
    assert refused(*args) == said


def test_depth_has_a_limit() -> None:
    said = refused("output[0,0]", "--tokens", "300", "--d-model", "16", "--depth", "9")
    assert said.startswith(f"error: --depth: more than {DEEPEST} cells would be explained on the way")


def test_a_terminal_has_colours_and_a_width() -> None:
    out = BytesIO()
    rich.write(explained("module05", "weights[0]"), out, 60, True)
    text = out.getvalue().decode()
    assert "\x1b[" in text
    plain = re.sub(r"\x1b\[[\d;]*m", "", text)
    assert plain == as_text(explained("module05", "weights[0]"), 60)
    assert max(map(len, plain.splitlines())) <= 60


@pytest.mark.parametrize("width", [40, 60, 80])
def test_lines_keep_to_the_width(width: int) -> None:
    """Sums wrap at their terms, tables into blocks of columns."""
    p = attntrace.load("multi-query")
    for cell in ("scores[1,2]", "weights[1,2]", "q[0,1]", "output[1,2]", "mask[0]"):
        for line in as_text(explain(p, parse(cell), 2), width).splitlines():
            assert len(line) <= width, line


# ------------------------------------------------------------------ presentation

GOLDENS: dict[str, dict[str, Any]] = {
    "weights-row-60": {"config": "six-tokens", "cell": "weights[0]", "width": 60},
    "weights-row-80": {"config": "six-tokens", "cell": "weights[0]", "width": 80},
    "weights-row-140": {"config": "six-tokens", "cell": "weights[0]", "width": 140},
    "masked-cell": {"config": "multi-head-causal", "cell": "weights[0,1,2,3]", "width": 80},
    "dropped-cell": {"config": "multi-head-dropout", "cell": "dropped[0,1,3,1]"},
    "fully-masked": {"config": "fully-masked-row", "cell": "weights[0]"},
    "rotated-row": {"config": "rope-half", "cell": "q_rot[0,1]"},
    "normalised-row": {"config": "neox-block", "cell": "normed1[1]", "width": 100},
    "score-deep": {"config": "module05", "cell": "scores[0,1]", "depth": 2},
    "tile": {"config": "flash", "cell": "acc_0_1[1]", "depth": 2},
}


@pytest.mark.parametrize("name", GOLDENS)
def test_goldens(name: str, file_regression: Any) -> None:
    case = dict(GOLDENS[name])
    width = case.pop("width", None)
    file_regression.check(as_text(explained(**case), width), basename=name, encoding="utf-8", extension=".txt")


@pytest.mark.parametrize(("form", "extension"), [(markdown, ".md"), (latex, ".tex")])
@pytest.mark.parametrize(("config", "cell"), [("multi-head-causal", "weights[0,1,2,3]"), ("rope-half", "q_rot[0,1,0]")])
def test_golden_documents(config: str, cell: str, form: Any, extension: str, file_regression: Any) -> None:
    file_regression.check(in_format(explained(config, cell), form), basename=config, encoding="utf-8", extension=extension)
