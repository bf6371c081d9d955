"""The known mistakes, each a rewriting of the problem or of steps of its tape. A file is a theme; a mistake is a few lines."""

from __future__ import annotations

from collections.abc import Iterator

from attntrace.mistakes.base import Mistake, replay, without_core
from attntrace.mistakes.heads import heads
from attntrace.mistakes.masks import masking
from attntrace.mistakes.observed import observed
from attntrace.mistakes.positions import positions
from attntrace.mistakes.precision import precisions
from attntrace.mistakes.projections import projections
from attntrace.mistakes.scores import scales, scores, values
from attntrace.mistakes.softmaxes import dropouts, softmaxes
from attntrace.mistakes.variants import variants
from attntrace.problem import Problem

__all__ = ["Mistake", "known", "observed", "replay", "without_core"]

# In the order of the layer, so that of two mistakes made together the later one meets what the earlier one has left.
THEMES = (projections, heads, positions, scores, scales, masking, variants, softmaxes, dropouts, values, precisions)


def known(p: Problem) -> Iterator[Mistake]:
    """Every mistake that can be made in this layer."""
    for theme in THEMES:
        yield from theme(p)
