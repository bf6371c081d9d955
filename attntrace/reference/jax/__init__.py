"""JAX as the reference: jax.numpy and jax.nn step by step, and jax.nn.dot_product_attention for the whole way.

On the processor and with 64 bits, whatever the program around it has set. Half precision is widened to float32, and every
result rounded once, as the steps are. XLA takes numbers below the smallest normal one for zero (FLUSHES).
"""

from __future__ import annotations

from attntrace.errors import MissingPackage

try:
    import jax
except ImportError:
    raise MissingPackage("verify", "jax", "jax") from None

from attntrace.reference.jax.steps import REASONS, STEPS, steps
from attntrace.reference.jax.whole import silences, whole

__all__ = ["FLUSHES", "NAME", "REASONS", "STEPS", "silences", "steps", "version", "whole"]

NAME = "jax"
FLUSHES = True


def version() -> str:
    return str(jax.__version__)
