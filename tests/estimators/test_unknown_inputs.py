"""A missing value or a new category costs certainty: y = 2 a + b + effect of c + noise, with independent inputs."""

import numpy as np
import pandas as pd
import pytest
import torch

from bayesify.estimators import BayesianClassifier, BayesianRegressor

EFFECT = {"x": -1.5, "y": 0.0, "z": 1.5}


def table(rows: int, seed: int):
    rng = np.random.default_rng(seed)
    X = pd.DataFrame({"a": rng.normal(size=rows), "b": rng.normal(size=rows), "c": rng.choice(list(EFFECT), rows)})
    return X, (2 * X["a"] + X["b"] + X["c"].map(EFFECT) + rng.normal(0, 0.3, rows)).to_numpy()


@pytest.fixture(scope="module")
def regressor():
    return BayesianRegressor(method="MeanField", hidden=(), epochs=60, learning_rate=0.03, random_state=0).fit(*table(800, 0))


@pytest.mark.default("a-nan-4.0")
@pytest.mark.parametrize(
    ("column", "unknown", "variance"), [("a", np.nan, 4.0), ("b", np.nan, 1.0), ("c", None, 1.5), ("c", "new", 1.5)]
)
def test_the_variance_grows_by_that_of_the_input(regressor, column, unknown, variance):
    X, y = table(600, 1)
    X[column] = unknown
    predictive = regressor.predictive(X)
    assert torch.allclose(predictive.variance, torch.tensor(variance + 0.09, dtype=torch.float64), rtol=0.2)
    assert (predictive.epistemic < 0.05 * variance).all()  # more data would not tell the input
    assert regressor.log_score(X, y) > -0.5 * np.log(2 * np.pi * (variance + 0.09)) - 0.5 - 0.2
    lower, upper = predictive.interval(0.9)
    covered = ((lower.numpy() <= y) & (y <= upper.numpy())).mean()
    assert covered == pytest.approx(0.9, abs=0.05) if column != "c" else covered > 0.9


def test_complete_rows_are_predicted_as_alone(regressor):
    X, _ = table(20, 2)
    complete = regressor.predictive(X)
    X.loc[::2, "a"] = np.nan
    mixed, alone = regressor.predictive(X), regressor.predictive(X.iloc[[4]])
    assert torch.allclose(mixed.means[:, 1::2], complete.means[:, 1::2], rtol=1e-12)
    assert torch.allclose(mixed.mean[4], alone.mean[0], rtol=1e-12)
    assert torch.allclose(mixed.variance[4], alone.variance[0], rtol=1e-12)


def test_a_class_is_uncertain_without_the_input_that_decides():
    X, _ = table(600, 3)
    label = np.where(X["a"] > 0, "high", "low")
    model = BayesianClassifier(method="MeanField", hidden=(), epochs=60, learning_rate=0.03, random_state=0).fit(X, label)
    known = model.predict_proba(X).max(1).mean()
    X["a"] = np.nan
    assert known > 0.9
    assert model.predict_proba(X) == pytest.approx(0.5, abs=0.1)


def test_what_was_often_missing_has_an_indicator():
    X, y = table(800, 4)
    X.loc[::4, "a"] = np.nan
    y = y + 5 * X["a"].isna()  # missing values mean something
    model = BayesianRegressor(method="MeanField", hidden=(), epochs=60, learning_rate=0.03, random_state=0).fit(X, y)
    predictive = model.predictive(X)
    assert predictive.mean[::4].mean() - predictive.mean[1::4].mean() == pytest.approx(5, abs=0.5)
    assert model.in_features_ == 2 + 1 + 3
