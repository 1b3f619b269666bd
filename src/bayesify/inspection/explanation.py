"""`explain`: importance and partial dependence with a bounded cost, for reports."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from bayesify.errors import MissingDependencyError
from bayesify.estimators import BayesianEstimator
from bayesify.formatting import plural
from bayesify.inspection.dependence import Dependence, partial_dependence
from bayesify.inspection.importance import permutation_importance
from bayesify.inspection.variants import Variants

try:
    import pandas as pd
except ImportError as error:
    raise MissingDependencyError("explanations", "pandas", extra="tables") from error

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["Explanation", "explain"]

_REPEATS, _FEW_REPEATS, _MANY_COLUMNS = 5, 2, 100  # shuffles per column, and with many columns; one where rows are costly
_DRAWS, _MOST_ROWS, _FEWEST_ROWS = 20, 500, 50
_MOST_PREDICTIONS, _MOST_WORK = 40_000, 4e10  # rows in all shuffled tables, and their multiplications: seconds
_CURVES = 4


class Explanation(NamedTuple):
    """Importance of all columns, partial dependence of the most important ones, and how they were computed."""

    importance: pd.DataFrame
    dependences: list[Dependence]
    note: str


def explain(
    estimator: BayesianEstimator, X: ArrayLike | pd.DataFrame, y: ArrayLike, *, output: int | None = None, seed: int = 0
) -> Explanation:
    """Compute `permutation_importance`, and `partial_dependence` of the four most important columns.

    Five shuffles of each column on at most 500 rows, with at most 20 draws of the weights. Two shuffles if there are more than 100
    columns, one if the network is large as well, and fewer rows, at least 50, so that a report takes seconds.

    Args:
        estimator: fitted.
        X: (N, columns), best rows that the model was not trained on.
        y: (N,) targets.
        output: of `partial_dependence`.
        seed: of rows and shuffles.

    Raises:
        NotFittedError: the estimator is not fitted.
        DataError: targets that do not fit.

    Example:
        >>> import numpy as np
        >>> from bayesify.estimators import BayesianRegressor
        >>> X = np.random.default_rng(0).normal(size=(100, 2))
        >>> model = BayesianRegressor(random_state=0, epochs=20).fit(X, X[:, 0])
        >>> explain(model, X, X[:, 0]).note
        'Computed on 100 rows, with 5 shuffles per column.'
    """
    table = Variants(estimator, X, _DRAWS)
    repeats, rows = _cost(len(table.columns), table.work)
    importance = permutation_importance(estimator, X, y, repeats=repeats, rows=rows, draws=_DRAWS, seed=seed)
    curves = [partial_dependence(estimator, X, column, output=output, draws=_DRAWS, seed=seed) for column in _relevant(importance)]
    used = min(rows, len(table.table))
    return Explanation(importance, curves, f"Computed on {plural(used, 'row')}, with {plural(repeats, 'shuffle')} per column.")


def _relevant(importance: pd.DataFrame) -> pd.Index:
    """The columns that get a curve: of C columns without effect, none or few change the error by so many standard errors."""
    first, count = importance.columns[0], len(importance)
    errors = max(2.0, math.sqrt(2 * math.log(count)))  # the second is about the largest of C normal numbers
    return importance.index[importance[first] > errors * importance[f"{first}_se"]][:_CURVES]


def _cost(columns: int, work: int) -> tuple[int, int]:
    """Shuffles per column and rows, by the number of columns and the multiplications per row."""
    repeats = _REPEATS if columns <= _MANY_COLUMNS else _FEW_REPEATS
    predictions = min(_MOST_PREDICTIONS, int(_MOST_WORK / work))
    if columns > _MANY_COLUMNS and predictions < repeats * columns * _FEWEST_ROWS:
        repeats = 1  # another row tells more than another shuffle of the same rows
    return repeats, min(_MOST_ROWS, max(_FEWEST_ROWS, predictions // (repeats * columns)))
