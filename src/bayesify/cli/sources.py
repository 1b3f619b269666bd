"""What `bayesify fit` trains and tests on: a table in memory, or Parquet files that are read in parts."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from bayesify.cli.files import is_several
from bayesify.cli.splits import Split, separate_test, split_training, take_weights
from bayesify.cli.tables import LaterTables, TextOptions, TrainingTable, read_training
from bayesify.cli.terminal import UsageError
from bayesify.data import ParquetTable, check_target
from bayesify.estimators import BayesianEstimator
from bayesify.formatting import plural
from bayesify.tracking import Run

__all__ = ["Source", "TestRows", "open_source"]

_LARGE = 50_000_000  # cells of a Parquet file, beyond which it is read in parts


@dataclasses.dataclass(frozen=True)
class TestRows:
    """Which rows are held out: the options --test, --test-fraction, --split, --group and --seed."""

    table: Path | None
    fraction: float
    split: str
    group: str | None
    seed: int


@dataclasses.dataclass(frozen=True)
class Source:
    """Training and test rows.

    Attributes:
        table: all rows in memory: with `files`, those of their sample.
        rows: training and test rows in memory.
        weights: of the training rows.
        files: the files that are read in parts.
    """

    table: TrainingTable
    rows: Split
    weights: pd.Series | None
    files: ParquetTable | None

    def fit(self, estimator: BayesianEstimator, checkpoint: Path, runs: Sequence[Run]) -> None:
        """Train the estimator."""
        if self.files is None:
            rows = self.rows
            estimator.fit(rows.features, rows.y, self.weights, groups=rows.groups, checkpoint=checkpoint, loggers=runs)
        else:
            estimator.fit_files(self.files, checkpoint=checkpoint, loggers=runs)

    @property
    def size(self) -> str:
        """The numbers of rows."""
        tested = f"{len(self.rows.test_y):,} to test on"
        if self.files is None:
            return f"{len(self.rows.y):,} rows to train on, {tested}"
        return f"{self.files.rows:,} rows in {plural(len(self.files.files), 'file')}, read in parts, {tested}"


def open_source(
    data: Path, target: str, task: str, test: TestRows, weight: str | None, text: TextOptions, in_memory: Sequence[str]
) -> Source:
    """Read the training table, or open the files.

    Args:
        data: a table; a folder or a pattern of Parquet files; or a large Parquet file.
        target: name of the target column.
        task: "regression", "classification" or "auto".
        test: which rows are held out.
        weight: column of weights.
        text: how text is read.
        in_memory: options in use that need a table in memory.

    Raises:
        UsageError: an option that files cannot be combined with.
        DataError: data that cannot be trained on.
    """
    if is_several(data) or (not in_memory and _is_large(data)):
        if in_memory:
            raise UsageError(f"{', '.join(in_memory)}: not for several files, which are read in parts; leave it out")
        return _open_files(data, target, task, test)
    table = read_training(data, target, task, text)
    table = dataclasses.replace(table, later=dataclasses.replace(table.later, weight=weight, group=test.group))
    check_target(table.y, table.task)
    table, weights = (table, None) if weight is None else take_weights(table, weight)
    if test.table is None:
        rows = split_training(table, test.fraction, test.seed, test.split, test.group)
    else:
        rows = separate_test(table, test.table)
    return Source(table, rows, None if weights is None else weights.iloc[rows.train], None)


def _open_files(data: Path, target: str, task: str, test: TestRows) -> Source:
    files = ParquetTable(data, target, test_fraction=0 if test.table else test.fraction, task=task, seed=test.seed)
    train, held_out = files.sample.train, files.sample.test
    check_target(train.y, files.sample.task)
    later = LaterTables(target, files.sample.written, ".", (), files.sample.task == "classification", TextOptions())
    table = TrainingTable(train.X, train.y, files.sample.task, files.sample.reason, later)
    if test.table is not None:
        return Source(table, separate_test(table, test.table), None, files)
    source = f"{plural(len(held_out.y), 'row')} held out by a hash of their position (seed {test.seed})"
    features, source = held_out.X.set_axis(held_out.positions), source if len(held_out.y) else "none"
    rows = Split(train.X, train.y, features, held_out.y, source, np.arange(len(train.y)))
    return Source(table, rows, None, files)


def _is_large(data: Path) -> bool:
    """Whether a Parquet file has many cells."""
    if data.suffix.lower() != ".parquet":
        return False
    try:
        metadata = pq.read_metadata(os.fspath(data))
    except (OSError, pa.ArrowException):  # the reader has the message
        return False
    return metadata.num_rows * metadata.num_columns > _LARGE
