"""What the normalisations of the layer have in common."""

from __future__ import annotations

from collections.abc import Sequence

from attntrace.tape import Step

EPS = {"layernorm": 1e-5, "rmsnorm": 1e-6, "l2": 1e-12}  # where the config names none
SIZES = {"layernorm": "√(var {0} + ε)", "rmsnorm": "√(mean {0}² + ε)", "l2": "max(‖{0}‖, ε)"}


def formula(norm: str, x: Step, g: Sequence[Step] = (), b: Sequence[Step] = ()) -> str:
    """`(X − mean X) / √(var X + ε) ∘ g + β`."""
    above = f"({x.symbol} − mean {x.symbol})" if norm == "layernorm" else x.symbol
    scaled = "".join(f" ∘ {step.symbol}" for step in g)
    return f"{above} / {SIZES[norm].format(x.symbol)}{scaled}" + "".join(f" + {step.symbol}" for step in b)
