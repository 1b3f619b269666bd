"""Separation of the target, task inference and checks."""

import decimal

import numpy as np
import pandas as pd
import pyarrow
import pytest

from bayesify.data import (
    ParquetTable,
    check_target,
    drop_missing_target,
    infer_task,
    read_target,
    split_target,
    target_format,
    task_reason,
    tell_format,
)
from bayesify.errors import BayesifyWarning, ConfigurationError, DataError


class TestTarget:
    def test_unknown_column(self, mixed):
        with pytest.raises(DataError, match=r"no column 'Citty'\. Did you mean 'city'\? Its columns are 'size', 'rooms'"):
            split_target(mixed, "Citty")
        with pytest.raises(DataError, match=r"no column 'zzz'\. Its columns are"):
            split_target(mixed, "zzz")

    def test_target_values_of_another_type(self):
        with pytest.raises(DataError, match="the target 'a' has values of type list"):
            split_target(pd.DataFrame({"a": [[1], [2]], "b": 1}), "a")

    def test_table_without_inputs(self):
        with pytest.raises(DataError, match="no column but the target 'a'"):
            split_target(pd.DataFrame({"a": [1]}), "a")

    @pytest.mark.parametrize(
        ("values", "task"),
        [
            (["a", "b", "a"], "classification"),
            ([True, False], "classification"),
            (pd.Categorical([1, 2, 3]), "classification"),
            ([0.0, 1.0, 1.0], "classification"),
            ([0, 1, 2] * 50, "classification"),
            (list(range(26)) * 10, "classification"),
            ([0, 1, 2], "regression"),  # three values in three rows
            (list(range(40)) * 100, "regression"),
            ([20, 21, 22] * 50 + [44], "regression"),  # a value in a single row is no class
            ([1.5, 2.5, 3.5] * 50, "regression"),
            ([1.0, 2.0, 3.0] * 50, "regression"),  # integral floats
            ([1.5, np.nan, 2.5, 3.5], "regression"),
        ],
    )
    def test_infer_task(self, values, task):
        assert infer_task(pd.Series(values)) == task

    @pytest.mark.parametrize(
        ("values", "task", "message"),
        [
            ([1.0], "regression", "1 row; at least 10"),
            ([1.0, 2.0], "regression", "2 rows; at least 10"),
            ([1.0, np.nan] * 10, "regression", "missing in 10 of 20 rows \\(first: row 1\\)"),
            ([1.0, 1e200] * 10, "regression", "beyond 1e\\+150 in 10 of 20"),
            ([1.0, np.inf] * 10, "regression", "infinite in 10 of 20"),
            (["a", "b"] * 10, "regression", "regression needs numbers"),
            ([1.0] * 20, "regression", "1.0 in every row"),
            (["a", None] * 10, "classification", "missing in 10"),
            (["a"] * 20, "classification", "a single class, 'a'"),
            ([0.5, 1.0] * 10, "classification", "numbers such as 0.5; classes are .*--task regression"),
            (["a", "b"] * 10 + ["c", "d"], "classification", "a single row: 'c', 'd'; merge them with others or drop these rows$"),
            ([1, 2] * 10 + [3], "classification", "a single row: 3; merge .*, or use --task regression to predict numbers"),
            (list("abcdefghijklmnopqrst"), "classification", "20 classes in 20 rows; check that it is not an identifier"),
            ([f"{i},000" for i in range(1, 21)], "classification", "20 classes in 20 rows; use --task regression"),
            ([1, 2] * 10, "ranking", "task must be one of"),
        ],
    )
    def test_rejects_targets(self, values, task, message):
        with pytest.raises(ConfigurationError if task == "ranking" else DataError, match=message):
            check_target(pd.Series(values, name="y"), task)

    def test_accepts_targets(self):
        check_target(pd.Series(np.arange(10.0)), "regression")
        check_target(pd.Series(["a", "b"] * 5), "classification")
        check_target(pd.Series(pd.Categorical(["a", "b"] * 5, categories=["a", "b", "never"])), "classification")


