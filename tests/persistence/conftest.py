"""A fitted estimator and its model directory."""

import numpy as np
import pytest
from mixed_table import FAST, X, y

from bayesify.estimators import BayesianRegressor
from bayesify.persistence import save_model


@pytest.fixture(scope="module")
def model():
    return BayesianRegressor(**FAST).fit(X, y)


@pytest.fixture
def saved(tmp_path, model):
    save_model(model, tmp_path / "model", target="price", metrics={"rmse": np.float32(1.5), "bad": float("nan")})
    return tmp_path / "model"
