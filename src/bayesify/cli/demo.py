"""`bayesify demo`: four methods and two baselines on a data set that ships with scikit-learn, compared on held-out rows."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bayesify.cli.files import check_file
from bayesify.cli.options import Seed
from bayesify.cli.terminal import UsageError, handle_errors, print_line, print_lines, say
from bayesify.files import write_atomically
from bayesify.formatting import duration

if TYPE_CHECKING:
    import pandas as pd

    from bayesify.estimators import BayesianEstimator
    from bayesify.report import Assessment

__all__ = ["demo"]

# Target and task, and for the methods other than the default one the epochs that make about 1,300 steps.
_DATA = {
    "diabetes": ("disease progression", "regression", 120),
    "digits": ("digit", "classification", 110),
    "breast-cancer": ("tumor", "classification", 120),
    "wine": ("cultivar", "classification", 330),
}
_METHODS = ("Deterministic", "MCDropout", "MeanField")
_TEST_FRACTION = 0.3  # enough rows to judge calibration on all but wine


class DataSet(StrEnum):
    """Data sets that ship with scikit-learn."""

    diabetes = "diabetes"
    digits = "digits"
    breast_cancer = "breast-cancer"
    wine = "wine"


@handle_errors
def demo(
    data: Annotated[DataSet, typer.Option(help="The data set.")] = DataSet.diabetes,
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("bayesify-demo"),
    seed: Seed = 0,
) -> None:
    """Compare four methods and two baselines on a real data set, offline, in less than a minute, and write a report."""
    started = time.perf_counter()
    page = out / "report.html"
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out} is a file; choose a folder")
    check_file(page if out.exists() else out)

    from bayesify.cli.comparison import baseline_lines, comparison_line
    from bayesify.cli.evaluation import assess_estimator, print_assessment, report_page, run_facts, train_baselines
    from bayesify.cli.splits import split_rows
    from bayesify.cli.training import ESTIMATORS

    target, task, epochs = _DATA[data]
    features, y = _load(data)
    train, test = split_rows(y, _TEST_FRACTION, seed, task)
    test_features, test_y, train_y = features.iloc[test], y.iloc[test], y.iloc[train]
    say(f"{task} of {target} ({data}): {len(train):,} rows to train on, {len(test):,} to test on, {features.shape[1]} columns")
    kind = ESTIMATORS[task]
    comparison: list[dict[str, str]] = []

    def train_and_compare(method: str, epochs: int | None, with_baselines: bool) -> tuple[BayesianEstimator, Assessment]:
        method_started = time.perf_counter()
        say(f"  training {method} ...", style="dim")
        estimator = kind(method=method, random_state=seed, epochs=epochs).fit(features.iloc[train], train_y)
        seconds = time.perf_counter() - method_started
        baselines = train_baselines(estimator, features.iloc[train], train_y, test_features, seed) if with_baselines else None
        assessment = assess_estimator(estimator, test_features, test_y, train_y, baselines=baselines)
        comparison.append(comparison_line(assessment, method, duration(seconds)))
        return estimator, assessment

    for method in _METHODS:
        train_and_compare(method, epochs, with_baselines=False)
    estimator, assessment = train_and_compare(kind.default_method, None, with_baselines=True)
    comparison += baseline_lines(assessment)
    print_lines(comparison)
    print_line(f"{kind.default_method}, the default method:", style="bold")
    print_assessment(assessment)
    out.mkdir(exist_ok=True)
    rows = {"training rows": f"{len(train):,}", "test rows": f"{len(test):,}, held out at random"}
    data_facts = {"data set": f"{data}, from scikit-learn", "target": f"{target} ({task})", **rows}
    facts = {"Data": data_facts, **run_facts(started, seed)}
    write_atomically(page, report_page(estimator, assessment, test_features, target, facts, comparison))
    say(f"\nReport: {page} ({duration(time.perf_counter() - started)})\nNext: bayesify fit your.csv --target COLUMN")


def _load(data: DataSet) -> tuple[pd.DataFrame, pd.Series]:
    """Return features and named target of an embedded data set."""
    from sklearn import datasets

    options = {"scaled": False} if data is DataSet.diabetes else {}
    bunch = getattr(datasets, f"load_{data.name}")(as_frame=True, **options)
    y = bunch.target.rename(_DATA[data][0])
    if data in (DataSet.breast_cancer, DataSet.wine):
        y = y.map(dict(enumerate(map(str, bunch.target_names))))
    return bunch.data, y
