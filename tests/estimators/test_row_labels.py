"""Rows and targets are paired by position; labels in another order are told."""

import warnings

import numpy as np
import pandas as pd
import pytest

from bayesify import MeanField
from bayesify.estimators import BayesianClassifier, BayesianRegressor, cross_validate

X = pd.DataFrame({"a": np.arange(12.0), "b": np.sin(np.arange(12.0))})
Y = 2 * X["a"]


def _fit(X: object, y: object) -> BayesianRegressor:
    return BayesianRegressor(method="MeanField", epochs=1, random_state=0).fit(X, y)


def test_labels_in_another_order_are_told() -> None:
    with pytest.warns(UserWarning, match=r"same index in another order, and are paired by position.* y.loc\[X.index\]"):
        _fit(X, Y.sample(frac=1, random_state=0))


def test_labels_in_another_order_are_told_wherever_targets_or_weights_are_given() -> None:
    model, other = _fit(X, Y), Y.sample(frac=1, random_state=0)
    classifier = BayesianClassifier(method="MeanField", epochs=1, random_state=0).fit(X, Y > 8)
    sequential = BayesianRegressor(method=MeanField(prior="sequential"), epochs=1, random_state=0).fit(X, Y)
    for name, use in (
        ("y", lambda: model.score(X, other)),
        ("y", lambda: model.log_score(X, other)),
        ("y", lambda: classifier.score(X, other > 8)),
        ("y", lambda: classifier.log_score(X, other > 8)),
        ("y", lambda: cross_validate(model, X, other, cv=3, progress=False)),
        ("y", lambda: sequential.partial_fit(X, other)),
        ("sample_weight", lambda: sequential.partial_fit(X, Y, 1 + other)),
        ("sample_weight", lambda: model.fit(X, Y, 1 + other)),
    ):
        with pytest.warns(UserWarning, match=f"X and {name} have the same index in another order"):
            use()


@pytest.mark.parametrize(
    "y", [Y, Y.to_numpy(), Y.tolist(), Y.set_axis(range(100, 112)), Y.set_axis([0] * 12), pd.DataFrame({"y": Y})], ids=type
)
def test_nothing_is_told_of_other_labels(y: object) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*same index")
        _fit(X, y)
        shuffled = X.sample(frac=1, random_state=0)
        _fit(shuffled, Y.loc[shuffled.index])