class TestTextTargets:
    @pytest.mark.parametrize(
        ("values", "task", "written", "read"),
        [
            (["66,457", "$950", "1,050"], "auto", ".", [66457, 950, 1050]),
            (["3,5", "4,25", None, "1"], "auto", ",", [3.5, 4.25, np.nan, 1]),
            (["5 %", "10 %", "5 %"], "auto", "", ["5 %", "10 %", "5 %"]),
            (["5 %", "10 %", "5 %"], "regression", ".", [5, 10, 5]),
            (["5 %", "10 %", "7 %"], "classification", "", ["5 %", "10 %", "7 %"]),
            (["1", "2", "3"], "auto", "", ["1", "2", "3"]),  # text on purpose
            (["1", "2", "3"], "regression", ".", [1, 2, 3]),
            ([1.5, 2.5, 3.5], "auto", "", [1.5, 2.5, 3.5]),
            ([0, 1, 0], "auto", "", [0, 1, 0]),
        ],
    )
    def test_formats(self, values, task, written, read):
        y = pd.Series(values, name="y")
        assert target_format(y, task) == written
        result = read_target(y, written)
        np.testing.assert_array_equal(result, read) if written else np.testing.assert_array_equal(result.tolist(), read)

    def test_categories_are_classes(self):
        assert target_format(pd.Series(pd.Categorical(["3,5", "4,5", "5,5"]))) == ""

    def test_later_tables_are_read_in_the_format_of_training(self):
        assert read_target(pd.Series(["1.200", "950"]), ",").tolist() == [1200, 950], "alone, this would be 1.2"
        assert read_target(pd.Series([1.2]), ",").tolist() == [1.2]

    def test_strays_are_missing(self):
        with pytest.warns(BayesifyWarning, match=r"the target 'y' has text that is no number in 2 of 4 rows \('\?', 'n/a'\)"):
            assert read_target(pd.Series(["?", "1,5", None, "n/a"], name="y"), ",").tolist()[1] == 1.5
        with pytest.raises(DataError, match="the target 'y' has no numbers, but 'a', 'b'"):
            read_target(pd.Series(["a", "b"], name="y"), ".")


class TestMissingTargets:
    def test_rows_are_dropped_and_counted(self):
        X = pd.DataFrame({"a": [1, 2, 3, 4]}, index=[5, 6, 7, 7])
        with pytest.warns(BayesifyWarning, match="the target 'y' is missing in 2 of 4 rows of new.csv; they are not used"):
            X, y = drop_missing_target(X, pd.Series([1.5, np.nan, None, 2.5], index=X.index, name="y"), "new.csv")
        assert (X["a"].tolist(), y.tolist(), y.index.tolist()) == ([1, 4], [1.5, 2.5], [5, 7])

    @pytest.mark.parametrize(("values", "kind"), [([0, None, 1], "i"), ([True, None, False], "b"), ([1.5, None, 2.0], "f")])
    def test_types_are_restored(self, values, kind):
        with pytest.warns(BayesifyWarning):
            _, y = drop_missing_target(pd.DataFrame({"a": [1, 2, 3]}), pd.Series(values))
        assert y.dtype.kind == kind

    @pytest.mark.parametrize(
        ("kind", "values"), [("Int64", [1, 2, 3]), ("boolean", [True, False, True]), ("Float64", [0.5, 1.5, 2.5])]
    )
    def test_types_with_gaps(self, kind, values):
        X = pd.DataFrame({"a": [1, 2, 3, 4]})
        with pytest.warns(BayesifyWarning):
            _, y = drop_missing_target(X, pd.Series([*values, None], dtype=kind))
        assert (y.dtype.kind, y.tolist()) == (np.array(values).dtype.kind, values)
        _, y = drop_missing_target(X.head(3), pd.Series(values, dtype=kind))
        assert isinstance(y.dtype, np.dtype)

    def test_complete_targets_are_unchanged(self, recwarn):
        X, y = pd.DataFrame({"a": [1, 2]}), pd.Series([1, 2])
        pd.testing.assert_series_equal(drop_missing_target(X, y)[1], y)
        assert not recwarn


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([3, 4, 5] * 9, "it has 3 distinct integers"),
        ([3.0, 4.0, 5.0] * 9, "it has 3 distinct numbers"),
        ([3.5, 4.0, 5.0] * 9, ""),
        ([0.5, 1.5] * 9, ""),
        ([20, 21, 22] * 50 + [44], "it has 4 distinct integers, some in a single row"),
        ([1, 2] * 9, "it has 2 distinct numbers"),
        ([0, 1] * 9, ""),
        (["a", "b"], ""),
        ([1.5, 2.5, 3.5], ""),
    ],
)
def test_a_choice_between_the_tasks_has_a_reason(values, reason):
    assert task_reason(pd.Series(values)) == reason


