"""Tables: what is read, what is refused and with which words, what becomes of every kind of column."""

import datetime
import gzip
import math

import numpy as np
import pandas as pd
import pytest
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from bayesify.data import (
    Column,
    SoftClip,
    check_target,
    conform,
    describe_columns,
    infer_task,
    preprocessing,
    read_table,
    split_target,
)


def kinds(table):
    return {column.name: column.kind for column in describe_columns(table)}


@pytest.fixture
def mixed():
    return pd.DataFrame(
        {
            "size": [1.0, 2.0, np.nan, 4.0, 5.0, 6.0],
            "rooms": [1, 2, 3, 4, 5, 6],
            "city": ["Bonn", "Ulm", "Bonn", None, "Ulm", "Köln"],
            "garden": [True, False, True, True, False, False],
            "sold": pd.to_datetime(["2020-01-01", "2020-01-02", "2020-02-01", "2021-01-01", None, "2020-01-01"]),
            "same": [3] * 6,
        }
    )


class TestReadTable:
    @pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.csv.gz", "t.parquet"])
    def test_round_trip(self, tmp_path, mixed, name):
        path = tmp_path / name
        if name.endswith("parquet"):
            mixed.to_parquet(path)
        else:
            mixed.to_csv(path, index=False, sep="\t" if "tsv" in name else ",")
        table = read_table(path)
        assert list(table.columns) == list(mixed.columns)
        np.testing.assert_array_equal(table["size"], mixed["size"])
        assert table["city"].dropna().tolist() == mixed["city"].dropna().tolist()

    def test_unnamed_first_column_is_the_index(self, tmp_path, mixed):
        mixed.set_index(pd.Index([7, 5, 3, 1, 0, 2])).to_csv(tmp_path / "t.csv")
        table = read_table(tmp_path / "t.csv")
        assert list(table.index) == [7, 5, 3, 1, 0, 2]
        assert list(table.columns) == list(mixed.columns)

    def test_byte_order_mark(self, tmp_path):
        (tmp_path / "t.csv").write_text("a,b\n1,2\n", encoding="utf-8-sig")
        assert list(read_table(tmp_path / "t.csv").columns) == ["a", "b"]

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("t.xlsx", b"PK", "ending '.xlsx'"),
            ("t.gz", gzip.compress(b"a,b", mtime=0), "ending '.gz'"),
            ("t.csv", b"", "is empty"),
            ("t.csv", b"a,b\n", "0 rows and 2 columns"),
            ("t.csv", b"a,b,a\n1,2,3\n", "columns of the same name: 'a'"),
            ("t.csv", b"a;b\n1;2\n", "must be separated by ','"),
            ("t.csv", b"a,b\n1,2\n3,4,5\n", "cannot be read as a table"),
            ("t.csv", "ä,b\n1,2\n".encode("latin-1"), "not UTF-8"),
            ("t.csv.gz", b"a,b\n1,2\n", "cannot be read as a table"),
            ("t.parquet", b"a,b\n1,2\n", "cannot be read as a table"),
        ],
    )
    def test_refused(self, tmp_path, name, content, message):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=message):
            read_table(tmp_path / name)

    def test_no_file(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="does not exist"):
            read_table(tmp_path / "t.csv")
        with pytest.raises(FileNotFoundError, match="is a folder"):
            read_table(tmp_path)


