"""Files that are read, and files that are rejected."""

import gzip

import numpy as np
import pandas as pd
import pytest

from bayesify.data import read_table
from bayesify.errors import DataError


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
            ("t.xlsx", b"PK", "suffix '.xlsx'"),
            ("t.gz", gzip.compress(b"a,b", mtime=0), "suffix '.gz'"),
            ("t.csv", b"", "is empty"),
            ("t.csv", b"a,b\n", "0 rows and 2 columns"),
            ("t.csv", b"a,b,a\n1,2,3\n", "duplicate column names: 'a'"),
            ("t.csv", b"a;b\n1;2\n", "must be separated by ','"),
            ("t.csv", b"a,b\n1,2\n3,4,5\n", "cannot be read as a table"),
            ("t.csv", "ä,b\n1,2\n".encode("latin-1"), "not UTF-8"),
            ("t.csv.gz", b"a,b\n1,2\n", "cannot be read as a table"),
            ("t.parquet", b"a,b\n1,2\n", "cannot be read as a table"),
        ],
    )
    def test_rejects_unreadable_files(self, tmp_path, name, content, message):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=message):
            read_table(tmp_path / name)

    def test_truncated_archive(self, tmp_path):
        (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"a,y\n1,2\n" * 100)[:-12])
        with pytest.raises(DataError, match="cannot be read as a table"):
            read_table(tmp_path / "a.csv.gz")

    def test_rejects_missing_files(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="does not exist"):
            read_table(tmp_path / "t.csv")
        with pytest.raises(FileNotFoundError, match="is a folder"):
            read_table(tmp_path)
