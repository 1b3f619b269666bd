"""`bayesify fit`: from a table to a model directory."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer

from bayesify.cli.evaluation import assess_estimator, print_assessment, report_page, run_facts
from bayesify.cli.files import prediction_table, to_csv
from bayesify.cli.options import Data, Seed, Task, parse, split
from bayesify.cli.terminal import UsageError, fail, handle_errors, interruptible, say
from bayesify.core.checks import check_fraction
from bayesify.data import check_target, infer_task, read_table, split_target
from bayesify.errors import CheckpointError
from bayesify.estimators import BayesianClassifier, BayesianEstimator, BayesianRegressor
from bayesify.formatting import plural
from bayesify.methods import DeepEnsemble
from bayesify.persistence import CHECKPOINT, check_destination, save_model

__all__ = ["ESTIMATORS", "fit", "make_estimator", "split_rows"]

ESTIMATORS: dict[str, type[BayesianEstimator]] = {"regression": BayesianRegressor, "classification": BayesianClassifier}


@handle_errors
def fit(
    data: Data,
    target: Annotated[str, typer.Option(help="The column to predict.", show_default=False)],
    method: Annotated[str | None, typer.Option(help="See `bayesify methods`.", show_default="MeanField")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="field=value of the method or of training; repeatable.", show_default=False),
    ] = None,
    out: Annotated[Path, typer.Option(help="The model directory to write.")] = Path("bayesify-model"),
    seed: Seed = 0,
    task: Annotated[Task, typer.Option(help="Regression or classification; auto decides by the target.")] = Task.auto,
    test: Annotated[Path | None, typer.Option(help="A separate test table.", show_default="rows of DATA")] = None,
    test_fraction: Annotated[float, typer.Option(help="Fraction of the rows held out for evaluation.")] = 0.2,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data.", min=1, show_default="by the number of rows")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Overwrite an existing model.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Discard an interrupted run instead of resuming it.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only warnings and errors.")] = False,
) -> None:
    """Train on a table and save the model with a report on held-out rows.

    The same command resumes an interrupted run.
    """
    started = time.perf_counter()
    check_fraction("--test-fraction", test_fraction)
    features, y = split_target(read_table(data), target)
    kind = infer_task(y) if task is Task.auto else task.value
    check_target(y, kind)
    estimator = make_estimator(kind, method, settings or [], seed, epochs, quiet)
    if test is None:
        train_rows, test_rows = split_rows(y, test_fraction, seed, kind)
        test_features, test_y = features.iloc[test_rows], y.iloc[test_rows]
        features, y = features.iloc[train_rows], y.iloc[train_rows]
        test_source = f"{plural(len(test_y), 'row')} held out at random (seed {seed})"
    else:
        test_features, test_y = split_target(read_table(test), target)
        _check_test(features, y, test_features, test_y, kind)
        test_source = f"{test}, {plural(len(test_y), 'row')}"
    directory = _prepare_directory(out, overwrite, restart)
    if not quiet:
        rows = f"{len(y):,} rows to train on, {len(test_y):,} to test on, {plural(features.shape[1], 'column')}"
        say(f"{kind} of {target!r}: {rows}")
        if (directory / CHECKPOINT).exists():
            say(f"resuming the interrupted run in {out}")

    _train(estimator, features, y, directory, out)
    assessment = assess_estimator(estimator, test_features, test_y, y)

    columns = {use: [c.name for c in estimator.columns_ if (c.kind != "dropped") is use] for use in (True, False)}
    facts = {
        "file": str(data),
        "target": f"{target} ({kind})",
        "training rows": f"{len(y):,}",
        "test rows": test_source,
        "columns used": ", ".join(columns[True]),
        "columns not used": ", ".join(columns[False]) or "none",
    }
    page = report_page(estimator, assessment, test_features, target, {"Data": facts, **run_facts(started, seed)})
    table = prediction_table(estimator, assessment.predictive, test_features.index.rename(test_features.index.name or "row"), 0.95)
    table.insert(0, f"true {target}", test_y.to_numpy())
    companions = {"report.html": page, "test-predictions.csv": to_csv(table).encode()}
    save_model(estimator, directory, target=target, metrics=assessment.scores, companions=companions)
    if not quiet:
        print_assessment(assessment)
        say(f"\nModel: {out}\nReport: {out / 'report.html'}\nNext: bayesify predict {out} {test or data}")


def make_estimator(
    task: str, method: str | None, settings: Sequence[str], seed: int, epochs: int | None, quiet: bool
) -> BayesianEstimator:
    """Build the estimator that the options describe.

    Raises:
        ConfigurationError: an unknown method or field, or a value that is not possible.
    """
    kind = ESTIMATORS[task]
    default = kind(method=method).method_in_use()
    fields, params = split(parse(settings), type(default), kind)
    if epochs is not None:
        params["epochs"] = epochs
    try:
        chosen = default.replace(**fields) if fields else default
    except TypeError as error:
        raise UsageError(f"--set {', '.join(fields)}: {error}") from error
    return kind(method=chosen, random_state=seed, progress=False if quiet else None, **params)


def split_rows(y: pd.Series, fraction: float, seed: int, task: str) -> tuple[np.ndarray, np.ndarray]:
    """Split at random, stratified by class; return the row numbers for training and for testing, sorted.

    Example:
        >>> train, test = split_rows(pd.Series(["a", "b"] * 10), 0.2, seed=0, task="classification")
        >>> len(train), len(test), sorted(pd.Series(["a", "b"] * 10)[test])
        (16, 4, ['a', 'a', 'b', 'b'])
    """
    count = round(fraction * len(y))
    if not 0 < count < len(y):
        raise UsageError(f"--test-fraction {fraction} leaves {count} of {len(y)} rows to test on and {len(y) - count} to train on")
    order = np.random.default_rng(seed).permutation(len(y))
    if task == "classification":
        labels = y.iloc[order].reset_index(drop=True)
        rank = labels.groupby(labels, observed=True).cumcount() + 0.5
        share = rank / labels.groupby(labels, observed=True).transform("size")
        order = order[np.argsort(share.to_numpy(), kind="stable")]
    return np.sort(order[count:]), np.sort(order[:count])


def _check_test(features: pd.DataFrame, y: pd.Series, test_features: pd.DataFrame, test_y: pd.Series, task: str) -> None:
    """Check a test table before training."""
    if absent := [str(name) for name in features.columns if name not in test_features.columns]:
        raise UsageError(f"the test table lacks the columns {', '.join(map(repr, absent))}")
    if missing := int(test_y.isna().sum()):
        raise UsageError(f"the target {test_y.name!r} is missing in {plural(missing, 'row')} of the test table")
    if task == "classification" and (unknown := sorted(set(test_y.astype(str)) - set(y.astype(str)))):
        raise UsageError(f"the test table has classes without a training row: {', '.join(map(repr, unknown[:10]))}")
    if task == "regression" and not (pd.api.types.is_numeric_dtype(test_y) and np.isfinite(test_y.to_numpy(float)).all()):
        raise UsageError(f"the target {test_y.name!r} of the test table must be a finite number in every row")


def _prepare_directory(out: Path, overwrite: bool, restart: bool) -> Path:
    """Create the model directory, or check the existing one."""
    directory = check_destination(out)
    if (directory / "config.json").is_file() and not overwrite:
        raise UsageError(f"{out} already holds a model; add --overwrite to overwrite it, or choose another --out")
    directory.mkdir(exist_ok=True)
    if restart:
        (directory / CHECKPOINT).unlink(missing_ok=True)
    return directory


def _train(estimator: BayesianEstimator, features: pd.DataFrame, y: pd.Series, place: Path, out: Path) -> None:
    """Fit with a checkpoint in the model directory, from which an interrupted run is resumed."""
    checkpoint = place / CHECKPOINT
    try:
        # the members of an ensemble are trained together, which keeps no checkpoint
        own = None if isinstance(estimator.method, DeepEnsemble) else checkpoint
        with interruptible():
            estimator.fit(features, y, checkpoint=own)
    except CheckpointError as error:
        raise UsageError(f"an interrupted run cannot be continued: {error.reason}. Add --restart to start afresh") from error
    except KeyboardInterrupt:
        kept = f"; the same command goes on from the last epoch, kept in {out}" if checkpoint.exists() else ""
        fail(f"interrupted{kept}", 130)
    finally:
        if place.is_dir() and not any(place.iterdir()):
            place.rmdir()