class TestTarget:
    def test_unknown_column(self, mixed):
        with pytest.raises(ValueError, match=r"no column 'Citty'\. Did you mean 'city'\? Its columns are 'size', 'rooms'"):
            split_target(mixed, "Citty")
        with pytest.raises(ValueError, match=r"no column 'zzz'\. Its columns are"):
            split_target(mixed, "zzz")

    def test_nothing_else(self):
        with pytest.raises(ValueError, match="no column besides the target 'a'"):
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
            ([1.5, 2.5, 3.5] * 50, "regression"),
            ([1.0, 2.0, 3.0] * 50, "regression"),  # floats, though whole
            ([1.5, np.nan, 2.5, 3.5], "regression"),
        ],
    )
    def test_task(self, values, task):
        assert infer_task(pd.Series(values)) == task

    @pytest.mark.parametrize(
        ("values", "task", "message"),
        [
            ([1.0, 2.0], "regression", "2 rows; at least 10"),
            ([1.0, np.nan] * 10, "regression", "missing in 10 of 20 rows \\(first: row 1\\)"),
            ([1.0, np.inf] * 10, "regression", "infinite in 10 of 20"),
            (["a", "b"] * 10, "regression", "regression needs numbers"),
            ([1.0] * 20, "regression", "1.0 in every row"),
            (["a", None] * 10, "classification", "missing in 10"),
            (["a"] * 20, "classification", "one class only, 'a'"),
            (["a", "b"] * 10 + ["c", "d"], "classification", "a single row: 'c', 'd'"),
            (list(map(str, range(20))), "classification", "20 classes in 20 rows"),
            ([1, 2] * 10, "ranking", "task must be one of"),
        ],
    )
    def test_checks(self, values, task, message):
        with pytest.raises(ValueError, match=message):
            check_target(pd.Series(values, name="y"), task)

    def test_good_targets_pass(self):
        check_target(pd.Series(np.arange(10.0)), "regression")
        check_target(pd.Series(["a", "b"] * 5), "classification")
        check_target(pd.Series(pd.Categorical(["a", "b"] * 5, categories=["a", "b", "never"])), "classification")


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
            (pd.Series([True, None, False], dtype=object), "boolean"),
            (pd.Categorical([1, 2, 1]), "category"),
            (["2020-01-01", "2021-05-01T12:00", None], "datetime"),
            ([datetime.date(2020, 1, 1), datetime.date(2020, 1, 2)], "datetime"),
            (["2020", "2021"], "category"),
            ([None, np.nan], "dropped"),
            ([None, 1.0], "number"),  # constant, but its absence may mean something
        ],
    )
    def test_kind(self, values, kind):
        table = pd.DataFrame({"c": values})
        table["other"] = range(len(table))
        assert kinds(table)["c"] == kind

    def test_facts(self, mixed):
        columns = {column.name: column for column in describe_columns(mixed)}
        assert columns["size"] == Column(name="size", kind="number", minimum=1.0, maximum=6.0, missing=round(1 / 6, 6))
        assert set(columns["city"].categories) == {"Bonn", "Ulm", "Köln"}
        assert columns["sold"].minimum == 18262.0  # days from 1970-01-01 to 2020-01-01
        assert columns["same"].reason == "it is 3 in every row"

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ([1, "a"], "column 'c' holds values of several kinds: category \\('a'\\), number \\(1\\)"),
            ([1.0, np.inf], "column 'c' is infinite in 1 of 2 rows"),
            ([1.0, 1e200], "column 'c' is beyond 1e\\+100 in 1 of 2 rows"),
            ([1j, 2j], "complex"),
            ([[1], [2]], "type list"),
            ([5, 5], "no column of X can be learned from"),
        ],
    )
    def test_refused(self, values, message):
        with pytest.raises(ValueError, match=message):
            describe_columns(pd.DataFrame({"c": values}))

    def test_same_name_twice(self):
        with pytest.raises(ValueError, match="same name: 'a'"):
            describe_columns(pd.DataFrame([[1, 2], [3, 4]], columns=["a", "a"]))

    def test_identifiers_are_dropped_with_a_warning(self):
        table = pd.DataFrame({"id": [f"row {i}" for i in range(40)], "x": range(40)})
        with pytest.warns(UserWarning, match="column 'id' is not used: its 40 values are nearly all different"):
            assert kinds(table) == {"id": "dropped", "x": "number"}


class TestConform:
    def test_order_and_extra_columns(self, mixed):
        columns = describe_columns(mixed)
        expected = conform(mixed, columns, new=False)
        with pytest.warns(UserWarning, match="does not know and ignores: 'new'"):
            table = conform(mixed[mixed.columns[::-1]].assign(new=1), columns)
        pd.testing.assert_frame_equal(table, expected)
        assert expected["garden"].tolist() == [1, 0, 1, 1, 0, 0]

    def test_missing_columns(self, mixed):
        with pytest.raises(ValueError, match="lacks columns the model was trained on: 'rooms', 'city'; it has 'size'"):
            conform(mixed[["size", "garden", "sold"]], describe_columns(mixed))
        conform(mixed.drop(columns="same"), describe_columns(mixed))  # what is dropped need not be there

    @pytest.mark.parametrize(
        ("name", "values", "message"),
        [
            ("size", ["1", "2", "x", "4", "y", "6"], "column 'size' holds numbers, but row 2 has 'x' \\(2 such rows\\)"),
            ("rooms", [np.inf] * 6, "infinite in 6 of 6"),
            ("garden", [0, 1, 2, 0, 1, 0], "column 'garden' holds booleans, but row 2 has 2"),
            ("sold", [1, 2, 3, 4, 5, 6], "column 'sold' holds datetimes"),
            ("size", pd.to_datetime(["2020-01-01"] * 6), "column 'size' holds numbers"),
        ],
    )
    def test_another_kind(self, mixed, name, values, message):
        with pytest.raises(ValueError, match=message):
            conform(mixed.assign(**{name: values}), describe_columns(mixed))

    def test_numbers_as_text_and_integers_as_floats(self):
        table = pd.DataFrame({"n": [1.0, 2.0], "c": pd.Categorical([1, 2])})
        other = pd.DataFrame({"n": ["1", "2.5"], "c": [1.0, np.nan]})
        result = conform(other, describe_columns(table))
        assert result["n"].tolist() == [1.0, 2.5]
        assert result["c"].tolist()[0] == "1"


