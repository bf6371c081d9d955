"""JAX as we want it, without changing how the rest of the program has it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import jax


@contextmanager
def exactly() -> Iterator[None]:
    """On the processor, with 64 bits, and products in full precision."""
    with sixty_four()(True), jax.default_device(jax.devices("cpu")[0]), jax.default_matmul_precision("highest"):
        yield


def sixty_four() -> type:
    """The switch for 64 bits, which has moved."""
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64  # type: ignore[no-any-return]
    from jax.experimental import enable_x64

    return enable_x64  # type: ignore[no-any-return]
