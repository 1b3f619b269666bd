"""The default model for tables: its encoding, its noise, its early stopping, and what is saved of it."""

import numpy as np
import pytest
import scipy.stats
import torch

from bayesify.estimators import BayesianClassifier, BayesianRegressor
from bayesify.estimators.network import PiecewiseLinearEncoding, mlp
from bayesify.persistence import load_model, save_model


class TestEncoding:
    def test_matches_its_definition(self, rng):
        x = torch.from_numpy(rng.normal(size=(400, 2)))
        encoding = PiecewiseLinearEncoding([1], bins=5).double()
        encoding.fit(x)
        edges = np.quantile(x[:, 1], np.linspace(0, 1, 6))
        for value in (edges[0] - 1, edges[1], 0.1, edges[3] + 0.01, edges[5] + 2):
            expected = []
            for t in range(5):
                share = (value - edges[t]) / (edges[t + 1] - edges[t])
                share = share if t == 0 else max(share, 0)
                expected.append(share if t == 4 else min(share, 1))
            row = torch.tensor([[7.0, value]], dtype=torch.float64)
            np.testing.assert_allclose(encoding(row)[0], [7.0, value, *expected], rtol=1e-5, atol=1e-5)

    def test_a_linear_layer_is_any_piecewise_linear_function(self, rng):
        x = torch.from_numpy(rng.uniform(size=(300, 1)))
        encoding = PiecewiseLinearEncoding([0], bins=6).double()
        encoding.fit(x)
        edges = np.quantile(x, np.linspace(0, 1, 7))
        y = np.interp(x[:, 0], edges, rng.normal(size=7))
        features = np.column_stack([encoding(x), np.ones(300)])
        coefficients, *_ = np.linalg.lstsq(features, y)
        np.testing.assert_allclose(features @ coefficients, y, atol=1e-6)

    def test_few_distinct_values_have_few_bins(self):
        x = torch.tensor([[0.0, 5.0], [1.0, 5.0], [3.0, 5.0]])
        encoding = PiecewiseLinearEncoding([0, 1], bins=4)
        encoding.fit(x)
        assert encoding(torch.tensor([[2.0, 5.0]])).tolist() == [[2.0, 5.0, 1.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]]

    def test_precedes_the_network(self):
        assert mlp(3, 2, (5,), encoded=[0, 2], bins=4)(torch.zeros(7, 3)).shape == (7, 2)


@pytest.mark.extended
def test_only_numbers_of_several_values_are_encoded(rng):
    X = np.column_stack([rng.normal(size=60), rng.integers(0, 2, 60), rng.integers(0, 9, 60)])
    model = BayesianRegressor(epochs=2, random_state=0).fit(X, X[:, 0])
    assert model.encoded_ == (0, 2)
    assert BayesianRegressor(epochs=2, random_state=0, encoding="standard").fit(X, X[:, 0]).encoded_ == ()


@pytest.mark.slow
def test_noise_that_is_skewed_and_grows_is_learned():
    rng = np.random.default_rng(0)  # the same data whichever tests run before
    x = rng.uniform(-1, 1, (1500, 1))
    scale = 0.2 + 0.8 * (x[:, 0] > 0)
    y = 3 * x[:, 0] + scale * rng.gamma(1.0, size=1500)  # exponential
    train, test = slice(1000), slice(1000, None)
    true = -scipy.stats.expon.logpdf(y[test], 3 * x[test, 0], scale[test]).mean()
    default, gaussian = (
        -BayesianRegressor(random_state=0, likelihood=likelihood).fit(x[train], y[train]).log_score(x[test], y[test])
        for likelihood in (None, "gaussian")
    )
    assert default < true + 0.25  # the density has a jump: 0.14 to 0.21 for eight seeds
    assert default < gaussian - 0.4


@pytest.mark.slow
def test_numbers_that_occur_often_do_not_make_the_noise_vanish(rng):
    y = rng.poisson(3.0, 400).astype(float)
    model = BayesianRegressor(epochs=30, random_state=0).fit(rng.normal(size=(400, 2)), y)
    assert model.likelihood_.min_std * y.std() == pytest.approx(1 / 12**0.5)
    assert model.log_score(rng.normal(size=(400, 2)), y) < 0  # no probability of a whole number exceeds 1


@pytest.mark.extended
def test_training_stops_early_and_few_rows_are_enough(rng):
    X, y = rng.normal(size=(300, 5)), rng.normal(size=300)
    model = BayesianRegressor(random_state=0).fit(X, y)
    assert model.history_.stopped_early
    assert len(model.history_) < 60
    assert abs(model.predict(X)).max() < 2  # noise is not learned
    assert np.isfinite(BayesianClassifier(epochs=3, random_state=0).fit(X[:12], y[:12] > 0).predict_proba(X)).all()


@pytest.mark.default("BayesianClassifier")
@pytest.mark.parametrize("kind", [BayesianRegressor, BayesianClassifier])
def test_saved_models_predict_the_same(rng, tmp_path, kind):
    X = rng.normal(size=(80, 3))
    y = X[:, 0] + 0.1 * rng.normal(size=80)
    model = kind(epochs=3, random_state=0).fit(X, y if kind is BayesianRegressor else y > 0)
    save_model(model, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    assert loaded.get_params()["encoding"] == "piecewise"
