"""Parquet files of one table: finding and opening them, and checking that they have the same columns."""

from __future__ import annotations

import dataclasses
import glob
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from bayesify.data.columns import check_unique_names
from bayesify.errors import DataError
from bayesify.formatting import listing

__all__ = ["ParquetFile", "check_schema", "columns_of", "opened", "parquet_files"]

_BUFFER = 2**18  # bytes per column that are read at a time


def parquet_files(files: str | os.PathLike[str]) -> list[Path]:
    """Return the Parquet files that a pattern such as "in/*.parquet" matches or a folder contains, sorted; or the file itself.

    Raises:
        DataError: there are none, or others too.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("b.parquet", "a.parquet"):
        ...         Path(folder, name).touch()
        ...     print([file.name for file in parquet_files(f"{folder}/*.parquet")])
        ['a.parquet', 'b.parquet']
    """
    path = Path(files)
    pattern = str(path / "*.parquet") if path.is_dir() else glob.escape(str(path)) if path.is_file() else str(path)
    found = sorted(path for path in map(Path, glob.glob(pattern, recursive=True)) if path.is_file())
    if not found:
        raise DataError(f"no file matches {pattern}; give a pattern such as 'in/*.parquet' (in quotes) or a folder")
    if other := [path for path in found if path.suffix.lower() != ".parquet"]:
        raise DataError(f"{files} matches {other[0]}; several files must be .parquet")
    return found


@dataclasses.dataclass(frozen=True)
class ParquetFile:
    """A file as it was found: its path, its size, and when it was changed."""

    path: Path
    size: int
    changed: int

    @classmethod
    def of(cls, path: Path) -> ParquetFile:
        """Return the file as it is now."""
        status = path.stat()
        return cls(path, status.st_size, status.st_mtime_ns)


@contextmanager
def opened(file: ParquetFile, categories: Sequence[str] = ()) -> Iterator[pq.ParquetFile]:
    """Open a file; raise a DataError if it has changed or cannot be read."""
    try:
        if ParquetFile.of(file.path) != file:
            raise DataError(f"{file.path} has changed since it was opened; start again")
        with pq.ParquetFile(file.path, read_dictionary=list(categories), pre_buffer=False, buffer_size=_BUFFER) as source:
            yield source
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{file.path} cannot be read as a Parquet file: {error}") from error


def columns_of(schema: pa.Schema, path: Path) -> pd.DataFrame:
    """A table without rows that has the columns of a file, without its index."""
    check_unique_names(schema.names, str(path))
    return schema.empty_table().to_pandas()


def check_schema(schema: pa.Schema, path: Path, first: pa.Schema, first_path: Path) -> None:
    """Raise a DataError if a file has other columns, or other kinds of columns, than the first."""
    lacks = [name for name in first.names if name not in schema.names]
    others = [name for name in schema.names if name not in first.names]
    if lacks or others:
        parts = [f"{verb} {listing(map(repr, names), most=5)}" for verb, names in (("lacks", lacks), ("also has", others)) if names]
        raise DataError(f"{path} {' and '.join(parts)}, unlike {first_path}; all files must have the same columns")
    for name in first.names:
        a, b = first.field(name).type, schema.field(name).type
        if _family(a) != _family(b) and not (pa.types.is_null(a) or pa.types.is_null(b)):
            raise DataError(f"column {name!r} is {b} in {path}, and {a} in {first_path}; write it in one type")


def _family(kind: pa.DataType) -> str:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return "text"
    return "date" if pa.types.is_timestamp(kind) or pa.types.is_date(kind) else str(kind)
