"""Training and test rows of `bayesify fit`: at random, by time, by group, or from a separate table."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path

import numpy as np
import pandas as pd

from bayesify.cli.tables import TrainingTable
from bayesify.cli.terminal import UsageError
from bayesify.data import conform, describe_columns
from bayesify.errors import DataError
from bayesify.formatting import listing, plural

__all__ = ["Split", "separate_test", "split_rows", "split_training", "take_weights"]


@dataclasses.dataclass(frozen=True)
class Split:
    """Training and test rows.

    Attributes:
        features, y: of the training rows.
        test_features, test_y: of the test rows; without rows if none are held out.
        source: where the test rows come from, for the report.
        train: positions of the training rows in the table, whose labels may be repeated.
        groups: an integer per training row, for the groups that are held out as a whole; None without --group.
    """

    features: pd.DataFrame
    y: pd.Series
    test_features: pd.DataFrame
    test_y: pd.Series
    source: str
    train: np.ndarray
    groups: np.ndarray | None = None

    @property
    def group_count(self) -> int:
        """The number of groups of the training rows, with --group."""
        return 1 if self.groups is None else len(np.unique(self.groups))

    @property
    def copies(self) -> int:
        """The number of test rows that are training rows, too, target included.

        Columns that number or name the rows are ignored. Where no column has a value of its own in most of the different rows,
        equal rows may be different cases, and the result is 0.
        """
        is_float = pd.api.types.is_float_dtype
        used = [name for name, values in self.features.items() if is_float(values) or not values.is_unique]
        targets = pd.concat([self.y, self.test_y], ignore_index=True).rename("target")
        inputs = pd.concat([self.features[used], self.test_features[used]], ignore_index=True)
        hashes = pd.util.hash_pandas_object(pd.concat([inputs, targets], axis=1), index=False).to_numpy()
        known, count = np.unique(hashes[: len(self.y)]), len(self.y)
        distinct = [targets[:count].nunique(), *(inputs[name][:count].astype(object).nunique() for name in used)]
        return int(np.isin(hashes[count:], known).sum()) if 2 * max(distinct) >= len(known) else 0


def take_weights(table: TrainingTable, name: str) -> tuple[TrainingTable, pd.Series]:
    """Return the table without the column of weights, and the weights.

    Raises:
        UsageError: no such column, the only one, or values that are no weights.
    """
    values = _column(table.features, f"--weight {name}", name)
    weights = pd.to_numeric(values, errors="coerce")
    if (invalid := ~(np.isfinite(weights) & (weights >= 0))).any():
        row = values.index[invalid][0]
        raise UsageError(f"--weight {name}: weights must be numbers of at least 0, got {values[row]!r} in row {row}")
    if table.features.shape[1] == 1:
        raise UsageError(f"--weight {name} leaves no input column")
    return dataclasses.replace(table, features=table.features.drop(columns=name)), weights.astype(float)


def split_training(table: TrainingTable, fraction: float, seed: int, by: str = "random", group: str | None = None) -> Split:
    """Split the training table.

    Args:
        table: all rows.
        fraction: of the rows that are held out; 0 holds out none.
        seed: of a random split.
        by: "random", stratified by class, or "time:COLUMN", which holds out the rows with the latest values of the column.
        group: a column whose values are not divided between training and test rows; it is not an input.

    Raises:
        UsageError: an unknown split or column, no rows on one side, or test rows with classes that no training row has.
    """
    time_column = _time_column(by)
    if time_column is not None and group is not None:
        raise UsageError(f"--split {by} and --group {group} cannot be combined; choose one")
    features, y = table.features, table.y
    groups = None if group is None else _column(features, f"--group {group}", group)
    if groups is not None:
        features = features.drop(columns=group)
        if features.shape[1] == 0:
            raise UsageError(f"--group {group} leaves no input column")
    codes = None if groups is None else _codes(groups)
    if fraction == 0:
        return Split(features, y, features.iloc[:0], y.iloc[:0], "none", np.arange(len(y)), codes)
    if codes is not None:
        train, test = _split_groups(codes, fraction, seed)
        source = f"of {plural(len(np.unique(codes[test])), 'group')} ({group}) held out at random (seed {seed})"
    elif time_column is not None:
        train, test = _split_latest(_times(_column(features, f"--split {by}", time_column), by), fraction, by)
        source = f"with the latest {time_column}, held out"
    else:
        train, test = split_rows(y, fraction, seed, table.task)
        source = f"held out at random (seed {seed})"
    source = f"{plural(len(test), 'row')} {source}"
    codes = None if codes is None or len(np.unique(codes[train])) < 2 else codes[train]  # one group cannot be divided
    split = Split(features.iloc[train], y.iloc[train], features.iloc[test], y.iloc[test], source, train, codes)
    _check_classes(split, table.task, "choose another --seed, --split or --group")
    return split


def separate_test(table: TrainingTable, path: Path) -> Split:
    """Read the test table.

    Raises:
        UsageError: columns or classes that differ from those of the training table, or targets that are no finite numbers.
    """
    test_features, test_y = table.later.read_with_target(path)
    if absent := [str(name) for name in table.features.columns if name not in test_features.columns]:
        raise UsageError(f"the test table lacks the columns {listing(map(repr, absent))}")
    if table.task == "regression" and not (pd.api.types.is_numeric_dtype(test_y) and np.isfinite(test_y.to_numpy(float)).all()):
        raise UsageError(f"the target {test_y.name!r} of the test table must be a finite number in every row")
    source = f"{path}, {plural(len(test_y), 'row')}"
    split = Split(table.features, table.y, test_features, test_y, source, np.arange(len(table.y)))
    _check_classes(split, table.task, "drop these test rows, or add such rows to the training table")
    return split


def split_rows(y: pd.Series, fraction: float, seed: int, task: str) -> tuple[np.ndarray, np.ndarray]:
    """Split at random, stratified by class; return the row numbers for training and for testing, sorted.

    Example:
        >>> train, test = split_rows(pd.Series(["a", "b"] * 10), 0.2, seed=0, task="classification")
        >>> len(train), len(test), sorted(pd.Series(["a", "b"] * 10)[test])
        (16, 4, ['a', 'a', 'b', 'b'])
    """
    count = _test_rows(len(y), fraction)
    order = np.random.default_rng(seed).permutation(len(y))
    if task == "classification":
        labels = y.iloc[order].reset_index(drop=True)
        rank = labels.groupby(labels, observed=True).cumcount() + 0.5
        share = rank / labels.groupby(labels, observed=True).transform("size")
        order = order[np.argsort(share.to_numpy(), kind="stable")]
    return np.sort(order[count:]), np.sort(order[:count])


def _codes(groups: pd.Series) -> np.ndarray:
    """Return an integer per row for its group; rows without a group are one group."""
    codes, values = pd.factorize(groups, use_na_sentinel=False)
    if len(values) < 2:
        raise UsageError(f"--group {groups.name} has the single value {values[0]!r}; at least two groups are needed")
    return codes


def _split_groups(codes: np.ndarray, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Hold out random groups until they have the fraction of the rows."""
    groups = int(codes.max()) + 1
    order = np.random.default_rng(seed).permutation(groups)
    sizes = np.bincount(codes)[order].cumsum()
    count = min(int(np.searchsorted(sizes, _test_rows(len(codes), fraction))) + 1, groups - 1)
    held_out = np.isin(codes, order[:count])
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def _split_latest(times: pd.Series, fraction: float, by: str) -> tuple[np.ndarray, np.ndarray]:
    """Hold out the latest rows; rows of the same time stay together."""
    first = np.sort(times.to_numpy())[len(times) - _test_rows(len(times), fraction)]
    held_out = times.to_numpy() >= first
    if held_out.all():
        raise UsageError(f"--split {by} leaves no training row: more than the held-out fraction of the rows has the first time")
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def _test_rows(rows: int, fraction: float) -> int:
    count = round(fraction * rows)
    if not 0 < count < rows:
        raise UsageError(f"--test-fraction {fraction} leaves {count} of {rows} rows to test on and {rows - count} to train on")
    return count


