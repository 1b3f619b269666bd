"""Vector scaling and isotonic calibration against scikit-learn, SciPy and properties of their definitions."""

import json

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax
from sklearn.isotonic import IsotonicRegression

from bayesify.calibration import IsotonicCalibration, ProbabilityMap, VectorScaling
from bayesify.estimators import BayesianClassifier
from bayesify.persistence import load_model, save_model
from bayesify.predictive import CategoricalPredictive

N, K = 400, 3
rng = np.random.default_rng(0)
logits = rng.normal(size=(4, N, K)) * 3 + rng.normal(size=(N, K)) * 2
p = CategoricalPredictive.from_logits(torch.from_numpy(logits))
y = torch.from_numpy(np.array([rng.choice(K, p=row) for row in np.exp(log_softmax(0.4 * p.log_probs.numpy() + [0.5, 0, -0.5], 1))]))


def test_vector_scaling_has_the_highest_penalized_likelihood():
    log_probs = p.log_probs.numpy()

    def loss(parameters):
        w, b = parameters[:K], parameters[K:]
        return -log_softmax(w * log_probs + b, 1)[np.arange(N), y].sum() + (((w - 1) ** 2).sum() + (b**2).sum()) / 200

    expected = minimize(loss, np.r_[np.ones(K), np.zeros(K)], tol=1e-10).x
    fitted = VectorScaling.fit(p, y)
    np.testing.assert_allclose([*fitted.scale, *fitted.shift], expected, atol=1e-3)
    w, b = np.split(expected, 2)
    np.testing.assert_allclose(fitted(p).log_probs, log_softmax(w * log_probs + b, 1), atol=1e-2)
    assert 0.2 < np.mean(fitted.scale) < 0.7  # 0.4 generated the labels


def test_isotonic_calibration_is_one_regression_per_class():
    fitted = IsotonicCalibration.fit(p, y)
    columns = [IsotonicRegression(out_of_bounds="clip").fit(p.probs[:, k], y == k).predict(p.probs[:, k]) for k in range(K)]
    expected = np.clip(np.stack(columns, 1), 0.5 / N, 1 - 0.5 / N)
    np.testing.assert_allclose(fitted(p).probs, expected / expected.sum(1, keepdims=True), atol=1e-6)
    inside = CategoricalPredictive.from_logits(torch.from_numpy(rng.normal(size=(1, 50, K)) * 9))  # other rows, and the ends
    columns = [
        IsotonicRegression(out_of_bounds="clip", y_min=0.5 / N, y_max=1 - 0.5 / N)
        .fit(p.probs[:, k], y == k)
        .predict(inside.probs[:, k])
        for k in range(K)
    ]
    np.testing.assert_allclose(fitted(inside).probs, np.stack(columns, 1) / np.sum(columns, 0)[:, None], atol=1e-6)


@pytest.mark.parametrize("kind", [VectorScaling, IsotonicCalibration])
def test_improves_the_likelihood_and_keeps_the_epistemic_share(kind):
    fitted = kind.fit(p, y)
    mapped = fitted(p)
    assert mapped.log_prob(y).mean() > p.log_prob(y).mean() + 0.2
    np.testing.assert_allclose(mapped.epistemic / mapped.entropy, p.epistemic / p.entropy, atol=1e-6)
    np.testing.assert_allclose(mapped.probs.sum(1), 1)
    restored = ProbabilityMap.from_dict(json.loads(json.dumps(fitted.to_dict())))
    np.testing.assert_array_equal(restored(p).probs, mapped.probs)


def test_thirty_rows_make_an_underconfident_model_confident():
    hesitant = CategoricalPredictive.from_logits(torch.eye(3, dtype=torch.float64).repeat(10, 1)[None] * 0.3)
    mapped = VectorScaling.fit(hesitant, torch.arange(3).repeat(10))(hesitant)  # always right, with 40 % confidence
    assert hesitant.probs.max() < 0.41
    assert mapped.probs.amax(1).min() > 0.9


@pytest.mark.parametrize("kind", [VectorScaling, IsotonicCalibration])
def test_classes_without_rows_and_impossible_classes_stay_finite(kind):
    sure = CategoricalPredictive.from_logits(torch.tensor([[[0.0, -torch.inf, 1.0]]]).repeat(1, 20, 1))
    mapped = kind.fit(sure, torch.tensor([0, 2] * 10))(sure)
    assert mapped.probs.isfinite().all()
    assert mapped.entropy.isfinite().all()
    torch.testing.assert_close(mapped.probs[0, [0, 2]], torch.tensor([0.5, 0.5]), atol=0.06, rtol=0)
    with pytest.raises(ValueError, match="two rows or more"):
        kind.fit(sure.select(slice(0, 1)), torch.tensor([0]))


@pytest.mark.parametrize("calibrate", ["vector", "isotonic"])
def test_of_an_estimator(calibrate, tmp_path):
    X = rng.normal(size=(200, 2))
    labels = np.where(X[:, 0] + rng.normal(size=200) > 0, "high", "low")
    settings = {"method": "Deterministic", "hidden": (8,), "epochs": 30, "validation_fraction": 0.0, "random_state": 0}
    model = BayesianClassifier(**settings, calibrate=calibrate).fit(X, labels)
    kept = BayesianClassifier(**settings, calibrate="temperature").fit(X, labels)
    assert model.probability_map_ is not None
    assert kept.probability_map_ is None
    assert not np.allclose(model.predict_proba(X), kept.predict_proba(X))
    save_model(model, tmp_path / "m")
    np.testing.assert_array_equal(load_model(tmp_path / "m").predict_proba(X), model.predict_proba(X))
    assert BayesianClassifier(**settings).fit(X, labels).probability_map_ is None
