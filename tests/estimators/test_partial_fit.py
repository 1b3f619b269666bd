"""`partial_fit`: the posterior of the former rows is the prior of the next."""

import numpy as np
import pytest

from bayesify import MeanField
from bayesify.estimators import BayesianClassifier, BayesianRegressor
from bayesify.persistence import load_model, save_model

SETTINGS = {
    "method": MeanField(prior="sequential"),
    "hidden": (),
    "beta": 1.0,
    "epochs": 60,
    "learning_rate": 0.05,
    "random_state": 0,
}
rng = np.random.default_rng(0)
X = rng.normal(size=(200, 3))
y = X @ [1.0, -2.0, 0.5] + 0.5 * rng.normal(size=200)


def test_parts_give_what_all_rows_give(tmp_path):
    whole = BayesianRegressor(**SETTINGS).fit(X, y)
    first = BayesianRegressor(**SETTINGS).partial_fit(X[:30], y[:30])
    uncertain = first.predictive(X).epistemic.mean()
    save_model(first, tmp_path / "m", target="y")
    parts = load_model(tmp_path / "m")
    parts.partial_fit(X[30:100], y[30:100]).partial_fit(X[100:], y[100:])
    assert np.corrcoef(parts.predict(X), whole.predict(X))[0, 1] > 0.999
    epistemic = [model.predictive(X).epistemic.mean() for model in (parts, whole)]
    assert epistemic[0] == pytest.approx(epistemic[1], rel=0.5)  # from 100 rows it would be twice as large
    assert uncertain > 3 * epistemic[0]


def test_updates_have_the_same_noise_after_loading_and_after_another_fit(tmp_path):
    settings = SETTINGS | {"epochs": 3}
    first = BayesianRegressor(**settings).fit(X[:30], y[:30]).partial_fit(X[30:60], y[30:60])
    save_model(first, tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    expected = first.partial_fit(X[60:], y[60:]).predict(X)
    np.testing.assert_array_equal(loaded.partial_fit(X[60:], y[60:]).predict(X), expected)
    again = loaded.fit(X[:30], y[:30]).partial_fit(X[30:60], y[30:60]).partial_fit(X[60:], y[60:])
    np.testing.assert_array_equal(again.predict(X), expected)


def test_classes_of_the_first_rows_stay():
    model = BayesianClassifier(**SETTINGS).partial_fit(X[:100], y[:100] > 0).partial_fit(X[100:], y[100:] > 0)
    assert model.score(X, y > 0) > 0.9
    with pytest.raises(ValueError, match="labels that are not in training"):
        model.partial_fit(X, np.full(200, 2))


def test_other_posteriors_have_no_partial_fit():
    assert not hasattr(BayesianRegressor(), "partial_fit")
    with pytest.raises(AttributeError, match="has no attribute 'partial_fit'"):
        BayesianRegressor(method="MeanField").partial_fit(X, y)
