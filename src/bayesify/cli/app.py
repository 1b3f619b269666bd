"""The commands of the command line."""

import dataclasses
import re
import time
from pathlib import Path
from typing import Annotated

import typer

from bayesify import __version__
from bayesify.cli.demo import demo
from bayesify.cli.evaluation import assess_estimator, print_assessment, report_page, run_facts
from bayesify.cli.files import check_file, check_output, prediction_table, write_table
from bayesify.cli.fit import ESTIMATORS, fit
from bayesify.cli.options import Data, estimator_fields
from bayesify.cli.terminal import UsageError, handle_errors, print_line, print_table, say
from bayesify.core.checks import check_fraction, check_integer
from bayesify.core.method import Method
from bayesify.data import read_table, split_target
from bayesify.files import write_atomically
from bayesify.persistence import load_config, load_model

__all__ = ["app"]

app = typer.Typer(
    help="Bayesian neural networks for tables.", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)


Model = Annotated[Path, typer.Argument(help="A model directory written by `bayesify fit`.", metavar="DIR", show_default=False)]


def _version(show: bool) -> None:
    if show:
        print_line(f"bayesify {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)] = False,
) -> None:
    pass


app.command()(demo)
app.command()(fit)


@app.command()
@handle_errors
def evaluate(
    model: Model,
    data: Data,
    report: Annotated[Path | None, typer.Option(help="Also write a report to this .html file.", show_default=False)] = None,
) -> None:
    """Evaluate a model on a table with known targets."""
    started = time.perf_counter()
    if report is not None:
        check_file(report)
    target = load_config(model)["target"]["name"]
    if target is None:
        raise UsageError(f"the model in {model} was saved without the name of its target column; use it from Python")
    estimator = load_model(model)
    features, y = split_target(read_table(data), target)
    assessment = assess_estimator(estimator, features, y, held_out=False)
    print_assessment(assessment)
    if report is not None:
        facts = {"Data": {"file": data, "model": model, "rows": f"{len(features):,}"}, **run_facts(started)}
        write_atomically(report, report_page(estimator, assessment, features, target, facts))
        say(f"\nReport: {report}")


@app.command()
@handle_errors
def predict(
    model: Model,
    data: Data,
    out: Annotated[Path | None, typer.Option(help="A .csv, .tsv or .parquet file.", show_default="CSV on standard output")] = None,
    level: Annotated[float, typer.Option(help="Probability of the intervals (regression).")] = 0.95,
    samples: Annotated[int | None, typer.Option(help="Draws of the weights.", show_default="as in training")] = None,
) -> None:
    """Predict the rows of a table, with uncertainty.

    Columns for regression: mean, std, lower, upper; for classification: prediction, p_<class>, entropy, mutual_information (nats).
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
@handle_errors
def methods() -> None:
    """List the methods and the fields that --set can change."""
    rows = [[name, _first_sentence(kind.__doc__), _defaults(name)] for name, kind in sorted(Method.registry.items())]
    print_table(["method", "description", "fields and defaults"], rows, left=3)
    print_line()
    kind = ESTIMATORS["regression"]
    params = kind().get_params(deep=False)
    print_line("Training parameters of every method (likelihood: regression only):", style="bold")
    print_line(", ".join(f"{name}={_text(params[name])}" for name in estimator_fields(kind)))
    print_line("beta is the final weight of the KL. Of two values, the first is for regression, the second for classification.")
    print_line(f"The default method is {kind.default_method}.")


def _defaults(method: str) -> str:
    """The default fields and beta for regression and, if different, for classification."""
    recipes = [kind.recipe(method) for kind in ESTIMATORS.values()]
    settings = [{**{field.name: getattr(m, field.name) for field in dataclasses.fields(m)}, "beta": beta} for m, beta in recipes]
    texts = {name: dict.fromkeys(_text(values[name]) for values in settings) for name in settings[0]}
    return ", ".join(f"{name}={' or '.join(values)}" for name, values in texts.items())


def _first_sentence(text: str | None) -> str:
    return re.split(r"(?<=\.)\s", " ".join((text or "").split()))[0]


def _text(value: object) -> str:
    if value is None:
        return "none"
    return f"{value:.4g}" if isinstance(value, float) else ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
