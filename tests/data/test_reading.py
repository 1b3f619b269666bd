"""Files that are read, and files that are rejected."""

import gzip
import io
import sys

import numpy as np
import pandas as pd
import pytest

from bayesify.data import read_table
from bayesify.data.text_tables import decode
from bayesify.errors import BayesifyWarning, ConfigurationError, DataError, MissingDependencyError


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
            ("t.xls", b"PK", "suffix '.xls'.*save it as .xlsx"),
            ("t.xlsx", b"PK", "cannot be read as a table: File is not a zip file"),
            ("t.gz", gzip.compress(b"a,b", mtime=0), "suffix '.gz'"),
            ("t.csv", b"", "is empty"),
            ("t.csv", b"a,b\n", "0 rows and 2 columns"),
            ("t.csv", b"a,b,a\n1,2,3\n", "duplicate column names: 'a'"),
            ("t.csv", b"a,b\n1,2\n3,4,5\n", "line 3 has 3 fields, and the header has 2; put a field that contains .* --sep"),
            ("t.csv", b"a,b\n1,2,3\n3,4,5\n", "line 2 has 3 fields, and the header has 2"),
            ("t.csv", b",a,b\n0,1,2,3\n1,3,4,5\n", "line 2 has 4 fields, and the header has 3"),
            ("t.csv", b"a,b\n1,2,\n3,4,5\n", "line 3 has 3 fields, and the header has 2"),
            ("t.csv", b"a ,b,a\n1,2,3\n", "duplicate column names: 'a'"),
            ("t.csv", b'a,b\n1,"2\n3,4\n', "cannot be read as a table"),
            ("t.csv", "a,b\n1,2\n".encode("utf-16-le"), "NUL characters.*--encoding utf-16-le"),
            ("t.json", b'{"a": [1, 2]}', "it must be a list of records"),
            ("t.json", b"[]", "is empty"),
            ("t.jsonl", b'{"a": 1}\n{a\n', "line 2 is not JSON"),
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


def read(folder, text, name="t.csv", encoding="utf-8", **options):
    (folder / name).write_bytes(text.encode(encoding))
    return read_table(folder / name, **options)


class TestText:
    @pytest.mark.parametrize(
        ("text", "separator"),
        [
            ("a,b;c\n1,2\n", ","),
            ("a;b, EUR\n1,5;2,5\n", ";"),
            ("a\tb\n1,5\t2\n", "\t"),
            ("a|b\n1|2\n", "|"),
            ("a b\n1 2\n", " "),
            ("sep=;\r\na;b\r\n1;2\r\n", ";"),
            ('a;b\n"x;y";2\n', ";"),
        ],
    )
    def test_separators_are_found(self, tmp_path, text, separator):
        assert read(tmp_path, text, "t.txt").shape == (1, 2), separator

    def test_one_column(self, tmp_path):
        assert list(read(tmp_path, "house price\n1\n2\n")) == ["house price"]

    @pytest.mark.parametrize("separator", ["|", "pipe"])
    def test_a_given_separator(self, tmp_path, separator):
        assert list(read(tmp_path, "a,x|b\n1,2|3\n", separator=separator)) == ["a,x", "b"]

    @pytest.mark.parametrize("options", [{"separator": "||"}, {"decimal": "x"}])
    def test_rejects_options(self, tmp_path, options):
        with pytest.raises(ConfigurationError, match=r"--(sep|decimal) must be"):
            read(tmp_path, "a,b\n1,2\n", **options)

    def test_blanks_after_separators_are_not_part_of_names_and_values(self, tmp_path):
        table = read(tmp_path, "a, b\n1, x\n")
        assert (list(table), table["b"].tolist()) == (["a", "b"], ["x"])

    def test_blanks_at_the_end_are_not_part_of_names_and_values(self, tmp_path):
        table = read(tmp_path, 'a ,town , c\n1,Bonn ,01 \n2,"Bonn",\n3 ," ",1\n', as_text=["c"])
        assert list(table) == ["a", "town", "c"]
        assert table["a"].tolist() == [1, 2, 3]
        assert table["town"].tolist()[:2] == ["Bonn", "Bonn"]
        assert table["c"].tolist()[::2] == ["01", "1"]
        assert table.isna().sum().tolist() == [0, 1, 1]

    @pytest.mark.parametrize("text", ["# by me, 2020\na,b\n1,2\n", "#by me,2020\n#really,so\n1,2\n"])
    def test_a_comment_before_the_header_is_told(self, tmp_path, text):
        with pytest.warns(BayesifyWarning, match="the first line, '# ?by me, ?2020', is read as the header; delete it"):
            read(tmp_path, text)

    def test_a_header_that_starts_with_a_number_sign(self, tmp_path, recwarn):
        assert list(read(tmp_path, "#id,a\n1,2\n")) == ["#id", "a"]
        assert not recwarn

    def test_stray_quotes_that_hide_lines(self, tmp_path, recwarn):
        lines = ["id,text,number", *(f"{i},t{i},{2 * i}" for i in range(10))]
        (tmp_path / "good.csv").write_text("\n".join([*lines, '10,"Dear all,\nthank you",20']))
        assert len(read_table(tmp_path / "good.csv")) == 11
        assert not recwarn.list
        lines[3], lines[6] = '2,"5 inch,4', '5,"6 inch,10'
        (tmp_path / "stray.csv").write_text("\n".join(lines))
        with pytest.warns(
            BayesifyWarning, match=r"column 'text' has a text that looks like lines of the table, in row 2.*, 3 lines"
        ):
            assert len(read_table(tmp_path / "stray.csv")) == 10 - 3
        (tmp_path / "open.csv").write_text("\n".join(lines[:6]))
        with pytest.raises(DataError, match="double quote that is not closed, in row 3 below the header"):
            read_table(tmp_path / "open.csv")

    def test_separators_at_the_end_of_lines(self, tmp_path):
        assert read(tmp_path, "a,b\n1,2,\n3,4,\n").to_numpy().tolist() == [[1, 2], [3, 4]]

    @pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
    def test_unicode_encodings_are_read_without_a_note(self, tmp_path, encoding, recwarn):
        assert read(tmp_path, "city,b\nKöln,1\n", encoding=encoding)["city"].tolist() == ["Köln"]
        assert not recwarn

    def test_other_encodings_are_read_with_a_note(self, tmp_path):
        with pytest.warns(BayesifyWarning, match="read as Windows-1252, such as 'Köln'; --encoding"):
            assert read(tmp_path, "city,b\nKöln,1\n", encoding="cp1252")["city"].tolist() == ["Köln"]
        with pytest.warns(BayesifyWarning, match="read as Latin-1"):
            assert decode(b"\xf6\x81") == "ö\x81"

    def test_a_given_encoding(self, tmp_path):
        (tmp_path / "t.csv").write_bytes("city,b\nŁódź,1\n".encode("cp1250"))
        assert read_table(tmp_path / "t.csv", encoding="cp1250")["city"].tolist() == ["Łódź"]
        with pytest.raises(DataError, match="byte 7 is not ascii text; choose another --encoding"):
            read_table(tmp_path / "t.csv", encoding="ascii")
        with pytest.raises(DataError, match="--encoding klingon is unknown"):
            read_table(tmp_path / "t.csv", encoding="klingon")


