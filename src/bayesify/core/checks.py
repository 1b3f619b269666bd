"""Argument checks with uniform messages."""

from collections.abc import Collection

from bayesify.errors import ConfigurationError
from bayesify.plain_numbers import is_integer, is_number

__all__ = [
    "check_choice",
    "check_fraction",
    "check_integer",
    "check_nonnegative",
    "check_open_fraction",
    "check_positive",
    "check_rate",
    "check_scale",
]


def check_positive(name: str, value: float) -> None:
    """Raise a `ConfigurationError` unless `value` is a finite number above 0."""
    if not is_number(value) or not 0 < value < float("inf"):
        raise ConfigurationError(f"{name} must be a finite number above 0, got {value!r}")


def check_nonnegative(name: str, value: float, alternative: str = "") -> None:
    """Raise a `ConfigurationError` unless `value` is a finite number of at least 0; `alternative` is what else is possible."""
    if not is_number(value) or not 0 <= value < float("inf"):
        raise ConfigurationError(f"{name} must be a finite number of at least 0{alternative}, got {value!r}")


def check_scale(name: str, value: float) -> None:
    """Raise a `ConfigurationError` unless `value` is between 1e-15 and 1e15: single precision holds its square and 1/square."""
    check_positive(name, value)
    if not 1e-15 <= value <= 1e15:
        raise ConfigurationError(f"{name} must be between 1e-15 and 1e+15, got {value!r}")


def check_fraction(name: str, value: float) -> None:
    """Raise a `ConfigurationError` unless `value` is a number in [0, 1)."""
    if not is_number(value) or not 0 <= value < 1:
        raise ConfigurationError(f"{name} must be a number in [0, 1), got {value!r}")


def check_open_fraction(name: str, value: float, advice: str = "") -> None:
    """Raise a `ConfigurationError` unless `value` is a number in (0, 1)."""
    if not is_number(value) or not 0 < value < 1:
        raise ConfigurationError(f"{name} must be a number in (0, 1), got {value!r}{advice}")


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
