"""Why a single row is predicted as it is: effects of its values, and the training rows most similar to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bayesify.core.checks import check_integer
from bayesify.data import conform
from bayesify.errors import ConfigurationError, MissingDependencyError
from bayesify.estimators import BayesianEstimator
from bayesify.inspection.variants import Variants, choose_rows, uncertainty
from bayesify.predictive import NumericPredictive

try:
    import numpy as np
    import pandas as pd
    from sklearn.neighbors import NearestNeighbors
except ImportError as error:
    raise MissingDependencyError("explanations", "scikit-learn and pandas", extra="tables") from error

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["row_effects", "similar_rows"]

_USUAL_ROWS = 1000  # of the training table, for the usual distance between neighbors


def row_effects(
    estimator: BayesianEstimator,
    X: ArrayLike | pd.DataFrame,
    row: int,
    *,
    rows: int = 100,
    draws: int = 20,
    seed: int = 0,
) -> pd.DataFrame:
    """What each value of one row contributes: the change from the mean over rows that have another row's value there.

    One column is replaced at a time, so effects of columns that act together do not add up.

    Args:
        estimator: fitted.
        X: (N, columns): the row, and others that values are taken from.
        row: position of the row in X.
        rows: maximum number of rows from which values are taken, chosen at random.
        draws: maximum number of draws of the weights.
        seed: of the rows.

    Returns:
        One row per column, the largest effect on the prediction first: "value", "prediction" (effect on the predictive mean of the
        first output, or on the probability of the predicted class), "std" or "entropy", and "epistemic_std" or
        "mutual_information" (effects on the uncertainty).

    Raises:
        NotFittedError: the estimator is not fitted.
        ConfigurationError: no such row.

    Example:
        >>> import numpy as np
        >>> from bayesify.estimators import BayesianRegressor
        >>> X = np.random.default_rng(0).normal(size=(100, 2))
        >>> model = BayesianRegressor(random_state=0, epochs=20).fit(X, X[:, 0])
        >>> row_effects(model, X, row=3).index[0]
        'x0'
    """
    check_integer("rows", rows)
    check_integer("draws", draws)
    variants = Variants(estimator, X, draws)
    check_row(row, len(variants.table))
    chosen = choose_rows(len(variants.table), rows, seed)
    columns = variants.columns
    default = np.full((1 + len(columns), len(chosen)), row)
    sources = {}
    for j, column in enumerate(columns):
        sources[column] = default.copy()
        sources[column][1 + j] = chosen

    collected: dict[str, list[np.ndarray]] = {}
    label = None
    for p in variants.predictive(sources, default):
        total_name, total, epistemic_name, epistemic = uncertainty(p)
        if isinstance(p, NumericPredictive):
            values = p.mean.reshape(len(p), -1)[:, 0]
        else:
            label = int(p.prediction[0]) if label is None else label  # the first row is the original one
            values = p.probs[:, label]
        for name, part in (("prediction", values), (total_name, total), (epistemic_name, epistemic)):
            collected.setdefault(name, []).append(part.double().numpy().reshape(-1, len(chosen)).mean(1))
    effects = {name: np.concatenate(parts) for name, parts in collected.items()}
    table = pd.DataFrame({name: means[0] - means[1:] for name, means in effects.items()}, index=pd.Index(columns, name="column"))
    cells = {str(name): values.iloc[row] for name, values in variants.table.items()}
    table.insert(0, "value", pd.Series([cells[column] for column in columns], index=table.index, dtype=object))
    return table.sort_values("prediction", key=abs, ascending=False)


def similar_rows(
    estimator: BayesianEstimator, X: ArrayLike | pd.DataFrame, row: int, train: pd.DataFrame, *, most: int = 5
) -> pd.DataFrame:
    """The training rows most similar to a row: nearest in the preprocessed inputs.

    Args:
        estimator: fitted.
        X: (N, columns), with the row.
        row: position of the row in X.
        train: the training table; other columns, such as the target, are kept in the result.
        most: number of rows.

    Returns:
        Rows of `train`, nearest first, with two columns in front: "distance" in preprocessed inputs (standard deviations of
        numbers, 0 and 1 for categories), and "relative distance", in units of the median distance of training rows to their nearest
        neighbor. Where that is far above 1, no training row is similar.

    Raises:
        NotFittedError: the estimator is not fitted.
        ConfigurationError: no such row.
        DataError: tables that lack columns.

    Example:
        >>> import numpy as np, pandas as pd
        >>> from bayesify.estimators import BayesianRegressor
        >>> X = pd.DataFrame({"a": np.arange(20.0)})
        >>> model = BayesianRegressor(random_state=0, epochs=1).fit(X, X["a"])
        >>> similar_rows(model, pd.DataFrame({"a": [3.2]}), 0, X, most=2)["a"].tolist()
        [3.0, 4.0]
    """
    check_integer("most", most)
    table = Variants(estimator, X, 1).table
    check_row(row, len(table))
    own, others = (
        np.asarray(estimator.preprocessing_.transform(conform(part, estimator.columns_, new=False)), dtype=float)
        for part in (table.iloc[[row]], train)
    )
    search = NearestNeighbors(n_neighbors=min(most, len(train))).fit(others)
    distance, index = search.kneighbors(own)
    some = others[choose_rows(len(others), _USUAL_ROWS, 0)]
    nearest = search.kneighbors(some, n_neighbors=min(2, len(train)))[0][:, -1]  # the first is the row itself
    usual = float(np.median(nearest)) or float(nearest.mean()) or 1.0
    result = train.iloc[index[0]].copy()
    result.insert(0, "distance", distance[0])
    result.insert(1, "relative distance", distance[0] / usual)
    return result


def check_row(row: int, count: int) -> None:
    """Raise a ConfigurationError unless there is such a row."""
    if not 0 <= row < count:
        raise ConfigurationError(f"row must be from 0 to {count - 1}, as the table has {count} rows, got {row}")
