"""Tables of the commands: the training table, and later tables, which are read in its format."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from bayesify.cli.terminal import UsageError
from bayesify.data import (
    drop_missing_target,
    infer_task,
    read_table,
    read_target,
    split_target,
    target_format,
    task_reason,
    tell_format,
)
from bayesify.estimators import BayesianClassifier, BayesianEstimator
from bayesify.persistence import CHECKPOINT, load_config, load_model

__all__ = ["LaterTables", "TextOptions", "TrainingTable", "open_model", "read_training"]


@dataclasses.dataclass(frozen=True)
class TextOptions:
    """The options --sep, --encoding and --decimal; None is detected."""

    separator: str | None = None
    encoding: str | None = None
    decimal: str | None = None


@dataclasses.dataclass(frozen=True)
class LaterTables:
    """Reading of later tables in the format of the training table.

    Attributes:
        target: name of the target column, if the model knows it.
        written: decimal separator of a target that is text, from `target_format`.
        decimal: decimal separator of the training table, where nothing in a later one decides.
        as_text: columns that are left as text.
        is_classes: whether the target is a class.
        options: of the later table.
        weight, group: columns of the training table that are no inputs, and are left out of later tables.
    """

    target: str | None
    written: str
    decimal: str
    as_text: tuple[str, ...]
    is_classes: bool
    options: TextOptions
    weight: str | None = None
    group: str | None = None

    @classmethod
    def of_model(cls, config: Mapping[str, Any], estimator: BayesianEstimator, options: TextOptions) -> LaterTables:
        """Return the format that is stored with a model.

        Args:
            config: from `load_config`.
            estimator: from `load_model`.
            options: of the later table.
        """
        target, stored = config["target"]["name"], config.get("reading", {})  # absent from models of earlier versions
        written = stored.get("target", "")
        as_text = [column.name for column in estimator.columns_ if column.is_text]
        classes = estimator.classes_ if isinstance(estimator, BayesianClassifier) else None
        if target is not None and (written or (classes is not None and classes.dtype.kind in "OU")):
            as_text.append(target)
        apart = {name: stored.get(name) for name in ("weight", "group")}
        return cls(target, written, stored.get("decimal", "."), tuple(as_text), classes is not None, options, **apart)

    def stored(self) -> dict[str, str]:
        """Return what `of_model` needs, to be saved with the model."""
        apart = {"weight": self.weight, "group": self.group}
        return {"decimal": self.decimal, "target": self.written, **{name: column for name, column in apart.items() if column}}

    def read(self, path: Path) -> pd.DataFrame:
        """Read a table, with or without the target."""
        return read_table(path, **vars(self.options), usual_decimal=self.decimal, as_text=self.as_text)

    def features(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return a table without the columns that are no inputs: target, weights and groups."""
        return table.drop(columns=[name for name in (self.target, self.weight, self.group) if name], errors="ignore")

    def read_with_target(self, path: Path) -> tuple[pd.DataFrame, pd.Series]:
        """Read a table and split it into inputs and target, without the rows that have no target."""
        if self.target is None:
            raise UsageError("the model was saved without the name of its target column; use it from Python")
        table = self.read(path)
        features, y = split_target(table, self.target)
        # A number column is text if it has a stray value, and then in the format of its table.
        y = read_target(y, self.written or ("" if self.is_classes else table.attrs["decimal"]))
        features, y = drop_missing_target(features, y, str(path))
        if not len(y):
            raise UsageError(f"the target {self.target!r} is missing in every row of {path}")
        return self.features(features), y


@dataclasses.dataclass(frozen=True)
class TrainingTable:
    """The training table, read.

    Attributes:
        features: the inputs.
        y: the target, without missing values.
        task: "regression" or "classification".
        reason: why this task was inferred, where the target leaves a choice.
        later: reading of tables in the same format.
    """

    features: pd.DataFrame
    y: pd.Series
    task: str
    reason: str
    later: LaterTables


def read_training(path: Path, target: str, task: str, options: TextOptions) -> TrainingTable:
    """Read the training table: numbers that are text become numbers, and rows without a target are dropped.

    Args:
        path: the table.
        target: name of the target column.
        task: "regression", "classification" or "auto".
        options: of the table.

    Raises:
        DataError: an unreadable table, or no such column.
    """
    table = read_table(path, **vars(options))
    text = [str(name) for name in table if pd.api.types.is_string_dtype(table[name].dropna())]
    features, y = split_target(table, target)
    written = target_format(y, task)
    if written:
        tell_format(y, written)
    features, y = drop_missing_target(features, read_target(y, written), str(path))
    is_chosen = task != "auto"
    chosen = task if is_chosen else infer_task(y)
    later = LaterTables(target, written, table.attrs["decimal"], tuple(text), chosen == "classification", options)
    return TrainingTable(features, y, chosen, "" if is_chosen else task_reason(y), later)


def open_model(directory: Path, options: TextOptions) -> tuple[BayesianEstimator, LaterTables]:
    """Load a model, and the format of its training table.

    Raises:
        ModelFileError: not a model.
        UsageError: an interrupted run.
    """
    if any(directory.glob(f"{CHECKPOINT}*")) and not (directory / "config.json").is_file():
        raise UsageError(f"{directory} has an interrupted run and no model; the same `bayesify fit` command resumes it")
    estimator = load_model(directory)
    return estimator, LaterTables.of_model(load_config(directory), estimator, options)
