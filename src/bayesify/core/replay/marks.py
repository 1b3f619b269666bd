"""Marks on tensors that PyTorch's functions pass on: which results of a pass depend on its inputs, or on random layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from torch import Tensor

__all__ = ["mark", "mark_of", "tensors_in"]


def mark(x: Tensor, value: bool) -> Tensor:
    """The tensor itself, marked."""
    cast(Any, x).bayesify_mark = value
    return x


def mark_of(x: Tensor) -> bool | None:
    """The tensor's mark; None where it has none."""
    return getattr(x, "bayesify_mark", None)


def tensors_in(values: Any) -> Iterator[Tensor]:
    """All tensors in nested arguments: `tree_leaves`, but quick."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, tuple | list):
        for value in values:
            yield from tensors_in(value)
    elif isinstance(values, dict):
        yield from tensors_in(list(values.values()))
