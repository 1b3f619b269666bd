"""Estimators trained in one pass are those trained one by one."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.metrics import r2_score
from sklearn.model_selection import GroupKFold, KFold, StratifiedKFold

from bayesify import SWAG, MCDropout, MeanField
from bayesify.estimators import BayesianClassifier, BayesianRegressor, cross_validate, fit_together

FAST = {"epochs": 4, "samples": 20, "hidden": (8,), "random_state": 3}
rng = np.random.default_rng(0)
X = rng.normal(size=(90, 3))
y = X @ [1.0, -2.0, 0.5] + 0.1 * rng.normal(size=90)


@pytest.mark.slow
def test_settings_seeds_and_data_side_by_side():
    models = [
        BayesianRegressor(**FAST, method=MeanField(prior_std=0.5)),
        BayesianRegressor(**FAST, method=MeanField(prior_std=2.0), learning_rate=0.03, beta=0.5),
        BayesianRegressor(**FAST, method=MCDropout(p=0.1), validation_fraction=0.2, patience=2),
        BayesianRegressor(**{**FAST, "epochs": 6}),
        BayesianRegressor(**FAST, method=SWAG(start=0.2, snapshots=6, rank=3)),  # the learning rate has another schedule
        BayesianRegressor(**FAST, likelihood="heteroscedastic"),
        BayesianClassifier(**FAST),
    ]
    data = [(X[:80], y[:80])] * 6 + [(X, np.where(y > 0, "high", "low"))]
    fit_together([(model, *part) for model, part in zip(models, data, strict=True)], progress=False)
    for model, part in zip(models, data, strict=True):
        alone = clone(model).fit(*part)
        np.testing.assert_allclose(model.history_.loss, alone.history_.loss, rtol=1e-4)
        got, expected = (m.predict_proba(X) if isinstance(m, BayesianClassifier) else m.predict(X) for m in (model, alone))
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_cross_validation_of_a_regressor():
    X, y = load_diabetes(return_X_y=True, as_frame=True)
    model = BayesianRegressor(**FAST)
    found = cross_validate(model, X, y, cv=4, progress=False)
    assert not hasattr(model, "bnn_")
    for (train, test), rows, fitted, predictive, (_, scores) in zip(
        KFold(4).split(X), found.rows, found.estimators, found.predictives, found.scores.iterrows(), strict=True
    ):
        np.testing.assert_array_equal(test, rows)
        alone = clone(model).fit(X.iloc[train], y.iloc[train])
        np.testing.assert_allclose(fitted.predict(X), alone.predict(X), rtol=1e-3)
        assert scores["score"] == pytest.approx(r2_score(y.iloc[test], predictive.mean.numpy()), abs=1e-6)
        assert scores["log_score"] == pytest.approx(fitted.log_score(X.iloc[test], y.iloc[test]))
    summary = found.summary()
    values = found.scores["log_score"].to_numpy()
    assert summary.loc["log_score", "mean"] == pytest.approx(values.mean())
    assert summary.loc["log_score", "standard_error"] == pytest.approx(values.std(ddof=1) / 2)


def test_cross_validation_of_a_classifier_is_stratified():
    X, y = load_iris(return_X_y=True)
    found = cross_validate(BayesianClassifier(**{**FAST, "epochs": 60}), X, y, cv=3, progress=False)
    for (_, test), rows in zip(StratifiedKFold(3).split(X, y), found.rows, strict=True):
        np.testing.assert_array_equal(test, rows)
    assert (found.scores["score"] > 0.8).all()


@pytest.mark.extended
def test_splitters_and_groups():
    groups = np.repeat(np.arange(9), 10)
    found = cross_validate(BayesianRegressor(**FAST), X, y, cv=GroupKFold(3), groups=groups, progress=False)
    assert all(set(groups[rows]).isdisjoint(groups[np.setdiff1d(np.arange(90), rows)]) for rows in found.rows)
    pairs = [(np.arange(60), np.arange(60, 90)), (np.arange(30, 90), np.arange(30))]
    found = cross_validate(BayesianRegressor(**FAST), pd.DataFrame(X, columns=list("abc")), y, cv=pairs, progress=False)
    np.testing.assert_array_equal(found.rows[1], np.arange(30))


def test_bad_input():
    model = BayesianRegressor(**FAST)
    with pytest.raises(ValueError, match="same estimator twice"):
        fit_together([(model, X, y), (model, X, y)])
    with pytest.raises(TypeError, match="got str"):
        fit_together([("model", X, y)])
    with pytest.raises(TypeError, match="estimator must be"):
        cross_validate(KFold(3), X, y)
    with pytest.raises(ValueError, match="n_splits=91"):
        cross_validate(model, X, y, cv=91)
    with pytest.raises(ValueError, match="patience needs"):
        cross_validate(BayesianRegressor(method="MeanField", **FAST, patience=2), X, y)


def test_one_that_diverges_does_not_take_the_others_with_it():
    models = [BayesianRegressor(**FAST), BayesianRegressor(**FAST, learning_rate=1e30)]
    with pytest.raises(FloatingPointError, match="estimator 1"), pytest.warns(RuntimeWarning, match="training 1 failed"):
        fit_together([(model, X, y) for model in models], progress=False)
    np.testing.assert_allclose(models[0].predict(X), clone(models[0]).fit(X, y).predict(X), rtol=1e-3, atol=1e-4)
