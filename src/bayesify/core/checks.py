"""Argument checks with uniform messages."""

import dataclasses
import numbers
from collections.abc import Collection
from typing import Any, TypeGuard

from bayesify.errors import ConfigurationError

__all__ = [
    "check_choice",
    "check_fraction",
    "check_integer",
    "check_positive",
    "check_rate",
    "check_scale",
    "have_plain_numbers",
    "is_integer",
    "is_number",
    "plain",
]


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


def check_positive(name: str, value: float) -> None:
    """Raise a `ConfigurationError` unless `value` is a finite number above 0."""
    if not is_number(value) or not 0 < value < float("inf"):
        raise ConfigurationError(f"{name} must be a finite number above 0, got {value!r}")


def check_scale(name: str, value: float) -> None:
    """Raise a `ConfigurationError` unless `value` is between 1e-15 and 1e15: single precision holds its square and 1/square."""
    check_positive(name, value)
    if not 1e-15 <= value <= 1e15:
        raise ConfigurationError(f"{name} must be between 1e-15 and 1e+15, got {value!r}")


def check_fraction(name: str, value: float) -> None:
    """Raise a `ConfigurationError` unless `value` is a number in [0, 1)."""
    if not is_number(value) or not 0 <= value < 1:
        raise ConfigurationError(f"{name} must be a number in [0, 1), got {value!r}")


def check_rate(name: str, value: float) -> None:
    """Raise a `ConfigurationError` unless `value` is a number in (0, 1]."""
    if not is_number(value) or not 0 < value <= 1:
        raise ConfigurationError(f"{name} must be a number in (0, 1], got {value!r}")


def check_integer(name: str, value: int, least: int = 1) -> None:
    """Raise a `ConfigurationError` unless `value` is an integer of at least `least`."""
    if not is_integer(value) or value < least:
        raise ConfigurationError(f"{name} must be a whole number of at least {least}, got {value!r}")


def check_choice(name: str, value: object, choices: Collection[object]) -> None:
    """Raise a `ConfigurationError` unless `value` is one of `choices`."""
    if value not in choices:
        raise ConfigurationError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