class TestWordsForMissingValues:
    TEXT = "kind{0}x{0}k{0}garage\nNone{0}1.5{0}NA{0}NA\nblock{0}n/a{0}2{0}yes\nNA{0}3{0}4{0}no\n{0}4{0}5{0}\n"

    @pytest.mark.parametrize("separator", [",", ";", "\t"])
    @pytest.mark.parametrize("index", [False, True])
    def test_they_are_text_in_columns_of_text_and_missing_in_columns_of_numbers(self, tmp_path, separator, index):
        lines = self.TEXT.format(separator).splitlines()
        text = "\n".join(f"{number}{separator}{line}" for number, line in zip(["", 7, 8, 9, 10], lines, strict=True))
        table = read(tmp_path, text if index else self.TEXT.format(separator), "t.txt")
        assert table["kind"].iloc[:3].tolist() == ["None", "block", "NA"]
        assert table["garage"].iloc[:3].tolist() == ["NA", "yes", "no"]
        assert table.isna().sum().tolist() == [1, 1, 1, 1]
        assert (table["x"].dtype, table["k"].dtype) == (float, float)
        assert table.index[0] == 7 * index

    def test_a_column_that_is_left_as_text(self, tmp_path):
        assert read(tmp_path, "a,b\nNA,1\n2,2\n", as_text=["a"])["a"].tolist() == ["NA", "2"]

    def test_excel(self, tmp_path):
        pytest.importorskip("openpyxl")
        cells = {"kind": ["None", "block", None], "x": [1, "NA", 3], "day": [pd.Timestamp("2020-01-01"), "NA", None]}
        pd.DataFrame(cells).to_excel(tmp_path / "t.xlsx", index=False)
        table = read_table(tmp_path / "t.xlsx")
        assert table["kind"].tolist()[:2] == ["None", "block"]
        assert [dtype.kind for dtype in table.dtypes[1:]] == ["f", "M"]
        assert table.isna().sum().tolist() == [1, 1, 2]


