"""Permutation importance of columns, for the error and for the uncertainty.

Shapes: R rows, C columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bayesify.core.checks import check_integer
from bayesify.errors import MissingDependencyError
from bayesify.estimators import BayesianEstimator
from bayesify.inspection.variants import Variants, check_targets, choose_rows, uncertainty
from bayesify.predictive import NumericPredictive, Predictive
from bayesify.predictive.base import align_targets

try:
    import numpy as np
    import pandas as pd
except ImportError as error:
    raise MissingDependencyError("explanations", "pandas", extra="tables") from error

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["permutation_importance"]

_UNCERTAINTIES = ("std", "epistemic_std", "entropy", "mutual_information")
_SQUARES = ("rmse",)  # scores whose rows are squared errors, of which the root of the mean is taken


def permutation_importance(
    estimator: BayesianEstimator,
    X: ArrayLike | pd.DataFrame,
    y: ArrayLike,
    *,
    repeats: int = 5,
    rows: int = 500,
    draws: int = 20,
    seed: int = 0,
) -> pd.DataFrame:
    """How much error and uncertainty change if the values of a column are shuffled among the rows.

    A column of categories or dates is shuffled as a whole. Columns that carry the same information share their importance, and each
    may look unimportant. Importance is that for this model, not for the data. Definition as in scikit-learn's
    `permutation_importance`, but all columns and repeats are predicted together, which is much faster.

    Args:
        estimator: fitted.
        X: (N, columns), best rows that the model was not trained on.
        y: (N,) targets.
        repeats: shuffles of each column.
        rows: maximum number of rows to use, chosen at random.
        draws: maximum number of draws of the weights.
        seed: of rows and shuffles.

    Returns:
        One row per column, the most important for the error first. Regression: changes of "rmse" (of several outputs in standard
        deviations of the targets) and "nll"; mean absolute changes of the rows' "std" and "epistemic_std". Classification:
        "log_loss" and "error_rate"; "entropy" and "mutual_information". Standard errors, over rows and shuffles, are in "rmse_se"
        and so on.

    Raises:
        NotFittedError: the estimator is not fitted.
        DataError: targets that do not fit.

    Source: Breiman, *Random forests* (2001), section 10; Fisher, Rudin & Dominici (2019) for any model.

    Example:
        >>> import numpy as np
        >>> from bayesify.estimators import BayesianRegressor
        >>> X = np.random.default_rng(0).normal(size=(100, 2))
        >>> model = BayesianRegressor(random_state=0, epochs=20).fit(X, X[:, 0])
        >>> permutation_importance(model, X, X[:, 0]).index[0]
        'x0'
    """
    check_integer("repeats", repeats)
    check_integer("rows", rows, least=2)
    check_integer("draws", draws)
    variants = Variants(estimator, X, draws)
    target = check_targets(estimator, y, len(variants.table))
    chosen = choose_rows(len(target), rows, seed)
    target = target[chosen]
    before = {name: values.squeeze(0) for name, values in _scores(variants.predict({}, chosen), target).items()}

    generator = np.random.default_rng(seed)
    columns = variants.columns
    default = np.broadcast_to(chosen, (len(columns) * repeats, len(chosen)))
    sources = {}
    for j, column in enumerate(columns):
        sources[column] = default.copy()
        for r in range(repeats):
            sources[column][j * repeats + r] = generator.permutation(chosen)
    parts = [_scores(p, target) for p in variants.predictive(sources, default)]
    after = {name: torch.cat([part[name] for part in parts]).view(len(columns), repeats, -1) for name in before}
    result = {}
    for name in before:
        reference, values = before[name], after[name]
        if name in _UNCERTAINTIES:  # the mean over rows hardly changes if values only move to other rows
            reference, values = torch.zeros_like(reference), (values - reference).abs()
        change, error = _changes(reference, values, name in _SQUARES)
        result |= {name: change.numpy(), f"{name}_se": error.numpy()}
    return pd.DataFrame(result, index=pd.Index(columns, name="column")).sort_values(next(iter(result)), ascending=False)


def _scores(p: Predictive, y: Tensor) -> dict[str, Tensor]:
    """Scores of every row, (V, R), for V variants of R rows in a sequence."""
    total_name, total, epistemic_name, epistemic = uncertainty(p)
    rows = len(y)
    y = y.repeat(len(p) // len(y), *[1] * (y.dim() - 1))
    nll = -p.log_prob(y).double()
    if isinstance(p, NumericPredictive):
        y = align_targets(y, tuple(p.mean.shape)).double()
        squares = (y - p.mean.double()).square().reshape(len(p), -1)
        if squares.shape[1] > 1:
            squares = squares / y.var(0, correction=0).clamp_min(1e-24)
        scores = {"rmse": squares.mean(1), "nll": nll}
    else:
        scores = {"log_loss": nll, "error_rate": (p.prediction != y).double()}
    scores |= {total_name: total, epistemic_name: epistemic}
    return {name: values.view(-1, rows) for name, values in scores.items()}


def _changes(before: Tensor, after: Tensor, squares: bool) -> tuple[Tensor, Tensor]:
    """Change of the mean, or of the root of the mean, and its standard error, (C,), from (R,) and (C, repeats, R)."""
    means, mean = after.mean(2), before.mean()
    influence = after.mean(1) - before  # (C, R)
    if squares:  # delta method: the root of the mean is linear in the rows close to it
        means, mean = means.sqrt(), mean.sqrt()
        roots = means.mean(1, keepdim=True).clamp_min(1e-30)
        influence = after.mean(1) / (2 * roots) - before / (2 * mean.clamp_min(1e-30))
    variance = influence.var(1) / len(before)
    repeats = after.shape[1]
    if repeats > 1:
        variance = variance + means.var(1) / repeats
    return means.mean(1) - mean, variance.sqrt()
