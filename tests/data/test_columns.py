"""Column kinds, and tables that are conformed to them."""

import datetime
import decimal
import warnings

import numpy as np
import pandas as pd
import pytest

from bayesify.data import Column, conform, describe_columns
from bayesify.errors import DataError


def kinds(table):
    return {column.name: column.kind for column in describe_columns(table)}


class TestColumns:
    def test_kinds(self, mixed):
        expected = {"size": "number", "rooms": "number", "city": "category", "garden": "boolean", "sold": "datetime"}
        assert kinds(mixed) == {**expected, "same": "dropped"}

    @pytest.mark.parametrize(
        ("values", "kind"),
        [
            ([1, None, 2.5], "number"),
            (pd.array([1, None, 2], dtype="Int64"), "number"),
            (pd.to_timedelta([1, 2], unit="h"), "number"),
            (pd.Series([1, 2], dtype=object), "number"),
            ([decimal.Decimal("1.5"), None, decimal.Decimal(2)], "number"),
            (pd.Series([True, None, False], dtype=object), "boolean"),
            (pd.Categorical([1, 2, 1]), "category"),
            (["2020-01-01", "2021-05-01T12:00", None], "datetime"),
            ([datetime.date(2020, 1, 1), datetime.date(2020, 1, 2)], "datetime"),
            (["2020", "2021"], "category"),
            ([None, np.nan], "dropped"),
            ([None, 1.0], "number"),  # constant, but missing values may be informative
        ],
    )
    def test_kind(self, values, kind):
        table = pd.DataFrame({"c": values})
        table["other"] = range(len(table))
        assert kinds(table)["c"] == kind

    def test_ranges_and_categories(self, mixed):
        columns = {column.name: column for column in describe_columns(mixed)}
        assert columns["size"] == Column(
            name="size",
            kind="number",
            minimum=1.0,
            maximum=6.0,
            missing=round(1 / 6, 6),
            rows=6,
            quantiles=(1.0, 2.0, 4.0, 5.0, 6.0),
            shares=(0.2, 0.4, 0.6, 0.8, 1.0),
        )
        assert dict(zip(columns["city"].categories, columns["city"].shares, strict=True)) == {"Bonn": 0.4, "Ulm": 0.4, "Köln": 0.2}
        assert columns["sold"].minimum == 18262.0  # days from 1970-01-01 to 2020-01-01
        assert columns["same"].reason == "it is 3 in every row"

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ([1, "a"], "column 'c' has values of several kinds: category \\('a'\\), number \\(1\\)"),
            ([1.0, np.inf], "column 'c' is infinite in 1 of 2 rows"),
            ([1.0, 1e200], "column 'c' is beyond 1e\\+100 in 1 of 2 rows"),
            ([1j, 2j], "complex"),
            ([[1], [2]], "type list"),
            (pd.period_range("2020-01", periods=2, freq="M"), "type Period .*; convert them with .dt.to_timestamp()"),
            ([10**400, 1], "column 'c' is infinite in 1 of 2 rows"),
            ([5, 5], "X has no usable column"),
        ],
    )
    def test_rejects_columns(self, values, message):
        with pytest.raises(DataError, match=message):
            describe_columns(pd.DataFrame({"c": values}))

    def test_rejects_duplicate_names(self):
        with pytest.raises(DataError, match="duplicate column names: 'a'"):
            describe_columns(pd.DataFrame([[1, 2], [3, 4]], columns=["a", "a"]))

    def test_identifiers_are_dropped_with_a_warning(self):
        table = pd.DataFrame({"id": [f"row {i}" for i in range(40)], "x": range(40)})
        with pytest.warns(UserWarning, match="column 'id' is not used: nearly all of its 40 values are distinct"):
            assert kinds(table) == {"id": "dropped", "x": "number"}


