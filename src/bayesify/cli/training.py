"""`bayesify fit`: from a table to a model directory, checked before, resumable while, judged after training."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from bayesify.cli.results import Result, assess, print_result, run_facts, split_rows, write_page
from bayesify.cli.settings import parse, split
from bayesify.cli.tables import prediction_table, to_csv
from bayesify.cli.terminal import UsageError, fail, interruptible, say
from bayesify.data import check_target, infer_task, read_table, split_target
from bayesify.estimators import BayesianClassifier, BayesianEstimator, BayesianRegressor
from bayesify.methods import DeepEnsemble
from bayesify.persistence import CHECKPOINT, check_destination, save_model
from bayesify.report.numbers import plural

__all__ = ["fit_table", "make_estimator"]

ESTIMATORS: dict[str, type[BayesianEstimator]] = {"regression": BayesianRegressor, "classification": BayesianClassifier}


def make_estimator(
    task: str, method: str | None, settings: Sequence[str], seed: int, epochs: int | None, quiet: bool
) -> BayesianEstimator:
    """The estimator that the options describe."""
    kind = ESTIMATORS[task]
    base = kind(method=method).method_in_use()
    fields, params = split(parse(settings), type(base), kind)
    if epochs is not None:
        params["epochs"] = epochs
    progress = False if quiet else None
    return kind(method=base.replace(**fields) if fields else base, random_state=seed, progress=progress, **params)


def fit_table(
    data: Path,
    target: str,
    *,
    method: str | None,
    settings: Sequence[str],
    out: Path,
    seed: int,
    task: str,
    test: Path | None,
    test_fraction: float,
    epochs: int | None,
    overwrite: bool,
    restart: bool,
    quiet: bool,
) -> None:
    """Everything `bayesify fit` does."""
    started = time.perf_counter()
    features, y = split_target(read_table(data), target)
    task = infer_task(y) if task == "auto" else task
    check_target(y, task)
    estimator = make_estimator(task, method, settings, seed, epochs, quiet)
    if test is None:
        train_rows, test_rows = split_rows(y, test_fraction, seed, task)
        test_features, y_test = features.iloc[test_rows], y.iloc[test_rows]
        features, y = features.iloc[train_rows], y.iloc[train_rows]
        held_out = f"{plural(len(test_rows), 'row')} held out at random (seed {seed})"
    else:
        test_features, y_test = split_target(read_table(test), target)
        held_out = f"{test}, {plural(len(y_test), 'row')}"
        _check_test(features, y, test_features, y_test, task)

    place = _destination(out, overwrite, restart)
    checkpoint = place / CHECKPOINT
    if not quiet:
        columns = plural(features.shape[1], "column")
        say(f"{task} of {target!r}: {len(y):,} rows to train on, {len(y_test):,} to test on, {columns}")
        if checkpoint.exists():
            say(f"going on with the interrupted run in {out}")
    try:
        # the members of an ensemble are trained together, which keeps no checkpoint
        own = None if isinstance(estimator.method, DeepEnsemble) else checkpoint
        with interruptible():
            estimator.fit(features, y, checkpoint=own)
    except ValueError as error:
        if str(checkpoint) not in str(error):
            raise
        reason = re.split(r"; delete it|\. Use the same", str(error))[0]
        raise UsageError(f"an interrupted run cannot go on: {reason}. Add --restart to start afresh") from error
    except KeyboardInterrupt:
        kept = f"; the same command goes on from the last epoch, kept in {out}" if checkpoint.exists() else ""
        fail(f"interrupted{kept}", 130)
    finally:
        if place.is_dir() and not any(place.iterdir()):
            place.rmdir()

    result = assess(estimator, test_features, y_test, y)
    dropped = [column.name for column in estimator.columns_ if column.kind == "dropped"]
    data_facts: dict[str, object] = {"file": data, "target": f"{target} ({task})", "training rows": f"{len(y):,}"}
    data_facts["test rows"] = held_out
    data_facts["columns used"] = ", ".join(column.name for column in estimator.columns_ if column.kind != "dropped")
    if dropped:
        data_facts["columns not used"] = ", ".join(dropped)
    facts = {"Data": data_facts, **run_facts(started, seed)}
    companions = _companions(estimator, result, test_features, y_test, y, facts)
    save_model(estimator, place, target=target, metrics=result.scores, companions=companions)
    if not quiet:
        print_result(result)
        say(f"\nThe model is in {out}; read {out / 'report.html'}, then try: bayesify predict {out} {test or data}")


def _destination(out: Path, overwrite: bool, restart: bool) -> Path:
    place = check_destination(out)
    if (place / "config.json").is_file() and not overwrite:
        raise UsageError(f"{out} already holds a model; add --overwrite to replace it, or choose another --out")
    place.mkdir(exist_ok=True)
    if restart:
        (place / CHECKPOINT).unlink(missing_ok=True)
    return place


def _check_test(features: pd.DataFrame, y: pd.Series, test_features: pd.DataFrame, y_test: pd.Series, task: str) -> None:
    """What can be said about a test table before training."""
    if absent := [str(name) for name in features.columns if name not in test_features.columns]:
        raise UsageError(f"the test table lacks the columns {', '.join(map(repr, absent))}")
    if y_test.isna().any():
        raise UsageError(f"the target {y_test.name!r} is missing in {plural(int(y_test.isna().sum()), 'row')} of the test table")
    if task == "classification" and (unknown := sorted(set(y_test.astype(str)) - set(y.astype(str)))):
        raise UsageError(f"the test table holds classes that no training row has: {', '.join(map(repr, unknown[:10]))}")
    if task == "regression" and not pd.api.types.is_numeric_dtype(y_test):
        raise UsageError(f"the target {y_test.name!r} of the test table must be a number, as in the training table")


def _companions(
    estimator: BayesianEstimator,
    result: Result,
    test_features: pd.DataFrame,
    y_test: pd.Series,
    y: pd.Series,
    facts: dict[str, dict[str, object]],
) -> dict[str, bytes]:
    """The report, and the predictions of the test rows beside their true values."""
    name = str(y.name)
    table = prediction_table(estimator, result.predictive, test_features.index, 0.95)
    table.insert(0, f"true {name}", y_test.to_numpy())
    table.index = pd.Index(test_features.index, name=test_features.index.name or "row")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        write_page(page, estimator, result, test_features, name, f"How well is {name} predicted?", facts, y)
        return {"report.html": page.read_bytes(), "test-predictions.csv": to_csv(table).encode()}
