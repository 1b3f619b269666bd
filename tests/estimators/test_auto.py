"""`method="auto"`: several models, weighted by held-out rows."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone

from bayesify.errors import BayesifyWarning, ConfigurationError
from bayesify.estimators import BayesianClassifier, BayesianRegressor, cross_validate
from bayesify.estimators.stacking import _splits
from bayesify.persistence import load_model, save_model

data_rng = np.random.default_rng(0)
X = pd.DataFrame({"a": data_rng.normal(size=80), "b": data_rng.normal(size=80), "c": np.where(data_rng.random(80) < 0.5, "x", "z")})
y = (2 * X["a"] + 1.5 * X["a"] * X["b"] + (X["c"] == "x") + 0.3 * data_rng.normal(size=80)).to_numpy()
labels = np.where(y > 0.5, "high", "low")
FAST = {"method": "auto", "random_state": 0, "progress": False}
QUICK = {"method": "Deterministic", "validation_fraction": 0.0}
SMALL = QUICK | {"hidden": (8,), "activation": "tanh", "epochs": 60}
MODELS = {
    "small": SMALL,
    "smooth": SMALL | {"activation": "silu", "epochs": 100},
    "constant": SMALL | {"hidden": (2,), "epochs": 1},
}


@pytest.fixture(autouse=True, scope="module")
def portfolio():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BayesianRegressor, "portfolio", MODELS | {"small": SMALL | {"likelihood": "heteroscedastic", "epochs": 300}})
        patch.setattr(BayesianClassifier, "portfolio", MODELS)
        yield


@pytest.fixture(scope="module")
def model(portfolio):
    return BayesianRegressor(**FAST).fit(X, y)


@pytest.mark.extended
def test_the_prediction_is_the_weighted_mixture_of_the_models(model):
    assert len(model.stack_) >= 2
    assert sum(model.stack_weights_) == pytest.approx(1)
    assert list(model.stack_weights_) == sorted(model.stack_weights_, reverse=True)
    targets = torch.tensor(y)
    densities = [part.predictive(X).log_prob(targets).exp().numpy() for part in model.stack_]
    np.testing.assert_allclose(model.predictive(X).log_prob(targets).exp(), np.dot(model.stack_weights_, densities), rtol=1e-6)
    np.testing.assert_allclose(model.predict(X), np.dot(model.stack_weights_, [part.predict(X) for part in model.stack_]))


@pytest.mark.extended
def test_the_leaderboard_has_all_models(model):
    board = model.leaderboard_
    assert list(board.index) == list(MODELS)
    assert board["weight"].sum() == pytest.approx(1)
    assert board["log_score"].idxmin() == "constant"
    assert (board["seconds"] > 0).all()


@pytest.mark.extended
def test_weights_come_from_models_that_have_not_seen_the_rows(rng, monkeypatch):
    # distinct rows whose targets are noise: a model that memorizes them is best on rows it has seen, and worst on others
    noise = rng.normal(size=60)
    memory = QUICK | {"hidden": (64, 64), "epochs": 300}
    flat = QUICK | {"hidden": (), "epochs": 60}
    monkeypatch.setattr(BayesianRegressor, "portfolio", {"memory": memory, "flat": flat})
    model = BayesianRegressor(**FAST).fit(rng.normal(size=(60, 8)), noise)
    assert model.leaderboard_["weight"].idxmax() == "flat"
    assert model.leaderboard_.loc["memory", "log_score"] < model.leaderboard_.loc["flat", "log_score"] - 0.5


@pytest.mark.parametrize("rows", [40, 1200])
def test_held_out_rows(rows):
    splits = _splits(torch.zeros(rows), seed=0)
    for train, held_out in splits:
        assert sorted(torch.cat([train, held_out]).tolist()) == list(range(rows))
    held = torch.cat([held_out for _, held_out in splits])
    assert len(held.unique()) == len(held) == (rows if rows < 1000 else rows // 5)


def test_every_class_has_a_row_to_train_on():
    target = torch.tensor([0] * 30 + [1] * 2 + [2])
    for train, held_out in _splits(target, seed=0):
        assert set(target[train].tolist()) == {0, 1, 2}
        assert 32 not in held_out


def test_few_rows_have_a_single_model():
    model = BayesianRegressor(**FAST).fit(X[:10], y[:10])
    assert list(model.leaderboard_["weight"]) == [1.0]
    assert model.predict(X).shape == (80,)


@pytest.mark.slow
def test_a_time_limit_leaves_models_out():
    with pytest.warns(BayesifyWarning, match="more than time_limit=0.001"):
        model = BayesianRegressor(**FAST, time_limit=1e-3).fit(X, y)
    assert model.leaderboard_["weight"].tolist() == [1.0, 0.0, 0.0]
    assert model.leaderboard_["seconds"].isna().tolist() == [False, True, True]


@pytest.mark.slow
def test_parameters_hold_for_all_models():
    model = BayesianRegressor(**FAST, hidden=(3,), epochs=2, likelihood="gaussian").fit(X, y)
    assert all(part.in_use("hidden") == (3,) and len(part.history_) <= 2 for part in model.stack_)
    counts = BayesianRegressor(**FAST, likelihood="poisson").fit(X, np.round(np.exp(y / 3)))
    assert list(counts.stack_weights_) == [1.0]  # counts have no weighted mixture


def test_rows_of_a_high_weight_choose_the_model():
    model = BayesianRegressor(**FAST, likelihood="poisson")
    log_probs = torch.tensor([[-1.0, -2.0]] * 3 + [[-9.0, -1.0]], dtype=torch.float64)
    for rows, best in ((torch.ones(4), 1), (torch.tensor([9.0, 9.0, 9.0, 0.1]), 0)):
        means = rows.double() @ log_probs / rows.sum()
        assert model._weights(log_probs, means, rows).argmax() == best
    mixture = BayesianRegressor(**FAST)._weights(log_probs, log_probs.mean(0), torch.tensor([0.0, 0.0, 0.0, 1.0]))
    assert mixture.tolist() == [0.0, 1.0]


@pytest.mark.extended
def test_sample_weight(model, monkeypatch):
    weights, original, seen = np.where(np.arange(80) < 40, 2.0, 1.0), BayesianRegressor._weights, []

    def recorded(self, log_probs, means, held_out):
        seen.append((means, np.average(log_probs.numpy(), axis=0, weights=held_out.numpy())))
        return original(self, log_probs, means, held_out)

    monkeypatch.setattr(BayesianRegressor, "_weights", recorded)
    weighted = BayesianRegressor(**FAST).fit(X, y, sample_weight=weights)
    ((means, expected),) = seen
    np.testing.assert_allclose(means, expected)
    np.testing.assert_allclose(weighted.leaderboard_["log_score"].sort_values(), np.sort(expected))
    assert weighted.leaderboard_.index.equals(model.leaderboard_.index)
    assert not np.allclose(weighted.predict(X), model.predict(X))


@pytest.mark.slow
@pytest.mark.parametrize("conformal", [False, pytest.param("cross", marks=pytest.mark.slow)])
def test_saved_models_predict_the_same(tmp_path, conformal):
    model = BayesianRegressor(**FAST, conformal=conformal).fit(X, y)
    save_model(model, tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    np.testing.assert_array_equal(loaded.predict_interval(X, 0.8), model.predict_interval(X, 0.8))
    pd.testing.assert_frame_equal(loaded.leaderboard_, model.leaderboard_)
    assert loaded.stack_weights_ == model.stack_weights_
    assert clone(loaded).method == "auto"


def test_classification(tmp_path):
    model = BayesianClassifier(**FAST).fit(X, labels)
    assert model.score(X, labels) > 0.8
    probabilities = [part.predict_proba(X) for part in model.stack_]
    np.testing.assert_allclose(model.predict_proba(X), np.tensordot(model.stack_weights_, probabilities, 1), rtol=1e-6)
    save_model(model, tmp_path / "m")
    np.testing.assert_array_equal(load_model(tmp_path / "m").predict_proba(X), model.predict_proba(X))


@pytest.mark.slow
def test_cross_validation():
    result = cross_validate(BayesianRegressor(**FAST), X, y, cv=2)
    assert all(len(model.stack_) >= 1 for model in result.estimators)


def test_impossible_combinations():
    with pytest.raises(ConfigurationError, match="time_limit=5 chooses the models of method='auto', got 'VSD'"):
        BayesianRegressor(method="VSD", time_limit=5).fit(X, y)
    with pytest.raises(ConfigurationError, match="calibrate='temperature' needs a single model"):
        BayesianClassifier(**FAST, calibrate="temperature").fit(X, labels)
    with pytest.raises(AttributeError, match="partial_fit"):
        BayesianRegressor(**FAST).partial_fit(X, y)
