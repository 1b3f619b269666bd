"""A training table in Parquet files, which is read in pieces and never in memory as a whole."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
import pandas as pd
import pyarrow as pa

from bayesify.core.checks import check_choice, check_fraction, check_integer
from bayesify.data.parquet import ParquetFile, check_schema, columns_of, opened, parquet_files
from bayesify.data.pieces import Piece, Rows, Sample
from bayesify.data.target import (
    drop_missing_target,
    infer_task,
    read_target,
    split_target,
    target_format,
    task_reason,
    tell_format,
)
from bayesify.errors import DataError, warn
from bayesify.formatting import listing

__all__ = ["ParquetTable"]

MOST_TEST_ROWS = 20_000
MOST_CLASSES = 1000
_SAMPLE_ROWS, _SAMPLE_CELLS, _LEAST_SAMPLE = 100_000, 5_000_000, 10_000
_PIECE_ROWS, _PIECE_CELLS = 2**16, 2**21  # that are read at a time
_LARGE_GROUP = 2**22  # rows, beyond which neighboring rows of a file remain close to each other in training


@dataclasses.dataclass(frozen=True)
class _Group:
    """A row group: its file, its number there, its rows, and the position of its first row in the table."""

    file: ParquetFile
    number: int
    rows: int
    first: int


class ParquetTable:
    """A training table in Parquet files, of any size, for `BayesianRegressor.fit_files` and `BayesianClassifier.fit_files`.

    A row group, or a part of it, is in memory at a time. A hash of a row's position decides what it is used for, so that every
    pass over the files, and every run with equal files and `seed`, holds out the same rows.

    Args:
        files: a file, a folder, or a pattern such as "data/*.parquet". All have the same columns.
        target: name of the target column. Rows without a target are not used.
        test_fraction: fraction of the rows that are held out for evaluation, at most 20,000 rows.
        task: "regression", "classification", or "auto" to decide by the target, as `infer_task` does.
        seed: of the choice of rows.

    Attributes:
        files: the files, sorted.
        rows: number of rows of all files.
        is_complete: whether the sample has all rows: up to 100,000 rows of 50 columns, fewer if there are more columns.

    Raises:
        DataError: no file, a file that is not Parquet, files with different columns, or no column `target`.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> frame = pd.DataFrame({"a": range(100), "b": ["x", "y"] * 50, "t": np.arange(100) / 7})
        >>> frame.to_parquet(f"{folder.name}/first.parquet")
        >>> frame.to_parquet(f"{folder.name}/second.parquet")
        >>> table = ParquetTable(folder.name, "t", test_fraction=0.2)
        >>> table.rows, table.sample.task, list(table.sample.test.X)
        (200, 'regression', ['a', 'b'])
    """

    def __init__(
        self, files: str | os.PathLike[str], target: str, *, test_fraction: float = 0.0, task: str = "auto", seed: int = 0
    ) -> None:
        check_fraction("test_fraction", test_fraction)
        check_choice("task", task, ("auto", "regression", "classification"))
        check_integer("seed", seed, least=0)
        self.target, self.seed, self._task = target, seed, task
        self.files = parquet_files(files)
        self.groups: list[_Group] = []
        first: pa.Schema | None = None
        for path in self.files:
            file = ParquetFile.of(path)
            with opened(file) as source:
                schema = source.schema_arrow
                if first is None:
                    first = schema
                    split_target(columns_of(schema, path), target)
                check_schema(schema, path, first, self.files[0])
                for number in range(source.num_row_groups):
                    rows = source.metadata.row_group(number).num_rows
                    self.groups.append(_Group(file, number, rows, self.rows))
        if not self.rows:
            raise DataError(f"{listing(map(str, self.files), most=3)} have no rows")
        assert first is not None
        columns = len(first.names)
        self._piece = max(1, min(_PIECE_ROWS, _PIECE_CELLS // columns))
        sample = min(_SAMPLE_ROWS, max(_LEAST_SAMPLE, _SAMPLE_CELLS // columns))
        self._share = min(1.0, sample / self.rows)
        self.is_complete = self.rows <= sample
        self._test_share = min(test_fraction, MOST_TEST_ROWS / self.rows)
        if (largest := max(group.rows for group in self.groups)) > _LARGE_GROUP:
            warn(
                f"a row group has {largest:,} rows, which are read in their order; if the rows are sorted, write the files with "
                "smaller row groups"
            )

    @property
    def rows(self) -> int:
        """Number of rows of all files."""
        return self.groups[-1].first + self.groups[-1].rows if self.groups else 0

    def uses(self, positions: np.ndarray, shares: Mapping[str, float]) -> np.ndarray:
        """Return what rows are used for: "test", "train", or a name of `shares`, which are fractions of all rows."""
        edges = np.cumsum([self._test_share, *shares.values()])
        names = np.array(["test", *shares, "train"], dtype=object)
        return names[np.searchsorted(edges, _uniform(positions, self.seed, "use"), side="right")]

    def pieces(self, group: int, columns: Sequence[str] | None = None, categories: Sequence[str] = ()) -> Iterator[Piece]:
        """Yield the rows of a row group that have a target, test rows included.

        Args:
            group: its number.
            columns: to read; None for all.
            categories: columns of text to read as categories, which takes less time.

        Raises:
            DataError: the file has changed, or cannot be read.
        """
        written, dtype = self.sample.written, self.sample.train.y.dtype
        for positions, batch, source in self._batches(self.groups[group], columns, categories):
            table = batch.to_pandas().set_axis(positions - self.groups[group].first)  # the rows that messages name
            y = read_target(table[self.target], written, tell=False)
            known = y.notna().to_numpy()
            y = y[known]
            yield Piece(positions[known], table.loc[known].drop(columns=self.target), _as_dtype(y, dtype, source), source)

    @cached_property
    def sample(self) -> Sample:
        """What the first pass over the files keeps, which takes place at the first access."""
        kept = {use: Rows() for use in ("train", "test", "rare")}
        counts: dict[object, int] | None = {}
        missing = 0
        for group in self.groups:
            for positions, batch, _ in self._batches(group):
                y = batch.column(self.target).to_pandas()
                missing += int(y.isna().sum())
                uses = self.uses(positions, {})
                chosen = (uses == "train") & (_uniform(positions, self.seed, "sample") < self._share)
                kept["train"].add(positions, batch, chosen)
                kept["test"].add(positions, batch, uses == "test")
                if counts is not None:
                    rare = _count(y.where(uses == "train"), counts)
                    kept["rare"].add(positions, batch, rare & ~chosen)
                    counts = counts if len(counts) <= MOST_CLASSES else None
        if missing == self.rows:
            raise DataError(f"the target {self.target!r} is missing in every row")
        if missing:
            warn(f"the target {self.target!r} is missing in {missing:,} of {self.rows:,} rows; they are not used")
        return self._sample(kept, counts)

    def _sample(self, kept: Mapping[str, Rows], counts: dict[object, int] | None) -> Sample:
        if not kept["train"].positions:
            raise DataError(f"test_fraction leaves no row of {self.rows} to train on")
        positions, table = kept["train"].table(kept["rare"])
        written = target_format(table[self.target], self._task)
        if written:
            tell_format(table[self.target], written)
            read_target(table[self.target], written)  # warns of text that is no number
        full = self._known(positions, table, written)
        task = infer_task(full.y) if self._task == "auto" else self._task
        if task == "classification" and counts is None:
            raise DataError(
                f"the target {self.target!r} has more than {MOST_CLASSES:,} classes; check that it is not an identifier, or use "
                "the task regression to predict numbers"
            )
        train = full if task == "classification" else self._known(*kept["train"].table(), written)
        test = self._known(*kept["test"].table(), written) if kept["test"].positions else train[:0]
        test = dataclasses.replace(test, y=_as_dtype(test.y, train.y.dtype, "held-out rows"))
        if task == "classification":  # a class is known only if it has a row to train on
            test = test[test.y.isin(train.y.unique()).to_numpy()]
        return Sample(train, test, written, task, task_reason(full.y) if self._task == "auto" else "")

    def _known(self, positions: np.ndarray, table: pd.DataFrame, written: str) -> Piece:
        """Return the rows that have a target."""
        X, y = split_target(table, self.target)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # exact numbers come from all rows
            X, known = drop_missing_target(X, read_target(y, written, tell=False))
        positions = positions[known.index]
        return Piece(positions, X.set_axis(positions), known.set_axis(positions), "the sample")

    def _batches(
        self, group: _Group, columns: Sequence[str] | None = None, categories: Sequence[str] = ()
    ) -> Iterator[tuple[np.ndarray, pa.RecordBatch, str]]:
        """Yield positions, rows and their description."""
        names = None if columns is None else [*columns, self.target]
        offset = 0
        with opened(group.file, categories) as source:
            for batch in source.iter_batches(self._piece, row_groups=[group.number], columns=names):
                positions = np.arange(offset, offset + len(batch)) + group.first
                yield (
                    positions,
                    batch,
                    f"{group.file.path}, rows {offset:,} to {offset + len(batch) - 1:,} of its group {group.number}",
                )
                offset += len(batch)


def _as_dtype(y: pd.Series, dtype: np.dtype, source: str) -> pd.Series:
    """Convert targets to the type that those of the sample have, which must not change them."""
    if y.dtype == dtype:
        return y
    try:
        converted = y.astype(dtype)
    except (ValueError, TypeError):
        converted = None
    if converted is None or not (converted.astype(object) == y.astype(object)).all():
        raise DataError(f"the target of {source} has values other than {dtype}, the type of the first rows; write it in one type")
    return converted


def _count(y: pd.Series, counts: dict[object, int]) -> np.ndarray:
    """Count the values of targets, until there are too many, and return which rows are the first two of a value."""
    first = np.zeros(len(y), dtype=bool)
    for value, count in y.value_counts().items():
        before = counts.get(value, 0)
        if before < 2 and count:
            first[np.flatnonzero((y == value).to_numpy())[: 2 - before]] = True
        counts[value] = before + int(count)
        if len(counts) > MOST_CLASSES:
            break
    return first


def _uniform(positions: np.ndarray, seed: int, purpose: str) -> np.ndarray:
    """A number in [0, 1) for every position, which depends on position, seed and purpose alone."""
    key = np.frombuffer(hashlib.blake2b(repr((purpose, seed)).encode(), digest_size=8).digest(), dtype=np.uint64)
    return pd.util.hash_array(positions.astype(np.uint64) ^ key) / 2.0**64
