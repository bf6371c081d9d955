"""The transformer block around the attention layer: normalisations, the two residual sums, the MLP.

Order "pre":       h = x + attention(norm₁ x),  y = h + mlp(norm₂ h)              (GPT-2, Llama)
      "post":      h = norm₁(x + attention(x)), y = norm₂(h + mlp(h))             (the original transformer, BERT)
      "parallel":  y = x + attention(norm₁ x) + mlp(norm₂ x)                      (GPT-NeoX; GPT-J with one norm for both)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from attntrace.errors import Fault
from attntrace.ledger import Ledger, amount, listed
from attntrace.ops import Activate, Add, Multiply, Normalise, Project
from attntrace.parts.norm import EPS, formula
from attntrace.parts.project import asking
from attntrace.problem import Part, Place, Problem
from attntrace.tape import Step, Trace

WEIGHTS = ("w_norm1", "b_norm1", "w_norm2", "b_norm2", "w_gate", "b_gate", "w_up", "b_up", "w_down", "b_down")
GATED = {"gated": "silu", "gated_gelu": "gelu_tanh"}  # an MLP with a gate, and what the gate passes through


@dataclass(frozen=True)
class Block(Part):
    """`norm` "layernorm" or "rmsnorm"; `mlp` "gelu", "gelu_tanh", "silu", "relu", "gated" or "gated_gelu"."""

    norm: str
    mlp: str
    order: str
    eps: float

    @classmethod
    def make(cls, detail: Mapping[str, Any], place: Place) -> Block:
        norm = detail["norm"]
        return cls(norm, detail["mlp"], detail.get("order", "pre"), float(detail.get("eps", EPS[norm])))

    @property
    def gated(self) -> bool:
        return self.mlp in GATED

    def enter(self, ledger: Ledger, p: Problem) -> dict[str, tuple[str, ...]]:
        shapes = {name: p.sources[name].shape for name in WEIGHTS if name in p.sources}
        wide = ("d_ff", "d_model") if p.options.transposed else ("d_model", "d_ff")
        axes = {"w_gate": wide, "w_up": wide, "w_down": wide[::-1], "b_gate": ("d_ff",), "b_up": ("d_ff",)}
        return {name: ledger.enter(name, shape, axes.get(name, ("d_model",))) for name, shape in shapes.items()}

    def check(self, p: Problem) -> Iterator[Fault]:
        if not p.projected:
            cure = "leave it out, and its weights with it"
            yield Fault(f"block: goes around a layer that begins at x; here q, k and v are given directly: {cure}", ("block",))
            return
        yield from self._check_weights(p)
        yield from self._check_width(p)

    def _check_weights(self, p: Problem) -> Iterator[Fault]:
        """Weights that are lacking, and those that nothing would read."""
        needed = ("w_up", "w_down", *("w_gate",) * self.gated)
        for name in needed:
            if not p.has(name):
                yield Fault(f"{name}: missing: block.mlp: {self.mlp} needs {listed(needed)}", (name,))
        for name in ("w_gate", "b_gate") if not self.gated else ():
            if name in p.sources:
                yield Fault(f"{name}: not used by block.mlp: {self.mlp}; say mlp: gated, or leave it out", (name,))
        for name in ("b_norm1", "b_norm2"):
            if name in p.sources and self.norm == "rmsnorm":
                yield Fault(f"{name}: rmsnorm has no bias; leave it out, or say block.norm: layernorm", (name,))

    def _check_width(self, p: Problem) -> Iterator[Fault]:
        """The output is added to x, so it must be as wide."""
        if "w_o" in p.unsure:
            return
        out = p.sizes.get("d_out") or p.sizes.get("head*d_v") or p.sizes["d_v"]
        if out != p.sizes["d_model"]:
            wanted = f"an attention output as wide as x ({p.sizes['d_model']}), since it is added to x"
            cure = f"give w_o with {amount(p.sizes['d_model'], 'columns')}"
            yield Fault(f"block: expected {wanted}; found {out}: {cure}", ("block",))


def enter_block(t: Trace, p: Problem, given: dict[str, Step]) -> dict[str, Step]:
    """What attention reads: x, or in a block of order pre or parallel its normalisation."""
    block = p.options.parts.get("block")
    if not isinstance(block, Block) or block.order == "post":
        return given
    return {**given, "x": norm(t, p, block, given, "1", given["x"])}


def leave_block(t: Trace, p: Problem, given: dict[str, Step], y: Step) -> Step:
    """From the attention's output to the block's; without a block, that output."""
    block = p.options.parts.get("block")
    if not isinstance(block, Block):
        return y
    x = given["x"] if p.options.queries is None else residual_rows(t, p, given["x"])
    if block.order == "parallel":
        return parallel(t, p, block, given, x, y)
    h = total(t, "residual", "R", x, y)
    h = norm(t, p, block, given, "1", h) if block.order == "post" else h
    inner = h if block.order == "post" else norm(t, p, block, given, "2", h)
    out = total(t, "residual2" if block.order == "post" else "block_output", "Z", h, mlp(t, p, block, given, inner))
    return norm(t, p, block, given, "2", out, "block_output") if block.order == "post" else out


def residual_rows(t: Trace, p: Problem, x: Step) -> Step:
    """The tokens of x whose queries are traced, for the residual sum."""
    return t[f"{x.name}_rows"] if f"{x.name}_rows" in t else asking(t, p, x)


def parallel(t: Trace, p: Problem, block: Block, given: dict[str, Step], x: Step, y: Step) -> Step:
    """Attention and MLP side by side; without w_norm2 one normalisation serves both, as in GPT-J."""
    own = bool({"w_norm2", "b_norm2"} & given.keys())
    shared = t["normed1_rows" if p.options.queries is not None else "normed1"]
    inner = norm(t, p, block, given, "2", x) if own else shared
    return total(t, "block_output", "Z", x, y, mlp(t, p, block, given, inner))


def norm(t: Trace, p: Problem, block: Block, given: dict[str, Step], which: str, x: Step, name: str = "") -> Step:
    g = [given[key] for key in (f"w_norm{which}",) if key in given]
    b = [given[key] for key in (f"b_norm{which}",) if key in given]
    op = Normalise(block.norm, block.eps, bool(g), bool(b))
    symbol = "Z" if name else f"N{'₁' if which == '1' else '₂'}"
    return t(name or f"normed{which}", f"{symbol} = {formula(block.norm, x, g, b)}", x.axes, op, x, *g, *b)


def total(t: Trace, name: str, symbol: str, *terms: Step) -> Step:
    return t(name, f"{symbol} = {' + '.join(s.symbol for s in terms)}", terms[0].axes, Add(), *terms)


def mlp(t: Trace, p: Problem, block: Block, given: dict[str, Step], x: Step) -> Step:
    """down(act(up x)), or with a gate down(act(gate x) ∘ up x)."""
    up = linear(t, p, given, "up", "U", x, "d_ff")
    kind = GATED.get(block.mlp, block.mlp)
    source = linear(t, p, given, "gate", "G", x, "d_ff") if block.gated else up
    active = t("activated", f"F = {kind}({source.symbol})", source.axes, Activate(kind), source)
    inner = t("gated", f"F′ = {active.symbol} ∘ {up.symbol}", up.axes, Multiply(), active, up) if block.gated else active
    return linear(t, p, given, "down", "M", inner, "d_model")


def linear(t: Trace, p: Problem, given: dict[str, Step], name: str, symbol: str, x: Step, width: str) -> Step:
    w, bias = given[f"w_{name}"], [given[key] for key in (f"b_{name}",) if key in given]
    text = f"{symbol} = {x.symbol} {w.symbol}{'ᵀ' * p.options.transposed}" + "".join(f" + {b.symbol}" for b in bias)
    step, project = {"down": "mlp"}.get(name, name), Project(None, None, p.options.transposed)
    return t(step, text, (*x.axes[:-1], width), project, x, w, *bias)
