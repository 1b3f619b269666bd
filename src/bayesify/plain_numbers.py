"""Which arguments are numbers, also those of NumPy, and these as numbers of Python."""

import dataclasses
import numbers
from typing import Any, TypeGuard

__all__ = ["have_plain_numbers", "is_integer", "is_number", "plain"]


def is_number(value: object) -> TypeGuard[float]:
    """Return whether `value` is a real number, also one of NumPy; booleans are none."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def is_integer(value: object) -> TypeGuard[int]:
    """Return whether `value` is an integer, also one of NumPy; booleans are none."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def plain(value: Any) -> Any:
    """Return an int or float in place of a number of another type, such as NumPy's; other values as they are.

    Example:
        >>> import numpy as np
        >>> plain(np.int64(3)), plain(np.float32(0.5)), plain(True), plain("3")
        (3, 0.5, True, '3')
    """
    return int(value) if is_integer(value) else float(value) if is_number(value) else value


def have_plain_numbers(instance: Any) -> None:
    """Apply `plain` to the fields of a dataclass, also a frozen one: JSON and the text of numbers, such as seeds, need it."""
    for field in dataclasses.fields(instance):
        object.__setattr__(instance, field.name, plain(getattr(instance, field.name)))
