"""Inputs that are objects with tensors inside, such as a graph or a cache: what they hold, and whether a network changed it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from bayesify.errors import PassError

__all__ = ["ChangedInputError", "check_unchanged", "is_object", "moved", "states", "tensors_in"]


State = list[tuple[Tensor, int, torch.Size]]  # tensors, their versions and shapes

_PLAIN = (Tensor, tuple, list, dict, str, int, float, bool, type(None))
_DEPTH = 4  # of the attributes and elements in which an object holds tensors


class ChangedInputError(PassError):
    """The network changed an input that other passes get too."""


def is_object(x: Any) -> bool:
    """Whether an input is neither a tensor nor a plain value."""
    return not isinstance(x, _PLAIN)


def tensors_in(x: Any) -> Iterator[Tensor]:
    """A tensor itself, or those that an object holds in its attributes, and in their elements and attributes."""
    return _held(x, _DEPTH)


def moved(x: Any, device: torch.device) -> Any:
    """An object on a device, by its method `to`, which may move it in place; any other value as it is.

    Raises:
        TypeError: it holds tensors on another device and has no such method.
    """
    if not is_object(x) or all(tensor.device == device for tensor in tensors_in(x)):
        return x
    if not callable(to := getattr(x, "to", None)):
        raise TypeError(
            f"inputs have a {type(x).__name__} with tensors that are not on {device}, and no method to(device); move it"
        )
    result = to(device)
    return x if result is None else result


def states(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, State]]:
    """Types and states of the inputs that are neither tensors nor plain values."""
    objects = [x for x in (*args, *kwargs.values()) if is_object(x)]
    return [(type(x).__name__, [(t, -1 if t.is_inference() else t._version, t.shape) for t in tensors_in(x)]) for x in objects]


def check_unchanged(before: list[tuple[str, State]], after: list[tuple[str, State]]) -> None:
    """Raise a `ChangedInputError` if an object holds other tensors than before, or changed ones."""
    for (kind, old), (_, new) in zip(before, after, strict=True):
        if len(old) != len(new) or any(map(_differ, old, new)):
            raise ChangedInputError(
                f"the network changes its input, a {kind}, and other draws would get the changed one; let its forward change a "
                "copy (copy.copy). For a cache of keys and values use bnn.generate(...), or `with bnn.drawn(seed) as net`"
            )


def _differ(one: tuple[Tensor, int, torch.Size], other: tuple[Tensor, int, torch.Size]) -> bool:
    return one[0] is not other[0] or one[1:] != other[1:]


def _held(x: Any, depth: int) -> Iterator[Tensor]:
    if isinstance(x, Tensor):
        yield x
    elif depth:
        for part in x.values() if isinstance(x, dict) else x if isinstance(x, tuple | list) else _attributes(x):
            yield from _held(part, depth - 1)


def _attributes(x: object) -> Iterator[Any]:
    yield from getattr(x, "__dict__", {}).values()
    for kind in type(x).__mro__:
        slots = vars(kind).get("__slots__", ())
        yield from (getattr(x, name) for name in ([slots] if isinstance(slots, str) else slots) if hasattr(x, name))
