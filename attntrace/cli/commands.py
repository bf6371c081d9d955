"""Every command, imported so that it is registered, in the order in which help lists them."""

from attntrace.cli import run, verify, explain, check, grade, grad, diff, get, steps, decode, worksheet, examples, schema  # noqa: F401, I001 - the order is that of the help page