def _time_column(by: str) -> str | None:
    kind, colon, column = by.partition(":")
    if by != "random" and (kind != "time" or not column):
        raise UsageError(f"--split must be random or time:COLUMN, got {by!r}")
    return column if colon else None


def _column(features: pd.DataFrame, option: str, name: str) -> pd.Series:
    if name not in features.columns:
        raise UsageError(f"{option}: the table has no such column; it has {listing(map(repr, map(str, features.columns)))}")
    return features[name]


def _times(values: pd.Series, by: str) -> pd.Series:
    """Convert a column of dates or numbers to numbers."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # training describes the column again
            (column,) = describe_columns(values.to_frame())
    except DataError as error:
        raise UsageError(f"--split {by}: {error}") from error
    if column.kind not in ("number", "datetime"):
        raise UsageError(f"--split {by}: the column must have dates or numbers, not values of kind {column.kind!r}")
    times = conform(values.to_frame(), (column,), new=False).iloc[:, 0]
    if missing := int(times.isna().sum()):
        raise UsageError(f"--split {by}: the column is missing in {plural(missing, 'row')}; drop these rows")
    return times


def _check_classes(split: Split, task: str, advice: str) -> None:
    if task == "classification" and (unknown := sorted(set(split.test_y.astype(str)) - set(split.y.astype(str)))):
        raise UsageError(f"the test rows have classes without a training row: {listing(map(repr, unknown))}; {advice}")
