"""Values that no training row prepared the model for, and tables that are unlike the training table."""

import dataclasses
import re
import warnings

import numpy as np
import pandas as pd
import pytest

from bayesify.data import Column, describe_columns, drift, unusual_values
from bayesify.errors import DataError


@pytest.fixture
def columns(mixed):
    return describe_columns(mixed)


class TestUnusualValues:
    @pytest.mark.parametrize(
        ("name", "values", "reasons"),
        [
            ("size", [6.4, 6.6, 0.6, 0.4, np.nan, 5], {1: "size=6.6 above 6 seen", 3: "size=0.4 below 1 seen"}),
            ("rooms", [1, None, 7, 6, 6, 1e6], {1: "never missing", 2: "rooms=7 above 6 seen", 5: "rooms=1,000,000 above 6 seen"}),
            ("city", ["Bonn", "Aachen", None, "Ulm", "ulm", "Köln"], {1: "city='Aachen' not seen", 4: "city='ulm' not seen"}),
            ("garden", [True, None, False, True, True, True], {1: "garden missing, never missing"}),
            ("sold", ["2024-02-29", "2019-01-01"] * 3, {0: "2024-02-29 after 2021-01-01", 1: "2019-01-01 before 2020-01-01"}),
            ("sold", ["2020-06-01", "2021-01-20", None] * 2, {}),
            ("same", [4] * 6, {}),  # not in use
        ],
    )  # fmt: skip
    def test_reasons(self, mixed, columns, name, values, reasons):
        values = pd.to_datetime(values) if name == "sold" else values
        result = unusual_values(mixed.assign(**{name: values}).set_axis(list("uvwxyz")), columns)
        assert result.index.tolist() == list("uvwxyz")
        assert [i for i in range(6) if result.iloc[i]][:2] == list(reasons)[:2]
        assert all(text in result.iloc[i] for i, text in reasons.items())

    def test_several_reasons_in_a_row(self, mixed, columns):
        row = mixed.head(1).assign(rooms=-5, city="Paris", size=99)
        assert unusual_values(row, columns).tolist() == [
            "size=99 above 6 seen in training; rooms=-5 below 1 seen in training; city='Paris' not seen in training"
        ]

    def test_the_training_table_is_not_unusual(self, mixed, columns, recwarn):
        assert (unusual_values(mixed.assign(new=1), columns) == "").all()
        assert not recwarn, "the prediction of the same table warns already"

    def test_new_categories_in_a_column_of_rare_ones(self):
        rng = np.random.default_rng(0)
        many = pd.DataFrame({"c": rng.integers(0, 300, 2000).astype(str), "x": rng.normal(size=2000)})
        few = pd.DataFrame({"c": rng.integers(0, 30, 2000).astype(str), "x": rng.normal(size=2000)})
        new = pd.DataFrame({"c": ["new"], "x": [0.0]})
        assert unusual_values(new, describe_columns(many)).tolist() == [""]
        assert unusual_values(new, describe_columns(few)).tolist() == ["c='new' not seen in training"]

    def test_errors_are_those_of_prediction(self, mixed, columns):
        with pytest.raises(DataError, match="lacks columns"):
            unusual_values(mixed[["size"]], columns)

    def test_columns_of_earlier_versions(self, mixed, columns):
        old = [dataclasses.replace(column, rows=0, quantiles=(), shares=()) for column in columns]
        assert unusual_values(mixed.assign(city="Paris"), old).tolist() == ["city='Paris' not seen in training"] * 6
        assert drift(mixed.assign(city="Paris"), old) == {}


def sample(rng, rows):
    """A table with many kinds of columns."""
    table = pd.DataFrame(rng.normal(size=(rows, 5)), columns=list("abcde"))
    return table.assign(
        skewed=rng.lognormal(0, 1.5, rows),
        count=rng.poisson(3, rows),
        flag=rng.random(rows) < 0.3,
        color=rng.choice(list("rgbcmykw"), rows, p=[0.4, 0.2, 0.1, 0.1, 0.1, 0.05, 0.03, 0.02]),
        shop=rng.choice([f"shop {i}" for i in range(300)], rows),
        gaps=np.where(rng.random(rows) < 0.2, np.nan, rng.normal(size=rows)),
        day=pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 700, rows), unit="D"),
    )


def described(rng, rows):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # with 30 rows, the shops are an identifier
        return describe_columns(sample(rng, rows))


class TestDrift:
    @pytest.mark.parametrize(
        ("training_rows", "rows"),
        [
            (200, 30),
            *(pytest.param(n, m, marks=pytest.mark.slow) for n, m in ((30, 30), (1000, 30), (30, 300), (200, 300), (1000, 300))),
        ],
    )
    def test_no_false_warnings(self, training_rows, rows):
        """The stated probability is 1 %: 40 tables of 12 columns may give 3 warnings at most (P(4 or more) = 0.07 %)."""
        rng = np.random.default_rng(training_rows + rows)
        warned = [bool(drift(sample(rng, rows), described(rng, training_rows))) for _ in range(40)]
        assert sum(warned) <= 3

    @pytest.mark.parametrize(
        ("change", "name", "description"),
        [
            (lambda t: {"a": t["a"] + 2}, "a", r"median (1\.|2)\S*, -?0\.\S* in training"),
            (lambda t: {"color": "r"}, "color", r"'r' in 100% of the rows, (39|40|41)\.?\d?% in training"),
            (lambda t: {"b": t["b"].where(t["a"] > 0)}, "b", r"missing in [45]\d\.?\d?% of the rows, 0% in training"),
            (lambda t: {"day": t["day"] + pd.Timedelta(days=600)}, "day", r"median 2022-\S*, 202[01]-\S* in training"),
            (lambda t: {"flag": True}, "flag", "median 1, 0 in training"),
        ],
    )
    def test_changes_are_found(self, change, name, description):
        rng = np.random.default_rng(0)
        columns, table = described(rng, 2000), sample(rng, 60)
        found = drift(table.assign(**change(table)), columns)
        assert list(found) == [name]
        assert re.fullmatch(description, found[name]), found[name]

    def test_small_differences_do_not_matter(self):
        rng = np.random.default_rng(0)
        columns = describe_columns(pd.DataFrame({"a": rng.normal(size=50_000)}))
        assert drift(pd.DataFrame({"a": rng.normal(0.1, 1, 50_000)}), columns) == {}, "significant, but only 0.04 apart"
        assert "a" in drift(pd.DataFrame({"a": rng.normal(0.4, 1, 50_000)}), columns)

    def test_single_rows_and_columns_without_values(self):
        rng = np.random.default_rng(0)
        columns = described(rng, 1000)
        assert drift(sample(rng, 1).assign(a=1e6), columns) == {}
        assert list(drift(sample(rng, 60).assign(a=np.nan), columns)) == ["a"]


def test_shares_of_tied_values():
    (column,) = describe_columns(pd.DataFrame({"a": [0, 0, 0, 0, 1, 1, 2, 3]}))
    assert isinstance(column, Column)
    assert dict(zip(column.quantiles, column.shares, strict=True)) == {0: 0.5, 1: 0.75, 2: 0.875, 3: 1.0}