class TestDecimals:
    @pytest.mark.parametrize(
        ("text", "values"),
        [
            ("a;b\n1,5;1\n2;2\n", [1.5, 2]),
            ("a;b\n1.5;1\n2;2\n", [1.5, 2]),
            ("a;b\n1.200;3,5\n2.300;4\n", [1200, 2300]),
            ("a;b\n1.200,5;3,5\n950;4\n", [1200.5, 950]),
            ("a;b\n1.200;3.5\n2.300;4\n", [1.2, 2.3]),
        ],
    )
    def test_the_numbers_of_a_table_decide(self, tmp_path, text, values):
        assert read(tmp_path, text)["a"].tolist() == values

    @pytest.mark.parametrize("text", ["area;b\n1.506;x\n315;y\n", "b;area\nx; 1.506\ny;-315\nz;\n"])
    def test_points_that_may_separate_thousands_are_told(self, tmp_path, text):
        with pytest.warns(BayesifyWarning, match="column 'area' has numbers such as 1.506, next to -?315: .* set --decimal ,"):
            assert read(tmp_path, text)["area"].iloc[0] == 1.506
        assert read(tmp_path, text, decimal=",")["area"].iloc[0] == 1506

    @pytest.mark.parametrize(
        "text",
        [
            "a;b\n1.506;x\n2.315;y\n",  # no integers
            "a;b\n1.506;x\n1315;y\n",  # an integer of four digits without a point
            "a;b\n1.506;2.5\n315;7\n",  # another column has a decimal point
            "a;b\n1.506;2,5\n315;7\n",  # ... or a decimal comma
            "a;b\n1.506;x\nlow;y\n",
        ],
    )
    def test_other_points_are_not_told(self, tmp_path, text, recwarn):
        read(tmp_path, text)
        assert not recwarn

    def test_dates_and_text_are_left_alone(self, tmp_path):
        table = read(tmp_path, "day;b;c\n31.12.2020;3,5;x\n01.02.2021;4,5;1.200\n")
        assert table["day"].tolist() == ["31.12.2020", "01.02.2021"]
        assert table["c"].tolist() == ["x", "1.200"]

    def test_currencies_are_left_to_the_columns_which_say_so(self, tmp_path):
        table = read(tmp_path, "a;b;c\n€ 1.200,5;3,5;-1.200\n€ 950;4,5;7\n")
        assert table["a"].tolist() == ["€ 1.200,5", "€ 950"]
        assert table["c"].tolist() == [-1200, 7]

    def test_the_usual_separator_decides_where_the_table_does_not(self, tmp_path):
        assert read(tmp_path, "a;b\n1.200;3\n", usual_decimal=",")["a"].tolist() == [1200]
        assert read(tmp_path, "a;b\n1.5;3\n", usual_decimal=",")["a"].tolist() == [1.5]
        assert read(tmp_path, "a;b\n1,234;3\n", decimal=",")["a"].tolist() == [1.234]

    def test_columns_of_text(self, tmp_path):
        assert read(tmp_path, "a;b\n1.200;3\n", as_text=["a", "other"])["a"].tolist() == ["1.200"]

    def test_the_separator_is_reported(self, tmp_path):
        assert read(tmp_path, "a;b\n1,5;3\n").attrs["decimal"] == ","


class TestOtherSources:
    @pytest.mark.parametrize("index", [False, True])
    def test_excel(self, tmp_path, mixed, index):
        pytest.importorskip("openpyxl")
        mixed.set_index(mixed.index + 3).to_excel(tmp_path / "t.xlsx", index=index)
        table = read_table(tmp_path / "t.xlsx")
        assert list(table) == list(mixed)
        assert list(table.index) == list(mixed.index + 3 * index)
        assert table["sold"].dtype.kind == "M"

    def test_blanks_in_excel(self, tmp_path):
        pytest.importorskip("openpyxl")
        pd.DataFrame({"town ": ["Bonn ", "Bonn", " "]}).to_excel(tmp_path / "t.xlsx", index=False)
        table = read_table(tmp_path / "t.xlsx")
        assert table["town"].tolist()[:2] == ["Bonn", "Bonn"]
        assert table["town"].isna().tolist() == [False, False, True]

    def test_excel_with_several_sheets(self, tmp_path, mixed):
        pytest.importorskip("openpyxl")
        with pd.ExcelWriter(tmp_path / "t.xlsx") as writer:
            mixed.to_excel(writer, sheet_name="first", index=False)
            mixed.head(2).to_excel(writer, sheet_name="second", index=False)
        with pytest.warns(BayesifyWarning, match="2 sheets; the first, 'first', is read"):
            assert len(read_table(tmp_path / "t.xlsx")) == len(mixed)

    def test_excel_without_openpyxl(self, tmp_path, monkeypatch):
        (tmp_path / "t.xlsx").write_bytes(b"PK")
        monkeypatch.setitem(sys.modules, "openpyxl", None)
        with pytest.raises(MissingDependencyError, match=r'openpyxl; install it with: pip install "bayesify\[excel\]"'):
            read_table(tmp_path / "t.xlsx")

    @pytest.mark.parametrize("name", ["t.json", "t.jsonl", "t.jsonl.gz"])
    def test_records(self, tmp_path, name):
        text = '{"a": 1, "day": "2020-01-01"}\n{"a": 2.5}\n'
        text = f"[{','.join(text.split(chr(10))[:2])}]" if name == "t.json" else text
        content = text.encode()
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
        table = read_table(tmp_path / name)
        assert table["a"].tolist() == [1, 2.5]
        assert table["day"].tolist()[0] == "2020-01-01"

    def test_line_separators_of_unicode_are_part_of_text(self, tmp_path):
        text = '{"a": "x\u2028y\u2029z\x85"}\r\n{"a": "b"}\r\n'
        assert read(tmp_path, text, "t.jsonl")["a"].tolist() == ["x\u2028y\u2029z\x85", "b"]

    def test_standard_input(self, monkeypatch):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a;b\n1,5;2\n")))
        assert read_table("-")["a"].tolist() == [1.5]
