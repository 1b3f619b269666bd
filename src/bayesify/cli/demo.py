"""`bayesify demo`: four methods on a real data set that ships inside scikit-learn, compared on held-out rows."""

from __future__ import annotations

import time
from pathlib import Path

import pandas as pd

from bayesify.cli.results import Result, assess, print_result, run_facts, split_rows, write_page
from bayesify.cli.tables import check_file
from bayesify.cli.terminal import UsageError, print_line, print_table, say
from bayesify.cli.training import ESTIMATORS
from bayesify.estimators import BayesianEstimator
from bayesify.report.numbers import duration, number, percent

__all__ = ["DATA", "run_demo"]

# What each data set predicts, the kind of target, and epochs that make about 2,000 steps: half of what `fit` takes, enough here.
DATA = {
    "diabetes": ("disease progression", "regression", 180),
    "digits": ("digit", "classification", 170),
    "breast-cancer": ("tumour", "classification", 180),
    "wine": ("cultivar", "classification", 400),
}
METHODS = ("Deterministic", "MCDropout", "VariationalDropout", "MeanField")


def load(name: str) -> tuple[pd.DataFrame, pd.Series, str]:
    """Features, named target and task of an embedded data set."""
    from sklearn import datasets

    loaders = {
        "diabetes": datasets.load_diabetes,
        "digits": datasets.load_digits,
        "breast-cancer": datasets.load_breast_cancer,
        "wine": datasets.load_wine,
    }
    options = {"scaled": False} if name == "diabetes" else {}
    bunch = loaders[name](as_frame=True, **options)
    target, task, _ = DATA[name]
    y = bunch.target.rename(target)
    names = [str(label) for label in getattr(bunch, "target_names", [])]
    return bunch.data, y.map(dict(enumerate(names))) if task == "classification" and name != "digits" else y, task


def run_demo(name: str, out: Path, seed: int) -> None:
    """Everything `bayesify demo` does."""
    started = time.perf_counter()
    if name not in DATA:
        raise UsageError(f"--data must be one of {', '.join(DATA)}, got {name!r}")
    page = out / "report.html"
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out} is a file; choose a folder")
    check_file(out.absolute() if not out.exists() else page)

    features, y, task = load(name)
    kind = ESTIMATORS[task]
    train, test = split_rows(y, 0.2, seed, task)
    default = kind.default_method
    methods = [name for name in METHODS if name != default] + [default]
    say(f"{task} of {y.name} ({name}): {len(train):,} rows to train on, {len(test):,} to test on, {features.shape[1]} columns")
    fitted: list[tuple[BayesianEstimator, Result, float]] = []
    for method in methods:
        begin = time.perf_counter()
        say(f"  training {method} ...", style="dim")
        estimator = kind(method=method, random_state=seed, epochs=DATA[name][2]).fit(features.iloc[train], y.iloc[train])
        seconds = time.perf_counter() - begin
        fitted.append((estimator, assess(estimator, features.iloc[test], y.iloc[test], y.iloc[train]), seconds))

    comparison = [_line(estimator, result.scores, seconds) for estimator, result, seconds in fitted]
    print_table(list(comparison[0]), [list(line.values()) for line in comparison])
    estimator, result, _ = fitted[-1]
    print_line()
    print_line(f"{default}, the default method:", style="bold")
    print_result(result)
    out.mkdir(exist_ok=True)
    data = {"data set": f"{name}, from scikit-learn", "target": f"{y.name} ({task})", "training rows": f"{len(train):,}"}
    facts = {"Data": {**data, "test rows": f"{len(test):,}, held out at random"}, **run_facts(started, seed)}
    title = f"How well is {y.name} predicted?"
    write_page(page, estimator, result, features.iloc[test], str(y.name), title, facts, y.iloc[train], comparison)
    say(f"\nAll about it in {page} ({duration(time.perf_counter() - started)}). Next: bayesify fit your.csv --target COLUMN")


def _line(estimator: BayesianEstimator, scores: dict[str, float], seconds: float) -> dict[str, str]:
    known = {
        "rmse": ("typical error", number),
        "accuracy": ("accuracy", percent),
        "nll": ("NLL (nats)", number),
        "coverage_95": ("in 95% interval", percent),
        "width_95": ("interval width", number),
        "ece": ("calibration error", percent),
    }
    shown = {title: text(scores[key]) for key, (title, text) in known.items() if key in scores}
    return {"method": type(estimator.method_in_use()).__name__, **shown, "time": duration(seconds)}
