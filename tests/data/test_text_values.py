"""Numbers and dates that are text: what is read, what stays a category, and that later tables are read alike."""

import datetime
import warnings

import numpy as np
import pandas as pd
import pytest

from bayesify.data import Column, conform, describe_columns
from bayesify.errors import DataError


def described(values, name="c"):
    """The column, its values and the warnings."""
    table = pd.DataFrame({name: values, "other": np.linspace(0, 1, len(values))})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        columns = describe_columns(table)
        converted = conform(table, columns, new=False)
    return columns[0], converted.get(name), [str(warning.message) for warning in caught]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        (["1.5"] * 9 + ["120 m2", "2.5"], [1.5] * 9 + [np.nan, 2.5]),
        (["1.5", "?", *["2.5"] * 18], [1.5, np.nan, *[2.5] * 18]),
        (["66,457", "1,200,300", "950"], [66457, 1200300, 950]),
        (["66.457,5", "1.200.300", "950"], [66457.5, 1200300, 950]),
        (["3,14", "2,7", "-1,05"], [3.14, 2.7, -1.05]),
        (["1 234,5", "2\u00a0345", "7"], [1234.5, 2345, 7]),
        (["1'234.5", "2'345", "7"], [1234.5, 2345, 7]),
        (["$66457", "$1,200.50", "€ 7"], [66457, 1200.5, 7]),
        (["12 %", "7.5%", "-3%"], [12, 7.5, -3]),
        ([" 1,5", "2,5 ", "1e3"], [1.5, 2.5, 1000]),
        (["1,5", None, "2,5"], [1.5, np.nan, 2.5]),
    ],
)
def test_text_that_is_nearly_always_a_number(text, numbers):
    column, values, messages = described(text)
    assert column.kind == "number"
    np.testing.assert_allclose(values, numbers)
    assert column.minimum == np.nanmin(numbers)
    assert column.missing == pytest.approx(np.isnan(numbers).mean(), abs=1e-6)
    assert any("column 'c' is text and read as numbers" in message for message in messages)
    strays = np.isnan(numbers) & pd.Series(text).notna()
    assert sum(f"no number in {strays.sum()} of {len(text)} rows" in message for message in messages) == strays.any(), "said once"


@pytest.mark.parametrize(
    "text",
    [
        ["01067", "53111", "80331"],  # postal codes
        ["1", "2", "1"],  # text on purpose
        ["a", "1", "b", "2"],
        ["1.2.3", "1.3.0", "2.0.1"],  # versions
        ["1,2,3", "4,5,6", "1,2,3"],  # lists
        ["12:30", "13:45", "12:30"],
        ["5 kg", "7 kg", "5 kg"],
        ["-", "+", "-"],
    ],
)
def test_other_text_is_a_category(text):
    column, values, messages = described(text)
    assert column.kind == "category"
    assert values.tolist() == text
    assert not messages


@pytest.mark.parametrize(
    ("text", "days"),
    [
        (["31.12.2020", "01.02.2021"], ["2020-12-31", "2021-02-01"]),
        (["01.02.2020", "02.01.2021"], ["2020-02-01", "2021-01-02"]),  # a dot: the day first
        (["31/12/2020", "1/2/2021"], ["2020-12-31", "2021-02-01"]),
        (["12/31/2020", "1/2/2021"], ["2020-12-31", "2021-01-02"]),
        (["05-06-2020", "1-2-2021"], ["2020-05-06", "2021-01-02"]),  # undecided: the month first, and the warning says so
    ],
)
def test_dates_of_several_countries(text, days):
    column, values, messages = described(text)
    assert column.kind == "datetime"
    expected = (pd.to_datetime(days, utc=True) - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)
    np.testing.assert_allclose(values, expected)
    order = "day" if column.format.startswith("%d") else "month"
    assert any(f"read as dates, {order}" in message for message in messages)


