"""Predictions as a table: the columns that `bayesify predict` writes."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pandas as pd

from bayesify.cli.results import write
from bayesify.cli.terminal import UsageError
from bayesify.estimators import BayesianClassifier, BayesianEstimator
from bayesify.predictive import GaussianPredictive, Predictive

__all__ = ["check_output", "prediction_table", "to_csv", "write_table"]

_ENDINGS = (".csv", ".tsv", ".parquet")


def prediction_table(estimator: BayesianEstimator, predictive: Predictive, index: pd.Index, level: float) -> pd.DataFrame:
    """One line per row, in order.

    Numbers: mean, std (noise included), lower and upper end of the central interval. Classes: prediction, p_<class> for each,
    entropy and mutual_information in nats.
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
    """Raise, before any work, unless a table can be written there."""
    if path is None:
        return
    if path.suffix.lower() not in _ENDINGS:
        raise UsageError(f"--out {path}: unknown ending {path.suffix!r}; known endings are {', '.join(_ENDINGS)}")
    check_file(path)


def check_file(path: Path) -> None:
    """Raise unless a file can be there: a folder that exists, and nothing of that name that is not a file."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(f"{path} {'is a folder' if path.is_dir() else 'lies in a folder that does not exist; create it first'}")


def write_table(table: pd.DataFrame, path: Path | None) -> None:
    """Write a table in one piece, or print it as CSV; an index other than 0, 1, 2, ... is kept."""
    if path is None:
        sys.stdout.write(to_csv(table))
        sys.stdout.flush()
    elif path.suffix.lower() == ".parquet":
        file = io.BytesIO()
        table.to_parquet(file)
        write(path, file.getvalue())
    else:
        write(path, to_csv(table, "\t" if path.suffix.lower() == ".tsv" else ",").encode())


def to_csv(table: pd.DataFrame, separator: str = ",") -> str:
    """CSV text, with the index as first column unless it only counts the rows."""
    counts = table.index.name is None and table.index.equals(pd.RangeIndex(len(table)))
    return table.to_csv(sep=separator, index=not counts, lineterminator="\n")
