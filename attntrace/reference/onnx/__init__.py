"""ONNX as the reference: the operators of its reference evaluator, one after the other, and its Attention operator.

Half precision is widened to float32, and every result rounded once, as the steps are: in half precision itself the evaluator
rounds within its operators, at places of its own.
"""

from __future__ import annotations

from attntrace.errors import MissingPackage

try:
    import onnx
    from onnx import reference as _evaluator  # noqa: F401 - is it whole?
except ImportError:
    raise MissingPackage("verify", "onnx", "onnx") from None

OLDEST = (1, 23)  # Attention with windows, and rows without keys that give zeros
if tuple(int(part) for part in onnx.__version__.split(".")[:2]) < OLDEST:
    raise MissingPackage("verify", f"onnx 1.23 or later (it finds {onnx.__version__})", "onnx")

from attntrace.reference.onnx.steps import REASONS, STEPS, steps  # noqa: E402
from attntrace.reference.onnx.whole import silences, whole  # noqa: E402

__all__ = ["NAME", "REASONS", "STEPS", "silences", "steps", "version", "whole"]

NAME = "onnx"


def version() -> str:
    return str(onnx.__version__)