@pytest.mark.parametrize("text", [["31.12.2020", "12.31.2020"], ["31/12/2020", "12/31/2020"], ["99/99/2020", "1/1/2020"]])
def test_dates_without_one_order_are_no_dates(text):
    assert described(text)[0].kind == "category"


def test_later_tables_are_read_in_the_format_of_training():
    train = pd.DataFrame({"price": ["1.200,5", "950", "3,5"], "day": ["31.12.2020", "01.02.2021", "03.03.2021"]})
    with pytest.warns(UserWarning, match="decimal comma"):
        columns = describe_columns(train)
    table = conform(pd.DataFrame({"price": ["1,5", "2.000"], "day": ["02.01.2021", "01.02.2021"]}), columns)
    assert table["price"].tolist() == [1.5, 2000.0], "alone, these would be read otherwise"
    assert table["day"].diff().tolist()[1] == 30
    assert conform(pd.DataFrame({"price": [1.5], "day": ["02.01.2021"]}), columns)["price"].tolist() == [1.5]
    with pytest.warns(UserWarning, match=r"column 'price' has text that is no number in 1 of 2 rows \('unknown'\)"):
        strays = conform(pd.DataFrame({"price": ["unknown", "1,5"], "day": ["02.01.2021"] * 2}), columns)
    assert strays["price"].isna().tolist() == [True, False]
    with pytest.raises(DataError, match=r"must be of kind 'datetime' such as '31\.12\.2020', got 'tomorrow' in row 0"):
        conform(pd.DataFrame({"price": ["1,5"], "day": ["tomorrow"]}), columns)


@pytest.mark.parametrize("train", [["2020-01-01", "2020-02-02"], pd.to_datetime(["2020-01-01", "2020-02-02"])])
def test_a_column_of_iso_dates_refuses_dates_in_another_order(train):
    columns = describe_columns(pd.DataFrame({"day": train}))
    later = pd.DataFrame({"day": ["2020-02-01", "2020-02-01 12:00", datetime.date(2020, 2, 1), " 2020-02-01"]})
    assert conform(later, columns)["day"].diff().tolist()[1:] == [0.5, -0.5, 0]
    expected = "column 'day' must be of kind 'datetime' such as '2020-12-31', got '01.02.2020' in row 1"
    with pytest.raises(DataError, match=expected):
        conform(pd.DataFrame({"day": ["2020-01-02", "01.02.2020"]}), columns)


def test_words_for_missing_values_are_missing_in_categories():
    column, values, messages = described(["NA", "yes", "no", "None", "yes"])
    assert column.categories == ("yes", "no")
    assert column.missing == 0.4
    assert values.isna().tolist() == [True, False, False, True, False]
    assert messages == ["column 'c' has text that means a missing value in 2 of 5 rows ('NA', 'None'); it is treated as missing"]
    assert described(["NA", None, "null"])[0].reason == "it has no values"


def test_a_word_for_a_missing_value_that_is_a_category_remains_one():
    stored = Column(name="c", kind="category", categories=("NA", "yes"))  # of an earlier version
    for values in (["NA", "yes"], pd.Categorical(["NA", "yes"])):
        assert conform(pd.DataFrame({"c": values}), [stored])["c"].tolist() == ["NA", "yes"]
    column, *_ = described(pd.Categorical(["NA", "yes", "NA"]))
    assert column.categories == ("NA", "yes")


@pytest.mark.parametrize("name", ["id", "ID", "customer_id", "index", "Unnamed: 0"])
def test_numeric_identifiers_are_not_used(name):
    column, _, messages = described(np.random.default_rng(0).choice(90_000, 40, replace=False), name)
    assert (column.kind, column.reason) == ("dropped", "all of its values are different, as in an identifier")
    assert any("rename it if they mean something" in message for message in messages)


@pytest.mark.parametrize(
    ("name", "values"), [("year", range(1950, 2000)), ("id", [1, 1, *range(2, 40)]), ("id", np.arange(40) / 8), ("bid", range(40))]
)
def test_other_numbers_are_used(name, values):
    assert described(list(values), name)[0].kind == "number"
