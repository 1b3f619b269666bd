"""Tables of predictions, and output files."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

from bayesify.cli.terminal import UsageError
from bayesify.estimators import BayesianClassifier, BayesianEstimator
from bayesify.files import atomic_file, write_atomically
from bayesify.predictive import GaussianPredictive, Predictive

__all__ = ["check_file", "check_output", "prediction_table", "to_csv", "write_table"]

_ENDINGS = (".csv", ".tsv", ".parquet")


def prediction_table(estimator: BayesianEstimator, predictive: Predictive, index: pd.Index, level: float) -> pd.DataFrame:
    """Tabulate predictions, one line per row.

    Regression: mean, std (noise included), lower and upper bound of the central interval. Classification: prediction, p_<class> for
    each class, entropy and mutual_information in nats.
    """
    if isinstance(predictive, GaussianPredictive):
        lower, upper = predictive.interval(level)
        columns = {"mean": predictive.mean, "std": predictive.std, "lower": lower, "upper": upper}
        return pd.DataFrame({name: values.numpy() for name, values in columns.items()}, index=index)
    assert isinstance(estimator, BayesianClassifier)
    probs = predictive.probs.numpy()
    table = {"prediction": estimator.classes_[predictive.prediction.numpy()]}
    table.update({f"p_{label}": probs[:, k] for k, label in enumerate(estimator.classes_)})
    table.update({"entropy": predictive.entropy.numpy(), "mutual_information": predictive.mutual_information.numpy()})
    return pd.DataFrame(table, index=index)


def check_output(path: Path | None) -> None:
    """Raise a UsageError unless a table can be written to `path`."""
    if path is None:
        return
    if path.suffix.lower() not in _ENDINGS:
        raise UsageError(f"--out {path}: unknown ending {path.suffix!r}; use {', '.join(_ENDINGS)}")
    check_file(path)


def check_file(path: Path) -> None:
    """Raise a UsageError unless `path` can be a file: its folder exists, and it is not a folder itself."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{path} is in a folder that does not exist; create it first")


def write_table(table: pd.DataFrame, path: Path | None) -> None:
    """Write a table atomically, or print it as CSV if `path` is None."""
    if path is None:
        sys.stdout.write(to_csv(table))
        sys.stdout.flush()
    elif path.suffix.lower() == ".parquet":
        with atomic_file(path) as file:
            table.to_parquet(file)
    else:
        write_atomically(path, to_csv(table, "\t" if path.suffix.lower() == ".tsv" else ",").encode())


def to_csv(table: pd.DataFrame, separator: str = ",") -> str:
    """Convert to CSV text; an index other than 0, 1, 2, ... is the first column."""
    is_default = table.index.name is None and table.index.equals(pd.RangeIndex(len(table)))
    return table.to_csv(sep=separator, index=not is_default, lineterminator="\n")
