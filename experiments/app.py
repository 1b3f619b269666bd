"""The commands of the experiments: list, run, report."""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

import experiments.protocols  # noqa: F401 # fills the registry
from bayesify.cli.options import Track
from bayesify.cli.terminal import print_table, say
from bayesify.errors import ClusterError
from bayesify.files import write_atomically
from bayesify.formatting import duration
from bayesify.jobs import RayCluster
from bayesify.jobs.where import LOCAL, cluster_of
from experiments.harness.config import ROOT, UsageError, read_table, table_names
from experiments.harness.engine import Failure
from experiments.harness.experiment import Experiment, find_experiments
from experiments.harness.forecast import forecast
from experiments.harness.plan import Filters, Task, plan, unit_names
from experiments.harness.quotes import DOCUMENTS, quote
from experiments.harness.report import write_report
from experiments.harness.runner import run_tasks
from experiments.harness.tracking import Tracker

__all__ = ["app"]

app = typer.Typer(
    help="Tables and figures of papers, each one command.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Root = Annotated[Path, typer.Option(help="Folder of the tables.", show_default="this folder", file_okay=False)]
Tables = Annotated[list[str] | None, typer.Argument(metavar="[PAPER/TABLE]...", help="Names or patterns, such as 'uci/*'.")]


@app.command("list")
def list_tables(root: Root = ROOT) -> None:
    """Show every table, how many of its jobs are done, missing or stale, and the time spent on it."""
    experiments = [Experiment(read_table(name, root)) for name in table_names(root)]
    rows = [_line(experiment.table.name, experiment.table.title, [experiment]) for experiment in experiments]
    rows.append(_line("all", "", experiments))
    print_table(["table", "title", "done", "missing", "stale", "time"], rows, left=2)


def _line(name: str, title: str, experiments: Sequence[Experiment]) -> list[str]:
    """Jobs done, missing and stale, and time spent, summed over tables."""
    jobs, done, stale = (sum(counts) for counts in zip(*((len(e.jobs), e.done, len(e.stale)) for e in experiments), strict=True))
    seconds = sum(experiment.seconds for experiment in experiments)
    return [name, title, str(done), str(jobs - done - stale), str(stale), duration(seconds) if seconds else "-"]


@app.command()
def run(
    tables: Tables = None,
    dataset: Annotated[list[str] | None, typer.Option(help="Only this data set; may be repeated.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="Only this method; may be repeated.")] = None,
    units: Annotated[list[str] | None, typer.Option("--splits", "--seeds", help="Only these, such as 0-4,7.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Also units that have results; replace these.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A smoke run with tiny settings and a results folder of its own.")] = False,
    workers: Annotated[int, typer.Option(help="Processes that share the cores of this machine.", min=1)] = 1,
    on: Annotated[str, typer.Option(help="local, ray (RAY_ADDRESS, or the cluster of this machine) or ray://HOST:PORT.")] = LOCAL,
    num_cpus: Annotated[int, typer.Option(help="Cores per task on Ray, also its threads.", min=1)] = 1,
    num_gpus: Annotated[float, typer.Option(help="GPUs per task on Ray.", min=0)] = 0,
    max_retries: Annotated[int, typer.Option(help="New starts of a task whose process or machine on Ray died.", min=0)] = 3,
    minutes: Annotated[float, typer.Option(help="Stop after this time; finished units stay.", show_default="no limit")] = math.inf,
    track: Track = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder of the data.", show_default="$BAYESIFY_DATA")] = None,
    root: Root = ROOT,
) -> None:
    """Run what is missing or stale, then write the reports. After an interruption, the same command continues."""
    if not tables and not quick:
        raise UsageError("name the tables to run, such as uci/standard, 'uci/*' or '*' for all; see `list`")
    experiments = find_experiments(tables or ["*"], root, quick)
    if quick:  # a smoke run that reused results would test nothing
        for experiment in experiments:
            shutil.rmtree(experiment.table.folder, ignore_errors=True)
    cluster = _cluster(on, workers, num_cpus, num_gpus, max_retries)
    filters = Filters(tuple(dataset or ()), tuple(method or ()), unit_names(units or ()), again)
    tasks = plan(experiments, filters, data_dir)
    if tasks and cluster is None:
        expected = forecast(tasks, experiments, workers, root)
        say(str(expected), style="bold" if expected.long else "")
    tracker = None if track is None else Tracker(track, tasks)
    failures = _run(tasks, workers, data_dir, cluster, minutes, tracker)
    try:
        for experiment in experiments:
            experiment.reload()
            _report(experiment)
            if tracker is not None:
                tracker.add_report(experiment)
        if not tasks:
            say("nothing to run: all results are up to date")
    finally:
        for failure in failures:
            say(failure.details)
        for failure in failures:
            say(f"FAILED {failure.task.name}: {failure.error}", style="bold red")
    if failures:
        raise typer.Exit(1)


def _cluster(on: str, workers: int, num_cpus: int, num_gpus: float, max_retries: int) -> RayCluster | None:
    """The cluster that the options describe; None for this machine."""
    cluster = cluster_of(on)
    if cluster is None:
        return None
    if workers > 1:
        raise UsageError(f"--workers {workers} is for --on local; Ray runs as many tasks as the cluster has cores (--num-cpus)")
    return dataclasses.replace(cluster, num_cpus=num_cpus, num_gpus=num_gpus, max_retries=max_retries)


def _run(
    tasks: Sequence[Task],
    workers: int,
    data_dir: Path | None,
    cluster: RayCluster | None,
    minutes: float,
    tracker: Tracker | None,
) -> list[Failure]:
    """Run tasks; what stops all of them becomes a message."""
    try:
        return run_tasks(tasks, workers=workers, data_dir=data_dir, cluster=cluster, minutes=minutes, tracker=tracker)
    except ClusterError as error:
        raise UsageError(f"{error}. What has finished is saved; the same command continues with what is missing") from error
    except KeyboardInterrupt:
        say("interrupted; the same command continues with what is missing", style="yellow")
        raise typer.Exit(130) from None


@app.command()
def report(tables: Tables = None, root: Root = ROOT) -> None:
    """Write reports from results alone, of all tables by default, and update the tables that the documentation quotes."""
    for experiment in find_experiments(tables or ["*"], root):
        if tables or experiment.current:
            _report(experiment)
    for document in DOCUMENTS if root == ROOT else ():
        text = document.read_text(encoding="utf-8")
        if (quoted := quote(text)) != text:
            write_atomically(document, quoted.encode())
            say(f"{document}")


def _report(experiment: Experiment) -> None:
    path = experiment.table.folder / "report.md"
    try:
        write_report(experiment)
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror or error}; the results are saved, and `report` writes it once there is room"
        ) from error
    say(f"{path}")
