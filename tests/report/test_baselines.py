"""Baselines of the report: scikit-learn's own numbers, honest standard deviations, bounded cost."""

import math
import time

import pytest
import torch

from bayesify.report import assess, baselines
from bayesify.report.baselines import fit_baselines
from bayesify.report.skill import constant_baseline

np = pytest.importorskip("numpy")
pd = pytest.importorskip("pandas")
sklearn_linear = pytest.importorskip("sklearn.linear_model")
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.metrics import log_loss

from bayesify.estimators import BayesianClassifier, BayesianRegressor


def table(rows, columns=4, seed=0):
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(rng.normal(size=(rows, columns)), columns=[f"x{i}" for i in range(columns)])
    X["kind"] = np.where(rng.random(rows) < 0.5, "a", "b")
    X.loc[::7, "x1"] = np.nan
    y = 2 * X["x0"] + (X["kind"] == "a") + 0.5 * rng.normal(size=rows)
    return X, y


def test_regression_is_that_of_sklearn_with_held_out_residuals():
    X, y = table(400)
    model = BayesianRegressor(epochs=1, random_state=0).fit(X[:250], y[:250])
    found = fit_baselines(model, X[:250], torch.tensor(y[:250].to_numpy()), X[250:])
    assert found.note == "Baselines have the same columns."
    inputs = model.preprocessing_.transform(X)
    boosting = HistGradientBoostingRegressor(random_state=0).fit(inputs[:250], y[:250])
    np.testing.assert_allclose(found.predictives["gradient boosting"].mean, boosting.predict(inputs[250:]), rtol=1e-5)
    for p in found.predictives.values():  # the standard deviation is that of new rows, not of training rows
        residual = (p.mean - torch.tensor(y[250:].to_numpy())).square().mean().sqrt().item()
        assert p.std[0].item() == pytest.approx(residual, rel=0.25)
    assert found.predictives["ridge regression"].std[0].item() == pytest.approx(0.5, rel=0.15)


@pytest.mark.parametrize("scale", [1e-9, 1e12])
def test_regression_does_not_depend_on_the_unit_of_the_target(scale):
    X, y = table(400)
    model = BayesianRegressor(method="Deterministic", epochs=1, random_state=0).fit(X, y)
    found, scaled = (fit_baselines(model, X, torch.tensor(unit * y.to_numpy()), X).predictives for unit in (1.0, scale))
    for name, p in found.items():
        torch.testing.assert_close(scaled[name].mean / scale, p.mean, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(scaled[name].std / scale, p.std, rtol=1e-6, atol=0)


def test_classification_is_that_of_sklearn():
    X, y = table(300)
    labels = np.digitize(y, [0.0, 1.0])
    model = BayesianClassifier(epochs=1, random_state=0).fit(X[:200], labels[:200])
    found = fit_baselines(model, X[:200], torch.tensor(labels[:200]), X[200:])
    inputs = model.preprocessing_.transform(X)
    linear = sklearn_linear.LogisticRegression(max_iter=1000).fit(inputs[:200], labels[:200])
    boosting = HistGradientBoostingClassifier(random_state=0).fit(inputs[:200], labels[:200])
    scores = assess(model.predictive(X[200:]), torch.tensor(labels[200:]), baselines=found.predictives).baselines
    for name, theirs in (("logistic regression", linear), ("gradient boosting", boosting)):
        assert scores[name]["nll"] == pytest.approx(log_loss(labels[200:], theirs.predict_proba(inputs[200:])), rel=1e-3)


@pytest.mark.extended
def test_of_large_tables_some_rows_are_used_and_every_class(monkeypatch):
    X, y = table(400)
    labels = np.where(np.arange(400) == 3, 2, (y > 0).astype(int))  # a class with a single row
    model = BayesianClassifier(epochs=1, random_state=0).fit(X, labels)
    for most in (40, 350):
        monkeypatch.setattr(baselines, "_MOST_ROWS", most)
        found = fit_baselines(model, X, torch.tensor(labels), X)
        assert "of 400 training rows" in found.note
        for p in found.predictives.values():
            assert math.isfinite(p.log_prob(torch.tensor(labels)).min())
            torch.testing.assert_close(p.probs.sum(1), torch.ones(400, dtype=torch.float64))


@pytest.mark.extended
def test_of_many_columns_fewer_rounds_are_used(monkeypatch):
    X, y = table(100)
    model = BayesianRegressor(epochs=1, random_state=0).fit(X, y)
    monkeypatch.setattr(baselines, "_MOST_TREES", 100)
    assert "boosting has 14 rounds" in fit_baselines(model, X, torch.tensor(y.to_numpy()), X).note


@pytest.mark.slow
def test_300_columns_and_256_rows_get_no_green_tick_and_a_way_out():
    """Ten of 300 columns matter; the network overfits."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(320, 300)), columns=[f"x{i}" for i in range(300)])
    y = X.iloc[:, :4].sum(axis=1) + 0.5 * rng.normal(size=320)
    model = BayesianRegressor(epochs=30, random_state=0).fit(X[:256], y[:256])
    started = time.process_time()
    found = fit_baselines(model, X[:256], torch.tensor(y[:256].to_numpy()), X[256:])
    assert time.process_time() - started < 60
    verdict = assess(model.predictive(X[256:]), torch.tensor(y[256:].to_numpy()), baselines=found.predictives).verdict
    skill = next(sentence for sentence in verdict if "RMSE is" in sentence.finding)
    assert skill.mark != "good"
    assert "clearly better" in skill.meaning
    assert "--method" in skill.meaning


def test_baselines_of_counts_predict_counts():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"a": rng.normal(size=400)})
    y = rng.negative_binomial(4, 4 / (4 + np.exp(2 + 0.8 * X["a"])))
    model = BayesianRegressor(method="MCDropout", likelihood="negative-binomial", epochs=1, random_state=0).fit(X[:300], y[:300])
    baselines = fit_baselines(model, X[:300], torch.tensor(y[:300], dtype=torch.float64), X[300:])
    assert list(baselines.predictives) == ["Poisson regression", "gradient boosting"]
    p = baselines.predictives["Poisson regression"]
    assert p.dispersions[0, 0].item() == pytest.approx(0.25, rel=0.4)
    constant = constant_baseline(p, torch.tensor(y[300:]), torch.tensor(y[:300]))
    assert p.log_prob(torch.tensor(y[300:])).mean() > constant.log_prob(torch.tensor(y[300:])).mean() + 0.1
