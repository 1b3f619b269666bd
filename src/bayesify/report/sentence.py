"""A sentence of the verdict."""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["FEW_ROWS", "Mark", "Sentence"]

Mark = Literal["good", "caution", "bad"]

FEW_ROWS = 30
"""Below this number of rows, no comparison of means is reliable, and none gets a green tick."""


class Sentence(NamedTuple):
    """A finding (good, caution or bad) and what it means."""

    mark: Mark
    finding: str
    meaning: str
