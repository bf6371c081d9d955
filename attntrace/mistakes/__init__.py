"""The known mistakes, each a rewriting of the problem or of steps of its tape. A file is a theme; a mistake is a few lines."""

from __future__ import annotations

from collections.abc import Iterator

from attntrace.mistakes.base import Mistake, replay
from attntrace.mistakes.masks import masking
from attntrace.mistakes.positions import positions, variants
from attntrace.mistakes.precision import precisions
from attntrace.mistakes.projections import heads, projections
from attntrace.mistakes.scores import scales, scores, values
from attntrace.mistakes.softmaxes import dropouts, softmaxes
from attntrace.problem import Problem

__all__ = ["Mistake", "known", "replay"]

THEMES = (projections, heads, scores, scales, masking, softmaxes, values, positions, variants, dropouts, precisions)


def known(p: Problem) -> Iterator[Mistake]:
    """Every mistake that can be made in this layer."""
    for theme in THEMES:
        yield from theme(p)
