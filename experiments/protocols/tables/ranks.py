"""Mean ranks of methods over tables, and the difference that is significant.

Source: Demšar, *Statistical comparisons of classifiers over multiple data sets* (2006), section 3.2.2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from bayesify.core.checks import check_integer

__all__ = ["critical_difference", "mean_ranks"]


def mean_ranks(scores: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The mean over tables of the rank of each method, 1 for the lowest score; equal scores share the mean of their ranks.

    Args:
        scores: by method and table, all methods on the same tables.

    Example:
        >>> mean_ranks({"a": {"t": 1.0, "u": 2.0}, "b": {"t": 3.0, "u": 2.0}})
        {'a': 1.25, 'b': 1.75}
    """
    from scipy.stats import rankdata

    methods = list(scores)
    tables = list(scores[methods[0]])
    ranks = rankdata([[scores[method][table] for table in tables] for method in methods], axis=0).mean(1)
    return dict(zip(methods, map(float, ranks), strict=True))


def critical_difference(methods: int, tables: int, alpha: float = 0.05) -> float:
    r"""The difference of two mean ranks that is significant by the Nemenyi test: $q_\alpha \sqrt{k (k + 1) / (6 N)}$.

    Args:
        methods: k, at least two.
        tables: N.
        alpha: level of significance, for all pairs together.

    Example:
        >>> round(critical_difference(4, 14), 2)
        1.25
    """
    from scipy.stats import studentized_range

    check_integer("methods", methods, least=2)
    check_integer("tables", tables)
    q = float(studentized_range.ppf(1 - alpha, methods, math.inf)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * tables))
