"""Joint training of many estimators, and cross-validation."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from bayesify.data.interchange import warn_of_other_order
from bayesify.errors import ConfigurationError, MissingDependencyError
from bayesify.estimators.base import BayesianEstimator
from bayesify.estimators.together import train_together

try:
    import numpy as np
    import pandas as pd
    from sklearn.base import clone, is_classifier
    from sklearn.model_selection import BaseCrossValidator, check_cv
    from sklearn.utils import _safe_indexing, indexable
except ImportError as error:
    raise MissingDependencyError("the estimators", "scikit-learn and pandas", extra="tables") from error

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["CrossValidation", "cross_validate", "fit_together"]


def fit_together(fits: Sequence[tuple[BayesianEstimator, Any, Any]], *, progress: bool | None = None) -> None:
    """Fit many estimators, each to its data, as their `fit` would (up to rounding) in a fraction of the time.

    Networks of one shape with equal epochs and batch sizes are trained together (`bayesify.train.fit_many`).

    Args:
        fits: `(estimator, X, y)` triples of different estimators.
        progress: whether to show a progress bar; None shows it on a terminal.

    Raises:
        TypeError, ConfigurationError, DataError: invalid parameters or data, before training.
        DivergenceError: some diverged; the others are fitted.

    Example:
        >>> from bayesify.estimators import BayesianRegressor, fit_together
        >>> import numpy as np
        >>> X = np.linspace(-1, 1, 40).reshape(-1, 1)
        >>> models = [BayesianRegressor(epochs=5, random_state=seed) for seed in range(3)]
        >>> fit_together([(model, X, 10 * X[:, 0]) for model in models])
        >>> models[2].predict(X[:2]).shape
        (2,)
    """
    estimators = [estimator for estimator, _, _ in fits]
    for estimator in estimators:
        if not isinstance(estimator, BayesianEstimator):
            raise TypeError(f"fits must contain BayesianRegressor or BayesianClassifier, got {type(estimator).__name__}")
    if len({id(estimator) for estimator in estimators}) < len(estimators):
        raise ConfigurationError("fits contains the same estimator twice; make a copy with sklearn.base.clone")
    train_together(fits, progress=progress)


@dataclasses.dataclass(frozen=True)
class CrossValidation:
    """Result of `cross_validate`; one entry per fold in every list.

    Attributes:
        estimators: fitted to the rows of the other folds.
        rows: row numbers of the fold.
        predictives: predictive distributions of these rows.
        scores: `log_score`, the mean log predictive density or probability in nats per row and in the units of the target, and
            `score`, R squared or accuracy.
    """

    estimators: list[BayesianEstimator]
    rows: list[np.ndarray]
    predictives: list[Any]
    scores: pd.DataFrame

    def summary(self) -> pd.DataFrame:
        """Return mean and standard error over the folds, by score."""
        return pd.DataFrame({"mean": self.scores.mean(), "standard_error": self.scores.sem()})


def cross_validate(
    estimator: BayesianEstimator,
    X: ArrayLike | pd.DataFrame,
    y: ArrayLike,
    *,
    cv: int | BaseCrossValidator | Iterable[tuple[ArrayLike, ArrayLike]] = 5,
    groups: ArrayLike | None = None,
    progress: bool | None = None,
) -> CrossValidation:
    """Fit an estimator to the training rows of every fold, all together, and predict the held-out rows.

    Args:
        estimator: cloned for every fold, not fitted.
        X: (N, columns), as for `fit`.
        y: (N,) targets.
        cv: the number of folds (stratified for a classifier), a scikit-learn splitter, or pairs of arrays of row numbers.
        groups: (N,), for splitters by group, such as scikit-learn's `GroupKFold`. They reach `fit`, too, where rows of a group stay
            together.
        progress: whether to show a progress bar; None shows it on a terminal.

    Raises:
        TypeError, ConfigurationError, DataError: invalid parameters or data, before training.
        DivergenceError: training diverged in a fold.

    Example:
        >>> from bayesify.estimators import BayesianRegressor, cross_validate
        >>> import numpy as np
        >>> X = np.linspace(-1, 1, 60).reshape(-1, 1)
        >>> result = cross_validate(BayesianRegressor(epochs=5, random_state=0), X, 10 * X[:, 0], cv=3)
        >>> result.scores.shape, [len(rows) for rows in result.rows]
        ((3, 2), [20, 20, 20])
    """
    if not isinstance(estimator, BayesianEstimator):
        raise TypeError(f"estimator must be a BayesianRegressor or BayesianClassifier, got {type(estimator).__name__}")
    X, y, groups = indexable(X, y, groups)
    warn_of_other_order(X, y)  # here, because the rows of a fold seldom have equal labels
    warn_of_other_order(X, groups, "groups")
    splitter = check_cv(cv, y, classifier=is_classifier(estimator))
    splits = [(np.asarray(train), np.asarray(test)) for train, test in splitter.split(X, y, groups)]
    estimators = [clone(estimator) for _ in splits]
    parts = [
        (_safe_indexing(X, train), _safe_indexing(y, train), None, None if groups is None else _safe_indexing(groups, train))
        for train, _ in splits
    ]
    train_together([(model, *part) for model, part in zip(estimators, parts, strict=True)], progress=progress)
    predictives, scores = [], []
    for model, (_, test) in zip(estimators, splits, strict=True):
        table, target = _safe_indexing(X, test), _safe_indexing(y, test)
        predictives.append(model.predictive(table))
        log_score = float(predictives[-1].log_prob(model._encode_target(target)).mean())
        scores.append({"log_score": log_score, "score": model.score(table, target)})
    return CrossValidation(estimators, [test for _, test in splits], predictives, pd.DataFrame(scores))
