"""The methods that are compared, each as a user would call it: the defaults of its library, and what a distribution needs.

A method is a function of a split and a seed that fits a model and returns a function of the test rows; this one predicts a
distribution. A classifier predicts the probabilities of the classes (N, K).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from bayesify.predictive import CategoricalPredictive, GaussianPredictive
from experiments.protocols.tables.data import Split
from experiments.protocols.tables.distributions import QuantilePredictive, normal

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["METHODS", "MethodOfTables", "Regressive", "classes", "load_libraries", "missing"]

Regressive = GaussianPredictive | QuantilePredictive
Fit = Callable[..., Callable[["pd.DataFrame"], Any]]
"""Function of a split and a seed that returns a function of test rows."""


class MethodOfTables(NamedTuple):
    """One row of the benchmark.

    Attributes:
        description: how it is fitted, for the report.
        regression, classification: the method for this task; None for none.
        package: what it needs besides scikit-learn and bayesify.
        most_rows: training rows up to which it is run; None for any number.
        seconds: rough estimates of a fit on 1,000 rows, for the order of the jobs.
    """

    description: str
    regression: Fit | None = None
    classification: Fit | None = None
    package: str = ""
    most_rows: int | None = None
    seconds: float = 1.0


LEVELS = (0.01, *(round(0.05 * i, 2) for i in range(1, 20)), 0.99)
_FOLDS = 3
_PATIENCE = 50  # iterations
_LEAST = 1e-6  # probability of a class


@functools.cache
def load_libraries() -> None:
    """Load what the first fit of an estimator loads, so that no fit is charged for it."""
    from bayesify.estimators import BayesianRegressor

    x = np.linspace(0, 1, 40)
    BayesianRegressor(epochs=1, random_state=0).fit(x.reshape(-1, 1), x**2).predictive(x.reshape(-1, 1))


def _bayesify(method: str | None) -> tuple[Fit, Fit]:
    def regression(split: Split, seed: int, epochs: int | None = None) -> Callable[[pd.DataFrame], Any]:
        from bayesify.estimators import BayesianRegressor

        return BayesianRegressor(method=method, epochs=epochs, random_state=seed).fit(split.X, split.y).predictive

    def classification(split: Split, seed: int, epochs: int | None = None) -> Callable[[pd.DataFrame], Any]:
        from bayesify.estimators import BayesianClassifier

        return BayesianClassifier(method=method, epochs=epochs, random_state=seed).fit(split.X, split.y).predict_proba

    return regression, classification


def _numeric(X: pd.DataFrame, model: Any, scale: bool) -> Any:
    """The model behind imputation of medians and one-hot columns of categories, and standardization of the numbers."""
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    numbers = X.select_dtypes("number").columns.tolist()
    texts = [column for column in X.columns if column not in numbers]
    filled = SimpleImputer(strategy="median")
    one_hot = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    columns = make_column_transformer(
        (make_pipeline(filled, StandardScaler()) if scale else filled, numbers),
        (one_hot, texts),
    )
    return make_pipeline(columns, model)


def _scaled_target(model: Any) -> Any:
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.preprocessing import StandardScaler

    return TransformedTargetRegressor(model, transformer=StandardScaler())


def _with_residuals(make: Callable[[Split, int], Any]) -> Fit:
    """A point prediction with a normal distribution, whose standard deviation is that of residuals out of three folds."""

    def fit(split: Split, seed: int) -> Callable[[pd.DataFrame], GaussianPredictive]:
        from sklearn.model_selection import KFold, cross_val_predict

        folds = KFold(_FOLDS, shuffle=True, random_state=seed)
        residuals = split.y - cross_val_predict(make(split, seed), split.X, split.y, cv=folds)
        model, std = make(split, seed).fit(split.X, split.y), _root_mean_square(residuals)
        return lambda X: normal(model.predict(X), std, split.y.std())

    return fit


def _root_mean_square(values: np.ndarray) -> float:
    return math.sqrt(np.square(values).mean())


def _proba(make: Callable[[Split, int], Any]) -> Fit:
    def fit(split: Split, seed: int) -> Callable[[pd.DataFrame], np.ndarray]:
        return make(split, seed).fit(split.X, split.y).predict_proba

    return fit


def _boosting(kind: str, **options: Any) -> Callable[[Split, int], Any]:
    def make(split: Split, seed: int) -> Any:
        return getattr(import_module("sklearn.ensemble"), f"HistGradientBoosting{kind}")(random_state=seed, **options)

    return make


def _boosted_quantiles(split: Split, seed: int) -> Callable[[pd.DataFrame], QuantilePredictive]:
    models = [_boosting("Regressor", loss="quantile", quantile=level)(split, seed).fit(split.X, split.y) for level in LEVELS]
    return lambda X: QuantilePredictive(np.stack([model.predict(X) for model in models], 1), LEVELS, split.y.std())


def _catboost(kind: str, **options: Any) -> Callable[[Split, int], tuple[Any, np.ndarray]]:
    """A model with early stopping, and the rows that stopped it."""

    def fit(split: Split, seed: int) -> tuple[Any, np.ndarray]:
        from sklearn.model_selection import train_test_split

        model = getattr(import_module("catboost"), f"CatBoost{kind}")(
            thread_count=1, random_seed=seed, allow_writing_files=False, verbose=False, early_stopping_rounds=_PATIENCE, **options
        )
        X, labels = _texts(split.X), None if split.classes is None else split.y
        train, held_out = train_test_split(np.arange(len(X)), test_size=1 / 8, random_state=seed, stratify=labels)
        texts = X.select_dtypes(exclude="number").columns.tolist()
        evaluation = X.iloc[held_out], split.y[held_out]
        return model.fit(X.iloc[train], split.y[train], cat_features=texts, eval_set=evaluation), held_out

    return fit


def _texts(X: pd.DataFrame) -> pd.DataFrame:
    """Categories as texts, a gap as "nan"; CatBoost takes no others."""
    columns = X.select_dtypes(exclude="number").columns
    return X.assign(**{column: X[column].astype(object).where(X[column].notna(), "nan").astype(str) for column in columns})


def _catboost_regression(split: Split, seed: int) -> Callable[[pd.DataFrame], GaussianPredictive]:
    model, _ = _catboost("Regressor", loss_function="RMSEWithUncertainty")(split, seed)

    def predict(X: pd.DataFrame) -> GaussianPredictive:
        mean, variance = model.predict(_texts(X), prediction_type="RMSEWithUncertainty").T
        return normal(mean, np.sqrt(variance), split.y.std())

    return predict


def _catboost_points(split: Split, seed: int) -> Callable[[pd.DataFrame], GaussianPredictive]:
    model, held_out = _catboost("Regressor")(split, seed)
    std = _root_mean_square(split.y[held_out] - model.predict(_texts(split.X.iloc[held_out])))
    return lambda X: normal(model.predict(_texts(X)), std, split.y.std())


def _catboost_classification(split: Split, seed: int) -> Callable[[pd.DataFrame], np.ndarray]:
    model, _ = _catboost("Classifier")(split, seed)
    return lambda X: model.predict_proba(_texts(X))


def _ngboost(split: Split, seed: int) -> Callable[[pd.DataFrame], GaussianPredictive]:
    boosting = import_module("ngboost").NGBRegressor(random_state=seed, verbose=False)
    pipeline = _numeric(split.X, boosting, scale=False).fit(split.X, split.y)

    def predict(X: pd.DataFrame) -> GaussianPredictive:
        parameters = pipeline[-1].pred_dist(pipeline[:-1].transform(X)).params
        return normal(parameters["loc"], parameters["scale"], split.y.std())

    return predict


def _forest(kind: str, **options: Any) -> Callable[[Split, int], Any]:
    def make(split: Split, seed: int) -> Any:
        forest = getattr(import_module("sklearn.ensemble"), f"RandomForest{kind}")(random_state=seed, **options)
        return _numeric(split.X, forest, scale=False)

    return make


def _forest_regression(split: Split, seed: int) -> Callable[[pd.DataFrame], GaussianPredictive]:
    model = _forest("Regressor", oob_score=True)(split, seed).fit(split.X, split.y)
    std = _root_mean_square(split.y - model[-1].oob_prediction_)
    return lambda X: normal(model.predict(X), std, split.y.std())


def _process(split: Split, seed: int) -> Callable[[pd.DataFrame], GaussianPredictive]:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    kernel = ConstantKernel() * RBF() + WhiteKernel()
    process = GaussianProcessRegressor(kernel, normalize_y=True, random_state=seed)
    model = _numeric(split.X, process, scale=True).fit(split.X, split.y)

    def predict(X: pd.DataFrame) -> GaussianPredictive:
        mean, std = model.predict(X, return_std=True)
        return normal(mean, std, split.y.std())

    return predict


def _network(split: Split, seed: int) -> Any:
    from sklearn.neural_network import MLPRegressor

    return _scaled_target(_numeric(split.X, MLPRegressor(early_stopping=True, random_state=seed), scale=True))


def _network_classifier(split: Split, seed: int) -> Any:
    from sklearn.neural_network import MLPClassifier

    return _numeric(split.X, MLPClassifier(early_stopping=True, random_state=seed), scale=True)


def _ridge(split: Split, seed: int) -> Any:
    return _numeric(split.X, import_module("sklearn.linear_model").Ridge(random_state=seed), scale=True)


def _logistic(split: Split, seed: int) -> Any:
    return _numeric(split.X, import_module("sklearn.linear_model").LogisticRegression(max_iter=1000, random_state=seed), scale=True)


METHODS = {
    "bayesify": MethodOfTables("`BayesianRegressor()`, `BayesianClassifier()`", *_bayesify(None), seconds=10),
    "CatBoost": MethodOfTables(
        "`RMSEWithUncertainty`, or the loss for the classes; early stopping after 50 iterations without gain on 1/8 of the rows",
        _catboost_regression,
        _catboost_classification,
        package="catboost",
        seconds=5,
    ),
    "CatBoost RMSE": MethodOfTables(
        "its default loss, with early stopping as before; normal distribution with the standard deviation of the residuals of the "
        "held-out rows",
        _catboost_points,
        package="catboost",
        seconds=5,
    ),
    "HistGradientBoosting": MethodOfTables(
        "normal distribution with the standard deviation of the residuals of three folds; classes directly",
        _with_residuals(_boosting("Regressor")),
        _proba(_boosting("Classifier")),
    ),
    "HistGradientBoosting quantiles": MethodOfTables(
        "21 models, for the quantiles 0.01, 0.05, 0.1 ... 0.95, 0.99, with a density that is constant between "
        "them and has exponential tails",
        _boosted_quantiles,
        seconds=8,
    ),
    "bayesify MeanField": MethodOfTables('`method="MeanField"`', *_bayesify("MeanField"), seconds=20),
    "bayesify auto": MethodOfTables('`method="auto"`, without a time limit', *_bayesify("auto"), seconds=30),
    "NGBoost": MethodOfTables("normal distribution", _ngboost, package="ngboost", seconds=3),
    "RandomForest": MethodOfTables(
        "normal distribution with the standard deviation of the out-of-bag residuals",
        _forest_regression,
        _proba(_forest("Classifier")),
    ),
    "MLP": MethodOfTables(
        "`early_stopping=True`, standardized target; normal distribution as for HistGradientBoosting",
        _with_residuals(_network),
        _proba(_network_classifier),
    ),
    "Ridge": MethodOfTables("normal distribution as for HistGradientBoosting", _with_residuals(_ridge), seconds=0.1),
    "LogisticRegression": MethodOfTables("at most 1,000 iterations", None, _proba(_logistic), seconds=0.1),
    "GaussianProcess": MethodOfTables(
        "kernel `ConstantKernel() * RBF() + WhiteKernel()`, `normalize_y=True`; only up to 2,000 training rows",
        _process,
        most_rows=2000,
        seconds=20,
    ),
}
"""Methods by name."""


def classes(probs: np.ndarray) -> CategoricalPredictive:
    """Probabilities (N, K), each at least 1e-6, as a predictive distribution."""
    clipped = torch.tensor(np.asarray(probs, dtype=np.float64)).clamp_min(_LEAST)
    return CategoricalPredictive.from_logits(clipped.log().unsqueeze(0))


def missing(packages: Sequence[str]) -> list[str]:
    """Those of the packages that are not installed."""
    return [package for package in packages if package and find_spec(package) is None]
