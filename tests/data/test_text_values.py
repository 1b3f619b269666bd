"""Numbers and dates that are text: what is read, what stays a category, and that later tables are read alike."""

import datetime
import re
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
        (["1.5", "2.5", "?"], [1.5, 2.5, np.nan]),
        (["unknown", "$5", "-", "n/a", "$7", " . "], [np.nan, 5, np.nan, np.nan, 7, np.nan]),
        (["57.3 kg", "61kg", " 1,200 kg "], [57.3, 61, 1200]),
        (["57,3 kg", "61 kg", "1.200 kg"], [57.3, 61, 1200]),
        (["3 m²", "5.5 m²", "?"], [3, 5.5, np.nan]),
        (["3 EUR/m2", "5.5 EUR/m2"], [3, 5.5]),
        (["21 °C", "-5.5°C"], [21, -5.5]),
        ([*["5 kg", "6 kg"] * 9, "7 lb", "8"], [*[5, 6] * 9, np.nan, 8]),
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
        ["5 kg", "7 lb", "5 kg"],
        ["1.5M", "200k", "1M", "3k"],
        ["A 5 kg", "B 7 kg", "C 5 kg"],
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
        (["31/12/2020 18:30", "?", "1/2/2021 6:00"], ["2020-12-31 18:30", None, "2021-02-01 06:00"]),
        (["12/31/2020 18:30:36", "1/2/2021 06:00:00"], ["2020-12-31 18:30:36", "2021-01-02 06:00"]),
        (["05-06-2020", "1-2-2021"], ["2020-05-06", "2021-01-02"]),  # undecided: the month first, and the warning says so
        (["2020/12/31", "2021/1/2"], ["2020-12-31", "2021-01-02"]),
        (["2020.12.31 06:30", "2021.01.02 18:00"], ["2020-12-31 06:30", "2021-01-02 18:00"]),
        (["12/31/2020 6:30 PM", "1/2/2021 12:05 AM"], ["2020-12-31 18:30", "2021-01-02 00:05"]),
        (["31/12/2020 6:30:15pm", "1/2/2021 11:05:00am"], ["2020-12-31 18:30:15", "2021-02-01 11:05"]),
        (["12/31/20", "1/2/21"], ["2020-12-31", "2021-01-02"]),
        (["31.12.20", "01.02.20", "02.02.21"], ["2020-12-31", "2020-02-01", "2021-02-02"]),
        (["20/12/30", "20/02/01", "21/02/02"], ["2020-12-30", "2020-02-01", "2021-02-02"]),  # more days than years
        (["31-12-98", "01-02-75"], ["1998-12-31", "1975-02-01"]),
        (["31 Dec 2020", "1 May 2021"], ["2020-12-31", "2021-05-01"]),
        (["31-DEC-20", "01-may-21"], ["2020-12-31", "2021-05-01"]),
        (["December 31, 2020", "May 1, 2021"], ["2020-12-31", "2021-05-01"]),
        (["Dec 31, 2020 6:30 PM", "May 1, 2021 6:00 AM"], ["2020-12-31 18:30", "2021-05-01 06:00"]),
    ],
)
def test_dates_of_several_countries(text, days):
    column, values, messages = described(text)
    assert column.kind == "datetime"
    expected = (pd.to_datetime(days, utc=True, format="mixed") - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)
    np.testing.assert_allclose(values, expected)
    order = {"d": "day", "m": "month", "b": "month", "B": "month"}.get(column.format[1], "year")
    assert any(f"read as dates, {order}" in message for message in messages)


@pytest.mark.parametrize(
    "text",
    [
        ["31.12.2020", "12.31.2020"],
        ["31/12/2020", "12/31/2020"],
        ["99/99/2020", "1/1/2020"],
        ["31/12/2020 18:30", "1/2/2021"],
        ["2020/31/12", "2020/12/31"],
        ["2020/12/31", "12/31/2020"],
        ["1/2/20", "3/4/21"],  # day, month and year in any order
        ["01.02.03", "03.02.01"],  # as many days as years
        ["1.2.10", "1.12.3"],  # versions
        ["12/31/2020 18:30 PM", "1/2/2021 6:00 AM"],
        ["31 Dez 2020", "1 Mai 2021"],
        ["31 Dec 2020", "1-May-2021"],
    ],
)
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


def test_iso_dates_with_marks_of_missing_values():
    column, values, messages = described(["2020-01-01", "?", "2020-01-03"])
    assert (column.kind, column.missing) == ("datetime", round(1 / 3, 6))
    assert values.isna().tolist() == [False, True, False]
    assert messages == ["column 'c' has text that is no date in 1 of 3 rows ('?'); it is treated as missing"]


def test_later_numbers_with_and_without_the_unit():
    columns = describe_columns(pd.DataFrame({"weight": ["57,3 kg", "61 kg"]}))
    assert columns[0].format == ",kg"
    assert columns[0].is_text
    with pytest.warns(UserWarning, match=r"text that is no number in 1 of 3 rows \('126 lb'\)"):
        later = conform(pd.DataFrame({"weight": ["1.057,3 kg", "58,5", "126 lb"]}), columns)
    np.testing.assert_array_equal(later["weight"], [1057.3, 58.5, np.nan])
    assert conform(pd.DataFrame({"weight": [57.3]}), columns)["weight"].tolist() == [57.3]


def test_marks_of_missing_values_in_later_tables():
    columns = describe_columns(pd.DataFrame({"x": [1.5, 2.5], "b": [True, False], "day": ["2020-01-01", "2020-01-02"]}))
    with pytest.warns(UserWarning, match="treated as missing") as caught:
        later = conform(pd.DataFrame({"x": ["?", "3"], "b": ["n/a", "1"], "day": ["2020-01-01", "-"]}), columns)
    assert later.isna().to_numpy().tolist() == [[True, True, False], [False, False, True]]
    problems = [f"{kind} in 1 of 2 rows ({mark})" for kind, mark in (("number", "'?'"), ("boolean", "'n/a'"), ("date", "'-'"))]
    assert all(f"is no {problem}" in str(warning.message) for problem, warning in zip(problems, caught, strict=True))


class TestTextThatMayHaveBeenNumbers:
    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ([*(f"{i / 8}" for i in range(20)), *["low", "high"] * 10], "50% of its values are .* dates; others are 'low', 'high'"),
            ([*(f"{i} kg" for i in range(20)), *(f"{i} lb" for i in range(10))], "66.7% .* others are '0 lb', '1 lb', '2 lb'"),
            ([f"{month}/{day}/2020 8:30 h" for month in range(1, 13) for day in (1, 31)] * 2, "100% .* in no format"),
            ([*(f"{i + 1}.5.20" for i in range(20)), "soon"], "is text and not used, although 95.2%"),
        ],
    )
    def test_is_told(self, text, told):
        column, _, messages = described(text)
        assert column.kind in ("category", "dropped")
        assert any(re.search(told, message) for message in messages), messages

    @pytest.mark.parametrize(
        "text",
        [
            [*(f"{i / 8}" for i in range(18)), *["low"] * 18],  # few distinct values
            [*(f"{i / 8}" for i in range(20)), *["low"] * 40],  # a third
            [f"{i}" for i in range(30)] * 2,  # text on purpose
            [f"0{i}" for i in range(1000, 1030)] * 2,  # postal codes
            [f"{i} Main Street {i}" for i in range(30)] * 2,
        ],
    )
    def test_is_not_told(self, text):
        column, _, messages = described(text)
        assert column.kind == "category"
        assert not messages


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
