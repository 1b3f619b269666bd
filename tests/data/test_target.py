"""Separation of the target, task inference and checks."""

import numpy as np
import pandas as pd
import pytest

from bayesify.data import check_target, infer_task, split_target
from bayesify.errors import ConfigurationError, DataError


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
            ([1.0, 2.0], "regression", "2 rows; at least 10"),
            ([1.0, np.nan] * 10, "regression", "missing in 10 of 20 rows \\(first: row 1\\)"),
            ([1.0, 1e200] * 10, "regression", "beyond 1e\\+150 in 10 of 20"),
            ([1.0, np.inf] * 10, "regression", "infinite in 10 of 20"),
            (["a", "b"] * 10, "regression", "regression needs numbers"),
            ([1.0] * 20, "regression", "1.0 in every row"),
            (["a", None] * 10, "classification", "missing in 10"),
            (["a"] * 20, "classification", "a single class, 'a'"),
            (["a", "b"] * 10 + ["c", "d"], "classification", "a single row: 'c', 'd'"),
            (list(map(str, range(20))), "classification", "20 classes in 20 rows"),
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
