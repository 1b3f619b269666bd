"""Numbers, percentages, counts and durations as text."""

from __future__ import annotations

import math
from collections.abc import Iterable

__all__ = ["MINUS", "duration", "first_line", "listing", "looks_numeric", "number", "percent", "plural", "too_few", "with_error"]

MINUS = "\N{MINUS SIGN}"


def number(value: float, digits: int = 4) -> str:
    """Format with at most `digits` significant digits and a separator for thousands.

    Example:
        >>> number(12345.678), number(0.00001234), number(3.0)
        ('12,346', '1.234e-05', '3')
    """
    value = float(value)
    if not math.isfinite(value) or value == 0:
        return {math.inf: "∞", -math.inf: f"{MINUS}∞"}.get(value, "0" if value == 0 else "not a number")
    size = math.floor(math.log10(abs(value)))
    if not -4 <= size < 15:
        return ("" if value > 0 else MINUS) + f"{abs(value):.{digits - 1}e}"
    text = f"{value:,.{max(0, digits - 1 - size)}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text).replace("-", MINUS)


def with_error(value: float, error: float) -> str:
    """Format a value and its standard error, both to the second significant digit of the error.

    Example:
        >>> with_error(9.3612, 2.31), with_error(-0.0616, 0.3212), with_error(0.5, 0.0)
        ('9.4 ± 2.3', '−0.06 ± 0.32', '0.5 ± 0')
    """
    if not (math.isfinite(error) and error > 0 and math.isfinite(value)):
        return f"{number(value, 3)} ± {number(error, 2)}"
    decimals = max(0, 1 - math.floor(math.log10(float(f"{error:.1e}"))))
    return f"{value:,.{decimals}f} ± {error:,.{decimals}f}".replace("-", MINUS)


def percent(share: float) -> str:
    """Format a share in percent with at most one decimal.

    Example:
        >>> percent(0.941), percent(1.0)
        ('94.1%', '100%')
    """
    text = f"{100 * share:.1f}"
    return f"{text.removesuffix('.0')}%"


def plural(count: int, noun: str) -> str:
    """Format a count with its noun.

    Example:
        >>> plural(1, "row"), plural(1234, "row")
        ('1 row', '1,234 rows')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def too_few(count: int, noun: str) -> str:
    """Say that a count is too small.

    Example:
        >>> too_few(1, "row"), too_few(7, "row")
        ('1 row is too few', '7 rows are too few')
    """
    return f"{plural(count, noun)} {'is' if count == 1 else 'are'} too few"


def first_line(error: Exception) -> str:
    r"""The first line of an error, or its type if it has no text.

    Example:
        >>> first_line(ValueError("wrong\nat length")), first_line(TypeError())
        ('wrong', 'TypeError')
    """
    return (str(error).splitlines() or [type(error).__name__])[0]


def listing(items: Iterable[str], separator: str = ", ", most: int = 10) -> str:
    """The first items, and the number of the others.

    Example:
        >>> listing("abcde", most=3)
        'a, b, c, ... and 2 more'
    """
    items = list(items)
    rest = [f"... and {len(items) - most:,} more"] if len(items) > most else []
    return separator.join([*items[:most], *rest])


def duration(seconds: float) -> str:
    """Format seconds.

    Example:
        >>> duration(4.21), duration(75), duration(7300)
        ('4.2 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def looks_numeric(text: str) -> bool:
    """Return whether the text is a single number, possibly with a unit."""
    return text.removeprefix(MINUS)[:1].isdigit() and " to " not in text