def test_the_boundaries_between_classes_and_numbers() -> None:
    def task(classes: int, rows: int) -> str:
        return infer_task(pd.Series(range(rows)) % classes)

    assert [task(30, 150), task(31, 155)] == ["classification", "regression"]
    assert [task(3, 15), task(3, 14)] == ["classification", "regression"]


def test_words_for_missing_values_are_classes_and_told() -> None:
    y = pd.Series(["None", "block", None, "NA"], name="kind")
    with pytest.warns(UserWarning, match="is the text 'None', 'NA' in 2 of 4 rows of the table, which counts as a class"):
        _, known = drop_missing_target(pd.DataFrame({"a": range(4)}), y)
    assert known.tolist() == ["None", "block", "NA"]


@pytest.mark.parametrize(("distinct", "written"), [(30, ""), (31, ".kg")])
def test_few_numbers_with_a_unit_are_classes(distinct: int, written: str) -> None:
    y = pd.Series([f"{i}.5 kg" for i in range(distinct)] * 2, name="weight")
    assert target_format(y) == written
    assert target_format(y, "regression") == ".kg"


def test_marks_of_missing_values_in_a_target_of_numbers() -> None:
    y = pd.Series(["?", "1.5 kg", "2.5 kg"], name="weight")
    written = target_format(y, "regression")
    with pytest.warns(BayesifyWarning, match="numbers with the unit 'kg', such as '1.5 kg'"):
        tell_format(y, written)
    with pytest.warns(BayesifyWarning, match=r"text that is no number in 1 of 3 rows \('\?'\)"):
        assert read_target(y, written).tolist()[1:] == [1.5, 2.5]


@pytest.mark.parametrize("arrow", [False, True])
def test_decimals_are_numbers(arrow: bool) -> None:
    dtype = pd.ArrowDtype(pyarrow.decimal128(10, 2)) if arrow else object
    y = pd.Series([decimal.Decimal("1.25"), None, decimal.Decimal("2.5")], dtype=dtype, name="price")
    _, price = split_target(pd.DataFrame({"a": range(3), "price": y}), "price")
    read = read_target(price, target_format(price))
    np.testing.assert_array_equal(read, [1.25, np.nan, 2.5])
    assert infer_task(pd.Series([*y.dropna(), decimal.Decimal(7)])) == "regression"


@pytest.mark.parametrize("arrow", [False, True])
def test_decimals_without_digits_after_the_point_are_integers(arrow: bool) -> None:
    dtype = pd.ArrowDtype(pyarrow.decimal128(19, 0)) if arrow else object
    y = pd.Series([decimal.Decimal(n % 3) for n in range(30)], index=[0] * 30, dtype=dtype)
    read = read_target(y, "")
    assert read.dtype == np.int64
    assert read.tolist() == [n % 3 for n in range(30)]
    assert infer_task(y) == "classification"
    y.iloc[4] = None
    with pytest.warns(BayesifyWarning, match="missing in 1 of 30 rows"):
        _, known = drop_missing_target(pd.DataFrame({"a": range(30)}), read_target(y, ""))
    assert known.dtype == np.int64
    large = read_target(pd.Series([decimal.Decimal(2**53 + 1), decimal.Decimal(10**19)]), "")
    assert large.tolist() == [2**53, 1e19], "beyond the range of integers"


def test_a_missing_target_is_named_by_the_index() -> None:
    y = pd.Series([1.5, None, 2.5] * 4, index=range(20, 32), name="price")
    with pytest.raises(DataError, match="first: row 21"):
        check_target(y, "regression")


def test_rows_of_files_keep_their_numbers(tmp_path) -> None:
    y = [1.5, None, 2.5, 3.5] * 5
    pd.DataFrame({"a": range(20), "y": y}).to_parquet(tmp_path / "t.parquet")
    table = ParquetTable(tmp_path, "y")
    (piece,) = table.pieces(0)
    for rows in (piece.X, piece.y, table.sample.train.X):
        assert rows.index.tolist() == [row for row in range(20) if row % 4 != 1]
