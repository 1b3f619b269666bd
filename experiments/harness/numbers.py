"""Numbers in reports: means with their standard errors, differences, Markdown tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bayesify.errors import DataError

__all__ = ["Estimate", "difference", "estimate", "markdown"]


class Estimate(NamedTuple):
    """A mean and its standard error, NaN if unknown."""

    mean: float
    error: float = math.nan

    def __str__(self) -> str:
        """The mean to the second significant digit of its error; to four digits without one.

        Example:
            >>> str(Estimate(2.9036, 0.1814)), str(Estimate(0.0007412, 0.0000482)), str(Estimate(2.9036))
            ('2.90 ± 0.18', '0.000741 ± 0.000048', '2.904')
        """
        if not (math.isfinite(self.error) and self.error > 0):
            return f"{self.mean:.4g}"
        digits = max(0, 1 - math.floor(math.log10(self.error)))
        return f"{self.mean:.{digits}f} ± {self.error:.{digits}f}"


def estimate(values: Iterable[float]) -> Estimate:
    r"""Mean and standard error $\sqrt{\frac{1}{n (n - 1)}\sum_i (x_i - \bar x)^2}$ of n independent values.

    Example:
        >>> estimate([1.0, 3.0])
        Estimate(mean=2.0, error=1.0)
    """
    values = list(values)
    if not values:
        raise DataError("values is empty; a mean needs at least one")
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return Estimate(statistics.fmean(values), error)


def difference(ours: Estimate, theirs: Estimate) -> str:
    r"""Ours minus theirs and, where both errors are known, the difference in units of $\sqrt{e_1^2 + e_2^2}$.

    Example:
        >>> difference(Estimate(3.0, 0.3), Estimate(2.5, 0.4)), difference(Estimate(3.0, 0.3), Estimate(2.5))
        ('+0.50 (+1.0 s.e.)', '+0.50')
    """
    gap, combined = ours.mean - theirs.mean, math.hypot(ours.error, theirs.error)
    scale = combined if math.isfinite(combined) and combined > 0 else ours.error
    digits = max(0, 1 - math.floor(math.log10(scale))) if math.isfinite(scale) and scale > 0 else None
    text = f"{gap:+.3g}" if digits is None else f"{gap:+.{digits}f}"
    return f"{text} ({gap / combined:+.1f} s.e.)" if math.isfinite(combined) and combined > 0 else text


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """A Markdown table whose first `left` columns are flush left and the others flush right.

    Example:
        >>> print(markdown(["set", "ours"], [["boston", "2.9"]]))
        | set | ours |
        |:---|---:|
        | boston | 2.9 |
    """
    marks = [":---" if column < left else "---:" for column in range(len(header))]
    lines = ["| " + " | ".join(header) + " |", "|" + "|".join(marks) + "|"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)
