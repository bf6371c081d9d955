"""An explanation in every format: `layout` says what stands where, and each module writes it in its own way."""