class TestConform:
    def test_order_and_extra_columns(self, mixed):
        columns = describe_columns(mixed)
        expected = conform(mixed, columns, new=False)
        with pytest.warns(UserWarning, match="not in the training table; they are ignored: 'new'"):
            table = conform(mixed[mixed.columns[::-1]].assign(new=1), columns)
        pd.testing.assert_frame_equal(table, expected)
        assert expected["garden"].tolist() == [1, 0, 1, 1, 0, 0]

    def test_duplicate_columns(self, mixed):
        with pytest.raises(DataError, match="the table has duplicate column names: 'rooms'; rename or drop them"):
            conform(pd.concat([mixed, mixed[["rooms"]]], axis=1), describe_columns(mixed))

    def test_missing_columns(self, mixed):
        with pytest.raises(DataError, match="lacks columns of the training table: 'rooms', 'city'; it has 'size'"):
            conform(mixed[["size", "garden", "sold"]], describe_columns(mixed))
        conform(mixed.drop(columns="same"), describe_columns(mixed))  # dropped columns are not required

    @pytest.mark.parametrize(
        ("name", "values", "message"),
        [
            ("size", ["1", "2", "x", "4", "y", "6"], "column 'size' must be of kind 'number', got 'x' in row 2 \\(2 such rows\\)"),
            ("rooms", [np.inf] * 6, "infinite in 6 of 6"),
            ("garden", [0, 1, 2, 0, 1, 0], "of kind 'boolean' \\(True, False, 1 or 0, no text\\), got 2 in row 2"),
            ("garden", ["True"] * 6, "column 'garden' must be .* no text\\), got 'True' in row 0"),
            ("sold", pd.period_range("2020-01", periods=6, freq="M"), "got Period.*; convert them with .dt.to_timestamp()"),
            ("sold", [1, 2, 3, 4, 5, 6], "column 'sold' must be of kind 'datetime'"),
            ("size", pd.to_datetime(["2020-01-01"] * 6), "column 'size' must be of kind 'number'"),
        ],
    )
    def test_rejects_values_of_another_kind(self, mixed, name, values, message):
        with pytest.raises(DataError, match=message):
            conform(mixed.assign(**{name: values}), describe_columns(mixed))

    def test_rows_are_named_by_the_index(self):
        values = pd.Series(["2020-01-01", None, "2020-02-30", "2020-01-02"], index=[7, 3, 5, 1])  # as after a random split
        with pytest.raises(DataError, match="got '2020-02-30' in row 5"):
            describe_columns(pd.DataFrame({"day": values}))

    def test_numbers_as_text_and_integers_as_floats(self):
        table = pd.DataFrame({"n": [1.0, 2.0], "c": pd.Categorical([1, 2])})
        other = pd.DataFrame({"n": ["1", "2.5"], "c": [1.0, np.nan]})
        result = conform(other, describe_columns(table))
        assert result["n"].tolist() == [1.0, 2.5]
        assert result["c"].tolist()[0] == "1"


@pytest.mark.parametrize(
    ("distinct", "rows", "kind"), [(20, 20, "dropped"), (19, 19, "category"), (28, 30, "dropped"), (27, 30, "category")]
)
def test_the_boundaries_of_identifiers_that_are_text(distinct: int, rows: int, kind: str) -> None:
    text = pd.Series([f"value {i % distinct}" for i in range(rows)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        column, _ = describe_columns(pd.DataFrame({"name": text, "x": np.random.default_rng(0).normal(size=rows)}))
    assert column.kind == kind


@pytest.mark.parametrize(("rows", "kind"), [(20, "dropped"), (19, "number")])
def test_the_boundary_of_identifiers_that_are_numbers(rows: int, kind: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        column, _ = describe_columns(pd.DataFrame({"id": range(rows), "x": np.random.default_rng(0).normal(size=rows)}))
    assert column.kind == kind


def test_dates_are_days_since_1970() -> None:
    days = pd.to_datetime(["1969-12-31", "1970-01-01", "2020-03-01"])
    (column,) = describe_columns(pd.DataFrame({"day": days}))
    since = [(datetime.date(*day) - datetime.date(1970, 1, 1)).days for day in ((1969, 12, 31), (2020, 3, 1))]
    assert [column.minimum, column.maximum] == since
    assert conform(pd.DataFrame({"day": days}), [column])["day"].tolist() == [-1.0, 0.0, since[1]]


@pytest.mark.skipif(pd.__version__.startswith("2."), reason="pandas 2 reads dates as nanoseconds")
@pytest.mark.parametrize("years", [(1600, 2263), (1, 9999)])
def test_dates_beyond_the_range_of_nanoseconds_are_numbers_of_days(years: tuple[int, int]) -> None:
    dates = [datetime.date(year, 3, 1) for year in years]
    (column,) = describe_columns(pd.DataFrame({"when": dates * 2}))
    expected = [(date - datetime.date(1970, 1, 1)).days for date in dates]
    assert (column.kind, column.minimum, column.maximum) == ("datetime", *expected)
