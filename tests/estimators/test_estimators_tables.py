"""Estimators on tables as they are: other libraries, sparse matrices, and values unlike those of training."""

import decimal
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

from bayesify.errors import DataError
from bayesify.estimators import BayesianClassifier, BayesianRegressor, cross_validate

FAST = {"method": "MCDropout", "epochs": 2, "hidden": (8,), "random_state": 0}


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    return pd.DataFrame({"a": rng.normal(size=40), "city": rng.choice(["Bonn", "Ulm"], 40), "n": rng.integers(0, 9, 40)})


def test_polars(table):
    polars = pytest.importorskip("polars")
    y = table["a"] + table["n"]
    frame = polars.DataFrame(table.to_dict("list"))
    expected = BayesianRegressor(**FAST).fit(table, y)
    model = BayesianRegressor(**FAST).fit(frame, polars.Series(y.tolist()))
    np.testing.assert_array_equal(model.predict(frame), expected.predict(table))
    np.testing.assert_array_equal(model.predict(table), expected.predict(table))
    assert model.feature_names_in_.tolist() == ["a", "city", "n"]
    assert model.score(frame, polars.Series(y.tolist())) == expected.score(table, y)
    classifier = BayesianClassifier(**FAST).fit(frame.drop("city"), frame["city"])
    assert set(classifier.predict(frame)) <= {"Bonn", "Ulm"}
    assert len(cross_validate(BayesianRegressor(**FAST), frame, polars.Series(y.tolist()), cv=2).rows) == 2


def test_targets_that_are_read_only_or_decimals(table):
    X = table[["a"]]
    counts = np.arange(len(X)) % 3 * 1.0
    counts.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        BayesianRegressor(likelihood="poisson", **FAST).fit(X, counts)
    labels = pd.Series([decimal.Decimal(int(value)) for value in counts])
    assert BayesianClassifier(**FAST).fit(X, labels).classes_.tolist() == [0, 1, 2]
    with pytest.raises(DataError, match=r"Labels are text, booleans or whole numbers; y.astype\(str\)"):
        BayesianClassifier(**FAST).fit(X, counts + 0.5)


def test_sparse_matrices():
    X = scipy.sparse.random_array((40, 5), density=0.5, rng=np.random.default_rng(0), format="csr")
    y = X.toarray().sum(1)
    model = BayesianRegressor(**FAST).fit(X, y)
    np.testing.assert_array_equal(model.predict(X), BayesianRegressor(**FAST).fit(X.toarray(), y).predict(X.toarray()))


def test_unusual_rows(table):
    model = BayesianRegressor(**FAST).fit(table, table["n"])
    assert (model.unusual(table) == "").all()
    new = table.head(2).assign(city=["Paris", "Ulm"], a=[0.0, np.nan])
    assert model.unusual(new).tolist() == ["city='Paris' not seen in training", "a missing, never missing in training"]
    array = BayesianRegressor(**FAST).fit(table[["a", "n"]].to_numpy(), table["n"])
    assert array.unusual([[1e6, 3]]).tolist()[0].startswith("x0=1,000,000 above")
