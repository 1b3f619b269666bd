"""Inputs that are objects with tensors inside, such as a cache: whether a network changed them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from bayesify.errors import PassError

__all__ = ["ChangedInputError", "check_unchanged", "states"]


State = list[tuple[Tensor, int, torch.Size]]  # tensors, their versions and shapes

_PLAIN = (Tensor, tuple, list, dict, str, int, float, bool, type(None))
_DEPTH = 4  # of the attributes and elements in which an object holds tensors


class ChangedInputError(PassError):
    """The network changed an input that other passes get too."""


def states(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, State]]:
    """Types and states of the inputs that are neither tensors nor plain values."""
    objects = [x for x in (*args, *kwargs.values()) if not isinstance(x, _PLAIN)]
    return [(type(x).__name__, [(t, -1 if t.is_inference() else t._version, t.shape) for t in _held(x, _DEPTH)]) for x in objects]


def check_unchanged(before: list[tuple[str, State]], after: list[tuple[str, State]]) -> None:
    """Raise a `ChangedInputError` if an object holds other tensors than before, or changed ones."""
    for (kind, old), (_, new) in zip(before, after, strict=True):
        if len(old) != len(new) or any(map(_differ, old, new)):
            raise ChangedInputError(
                f"the network changes its input, a {kind}, and other draws would get the changed one; for a cache of keys and "
                "values use bnn.generate(...), or `with bnn.drawn(seed) as net` for each draw"
            )


def _differ(one: tuple[Tensor, int, torch.Size], other: tuple[Tensor, int, torch.Size]) -> bool:
    return one[0] is not other[0] or one[1:] != other[1:]


def _held(x: Any, depth: int) -> Iterator[Tensor]:
    if isinstance(x, Tensor):
        yield x
    elif depth:
        parts = x.values() if isinstance(x, dict) else x if isinstance(x, tuple | list) else getattr(x, "__dict__", {}).values()
        for part in parts:
            yield from _held(part, depth - 1)
