"""`bayesify fit`: from a table to a model directory."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bayesify.cli.files import check_input, is_several, to_csv
from bayesify.cli.options import Data, Decimal, Encoding, On, Seed, Separator, Task, Track
from bayesify.cli.terminal import UsageError, handle_errors, print_lines, say, until_the_end
from bayesify.core.checks import check_fraction
from bayesify.formatting import duration, plural

if TYPE_CHECKING:
    from bayesify.cli.sources import Source
    from bayesify.cli.splits import Split
    from bayesify.estimators import BayesianEstimator
    from bayesify.report import Assessment

__all__ = ["fit"]


@handle_errors
def fit(
    data: Data,
    target: Annotated[str, typer.Option(help="The column to predict.", show_default=False)],
    method: Annotated[str | None, typer.Option(help="A name of `bayesify methods`.", show_default="an ensemble")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="field=value of `bayesify methods`, or of training; repeatable.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="The model directory to write.")] = Path("bayesify-model"),
    seed: Seed = 0,
    task: Annotated[Task, typer.Option(help="Regression or classification; auto decides by the target.")] = Task.auto,
    test: Annotated[Path | None, typer.Option(help="A separate test table.", show_default="rows of DATA")] = None,
    test_fraction: Annotated[float, typer.Option(help="Fraction of the rows held out for evaluation; 0 trains on all.")] = 0.2,
    split: Annotated[str, typer.Option(help="random, or time:COLUMN to hold out the latest rows.")] = "random",
    group: Annotated[
        str | None, typer.Option(help="A column whose values are held out as a whole; it is no input.", show_default=False)
    ] = None,
    weight: Annotated[
        str | None, typer.Option(help="A column with weights of the training rows; it is no input.", show_default=False)
    ] = None,
    sep: Separator = None,
    encoding: Encoding = None,
    decimal: Decimal = None,
    conformal: Annotated[bool, typer.Option("--conformal", help="Guarantee coverage: hold out rows that calibrate.")] = False,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data.", min=1, show_default="by the number of rows")] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            help="Also train these methods, such as MeanField,VSD, or all, each with its default settings and --epochs.",
            show_default=False,
        ),
    ] = None,
    time_limit: Annotated[
        float | None,
        typer.Option("--time", help="Train several models for this many seconds (--method auto).", min=1, show_default=False),
    ] = None,
    on: On = "local",
    track: Track = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Overwrite an existing model.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Discard an interrupted run instead of resuming it.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only warnings and errors.")] = False,
) -> None:
    """Train on a table and save the model with a report on held-out rows. The same command resumes an interrupted run.

    DATA may be a folder of .parquet files or a pattern such as 'data/*.parquet' (in quotes), of any size: they are read in parts.
    """
    started = time.perf_counter()
    check_fraction("--test-fraction", test_fraction)
    if not is_several(data):
        check_input(data)
    if test is not None:
        check_input(test)
        if split != "random" or group is not None:
            raise UsageError("--split and --group choose the test rows from DATA; leave them out with --test")

    from bayesify.cli.comparison import baseline_lines, comparison_line, methods_to_compare, train_others
    from bayesify.cli.evaluation import assess_estimator, conformal_facts, print_assessment, report_page, run_facts, train_baselines
    from bayesify.cli.leaderboard import leaderboard, method_name
    from bayesify.cli.sources import TestRows, open_source
    from bayesify.cli.tables import TextOptions
    from bayesify.cli.tracking import add_results, tracked
    from bayesify.cli.training import caution, check_calibration, checkpoints, make_estimator, prepare_directory, train
    from bayesify.persistence import save_model

    options = {"--split": split != "random", "--group": group, "--weight": weight, "--sep": sep, "--encoding": encoding}
    options |= {"--decimal": decimal, "--compare": compare, "--time": time_limit, f"--on {on}": on != "local"}
    options |= {"--method auto": method is not None and method.lower() == "auto"}
    source = open_source(
        data, target, task.value, TestRows(test, test_fraction, split, group, seed), weight, TextOptions(sep, encoding, decimal),
        [name for name, value in options.items() if value],
    )  # fmt: skip
    table, rows = source.table, source.rows
    estimator = make_estimator(table.task, method, settings or [], seed, epochs, quiet, time_limit, on, conformal)
    others = [] if compare is None else methods_to_compare(compare, estimator)
    if others and len(rows.test_y) == 0:
        raise UsageError(f"--compare {compare} needs rows to compare on; leave out --test-fraction 0, or give --test")
    caution(rows)
    units = (len(rows.features), "row") if group is None else (rows.group_count, "group")
    check_calibration(estimator, *units, random=split == "random")
    directory = prepare_directory(out, overwrite, restart)
    resumes = bool(checkpoints(directory))
    runs = [] if track is None else [until_the_end(tracked(track, directory))]
    if not quiet:
        say(_first_line(source, target))
        if resumes:
            say(f"resuming the interrupted run in {out}")
    compared = train_others(others, estimator, rows, source.weights, quiet)  # first: interrupted, they cost no trained model
    training_started = time.perf_counter()
    train(estimator, source.fit, directory, out, runs)
    seconds = duration(time.perf_counter() - training_started)

    saved = {"target": target, "reading": table.later.stored()}
    if len(rows.test_y) == 0:
        save_model(estimator, directory, **saved)
        add_results(runs, directory)
    else:
        baselines = train_baselines(estimator, rows.features, rows.y, rows.test_features, seed)
        assessment = assess_estimator(estimator, rows.test_features, rows.test_y, rows.y, baselines=baselines)
        comparison = []
        if others:
            line = comparison_line(assessment, f"{method_name(estimator)} (the model)", seconds)
            comparison = [line, *compared, *baseline_lines(assessment)]
        data_facts = _facts(source, estimator, data, target)
        if weight is not None:
            data_facts["weights"] = f"{weight}, of the training rows; test rows and baselines are unweighted"
        conformal_results = conformal_facts(estimator, rows.test_features, rows.test_y)
        facts = {"Data": data_facts, **conformal_results, **run_facts(started, seed)}
        page = report_page(estimator, assessment, rows.test_features, target, facts, comparison)
        companions = {"report.html": page, "test-predictions.csv": _test_predictions(estimator, rows, assessment, target)}
        save_model(estimator, directory, **saved, metrics=assessment.scores, companions=companions)
        add_results(runs, directory, assessment.scores)
        if not quiet:
            print_lines(leaderboard(estimator))
            print_lines(comparison)
            print_assessment(assessment, conformal_results)
    if not quiet:
        report = (
            out / "report.html" if len(rows.test_y) else f"none, as no rows are held out: bayesify evaluate {_quoted(out)} DATA"
        )
        to_predict = f"{_quoted(test or data)}{' --out predictions' if source.files and not test else ''}"
        say(f"\nModel: {out}\nReport: {report}\nNext: bayesify predict {_quoted(out)} {to_predict}", wrap=False)


def _test_predictions(estimator: BayesianEstimator, rows: Split, assessment: Assessment, target: str) -> bytes:
    """The predictions for the test rows, next to the true targets, as CSV."""
    from bayesify.cli.predictions import prediction_table, rounded

    index = rows.test_features.index.rename(rows.test_features.index.name or "row")
    predictions = rounded(prediction_table(estimator, rows.test_features, assessment.predictive, index, 0.95))
    predictions.insert(0, f"true {target}", rows.test_y.to_numpy())
    return to_csv(predictions).encode()


def _first_line(source: Source, target: str) -> str:
    """The task, why it was inferred where the target leaves a choice, and the numbers of rows and columns."""
    table, reason = source.table, ""
    if table.reason:
        other, what = ("regression", "numbers") if table.task == "classification" else ("classification", "classes")
        reason = f" ({table.reason}; --task {other} predicts {what})"
    return f"{table.task} of {target!r}{reason}: {source.size}, {plural(source.rows.features.shape[1], 'column')}"


def _facts(source: Source, estimator: BayesianEstimator, data: Path, target: str) -> dict[str, object]:
    """Facts about the data, for the report."""
    columns = {use: [c.name for c in estimator.columns_ if (c.kind != "dropped") is use] for use in (True, False)}
    return {
        "file": str(data),
        "target": f"{target} ({source.table.task})",
        "training rows": f"{len(source.rows.y) if source.files is None else estimator.history_.n:,}",
        "test rows": source.rows.source,
        "columns used": ", ".join(columns[True]),
        "columns not used": ", ".join(columns[False]) or "none",
    }


def _quoted(path: Path) -> str:
    """A path as it is typed into a shell; new rows where the table came from standard input."""
    return "NEW.csv" if str(path) == "-" else shlex.quote(str(path))
