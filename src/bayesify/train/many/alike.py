"""Whether two modules compute the same function of their parameters and buffers."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["alike"]

_TENSORS = ("_parameters", "_buffers")  # their values are arguments of the function
_NO_MATTER = ("training", "_is_full_backward_hook")


def alike(a: object, b: object, numbers: bool = True) -> bool:
    """Whether a and b are equal in everything but the values of parameters and buffers; what cannot be compared is different.

    Args:
        a, b: modules, or anything that modules hold.
        numbers: whether floating point numbers have to be equal too.

    Example:
        >>> alike(nn.Linear(2, 1), nn.Linear(2, 1)), alike(nn.Dropout(0.1), nn.Dropout(0.2))
        (True, False)
    """
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    same = partial(alike, numbers=numbers)
    if isinstance(a, float) and not numbers:
        return True
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, nn.Module) and isinstance(b, nn.Module):
        return _signature(a) == _signature(b) and all(map(same, *_attributes(a, b)))
    if isinstance(a, dict) and isinstance(b, dict):
        # hooks are kept under numbers that say nothing
        numbered = all(isinstance(key, int) for key in (*a, *b))
        return (numbered or list(a) == list(b)) and len(a) == len(b) and all(map(same, a.values(), b.values()))
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if dataclasses.is_dataclass(a) and dataclasses.is_dataclass(b):
        return all(same(getattr(a, field.name), getattr(b, field.name)) for field in dataclasses.fields(a))
    try:
        return bool(a == b)
    except (TypeError, ValueError, RuntimeError):  # such as arrays, whose comparison is no single truth
        return False


def _signature(module: nn.Module) -> list[tuple[str, Any]]:
    """Names, shapes and types of its own parameters and buffers."""
    tensors = {**module._parameters, **module._buffers}
    return [(name, None if x is None else (x.shape, x.dtype, x.requires_grad)) for name, x in tensors.items()]


def _attributes(a: nn.Module, b: nn.Module) -> tuple[list[Any], list[Any]]:
    """What else the modules hold, names and values in turn."""
    first, second = (
        [part for item in vars(module).items() if item[0] not in _TENSORS + _NO_MATTER for part in item] for module in (a, b)
    )
    return (first, second) if len(first) == len(second) else ([0], [1])
