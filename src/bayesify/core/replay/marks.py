"""Marks on tensors: whether they depend on the inputs of a pass only, or on random layers too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from torch import Tensor

__all__ = ["mark", "mark_of", "tensors_in"]


def mark(x: Tensor, value: bool) -> Tensor:
    """Mark a tensor, and return it."""
    cast(Any, x).bayesify_mark = value
    return x


def mark_of(x: Tensor) -> bool | None:
    """The mark of a tensor, or None."""
    return getattr(x, "bayesify_mark", None)


def tensors_in(values: Any) -> Iterator[Tensor]:
    """All tensors in nested arguments; faster than `tree_leaves`."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, tuple | list):
        for value in values:
            yield from tensors_in(value)
    elif isinstance(values, dict):
        yield from tensors_in(list(values.values()))
