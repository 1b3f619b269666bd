"""`BayesianClassifier(class_weight=...)`: weights of labels as weights of rows."""

import re

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.utils.class_weight import compute_sample_weight

from bayesify.errors import ConfigurationError
from bayesify.estimators import BayesianClassifier
from bayesify.estimators.class_weights import row_weights
from bayesify.persistence import load_model, save_model

data_rng = np.random.default_rng(0)
X = data_rng.normal(size=(300, 2))
labels = np.where(X @ [1.0, 0.5] + data_rng.normal(size=300) > 1.6, "rare", "usual")
FAST = {"method": "MCDropout", "hidden": (8,), "epochs": 4, "random_state": 0, "progress": False}
LINEAR = {
    "method": "Deterministic",
    "hidden": (),
    "epochs": 1500,
    "batch_size": 300,
    "learning_rate": 0.05,
    "validation_fraction": 0.0,
}


def probabilities(class_weight=None, sample_weight=None, **params):
    return BayesianClassifier(class_weight=class_weight, **{**FAST, **params}).fit(X, labels, sample_weight).predict_proba(X)


def test_balanced_weights_are_those_of_scikit_learn():
    np.testing.assert_allclose(row_weights("balanced", labels, None), compute_sample_weight("balanced", labels))


def test_balanced_classes_have_equal_total_weights_also_with_weights_of_rows(rng):
    own = rng.uniform(0, 3, size=300)
    weights = row_weights("balanced", labels, own)
    totals = [weights[labels == label].sum() for label in ("rare", "usual")]
    np.testing.assert_allclose(totals, own.sum() / 2)
    np.testing.assert_allclose((weights / own)[labels == "rare"], (weights / own)[labels == "rare"][0])
    np.testing.assert_array_equal(row_weights("balanced", labels, labels == "rare"), labels == "rare")


@pytest.mark.parametrize("class_weight", ["balanced", {"rare": 5.0}])
def test_it_equals_weights_of_rows_by_hand(class_weight):
    share = (labels == "rare").mean()
    by_label = (
        {"rare": 1 / (2 * share), "usual": 1 / (2 * (1 - share))} if class_weight == "balanced" else {"rare": 5.0, "usual": 1.0}
    )
    by_hand = np.array([by_label[label] for label in labels])
    np.testing.assert_allclose(probabilities(class_weight), probabilities(sample_weight=by_hand), rtol=1e-4)
    own = np.arange(300) % 3
    if class_weight != "balanced":
        np.testing.assert_allclose(probabilities(class_weight, own), probabilities(sample_weight=own * by_hand), rtol=1e-4)


@pytest.mark.slow
def test_a_linear_network_equals_weighted_logistic_regression():
    """The optimum of the weighted likelihood, by another solver. Without weights the rare class has less than half of it."""
    params = {**LINEAR, "beta": 0.0}
    reference = LogisticRegression(C=np.inf, class_weight="balanced", max_iter=1000).fit(X, labels).predict_proba(X)
    np.testing.assert_allclose(probabilities("balanced", **params), reference, atol=0.02)
    assert probabilities(**params)[:, 0].mean() < 0.6 * reference[:, 0].mean()


@pytest.mark.slow
def test_the_default_ensemble_and_the_stack_take_it():
    plain, balanced = (
        BayesianClassifier(class_weight=weight, epochs=5, random_state=0, progress=False).fit(X, labels)
        for weight in (None, "balanced")
    )
    recalls = [(model.predict(X)[labels == "rare"] == "rare").mean() for model in (plain, balanced)]
    assert recalls[1] > recalls[0] + 0.1


def test_numbers_as_labels_are_saved_and_loaded(tmp_path):
    numbers = np.where(labels == "rare", 7, 3)
    weights = {np.int64(7): 5, 3: 1.0}
    model = BayesianClassifier(class_weight=weights, **FAST).fit(X, numbers)
    save_model(model, tmp_path / "model")
    restored = load_model(tmp_path / "model")
    assert restored.class_weight == {7: 5.0, 3: 1.0}
    np.testing.assert_array_equal(restored.predict_proba(X), model.predict_proba(X))
    by_hand = BayesianClassifier(**FAST).fit(X, numbers, np.where(numbers == 7, 5.0, 1.0))
    np.testing.assert_allclose(model.predict_proba(X), by_hand.predict_proba(X), rtol=1e-4)


def test_partial_fit_weights_the_new_rows():
    from bayesify import MeanField

    params = {**FAST, "method": MeanField(prior="sequential")}
    first, second = (BayesianClassifier(**params, class_weight=weight).fit(X, labels) for weight in ({"rare": 5.0}, None))
    second.fit(X, labels, np.where(labels == "rare", 5.0, 1.0))
    first.partial_fit(X[:50], labels[:50])
    second.partial_fit(X[:50], labels[:50], np.where(labels[:50] == "rare", 5.0, 1.0))
    np.testing.assert_allclose(first.predict_proba(X), second.predict_proba(X), rtol=1e-4)
    with pytest.raises(ConfigurationError, match="class_weight='balanced' needs all rows at once"):
        BayesianClassifier(**params, class_weight="balanced").partial_fit(X, labels)


@pytest.mark.parametrize(
    ("class_weight", "message"),
    [
        ("even", "class_weight must be None, 'balanced' or a dict of label and weight, got 'even'"),
        ({"rare": 0}, "class_weight of 'rare' must be a positive number, got 0"),
        ({"rare": "5"}, "class_weight of 'rare' must be a positive number, got '5'"),
        ({"rare": float("nan")}, "class_weight of 'rare' must be a positive number, got nan"),
        ({"scarce": 2.0}, "class_weight has labels that y lacks: 'scarce'; the labels of y are 'rare', 'usual'"),
    ],
)
def test_bad_weights(class_weight, message):
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        BayesianClassifier(class_weight=class_weight, **FAST).fit(X, labels)


@pytest.mark.parametrize("params", [{"conformal": True}, {"calibrate": "temperature"}])
def test_calibration_is_refused(params):
    with pytest.raises(ConfigurationError, match=f"class_weight cannot be combined with {next(iter(params))}="):
        BayesianClassifier(class_weight="balanced", **FAST, **params).fit(X, labels)
