"""Comparison of modules by the function that they compute of their parameters and buffers."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["same_function"]

_TENSORS = ("_parameters", "_buffers")  # their values are arguments of the function
_IRRELEVANT = ("training", "first_steps", "is_examined", "differentiation", "_switches", "_changes", "_is_full_backward_hook")


def same_function(a: object, b: object, compare_floats: bool = True) -> bool:
    """Return whether a and b are equal except for the values of parameters and buffers; False for what cannot be compared.

    Args:
        a, b: modules, or any attributes of modules.
        compare_floats: whether floating point numbers have to be equal.

    Example:
        >>> same_function(nn.Linear(2, 1), nn.Linear(2, 1)), same_function(nn.Dropout(0.1), nn.Dropout(0.2))
        (True, False)
    """
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    same = partial(same_function, compare_floats=compare_floats)
    if isinstance(a, float) and not compare_floats:
        return True
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, nn.Module) and isinstance(b, nn.Module):
        return _signature(a) == _signature(b) and all(map(same, *_attributes(a, b)))
    if isinstance(a, dict) and isinstance(b, dict):
        # the keys of hooks are a global counter
        integer_keys = all(isinstance(key, int) for key in (*a, *b))
        return (integer_keys or list(a) == list(b)) and len(a) == len(b) and all(map(same, a.values(), b.values()))
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if dataclasses.is_dataclass(a) and dataclasses.is_dataclass(b):
        return all(same(getattr(a, field.name), getattr(b, field.name)) for field in dataclasses.fields(a))
    try:
        return bool(a == b)
    except (TypeError, ValueError, RuntimeError):  # such as arrays, whose comparison has no single truth value
        return False


def _signature(module: nn.Module) -> list[tuple[str, Any]]:
    """Return names, shapes and types of the parameters and buffers of a module, without those of its children."""
    tensors = {**module._parameters, **module._buffers}
    return [(name, None if x is None else (x.shape, x.dtype, x.requires_grad)) for name, x in tensors.items()]


def _attributes(a: nn.Module, b: nn.Module) -> tuple[list[Any], list[Any]]:
    """Return the other attributes of both modules, names and values alternating."""
    first, second = (
        [part for item in vars(module).items() if item[0] not in _TENSORS + _IRRELEVANT for part in item] for module in (a, b)
    )
    return (first, second) if len(first) == len(second) else ([0], [1])
