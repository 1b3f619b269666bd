"""The commands and their options; what they do lives in the other files of this package."""

import dataclasses
import re
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from bayesify import __version__
from bayesify.cli.demo import run_demo
from bayesify.cli.results import assess, print_result, run_facts, write_page
from bayesify.cli.settings import estimator_fields
from bayesify.cli.tables import check_file, check_output, prediction_table, write_table
from bayesify.cli.terminal import UsageError, polite, print_line, print_table, say
from bayesify.cli.training import ESTIMATORS, fit_table
from bayesify.core.checks import check_fraction, check_integer
from bayesify.core.method import Method
from bayesify.data import read_table, split_target
from bayesify.persistence import load_config, load_model

__all__ = ["app"]

app = typer.Typer(
    help="Neural networks that say how sure they are.", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)


class Task(StrEnum):
    """What the target is."""

    auto = "auto"
    regression = "regression"
    classification = "classification"


class DataSet(StrEnum):
    """Data sets that ship inside scikit-learn."""

    diabetes = "diabetes"
    digits = "digits"
    breast_cancer = "breast-cancer"
    wine = "wine"


Data = Annotated[
    Path, typer.Argument(help="A table with a header row: .csv, .tsv or .parquet.", metavar="DATA", show_default=False)
]
Model = Annotated[Path, typer.Argument(help="A model directory that `fit` wrote.", metavar="DIR", show_default=False)]
Seed = Annotated[int, typer.Option(help="Makes the run repeatable.", min=0, max=2**32 - 1)]


def _version(wanted: bool) -> None:
    if wanted:
        print_line(f"bayesify {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)] = False,
) -> None:
    pass


@app.command()
@polite
def demo(
    data: Annotated[DataSet, typer.Option(help="Which data set.")] = DataSet.diabetes,
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("bayesify-demo"),
    seed: Seed = 0,
) -> None:
    """Compare four methods on a real data set, offline, in less than a minute, and write a report."""
    run_demo(data.value, out, seed)


@app.command()
@polite
def fit(
    data: Data,
    target: Annotated[str, typer.Option(help="The column to predict.", show_default=False)],
    method: Annotated[str | None, typer.Option(help="See `bayesify methods`.", show_default="the recommended one")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="field=value, of the method or of training; may be repeated.", show_default=False),
    ] = None,
    out: Annotated[Path, typer.Option(help="The model directory to write.")] = Path("bayesify-model"),
    seed: Seed = 0,
    task: Annotated[Task, typer.Option(help="Predict a number or a class.")] = Task.auto,
    test: Annotated[Path | None, typer.Option(help="A table of its own to test on.", show_default="part of DATA")] = None,
    test_fraction: Annotated[float, typer.Option(help="Share of the rows to test on.")] = 0.2,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data.", min=1, show_default="by the number of rows")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a model in the directory.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Forget an interrupted run instead of going on with it.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing unless something is wrong.")] = False,
) -> None:
    """Train on a table and save the model with a report on rows it has not seen.

    An interrupted run goes on where it was when the same command is given again.
    """
    check_fraction("--test-fraction", test_fraction)
    fit_table(
        data,
        target,
        method=method,
        settings=settings or [],
        out=out,
        seed=seed,
        task=task.value,
        test=test,
        test_fraction=test_fraction,
        epochs=epochs,
        overwrite=overwrite,
        restart=restart,
        quiet=quiet,
    )


@app.command()
@polite
def evaluate(
    model: Model,
    data: Data,
    report: Annotated[Path | None, typer.Option(help="Write a report to this .html file, too.", show_default=False)] = None,
) -> None:
    """Judge a model on a table with known targets."""
    started = time.perf_counter()
    if report is not None:
        check_file(report)
    config = load_config(model)
    target = _target(config["target"]["name"], model)
    estimator = load_model(model)
    features, y = split_target(read_table(data), target)
    result = assess(estimator, features, y, row="row")
    print_result(result, "these rows")
    if report is not None:
        facts = {"Data": {"file": data, "model": model, "rows": f"{len(features):,}"}, **run_facts(started, None)}
        write_page(report, estimator, result, features, target, f"How well is {target} predicted?", facts, held_out=False)
        say(f"\nThe report is in {report}")


@app.command()
@polite
def predict(
    model: Model,
    data: Data,
    out: Annotated[Path | None, typer.Option(help="A .csv, .tsv or .parquet file.", show_default="CSV on standard output")] = None,
    level: Annotated[float, typer.Option(help="Probability of the intervals (numbers only).")] = 0.95,
    samples: Annotated[int | None, typer.Option(help="Draws of the weights.", show_default="as in training")] = None,
) -> None:
    """Predict the rows of a table, with uncertainty.

    Numbers: mean, std, lower, upper. Classes: prediction, p_<class>, entropy, mutual_information (nats).
    """
    check_fraction("--level", level)
    check_output(out)
    if samples is not None:
        check_integer("--samples", samples)
    config = load_config(model)
    estimator = load_model(model)
    if samples is not None:
        estimator.set_params(samples=samples)
    table = read_table(data).drop(columns=config["target"]["name"], errors="ignore")
    write_table(prediction_table(estimator, estimator.predictive(table), table.index, level), out)


@app.command()
@polite
def methods() -> None:
    """List the methods and everything --set can change."""
    rows = [[name, _first_sentence(kind.__doc__), _defaults(name)] for name, kind in sorted(Method.registry.items())]
    print_table(["method", "makes random", "fields and defaults"], rows, left=3)
    print_line()
    kind = ESTIMATORS["regression"]
    params = kind().get_params(deep=False)
    print_line("Training, for every method (likelihood: numbers only):", style="bold")
    print_line(", ".join(f"{name}={_text(params[name])}" for name in estimator_fields(kind)))
    print_line("beta is the weight the KL rises to; of two values, the first is for numbers, the second for classes.")
    print_line(f"The recommended method is {kind.default_method}.")


def _target(name: str | None, model: Path) -> str:
    if name is None:
        raise UsageError(f"the model in {model} does not know the name of its target column; use it from Python")
    return name


def _defaults(method: str) -> str:
    """The fields, and the weight that the KL rises to, that `fit` takes for numbers and, where it is another one, for classes."""
    recipes = [kind.recipe(method) for kind in ESTIMATORS.values()]
    settings = [
        {**{field.name: getattr(used, field.name) for field in dataclasses.fields(used)}, "beta": beta} for used, beta in recipes
    ]
    texts = {name: list(dict.fromkeys(_text(one[name]) for one in settings)) for name in settings[0]}
    return ", ".join(f"{name}={' or '.join(both)}" for name, both in texts.items())


def _first_sentence(text: str | None) -> str:
    return re.split(r"(?<=\.)\s", " ".join((text or "").split()))[0]


def _text(value: object) -> str:
    if value is None:
        return "none"
    return f"{value:.4g}" if isinstance(value, float) else ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
