"""From the level of coverage to the weight of calibration scores that it needs, and what that guarantees."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bayesify.core.checks import check_open_fraction
from bayesify.errors import ConfigurationError

__all__ = ["conformal_rank", "cross_coverage", "least_rows", "least_weight"]

_ROUNDING = 1e-9  # (n + 1) * level, such as 100 * 0.07, may be a whole number and a little


def least_rows(level: float) -> int:
    """Return the smallest number of calibration rows for a level, or of calibration groups.

    Raises:
        ConfigurationError: `level` is not in (0, 1).

    Example:
        >>> least_rows(0.9), least_rows(0.95), least_rows(0.99)
        (9, 19, 99)
    """
    check_open_fraction("level", level)
    return max(1, math.ceil(level / (1 - level) - _ROUNDING))


def conformal_rank(n: int, level: float) -> int:
    r"""Return r, such that the r-th smallest of n calibration scores bounds the score of a new row with probability `level`.

    $$r = \lceil (n + 1)\,\mathrm{level} \rceil$$

    The rank of the new score among all n + 1 is uniform, so the probability is r / (n + 1) without ties: at least `level`, and less
    than 1 / (n + 1) above it.

    Source: Vovk, Gammerman & Shafer (2005); Lei, G'Sell, Rinaldo, Tibshirani & Wasserman (2018), theorem 2.2.

    Raises:
        ConfigurationError: `level` is not in (0, 1), or n rows are too few for it.

    Example:
        >>> conformal_rank(19, 0.95), conformal_rank(100, 0.9)
        (19, 91)
    """
    return math.ceil(least_weight(n, level))


def least_weight(n: int, level: float, unit: str = "row") -> float:
    """Return (n + 1) level, less a rounding error, for n rows or groups ("group") of weight 1, as `conformal_rank`."""
    if n < least_rows(level):
        raise ConfigurationError(
            f"level={level:g} needs at least {least_rows(level)} calibration {unit}s, got {n}; "
            f"choose a level of at most {math.floor(1000 * n / (n + 1)) / 1000:g}, or calibrate with more {unit}s"
        )
    return max(_ROUNDING, (n + 1) * level - _ROUNDING)


def cross_coverage(sizes: Sequence[int], level: float) -> float:
    r"""Return the coverage that cross-conformal prediction guarantees in the worst case, with the rows of the folds.

    $$1 - 2\alpha - \min\left(\frac{2 (1 - 1/K)}{n/K + 1}, \frac{1 - K/n}{K + 1}\right), \quad \alpha = 1 - \mathrm{level}$$

    The typical coverage is about `level`. Less occurs only for models that change much with the rows of one fold.

    Source: Barber, Candès, Ramdas & Tibshirani (2021), theorem 4; for other scores than absolute residuals: Gupta, Kuchibhotla &
    Ramdas (2022); for labels: Romano, Sesia & Candès (2020).

    Args:
        sizes: rows (or groups) of the K folds, at least two, equal up to one row.
        level: in (0, 1).

    Raises:
        ConfigurationError: fewer than two folds, or `level` is not in (0, 1).

    Example:
        >>> round(cross_coverage([200] * 5, 0.95), 3)
        0.892
    """
    check_open_fraction("level", level)
    folds, n = len(sizes), sum(sizes)
    if folds < 2:
        raise ConfigurationError(f"sizes must have at least two folds, got {folds}")
    excess = min(2 * (1 - 1 / folds) / (n / folds + 1), (1 - folds / n) / (folds + 1))
    return max(0.0, 1 - 2 * (1 - level) - excess)
