"""Minimum of a function of one number, without derivatives."""

import math
from collections.abc import Callable

__all__ = ["golden_section"]

_RATIO = (math.sqrt(5) - 1) / 2


def golden_section(function: Callable[[float], float], low: float, high: float, tolerance: float) -> float:
    """Return where a function has its only minimum between `low` and `high`: the middle of an interval of at most `tolerance`.

    Source: Kiefer, *Sequential minimax search for a maximum* (1953).

    Example:
        >>> round(golden_section(lambda x: (x - 2) ** 2, 0.0, 5.0, tolerance=1e-3), 3)
        2.0
    """
    left, right = high - _RATIO * (high - low), low + _RATIO * (high - low)
    at_left, at_right = function(left), function(right)
    while high - low > tolerance:
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - _RATIO * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _RATIO * (high - low)
            at_right = function(right)
    return (low + high) / 2
