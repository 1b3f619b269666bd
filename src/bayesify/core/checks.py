"""Argument checks with one voice: the argument, its value, what is allowed."""

from collections.abc import Collection

__all__ = ["check_choice", "check_fraction", "check_integer", "check_positive"]


def check_positive(name: str, value: float) -> None:
    """Raise ValueError unless `value` is a finite number above zero."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ValueError(f"{name} must be a finite number above 0, got {value!r}")


def check_fraction(name: str, value: float) -> None:
    """Raise ValueError unless `value` lies in [0, 1)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise ValueError(f"{name} must be a number in [0, 1), got {value!r}")


def check_integer(name: str, value: int, least: int = 1) -> None:
    """Raise ValueError unless `value` is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")


def check_choice(name: str, value: object, choices: Collection[object]) -> None:
    """Raise ValueError unless `value` is one of `choices`."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
