"""`BayesianClassifier(ordered=...)`: classes with an order."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.optimize import minimize

from bayesify import DeepEnsemble, Deterministic, Ordinal
from bayesify.errors import ConfigurationError
from bayesify.estimators import BayesianClassifier
from bayesify.persistence import load_model, save_model

ORDER = ["low", "medium", "high"]
FAST = {"epochs": 3, "samples": 3, "hidden": (8,), "random_state": 0}
rng = np.random.default_rng(0)
X = rng.normal(size=(150, 2))
latent = 2 * X[:, 0] + rng.logistic(size=150)
level = np.digitize(latent, [-1.0, 1.5])
text = np.array(ORDER)[level]


def proportional_odds(inputs, levels):
    """The maximum likelihood fit of a linear proportional odds model, by SciPy."""

    def probabilities(parameters, x):
        cuts = np.array([parameters[0], parameters[0] + np.exp(parameters[1])])
        below = stats.logistic.cdf(cuts - (x @ parameters[2:])[:, None])
        return np.diff(np.pad(below, ((0, 0), (1, 1)), constant_values=(0, 1)))

    def loss(parameters):
        return -np.log(probabilities(parameters, inputs)[np.arange(len(levels)), levels]).sum()

    return lambda x: probabilities(minimize(loss, np.zeros(4)).x, x)


def test_a_linear_network_is_the_proportional_odds_model():
    model = BayesianClassifier(
        method=Deterministic(),
        ordered=ORDER,
        hidden=(),
        encoding="standard",
        validation_fraction=0,
        epochs=600,
        batch_size=150,
        learning_rate=0.05,
        random_state=0,
    ).fit(X, text)
    expected = proportional_odds(X, level)(X)
    assert isinstance(model.likelihood_, Ordinal)
    assert model.classes_.tolist() == ORDER
    np.testing.assert_allclose(model.predict_proba(X), expected, atol=0.02)


@pytest.mark.slow
def test_order_of_numbers_categories_and_lists():
    numbers = BayesianClassifier(ordered=True, **FAST)
    assert numbers.fit(X, level * 10).classes_.tolist() == [0, 10, 20]
    column = pd.Series(pd.Categorical(text, categories=[*ORDER, "extreme"], ordered=True))
    model = BayesianClassifier(ordered=True, **FAST).fit(X, column)
    assert model.classes_.tolist() == ORDER  # no row is extreme
    np.testing.assert_array_equal(model.predict_proba(X), BayesianClassifier(ordered=ORDER, **FAST).fit(X, text).predict_proba(X))
    assert model.log_score(X, column) == pytest.approx(np.log(model.predict_proba(X)[np.arange(150), level]).mean(), rel=1e-5)
    listed = BayesianClassifier(ordered=[*ORDER, "extreme"], **FAST).fit(X, text)
    assert listed.predict_proba(X).shape == (150, 4)


@pytest.mark.default("method0", "MeanField", extended=["SWAG"])
@pytest.mark.parametrize("method", [DeepEnsemble(members=2), "MeanField", "SWAG", "auto"])
def test_saved_and_calibrated(method, tmp_path):
    model = BayesianClassifier(method=method, ordered=ORDER, **FAST).fit(X, text)
    save_model(model, tmp_path / "model")
    np.testing.assert_array_equal(load_model(tmp_path / "model").predict_proba(X), model.predict_proba(X))


@pytest.mark.default("extra[!3]")
@pytest.mark.parametrize("extra", [{"calibrate": "vector"}, {"calibrate": "isotonic"}, {"conformal": True}, {"conformal": "cross"}])
def test_with_calibration(extra):
    model = BayesianClassifier(ordered=ORDER, method="MeanField", **extra, **FAST).fit(X, text)
    probabilities = model.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(1), 1, atol=1e-5)
    if "conformal" in extra:
        assert model.predict_set(X, 0.8).shape == (150, 3)


def test_bad_orders():
    def fit(ordered, y=text, **params):
        BayesianClassifier(ordered=ordered, **FAST, **params).fit(X, y)

    with pytest.raises(ConfigurationError, match=r"ordered=True needs labels that are numbers.*got 'high'"):
        fit(True)
    with pytest.raises(ConfigurationError, match=r"lacks the labels \['medium'\]"):
        fit(["low", "high"])
    with pytest.raises(ConfigurationError, match="twice"):
        fit([*ORDER, "low"])
    with pytest.raises(TypeError, match="ordered must be True, False or all labels"):
        fit("low")
    with pytest.raises(ConfigurationError, match="choose 'vector', 'isotonic' or"):
        fit(ORDER, calibrate="temperature")
