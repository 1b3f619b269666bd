"""Reading tables from text files, Excel sheets, JSON records and Parquet files."""

from __future__ import annotations

import gzip
import json
import os
import sys
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pandas as pd

from bayesify.core.checks import check_choice
from bayesify.data.columns import check_unique_names
from bayesify.data.text_tables import decode, find_decimal, find_separator, parse_text
from bayesify.data.text_values import MISSING_WORDS, all_text, strip_text
from bayesify.errors import ConfigurationError, DataError, MissingDependencyError, warn
from bayesify.formatting import plural

__all__ = ["STDIN", "SUPPORTED", "read_table"]

STDIN = "-"
SUPPORTED = ".csv, .tsv, .txt, .json, .jsonl (also with .gz), .xlsx or .parquet"
_DELIMITED = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
_RECORDS = (".json", ".jsonl")
_NAMED_SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", r"\t": "\t", "pipe": "|", "space": " "}


def read_table(
    path: str | os.PathLike[str],
    *,
    separator: str | None = None,
    encoding: str | None = None,
    decimal: str | None = None,
    usual_decimal: str = ".",
    as_text: Collection[str] = (),
) -> pd.DataFrame:
    r"""Read a table with a header row; `table.attrs["decimal"]` is the decimal separator of its text.

    An unnamed first column, as `DataFrame.to_csv` writes it, becomes the index. JSON files are lists of records, or one record per
    line (.jsonl). Of an Excel file, the first sheet is read.

    Args:
        path: a .csv, .tsv, .txt, .json, .jsonl (also with .gz), .xlsx or .parquet file; "-" reads text from standard input.
        separator: of the columns of text: a character, or "comma", "semicolon", "tab", "pipe" or "space"; None to detect it.
        encoding: of text; None to detect it.
        decimal: the decimal separator of text, "." or ","; None to detect it.
        usual_decimal: the decimal separator of text in which nothing decides.
        as_text: columns that are left as text, because they were text in the training table.

    Returns:
        At least one row and one column; column names are unique.

    Raises:
        FileNotFoundError: no such file.
        ConfigurationError: a separator or decimal separator that is not possible.
        DataError: unknown suffix, no rows, unreadable content, or duplicate column names.
        MissingDependencyError: an Excel file without openpyxl.
        ImportError: a Parquet file without pyarrow.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "houses.csv")
        ...     _ = path.write_text("area;town;price\n80,5;Bonn;200\n95,0;Ulm;240\n")
        ...     read_table(path)
           area  town  price
        0  80.5  Bonn    200
        1  95.0   Ulm    240
    """
    separator = _check_options(separator, decimal)
    source, suffix, compressed = _check_path(path)
    try:
        if suffix == ".parquet":
            table = pd.read_parquet(path)
        elif suffix == ".xlsx":
            table = strip_text(_read_excel(Path(path)))
        else:
            content = sys.stdin.buffer.read() if suffix == STDIN else Path(path).read_bytes()
            text = decode(gzip.decompress(content) if compressed else content, encoding)
            if suffix in _RECORDS:
                table = _parse_records(text, suffix)
            else:
                separator = separator or find_separator(text, _DELIMITED.get(suffix, ","))
                decimal = decimal or find_decimal(text, separator, usual_decimal)
                table = parse_text(text, separator, decimal, as_text)
    except pd.errors.EmptyDataError:
        raise DataError(f"{source} is empty; it needs a header row and at least one row of data") from None
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile, ValueError) as error:  # also those of pandas and pyarrow
        raise DataError(f"{source} cannot be read as a table: {error}") from error
    if table.shape[1] == 0 or len(table) == 0:
        raise DataError(
            f"{source} has {plural(len(table), 'row')} and {plural(table.shape[1], 'column')}; at least one of each is needed"
        )
    check_unique_names(table.columns, source)
    table.attrs["decimal"] = decimal or "."
    return table


def _check_options(separator: str | None, decimal: str | None) -> str | None:
    """Check the options of text, and return the separator as pandas takes it."""
    if decimal is not None:
        check_choice("--decimal", decimal, (".", ","))
    if separator is None:
        return None
    separator = _NAMED_SEPARATORS.get(separator, separator)
    if len(separator) != 1:
        raise ConfigurationError(f"--sep must be one character, or one of {', '.join(_NAMED_SEPARATORS)}, got {separator!r}")
    return separator


def _check_path(path: str | os.PathLike[str]) -> tuple[str, str, bool]:
    """Return the name of the source for messages, its suffix (`STDIN` for standard input), and whether it is compressed."""
    path = Path(path)
    if str(path) == STDIN:
        return "standard input", STDIN, False
    if not path.is_file():
        problem = "is a folder" if path.is_dir() else "does not exist"
        raise FileNotFoundError(f"{path} {problem}; give a {SUPPORTED} file, or - for standard input")
    compressed = path.suffix.lower() == ".gz"
    suffix = Path(path.stem).suffix.lower() if compressed else path.suffix.lower()
    if suffix not in (*_DELIMITED, *_RECORDS) and (compressed or suffix not in (".xlsx", ".parquet")):
        hint = "; save it as .xlsx" if suffix == ".xls" else ""
        raise DataError(f"{path} has the suffix {path.suffix!r}; supported are {SUPPORTED}{hint}")
    return str(path), suffix, compressed


def _read_excel(path: Path) -> pd.DataFrame:
    try:
        import openpyxl  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(f"reading {path}", "openpyxl", extra="excel") from error
    with pd.ExcelFile(path, engine="openpyxl") as file:
        if len(file.sheet_names) > 1:
            sheets = f"{plural(len(file.sheet_names), 'sheet')}; the first, {file.sheet_names[0]!r}, is read"
            warn(f"{path} has {sheets}. Save another sheet as a file to read it")
        header = pd.read_excel(file, header=None, nrows=1)
        if header.empty:
            raise pd.errors.EmptyDataError
        names = header.iloc[0]
        check_unique_names(names.dropna(), "the header")  # pandas would rename them ("a", "a.1")
        index = 0 if len(names) > 1 and pd.isna(names.iloc[0]) else None
        table = pd.read_excel(file, index_col=index, keep_default_na=False, na_values=[""])
    for name in table:
        if table[name].dtype.kind == "O" and not all_text(table[name]):  # in columns of text, "None" or "NA" may be a class
            table[name] = table[name].mask(table[name].isin(MISSING_WORDS)).infer_objects()
    return table


def _parse_records(text: str, suffix: str) -> pd.DataFrame:
    """Parse a list of records, or one record per line.

    Raises:
        DataError: not such JSON.
    """
    records: list[Any]
    if suffix == ".jsonl":
        records = []
        for number, line in enumerate(text.split("\n"), start=1):
            try:
                records += [json.loads(line)] if line.strip() else []
            except ValueError as error:
                raise DataError(f"line {number} is not JSON ({error})") from None
    else:
        records = json.loads(text) if text.strip() else []
    if not records:
        raise pd.errors.EmptyDataError
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise DataError('it must be a list of records, such as [{"area": 50, "price": 9.5}, {"area": 60, "price": 11}]')
    return pd.DataFrame.from_records(records)
