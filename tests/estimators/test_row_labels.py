"""Rows and targets are paired by position; labels in another order are told."""

import warnings

import numpy as np
import pandas as pd
import pytest

from bayesify.estimators import BayesianRegressor

X = pd.DataFrame({"a": np.arange(12.0), "b": np.sin(np.arange(12.0))})
Y = 2 * X["a"]


def _fit(X: object, y: object) -> BayesianRegressor:
    return BayesianRegressor(method="MeanField", epochs=1, random_state=0).fit(X, y)


def test_labels_in_another_order_are_told() -> None:
    with pytest.warns(UserWarning, match=r"same index in another order, and are paired by position.* y.loc\[X.index\]"):
        _fit(X, Y.sample(frac=1, random_state=0))


@pytest.mark.parametrize(
    "y", [Y, Y.to_numpy(), Y.tolist(), Y.set_axis(range(100, 112)), Y.set_axis([0] * 12), pd.DataFrame({"y": Y})], ids=type
)
def test_nothing_is_told_of_other_labels(y: object) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*same index")
        _fit(X, y)
        shuffled = X.sample(frac=1, random_state=0)
        _fit(shuffled, Y.loc[shuffled.index])