class TestPreprocessing:
    def test_numbers_agree_with_numpy(self):
        rng = np.random.default_rng(0)
        X = pd.DataFrame(rng.standard_t(3, (500, 3)) * [1, 10, 100] + [0, 5, 1e6], columns=list("abc"))
        result = preprocessing(describe_columns(X)).fit_transform(X)
        far = np.abs(X - X.median()) > 5 * (X.quantile(0.75) - X.quantile(0.25))
        expected = (X - X.mean()) / X.std(ddof=0)
        rows = ~far.any(axis=1)
        assert rows.mean() > 0.95
        np.testing.assert_allclose(result.mean(0), 0, atol=1e-9)
        np.testing.assert_allclose(result.std(0), 1, rtol=1e-9)
        for i in range(3):  # up to a linear map, because the few far values count for less
            assert np.corrcoef(result[rows, i], expected.iloc[:, i][rows])[0, 1] > 1 - 1e-12

    def test_missing_values(self):
        X = pd.DataFrame({"a": [1.0, np.nan, 3.0, 8.0], "b": [1.0, 2.0, 3.0, 4.0]})
        columns = describe_columns(X)
        transformer = preprocessing(columns).fit(X)
        result = transformer.transform(X)
        assert result.shape == (4, 3)
        np.testing.assert_allclose(result[:, 2], [0, 1, 0, 0])
        assert result[1, 0] == pytest.approx((3 - 4) / np.std([1, 3, 8]))  # the median, standardised
        assert np.isfinite(transformer.transform(pd.DataFrame({"a": [1.0], "b": [np.nan]}))).all()

    def test_categories(self):
        values = ["a"] * 300 + ["b"] * 300 + [np.nan] * 300 + ["rare", "rarer"]
        X = pd.DataFrame({"c": values, "n": np.arange(902.0)})
        transformer = preprocessing(describe_columns(X)).fit(X)
        encoded = transformer.transform(pd.DataFrame({"c": ["a", "b", np.nan, "rare", "rarer", "never seen"], "n": [0.0] * 6}))[
            :, 1:
        ]
        assert encoded.shape == (6, 4)
        assert (encoded.sum(1) == 1).all()
        assert (encoded[3:] == encoded[3]).all()
        assert len(np.unique(encoded, axis=0)) == 4

    def test_one_absurd_value_does_not_ruin_a_column(self):
        rng = np.random.default_rng(0)
        X = pd.DataFrame({"eeg": np.append(rng.normal(4300, 30, 5000), 7e5)})
        result = preprocessing(describe_columns(X)).fit_transform(X)
        assert 0.9 < result[:-1].std() < 1.05
        plain = StandardScaler().fit_transform(X)
        assert plain[:-1].std() < 0.01

    def test_nearly_constant_columns_stay_finite(self):
        X = pd.DataFrame({"a": [1e-300, 2e-300] * 10, "b": [0.1 + 0.2, 0.3] * 10, "c": [1e9] * 19 + [1e9 + 1]})
        assert np.isfinite(preprocessing(describe_columns(X)).fit_transform(X)).all()


class TestSoftClip:
    def test_formula(self):
        X = np.array([[0.0], [1.0], [2.0], [3.0], [4.0]])
        clip = SoftClip(k=2.0).fit(X)
        # quartiles 1 and 3: the fences are 3 + 2 * 2 = 7 and 1 - 4 = -3
        values = clip.transform([[7.0], [9.0], [-3.0], [-7.0], [np.nan], [1e300]]).ravel()
        expected = [7, 7 + 2 * math.log(2), -3, -3 - 2 * math.log(3), np.nan, 7 + 2 * math.log(1 + (1e300 - 7) / 2)]
        np.testing.assert_allclose(values, expected, rtol=1e-14)

    def test_normal_tails_are_untouched(self):
        X = np.random.default_rng(0).normal(size=(100_000, 1))
        np.testing.assert_array_equal(SoftClip().fit_transform(X), X)

    def test_order_is_kept_and_no_spread_means_no_clipping(self):
        X = np.sort(np.random.default_rng(0).standard_cauchy((1000, 1)), axis=0)
        assert (np.diff(SoftClip().fit_transform(X), axis=0) > 0).all()
        flat = np.array([[0.0]] * 99 + [[1e6]])
        np.testing.assert_array_equal(SoftClip().fit_transform(flat), flat)

    def test_input_is_left_alone(self):
        X = np.array([[0.0], [1.0], [2.0], [1e9]])
        before = X.copy()
        SoftClip().fit_transform(X)
        np.testing.assert_array_equal(X, before)

    @parametrize_with_checks([SoftClip()])
    def test_scikit_learn(self, estimator, check):
        check(estimator)
