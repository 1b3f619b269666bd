"""Reading tables from CSV, TSV and Parquet files."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import pandas as pd

from bayesify.data.columns import check_unique_names
from bayesify.errors import DataError

__all__ = ["read_table"]

_SEPARATORS = {".csv": ",", ".tsv": "\t"}


def read_table(path: str | os.PathLike[str]) -> pd.DataFrame:
    """Read a table with a header row.

    An unnamed first column, as `DataFrame.to_csv` writes it, becomes the index.

    Args:
        path: a .csv, .tsv, .csv.gz, .tsv.gz or .parquet file.

    Returns:
        At least one row and one column; column names are unique.

    Raises:
        FileNotFoundError: no such file.
        DataError: unknown suffix, no rows, unreadable content, or duplicate column names.
        ImportError: a Parquet file without pyarrow.
    """
    path = Path(path)
    if not path.is_file():
        problem = "is a folder" if path.is_dir() else "does not exist"
        raise FileNotFoundError(f"{path} {problem}; give a .csv, .tsv or .parquet file")
    suffix = Path(path.stem).suffix.lower() if path.suffix.lower() == ".gz" else path.suffix.lower()
    if suffix not in _SEPARATORS and path.suffix.lower() != ".parquet":
        raise DataError(f"{path} has the suffix {path.suffix!r}; supported are .csv, .tsv, .csv.gz, .tsv.gz and .parquet")
    try:
        table = _read_text(path, _SEPARATORS[suffix]) if suffix in _SEPARATORS else pd.read_parquet(path)
    except pd.errors.EmptyDataError:
        raise DataError(f"{path} is empty; it needs a header row and at least one row of data") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text (byte {error.start}); save it as CSV UTF-8") from error
    except (OSError, EOFError, zlib.error, ValueError) as error:  # pandas and pyarrow derive their errors from ValueError
        raise DataError(f"{path} cannot be read as a table: {error}") from error
    if table.shape[1] == 0 or len(table) == 0:
        raise DataError(f"{path} has {len(table)} rows and {table.shape[1]} columns; at least one of each is needed")
    check_unique_names(table.columns, str(path))
    return table


def _read_text(path: Path, separator: str) -> pd.DataFrame:
    # pandas renames duplicate columns ("a", "a.1"), so they are checked in the header row.
    header = pd.read_csv(path, sep=separator, header=None, nrows=1, dtype=str, encoding="utf-8-sig").iloc[0]
    check_unique_names([name for name in header if isinstance(name, str)], "the header")
    if len(header) == 1 and any(other in str(header[0]) for other in ";\t,"):
        raise DataError(f"it has a single column {header[0]!r}; columns must be separated by {separator!r}")
    index = 0 if not isinstance(header[0], str) and len(header) > 1 else False
    return pd.read_csv(path, sep=separator, index_col=index, encoding="utf-8-sig", low_memory=False)
