"""The commands of the command line.

What a command works with is imported in its body: help, the version and errors of usage need no PyTorch.
"""

import time
from pathlib import Path
from typing import Annotated

import typer

from bayesify import __version__
from bayesify.cli.demo import demo
from bayesify.cli.explain import explain
from bayesify.cli.files import check_input, check_level, check_output, check_report, is_several, write_table
from bayesify.cli.fit import fit
from bayesify.cli.options import Data, Decimal, Encoding, On, Separator
from bayesify.cli.terminal import UsageError, handle_errors, print_line, say
from bayesify.core.checks import check_integer
from bayesify.files import write_atomically

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
app.command()(explain)


@app.command()
@handle_errors
def evaluate(
    model: Model,
    data: Data,
    report: Annotated[Path | None, typer.Option(help="Also write a report to this .html file.", show_default=False)] = None,
    sep: Separator = None,
    encoding: Encoding = None,
    decimal: Decimal = None,
) -> None:
    """Evaluate a model on a table with known targets."""
    started = time.perf_counter()
    if report is not None:
        check_report(report, [data])
    check_input(data)

    from bayesify.cli.evaluation import assess_estimator, conformal_facts, print_assessment, report_page, run_facts
    from bayesify.cli.predictions import note_differences
    from bayesify.cli.tables import TextOptions, open_model

    estimator, tables = open_model(model, TextOptions(sep, encoding, decimal))
    features, y = tables.read_with_target(data)
    note_differences(estimator, features)
    assessment = assess_estimator(estimator, features, y, held_out=False)
    conformal_results = conformal_facts(estimator, features, y)
    print_assessment(assessment, conformal_results)
    if report is not None:
        data_facts = {"file": data, "model": model, "rows": f"{len(features):,}"}
        facts = {"Data": data_facts, **conformal_results, **run_facts(started)}
        write_atomically(report, report_page(estimator, assessment, features, str(y.name), facts))
        say(f"\nReport: {report}", wrap=False)


@app.command()
@handle_errors
def predict(
    model: Model,
    data: Data,
    out: Annotated[
        Path | None,
        typer.Option(help="A .csv, .tsv or .parquet file; a folder for several files.", show_default="CSV on standard output"),
    ] = None,
    level: Annotated[float, typer.Option(help="Probability of the intervals or label sets.")] = 0.95,
    samples: Annotated[int | None, typer.Option(help="Number of draws to average.", show_default="as in training")] = None,
    keep: Annotated[list[str] | None, typer.Option(help="Columns of DATA to copy, such as id,name.", show_default=False)] = None,
    on: On = "local",
    sep: Separator = None,
    encoding: Encoding = None,
    decimal: Decimal = None,
) -> None:
    """Predict the rows of a table, with uncertainty.

    Columns for regression: mean, std, lower, upper; for classification: prediction, p_<class>, entropy, mutual_information (nats),
    and for a model fitted with --conformal: label_set. The column warning, if a row has one, names values unlike those of training.
    Text has 5 significant digits of std and as many decimals of mean, lower and upper; .parquet has all digits.

    DATA may be a folder of .parquet files or a pattern such as 'in/*.parquet' (in quotes), of any size: --out is then a folder, and
    gets a file per file. The same command continues an interrupted run.
    """
    check_level(level)
    if samples is not None:
        check_integer("--samples", samples)
    if is_several(data):
        _predict_several(model, data, out, level, samples, keep or [], on)
        return
    if on != "local":
        raise UsageError(f"--on {on} is for several files: DATA as a folder of .parquet files or a pattern such as 'in/*.parquet'")
    check_output(out, [data])
    check_input(data)

    from bayesify.cli.predictions import kept_columns, note_differences, prediction_table, rounded
    from bayesify.cli.tables import TextOptions, open_model

    estimator, tables = open_model(model, TextOptions(sep, encoding, decimal))
    if samples is not None:
        estimator.set_params(samples=samples)
    table = tables.read(data)
    kept = kept_columns(table, keep or [])
    features = tables.features(table)
    predictions = prediction_table(estimator, features, estimator.predictive(features), table.index, level)
    if out is None or out.suffix.lower() != ".parquet":
        predictions = rounded(predictions)
    differences = note_differences(estimator, features)
    if (differences != "").any():
        predictions["warning"] = differences.to_numpy()
    for position, name in enumerate(kept):
        predictions.insert(position, name, kept[name].to_numpy())
    write_table(predictions, out)


def _predict_several(
    model: Path, data: Path, out: Path | None, level: float, samples: int | None, keep: list[str], on: str
) -> None:
    if out is None:
        raise UsageError("several files need --out, a folder for the files of predictions")

    from bayesify.cli.streaming import Request, predict_files
    from bayesify.data import parquet_files
    from bayesify.jobs.where import cluster_of

    predict_files(Request(model, level, samples, tuple(keep)), parquet_files(data), out, cluster_of(on))


@app.command()
@handle_errors
def methods() -> None:
    """List the methods and the fields that --set can change."""
    from bayesify.cli.method_list import print_methods

    print_methods()
