"""PyTorch as the reference: its linear, matmul, softmax, norms and complex numbers, and its own attention.

Each step is recomputed by torch from the trace's own earlier steps, so that a step that is wrong is told apart from those
that only carry its error on (`steps`). Then torch's own attention goes the whole way in one call (`whole`).
"""

from __future__ import annotations

from attntrace.errors import MissingPackage

try:
    import torch
except ImportError:
    raise MissingPackage("verify", "torch", "torch") from None

from attntrace.reference.torch.steps import STEPS, TILES, steps
from attntrace.reference.torch.whole import silences, whole

__all__ = ["NAME", "STEPS", "TILES", "silences", "steps", "version", "whole"]

NAME = "torch"


def version() -> str:
    return str(torch.__version__).partition("+")[0]
