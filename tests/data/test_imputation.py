"""Unknown cells, and the values that take their place."""

import numpy as np
import pandas as pd
import pytest

from bayesify.data import conform, describe_columns, imputations, unknown_values

data_rng = np.random.default_rng(0)
TRAIN = pd.DataFrame(
    {
        "skewed": data_rng.exponential(3.0, 4000),
        "count": data_rng.integers(0, 4, 4000),
        "color": data_rng.choice(["red", "green", "blue"], 4000, p=[0.5, 0.3, 0.2]),
        "often": np.where(data_rng.random(4000) < 0.1, np.nan, data_rng.normal(size=4000)),
    }
)


def imputed(table: pd.DataFrame, draws: int = 200, train: pd.DataFrame = TRAIN):
    columns = describe_columns(train)
    conformed = conform(table, columns)
    unknown = unknown_values(conformed, columns)
    return unknown, imputations(conformed, unknown, columns, draws=draws, seed=3)


def test_cells_that_training_had_are_known():
    unknown, copies = imputed(TRAIN.iloc[:50], draws=2)
    assert not unknown.to_numpy().any()
    assert all(copy.equals(copies[0]) for copy in copies)


@pytest.mark.parametrize("gaps", [0, 9, 10])
def test_ten_missing_values_prepare_a_model(rng, gaps):
    column = pd.Series(rng.normal(size=100))
    column[:gaps] = np.nan
    unknown, _ = imputed(pd.DataFrame({"a": [0.0, np.nan]}), train=pd.DataFrame({"a": column}))
    assert unknown["a"].tolist() == [False, gaps < 10]


def test_many_rare_categories_prepare_a_model_for_new_ones():
    names = ["common"] * 900 + [f"rare {i}" for i in range(100)]
    few, many = (describe_columns(pd.DataFrame({"a": part})) for part in (names[:920], names))
    table = pd.DataFrame({"a": ["common", "new"]})
    assert unknown_values(conform(table, few), few)["a"].tolist() == [False, True]
    assert not unknown_values(conform(table, many), many)["a"].any()


def test_new_categories_are_unknown_where_all_have_indicators():
    many = describe_columns(pd.DataFrame({"a": np.repeat([f"shop {i}" for i in range(150)], 80)}))
    assert unknown_values(conform(pd.DataFrame({"a": ["shop 149", "new"]}), many), many)["a"].tolist() == [False, True]


def test_imputed_values_have_the_distribution_of_the_training_table():
    table = TRAIN.iloc[:3].copy()
    table.loc[0, ["skewed", "count"]] = np.nan
    table.loc[1, "color"] = "purple"
    table.loc[2, "often"] = np.nan
    unknown, copies = imputed(table)
    assert unknown.to_numpy().tolist() == [[True, True, False, False], [False, False, True, False], [False] * 4]
    skewed = np.array([copy["skewed"].iloc[0] for copy in copies])
    for level in (0.1, 0.25, 0.5, 0.75, 0.9):  # piecewise linear between 20 quantiles
        assert np.quantile(skewed, level) == pytest.approx(TRAIN["skewed"].quantile(level), rel=0.05)
    assert pd.Series([copy["count"].iloc[0] for copy in copies]).value_counts(normalize=True).to_dict() == pytest.approx(
        TRAIN["count"].value_counts(normalize=True).to_dict(), abs=0.06
    )
    assert pd.Series([copy["color"].iloc[1] for copy in copies]).value_counts(normalize=True).to_dict() == pytest.approx(
        TRAIN["color"].value_counts(normalize=True).to_dict(), abs=0.01
    )
    first = conform(table, describe_columns(TRAIN))
    assert all(copy[~unknown].equals(first[~unknown]) for copy in copies)  # the other cells, among them a gap, stay


def test_columns_are_imputed_independently_and_rows_alike():
    table = pd.DataFrame({"skewed": [np.nan] * 2, "count": 1, "color": [None] * 2, "often": 0.0})
    _, copies = imputed(table)
    assert all(copy["skewed"].nunique() == 1 and copy["color"].nunique() == 1 for copy in copies)
    skewed = np.array([copy["skewed"].iloc[0] for copy in copies])
    red = np.array([copy["color"].iloc[0] == "red" for copy in copies])
    assert abs(np.corrcoef(np.log(skewed), red)[0, 1]) < 0.15
