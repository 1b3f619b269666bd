"""Linear models and gradient boosting of scikit-learn on the columns of an estimator, as baselines."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from bayesify.data import conform
from bayesify.errors import MissingDependencyError
from bayesify.formatting import plural
from bayesify.likelihoods import NegativeBinomial, Poisson
from bayesify.predictive import CategoricalPredictive, CountPredictive, GaussianPredictive, Predictive

try:
    import numpy as np
    from sklearn.base import clone
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression, PoissonRegressor, RidgeCV
    from sklearn.model_selection import KFold
    from threadpoolctl import threadpool_limits
except ImportError as error:
    raise MissingDependencyError("baselines", "scikit-learn", extra="tables") from error

if TYPE_CHECKING:
    import pandas as pd

    from bayesify.estimators import BayesianEstimator

__all__ = ["Baselines", "fit_baselines"]

_MOST_CELLS, _MOST_ROWS, _FEWEST_ROWS = 1_000_000, 10_000, 1000  # of the training table
_ROUNDS, _MOST_TREES = 100, 150_000  # trees are counted per column and class
_STOP_EARLY_FROM, _STOP_EARLY_CLASS = 300, 10  # rows in all and of every class; with fewer, a tenth of them decides nothing
_FEW_CELLS = 50_000  # then residuals are those of five folds
_FLOOR = 1e-6  # probability that is spread over the classes, so that none is impossible


class Baselines(NamedTuple):
    """Predictions of other models by name, and a sentence on how they were made."""

    predictives: dict[str, Predictive]
    note: str


def fit_baselines(estimator: BayesianEstimator, X: pd.DataFrame, y: Tensor, X_new: pd.DataFrame, *, seed: int = 0) -> Baselines:
    """Train a linear model and gradient boosting on the inputs of a fitted estimator, and predict other rows.

    Regression: ridge regression (penalty chosen by leave-one-out) and boosting, with normal errors whose standard deviation is
    that of residuals on held-out training rows. Of an estimator with a likelihood for counts: Poisson regression and boosting with
    the Poisson loss, with negative binomial errors of the dispersion of these residuals. Classification: logistic regression and
    boosting. Boosting stops early from 300 rows and 10 rows per class. Of large tables about 10,000 rows or a million cells are
    used, and with many columns or classes fewer rounds; the note says so.

    Args:
        estimator: fitted; its columns and preprocessing are used.
        X: the training table, N rows.
        y: targets (N,), numbers or indices of classes.
        X_new: the rows to predict.
        seed: of the subsample, the folds and boosting.

    Example:
        >>> import numpy as np, pandas as pd
        >>> from bayesify.estimators import BayesianRegressor
        >>> X = pd.DataFrame({"a": np.linspace(-1, 1, 60)})
        >>> model = BayesianRegressor(epochs=1, random_state=0).fit(X, X["a"])
        >>> list(fit_baselines(model, X, torch.tensor(X["a"].to_numpy()), X).predictives)
        ['ridge regression', 'gradient boosting']
    """
    classes = None if y.is_floating_point() else len(getattr(estimator, "classes_", ())) or int(y.max()) + 1
    target = y.numpy()
    chosen = _choose(target, classes, X.shape[1], seed)
    inputs, new, target = _inputs(estimator, X.iloc[chosen]), _inputs(estimator, X_new), target[chosen]
    rows = len(chosen)
    rounds = max(10, min(_ROUNDS, _MOST_TREES // (inputs.shape[1] * (classes if classes and classes > 2 else 1))))
    enough = rows >= _STOP_EARLY_FROM and (classes is None or np.unique(target, return_counts=True)[1].min() >= _STOP_EARLY_CLASS)
    settings: dict[str, Any] = {"max_iter": rounds, "early_stopping": bool(enough), "random_state": seed}
    note = f"Baselines have the same columns{f' and {rows:,} of {len(y):,} training rows' if rows < len(y) else ''}"
    note += f"; boosting has {plural(rounds, 'round')}." if rounds < _ROUNDS else "."
    with threadpool_limits(1), warnings.catch_warnings():  # on shared processors, threads that wait for each other are far slower
        warnings.simplefilter("ignore", ConvergenceWarning)
        if classes is None and isinstance(estimator.likelihood_, Poisson | NegativeBinomial):
            models = {
                "Poisson regression": PoissonRegressor(alpha=1e-3, max_iter=1000),
                "gradient boosting": HistGradientBoostingRegressor(loss="poisson", **settings),
            }
            return Baselines({name: _counts(model, inputs, target, new, seed) for name, model in models.items()}, note)
        if classes is None:
            models = {
                "ridge regression": RidgeCV(np.logspace(-3, 5, 17)),
                "gradient boosting": HistGradientBoostingRegressor(**settings),
            }
            return Baselines({name: _regression(model, inputs, target, new, seed) for name, model in models.items()}, note)
        models = {
            "logistic regression": LogisticRegression(max_iter=1000),
            "gradient boosting": HistGradientBoostingClassifier(**settings),
        }
        return Baselines({name: _classification(model, inputs, target, new, classes) for name, model in models.items()}, note)


def _choose(target: np.ndarray, classes: int | None, columns: int, seed: int) -> np.ndarray:
    """Sorted numbers of the rows to train on: a random choice, with a row of every class."""
    rows = min(len(target), _MOST_ROWS, max(_FEWEST_ROWS, _MOST_CELLS // columns))
    chosen = np.random.default_rng(seed).permutation(len(target))[:rows]
    return np.unique(chosen if classes is None else np.concatenate([chosen, np.unique(target, return_index=True)[1]]))


def _inputs(estimator: BayesianEstimator, table: pd.DataFrame) -> np.ndarray:
    return np.asarray(estimator.preprocessing_.transform(conform(table, estimator.columns_, new=False)), dtype=float)


def _held_out(model: Any, inputs: np.ndarray, target: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Targets of held-out rows, and their predictions by models of the others."""
    folds = list(KFold(5, shuffle=True, random_state=seed).split(inputs))
    parts = [  # with many cells, one fold has enough rows
        (target[held_out], clone(model).fit(inputs[train], target[train]).predict(inputs[held_out]))
        for train, held_out in (folds if inputs.size < _FEW_CELLS else folds[:1])
    ]
    targets, predicted = zip(*parts, strict=True)
    return np.concatenate(targets), np.concatenate(predicted)


