"""What functions of tensors take: the tensors among their arguments, and those with whose values they compute."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

__all__ = ["NUMBERS", "takes_values", "tensors_in", "values_taken"]

NUMBERS = frozenset(("item", "tolist", "numpy", "__array__", "__int__", "__float__", "__index__", "__complex__", "while_loop"))
"""Functions that take numbers from tensors, which the last decides by."""

# Functions that take only the shape, dtype or device of their first or second argument.
_LIKE_FIRST = frozenset(f"{name}_like" for name in ("zeros", "ones", "empty", "full", "rand", "randn", "randint")) | frozenset(
    f"new_{name}" for name in ("zeros", "ones", "empty", "full", "tensor")
)
_LIKE_SECOND = frozenset(("type_as", "to", "expand_as", "view_as", "reshape_as"))


def tensors_in(values: Any) -> Iterator[Tensor]:
    """All tensors in nested arguments; faster than `tree_leaves`."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, tuple | list):
        for value in values:
            yield from tensors_in(value)
    elif isinstance(values, dict):
        yield from tensors_in(list(values.values()))


def takes_values(name: str, result: Any) -> bool:
    """Whether a function with this result computes with values of tensors: reading a dtype or a shape does not count."""
    return name in NUMBERS or name == "__setitem__" or next(tensors_in(result), None) is not None


def values_taken(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    """The arguments of a function whose values it takes."""
    if name in _LIKE_SECOND:
        return args[:1]
    return args[1:] if name in _LIKE_FIRST else args, kwargs
