"""Marks on tensors: whether they depend on the inputs of a pass only, or on random layers too."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor

__all__ = ["mark", "mark_of"]


def mark(x: Tensor, value: bool) -> Tensor:
    """Mark a tensor, and return it."""
    cast(Any, x).bayesify_mark = value
    return x


def mark_of(x: Tensor) -> bool | None:
    """The mark of a tensor, or None."""
    return getattr(x, "bayesify_mark", None)