def _counts(model: Any, inputs: np.ndarray, target: np.ndarray, new: np.ndarray, seed: int) -> Predictive:
    y, fitted = _held_out(model, inputs, target, seed)
    mean = np.asarray(model.fit(inputs, target).predict(new), dtype=float)
    return CountPredictive.from_residuals(*map(torch.from_numpy, (mean, y, fitted)))


def _regression(model: Any, inputs: np.ndarray, target: np.ndarray, new: np.ndarray, seed: int) -> Predictive:
    center, scale = target.mean(), target.std() or 1.0
    target = (target - center) / scale  # boosting stops early by an absolute tolerance
    y, fitted = _held_out(model, inputs, target, seed)
    std = float(np.sqrt(np.mean(np.square(y - fitted)))) or 1.0
    mean = torch.as_tensor(model.fit(inputs, target).predict(new), dtype=torch.float64)
    normal = GaussianPredictive(mean.unsqueeze(0), torch.tensor(std, dtype=torch.float64))
    return normal.rescale(torch.tensor(center), torch.tensor(scale))


def _classification(model: Any, inputs: np.ndarray, target: np.ndarray, new: np.ndarray, classes: int) -> Predictive:
    model.fit(inputs, target)
    probs = np.full((len(new), classes), _FLOOR / classes)
    probs[:, model.classes_] += (1 - _FLOOR) * model.predict_proba(new)  # training may lack a class
    return CategoricalPredictive.from_logits(torch.from_numpy(np.log(probs)).unsqueeze(0))
