"""Vector scaling, isotonic calibration and histogram binning against scikit-learn, SciPy and properties of their definitions."""

import json

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax
from sklearn.calibration import calibration_curve
from sklearn.isotonic import IsotonicRegression
from sklearn.neighbors import KNeighborsRegressor

from bayesify.calibration import HistogramBinning, IsotonicCalibration, ProbabilityMap, VectorScaling
from bayesify.estimators import BayesianClassifier
from bayesify.persistence import load_model, save_model
from bayesify.predictive import CategoricalPredictive

N, K = 400, 3
data_rng = np.random.default_rng(0)
logits = data_rng.normal(size=(4, N, K)) * 3 + data_rng.normal(size=(N, K)) * 2
p = CategoricalPredictive.from_logits(torch.from_numpy(logits))
y = torch.from_numpy(
    np.array([data_rng.choice(K, p=row) for row in np.exp(log_softmax(0.4 * p.log_probs.numpy() + [0.5, 0, -0.5], 1))])
)


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


def test_isotonic_calibration_is_one_regression_per_class(rng):
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


def test_bins_of_a_histogram_have_equal_numbers_of_rows(rng):
    fitted = HistogramBinning.fit(p, y)
    columns = []
    new = CategoricalPredictive.from_logits(torch.from_numpy(rng.normal(size=(1, 50, K)) * 9))  # other rows, and the ends
    for k in range(K):
        probs = p.probs[:, k].numpy()
        frequencies, _ = calibration_curve(y == k, probs, n_bins=10, strategy="quantile")
        np.testing.assert_allclose(fitted.frequencies[k], np.clip(frequencies, 0.5 / N, 1 - 0.5 / N), atol=1e-12)
        # an edge is in the middle between two rows, so a new row is in the bin of the nearest row
        rows = np.clip(frequencies, 0.5 / N, 1 - 0.5 / N).repeat(N // 10)
        nearest = KNeighborsRegressor(1).fit(np.sort(probs)[:, None], rows)
        columns.append(nearest.predict(new.probs[:, [k]].numpy()))
    np.testing.assert_allclose(fitted(new).probs, np.stack(columns, 1) / np.sum(columns, 0)[:, None], atol=1e-12)


def test_equal_probabilities_are_in_one_bin():
    confidence = torch.tensor([0.0] * 45 + [0.5] * 15 + [1.0] * 40, dtype=torch.float64)  # saturated, as of many networks
    ties = CategoricalPredictive.from_logits(torch.stack([confidence, 1 - confidence], -1).log()[None])
    labels = torch.tensor([0] * 9 + [1] * 36 + [0] * 10 + [1] * 5 + [0] * 30 + [1] * 10)
    fitted = HistogramBinning.fit(ties, labels)
    np.testing.assert_allclose(fitted.frequencies, [[0.2, 2 / 3, 0.75], [0.25, 1 / 3, 0.8]])
    np.testing.assert_allclose(fitted(ties).probs[[0, 46, 99], 0], [0.2, 2 / 3, 0.75])
    few = HistogramBinning.fit(ties.select(slice(44, 47)), labels[44:47])  # a row of label 1 and two of label 0
    np.testing.assert_allclose(few.frequencies, [[1 / 6, 5 / 6], [1 / 6, 5 / 6]])
    whole = HistogramBinning.fit(ties, labels, bins=1)
    np.testing.assert_allclose(whole(ties).probs[:, 0], 0.49)
    with pytest.raises(ValueError, match="bins"):
        HistogramBinning.fit(ties, labels, bins=0)


@pytest.mark.parametrize("kind", [VectorScaling, IsotonicCalibration, HistogramBinning])
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


@pytest.mark.parametrize("kind", [VectorScaling, IsotonicCalibration, HistogramBinning])
def test_classes_without_rows_and_impossible_classes_stay_finite(kind):
    sure = CategoricalPredictive.from_logits(torch.tensor([[[0.0, -torch.inf, 1.0]]]).repeat(1, 20, 1))
    mapped = kind.fit(sure, torch.tensor([0, 2] * 10))(sure)
    assert mapped.probs.isfinite().all()
    assert mapped.entropy.isfinite().all()
    torch.testing.assert_close(mapped.probs[0, [0, 2]], torch.tensor([0.5, 0.5]), atol=0.06, rtol=0)
    with pytest.raises(ValueError, match="two rows or more"):
        kind.fit(sure.select(slice(0, 1)), torch.tensor([0]))


@pytest.mark.default("isotonic", extended=["vector"])
@pytest.mark.parametrize("calibrate", ["vector", "isotonic", "histogram"])
def test_of_an_estimator(rng, calibrate, tmp_path):
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
