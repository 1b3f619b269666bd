"""Tables of other libraries."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

from bayesify.data import as_table
from bayesify.errors import DataError


def test_polars():
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"a": [1, None, 3], "b": ["x", None, "z"], "c": [True, False, None]})
    table = as_table(frame)
    assert isinstance(table, pd.DataFrame)
    assert table["b"].tolist()[::2] == ["x", "z"]
    assert table.isna().sum().tolist() == [1, 1, 1]
    with pytest.raises(TypeError, match=r"X is a LazyFrame, which is not computed yet; pass X.collect\(\)"):
        as_table(frame.lazy())


def test_narwhals_and_arrow():
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"a": [1, 2], "b": ["x", "y"]})
    narwhals = pytest.importorskip("narwhals")
    for other in (table, narwhals.from_native(table)):
        assert as_table(other).to_dict("list") == {"a": [1, 2], "b": ["x", "y"]}


def test_the_arrow_protocol():
    pyarrow = pytest.importorskip("pyarrow")

    class Stream:
        def __arrow_c_stream__(self, requested_schema=None):
            return pyarrow.table({"a": [1, 2]}).__arrow_c_stream__(requested_schema)

    assert as_table(Stream())["a"].tolist() == [1, 2]


def test_sparse_matrices():
    matrix = scipy.sparse.eye_array(3, format="csr")
    np.testing.assert_array_equal(as_table(matrix), np.eye(3))
    with pytest.raises(DataError, match=r"shape \(1000000, 1000\), which needs 7.5 GiB as an array.*TruncatedSVD"):
        as_table(scipy.sparse.csr_array((1_000_000, 1000)))


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_a_series_is_refused(library):
    module = pytest.importorskip(library)
    series = (
        module.chunked_array([[1, 2]])
        if library == "pyarrow"
        else module.Series(name="a", **{"data" if library == "pandas" else "values": [1, 2]})
    )
    with pytest.raises(DataError, match=r"X must be two-dimensional, got a Series named ('a'|None); use X\[\[('a'|None)\]\]"):
        as_table(series)


def test_an_array_with_text_is_refused():
    for array in (np.array([["z", 1]], dtype=object), np.array([["1", "z"]])):
        with pytest.raises(DataError, match=r"X is an array with text \(could not convert .*'z'.*; pass a DataFrame.*set_output"):
            as_table(array)
    array = np.array([["1.5", 1, None]], dtype=object)
    assert as_table(array) is array


def test_other_values_are_returned():
    for value in (np.eye(2), [[1, 2]], pd.DataFrame({"a": [1]}), None):
        assert as_table(value) is value
