"""Training of an estimator on files that do not fit into memory."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from bayesify.data import ParquetTable, TableSummary, conform, describe_columns
from bayesify.data.column import Column
from bayesify.errors import ConfigurationError, DataError, MissingDependencyError
from bayesify.estimators.conformal import calibration_rows
from bayesify.jobs.where import LOCAL
from bayesify.train import RowGroups, Training
from bayesify.train.loggers import Loggers

try:
    import numpy as np
    import pandas as pd
    from sklearn.base import is_classifier
    from sklearn.utils.validation import check_random_state
except ImportError as error:
    raise MissingDependencyError("the estimators", "scikit-learn and pandas", extra="tables") from error

if TYPE_CHECKING:
    from lightning.fabric.loggers.logger import Logger

    from bayesify.data.pieces import Piece
    from bayesify.tracking import Run

__all__ = ["FileTraining"]

_MOST_VALIDATION_ROWS = 20_000
_PART = 2**20  # rows of a part of a pass, after which the model is validated and a checkpoint is written
_BUFFER, _BUFFER_NUMBERS = 2**17, 2**23  # rows and numbers that are shuffled at a time, at most


class FileTraining:
    """`fit_files` of an estimator."""

    def fit_files(
        self: Any,
        table: ParquetTable,
        *,
        checkpoint: str | os.PathLike[str] | None = None,
        loggers: Iterable[str | Run | Logger | Callable[[dict[str, float]], object]] = (),
    ) -> Any:
        """Train on Parquet files of any size, in bounded memory; the result is that of `fit`.

        Kinds of columns, quantiles, scales and encodings are learned from a random sample of up to 100,000 rows, as `fit` learns
        them from a table; those of smaller tables are the same. With 100,000 rows, a quantile of the sample is one of the table
        whose level differs by less than 0.6 percentage points with probability 0.99, and the mean differs by less than 0.9 % of a
        standard deviation. Ranges, categories and missing values are those of all rows.

        A pass over more than about a million rows is trained in parts. After each, the rows held out to select the weights of the
        best epoch are evaluated, at most 20,000, which are the same for all members of an ensemble, and a checkpoint is written;
        `history_` has an entry per part. `epochs` are passes; None makes the steps of `training_settings`, at least ten parts.

        Args:
            table: the files, the target and the rows held out for evaluation, which are not used.
            checkpoint, loggers: as for `fit`.

        Raises:
            TypeError, ConfigurationError, DataError: invalid parameters or data, before training.
            CheckpointError: `checkpoint` is damaged or belongs to another run, or the files have changed.
            DivergenceError: NaN or infinity in training.
        """
        if not isinstance(table, ParquetTable):
            raise TypeError(f"table must be a ParquetTable, got {type(table).__name__}; use fit for tables in memory")
        path = None if checkpoint is None else Path(checkpoint).absolute()
        self._check_parameters()
        self._check_files_parameters()
        if is_classifier(self) and table.sample.task != "classification":
            raise ConfigurationError(
                f"the target {table.target!r} has numbers; for classes, pass ParquetTable(..., task='classification')"
            )
        self.stack_, self.stack_weights_ = (), ()
        with Loggers(loggers, path) as log:
            log.start({"estimator": self.resolved()})
            training, settings = self._prepare_files(table)
            self._train(training, settings, path, log)
        self.settle()
        self._calibrate()
        return self

    def _prepare_files(self: Any, table: ParquetTable) -> tuple[Training, dict[str, Any]]:
        """Survey the files and build the network; return the training and its settings."""
        self.seed_, self.updates_ = int(check_random_state(self.random_state).randint(2**31 - 1)), 0
        shares = self._shares(table)
        sample = table.sample.train
        sample = sample[table.uses(sample.positions, shares) != "calibration"]
        self._table(sample.X, reset=True)
        self._learn_target(sample.y)
        survey = _Survey(self, table, shares, describe_columns(sample.X))
        self._preprocess(sample.X, survey.columns)
        rows = _EncodedRows(self, survey)
        held_out = survey.held_out("validation")
        validation = None if held_out is None else (self._encode(held_out.X), self._training_target(held_out.y))
        kept = survey.held_out("calibration")
        self._keep_for_calibration(*(None, None) if kept is None else (kept.X, kept.y), table.rows)
        training = Training(
            bnn=self.bnn_, data=rows, likelihood=self.likelihood_, validation=validation, seed=self.seed_,
            beta=self.beta_in_use(), learning_rate=self.in_use("learning_rate"),
        )  # fmt: skip
        return training, self._schedule(sum(rows.sizes), validation is not None, rows.parts)

    def _check_files_parameters(self: Any) -> None:
        """Raise a ConfigurationError for parameters that need the table in memory."""
        if self.is_stacked:
            raise ConfigurationError("method='auto' compares models of a table in memory; choose one method for fit_files")
        if self.conformal == "cross":
            raise ConfigurationError("conformal='cross' trains on a table in memory; use conformal=True for fit_files")
        if getattr(self, "class_weight", None) is not None:
            raise ConfigurationError("class_weight needs a table in memory; leave it out for fit_files")
        if self.on != LOCAL:
            raise ConfigurationError(f"on={str(self.on)!r} sends a table in memory to the cluster; leave it out for fit_files")

    def _shares(self: Any, table: ParquetTable) -> dict[str, float]:
        """Return the fractions of rows that are held out."""
        members = self._members_by_folds()
        validation = 1 / members if members else self.in_use("validation_fraction")
        shares = {"validation": min(validation, _MOST_VALIDATION_ROWS / table.rows)}
        if self.conformal or self.calibrate:
            shares["calibration"] = calibration_rows(table.rows) / table.rows
        return shares

    def _encode(self: Any, X: pd.DataFrame) -> Tensor:
        return self._inputs(self.preprocessing_.transform(conform(X, self.columns_, new=False)))


class _Survey:
    """The second pass over a table: it checks all rows, counts those to train on, and keeps those that are held out.

    Attributes:
        columns: with ranges, categories and missing values of all rows.
        sizes: number of rows to train on of each group.
        checksum: of all values.
    """

    def __init__(self, estimator: Any, table: ParquetTable, shares: Mapping[str, float], columns: Sequence[Column]) -> None:
        self.table, self.shares = table, shares
        summary = TableSummary(columns)
        self.names, self.categories = _names(columns)
        self.sizes: list[int] = []
        self._kept: dict[str, list[Piece]] = {use: [] for use in shares}
        for group in range(len(table.groups)):
            size = 0
            for piece in self._pieces(group):
                uses = table.uses(piece.positions, shares)
                size += self._add(estimator, piece, uses, summary)
            self.sizes.append(size)
        self.columns = tuple(columns) if table.is_complete else summary.described()
        self.names, self.categories = _names(self.columns)
        self.checksum = summary.checksum
        if not sum(self.sizes):
            raise ConfigurationError(f"no row of {table.rows} is left to train on; lower test_fraction or validation_fraction")

    def _add(self, estimator: Any, piece: Piece, uses: np.ndarray, summary: TableSummary) -> int:
        """Check the rows of a piece and add them; return the number of rows to train on."""
        used = piece[uses != "test"]
        try:
            conformed = conform(used.X, summary.columns, new=False)
            if len(used.y):
                estimator._training_target(used.y)
        except ValueError as error:  # a DataError, or one of scikit-learn
            raise DataError(f"{piece.source}: {error}") from error
        learned = uses[uses != "test"] != "calibration"
        summary.add(conformed[learned], used.y[learned])
        for use, kept in self._kept.items():
            if (mask := uses == use).any():
                kept.append(piece[mask])
        return int((uses == "train").sum())

    def _pieces(self, group: int) -> Iterator[Piece]:
        return self.table.pieces(group, self.names, self.categories)

    def train(self, group: int, start: int, stop: int) -> Iterator[Piece]:
        """Yield rows `start` to `stop` of the rows of a group to train on."""
        offset = 0
        for piece in self._pieces(group):
            rows = np.flatnonzero(self.table.uses(piece.positions, self.shares) == "train")
            if len(chosen := rows[max(0, start - offset) : max(0, stop - offset)]):
                yield piece[chosen]
            offset += len(rows)
            if offset >= stop:
                return

    def held_out(self, use: str) -> Piece | None:
        """Return the rows that are held out for a use, None if there are none."""
        pieces = self._kept.get(use)
        if not pieces:
            return None
        X = pd.concat([piece.X for piece in pieces], ignore_index=True)
        y = pd.concat([piece.y for piece in pieces], ignore_index=True)
        return dataclasses.replace(pieces[0], positions=np.concatenate([p.positions for p in pieces]), X=X, y=y)


class _EncodedRows(RowGroups):
    """The rows to train on, as inputs of the network and targets of the likelihood."""

    def __init__(self, estimator: Any, survey: _Survey) -> None:
        self.estimator, self.survey, self.sizes = estimator, survey, survey.sizes
        self.parts = math.ceil(sum(self.sizes) / _PART)
        self.buffer = max(1024, min(_BUFFER, _BUFFER_NUMBERS // estimator.in_features_))
        self.seed = estimator.seed_
        self.fingerprint = str(survey.checksum)

    def read(self, group: int, start: int, stop: int) -> Iterator[tuple[Tensor, Tensor]]:
        for piece in self.survey.train(group, start, stop):
            yield self.estimator._encode(piece.X), self.estimator._training_target(piece.y)


def _names(columns: Sequence[Column]) -> tuple[list[str], list[str]]:
    """Columns in use, and those of them that are read as categories."""
    used = [column for column in columns if column.kind != "dropped"]
    return [column.name for column in used], [column.name for column in used if column.kind == "category"]
