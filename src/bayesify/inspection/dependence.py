"""Partial dependence with bands from the posterior.

Shapes: V values, R rows, S draws.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bayesify.core.checks import check_fraction, check_integer
from bayesify.data import conform
from bayesify.errors import ConfigurationError, MissingDependencyError
from bayesify.estimators import BayesianEstimator
from bayesify.inspection.variants import Variants, check_column, choose_rows
from bayesify.predictive import NumericPredictive

try:
    import numpy as np
    import pandas as pd
except ImportError as error:
    raise MissingDependencyError("explanations", "pandas", extra="tables") from error

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from torch import Tensor

__all__ = ["Dependence", "partial_dependence"]

_POINTS, _CATEGORIES = 20, 10


class Dependence(NamedTuple):
    """Averaged predictions for values of a column.

    Attributes:
        column: name of the column.
        kind: "number", "boolean", "datetime" or "category".
        level: of the intervals.
        table: one row per value; columns "value" (a number, a date or a category), "mean", "lower", "upper" and in regression
            "predictive_lower" and "predictive_upper".
    """

    column: str
    kind: str
    level: float
    table: pd.DataFrame


def partial_dependence(
    estimator: BayesianEstimator,
    X: ArrayLike | pd.DataFrame,
    column: str,
    *,
    output: int | None = None,
    level: float = 0.9,
    rows: int = 200,
    draws: int = 50,
    seed: int = 0,
) -> Dependence:
    """The mean prediction over the rows if all of them had the same value in one column, for values of that column.

    "lower" and "upper" are quantiles of this mean over draws of the weights: how well the model knows the curve. The predictive
    interval, averaged over the rows, includes noise. `calibrate="vector"`, "isotonic" or "histogram" maps the probabilities of each
    draw for these quantiles, and mean probabilities for the mean, which may then lie outside. Combinations of values that do not
    occur in the data are predicted too.

    Args:
        estimator: fitted.
        X: (N, columns).
        column: a column that the model uses.
        output: index of the output (regression) or of the class, whose probability it is; by default the first output, or class 1
            of two and class 0 of more.
        level: of the intervals.
        rows: maximum number of rows to average, chosen at random.
        draws: maximum number of draws of the weights.
        seed: of the rows.

    Returns:
        Predictions at up to 20 quantiles of a numeric column from 2.5 % to 97.5 %, or for its 10 most frequent categories.

    Raises:
        NotFittedError: the estimator is not fitted.
        ConfigurationError: a column that the model does not use, or no such output.

    Source: Friedman, *Greedy function approximation* (2001), section 8.2.

    Example:
        >>> import numpy as np
        >>> from bayesify.estimators import BayesianRegressor
        >>> X = np.random.default_rng(0).normal(size=(100, 2))
        >>> model = BayesianRegressor(random_state=0, epochs=20).fit(X, X[:, 0])
        >>> bool(partial_dependence(model, X, "x0").table["mean"].is_monotonic_increasing)
        True
    """
    check_fraction("level", level)
    check_integer("rows", rows)
    check_integer("draws", draws)
    variants = Variants(estimator, X, draws)
    check_column(variants.columns, column)
    kind = next(c.kind for c in estimator.columns_ if c.name == column)
    sources, values = _grid(estimator, variants.table, column, kind)
    chosen = choose_rows(len(variants.table), rows, seed)
    default = np.tile(chosen, len(sources))
    p, by_draw, shares = variants.draws({column: np.repeat(sources, len(chosen))}, default)
    if output is None:
        output = 0 if isinstance(p, NumericPredictive) or by_draw.shape[2] > 2 else 1
    if not 0 <= output < by_draw.shape[2]:
        raise ConfigurationError(f"output must be from 0 to {by_draw.shape[2] - 1}, got {output}")

    def curve(predicted: Tensor) -> np.ndarray:
        """The average over the rows, (V,)."""
        return predicted.reshape(len(sources), len(chosen), -1)[..., output].double().mean(1).numpy()

    averages, weights = np.stack([curve(draw) for draw in by_draw]), shares.double().numpy()
    lower, upper = (_quantiles(averages, weights, tail) for tail in ((1 - level) / 2, (1 + level) / 2))
    table = {"value": values, "mean": curve(p.mean), "lower": lower, "upper": upper}
    if isinstance(p, NumericPredictive):
        table |= dict(zip(("predictive_lower", "predictive_upper"), map(curve, p.interval(level)), strict=True))
    return Dependence(column, kind, level, pd.DataFrame(table))


def _quantiles(values: np.ndarray, weights: np.ndarray, q: float) -> np.ndarray:
    """Weighted quantile of every column of (S, V), by linear interpolation; with equal weights that of `numpy.quantile`."""
    order = values.argsort(0)
    ordered, shares = np.take_along_axis(values, order, 0), weights[order]
    middle = shares.cumsum(0) - shares / 2
    positions = (middle - middle[0]) / np.maximum(middle[-1] - middle[0], np.finfo(float).tiny)
    return np.array([np.interp(q, at, column) for at, column in zip(positions.T, ordered.T, strict=True)])


def _grid(estimator: BayesianEstimator, table: pd.DataFrame, column: str, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the table whose cells are the grid, and their values. Cells keep their format: dates as text, decimal commas."""
    position = [str(name) for name in table.columns].index(column)
    used = next(c for c in estimator.columns_ if c.name == column)
    values = conform(table.iloc[:, [position]], [used], new=False)[column]
    present = np.flatnonzero(values.notna().to_numpy())
    if kind == "category":
        frequent = values.iloc[present].value_counts().index[:_CATEGORIES]
        first = np.array([int((values == category).to_numpy().argmax()) for category in frequent])
        return first, frequent.to_numpy(dtype=object)
    order = present[values.iloc[present].to_numpy(dtype=float).argsort(kind="stable")]
    picks = np.linspace(0.025, 0.975, _POINTS) * (len(order) - 1)
    if values.nunique() <= _POINTS:
        picks = np.arange(len(order))
    numbers, first = np.unique(values.iloc[order[picks.round().astype(int)]].to_numpy(dtype=float), return_index=True)
    sources = order[picks.round().astype(int)][first]
    return sources, pd.to_datetime(numbers, unit="D").to_numpy() if kind == "datetime" else numbers
