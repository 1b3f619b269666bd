"""The command line of the experiments: list, run, report.

python -m experiments run uci/standard --dataset boston --splits 0-4
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

import experiments.protocols  # noqa: F401 # fills the registry
from bayesify.cli.terminal import print_table, say
from experiments.harness.config import ROOT, UsageError, find_tables, read_table, table_names
from experiments.harness.numbers import duration
from experiments.harness.plan import Wanted, plan, unit_names
from experiments.harness.quotes import DOCUMENTS, quote
from experiments.harness.report import Progress, progress_of, write_report
from experiments.harness.runner import run_tasks

__all__ = ["app", "main"]

app = typer.Typer(
    help="Tables and figures of papers, each one command.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Root = Annotated[Path, typer.Option(help="Where the tables lie.", show_default="this folder", file_okay=False)]
Tables = Annotated[list[str] | None, typer.Argument(metavar="[PAPER/TABLE]...", help="Names or patterns, such as 'uci/*'.")]


@app.command("list")
def list_tables(root: Root = ROOT) -> None:
    """Show every table, how many of its jobs are done, missing or out of date, and the time spent on it."""
    tables = {name: read_table(name, root) for name in table_names(root)}
    progress = {name: progress_of(table) for name, table in tables.items()}
    rows = [_line(name, tables[name].title, [progress[name]]) for name in tables]
    rows.append(_line("all", "", list(progress.values())))
    print_table(["table", "what it shows", "done", "missing", "stale", "time"], rows, left=2)


def _line(name: str, title: str, progress: Sequence[Progress]) -> list[str]:
    """Jobs done, missing and stale, and time spent, summed over tables."""
    jobs, done, stale = (sum(counts) for counts in zip(*((len(p.jobs), p.done, len(p.stale)) for p in progress), strict=True))
    seconds = sum(p.seconds for p in progress)
    return [name, title, str(done), str(jobs - done - stale), str(stale), duration(seconds) if seconds else "-"]


@app.command()
def run(
    tables: Tables = None,
    dataset: Annotated[list[str] | None, typer.Option(help="Only this data set; may be repeated.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="Only this method; may be repeated.")] = None,
    units: Annotated[list[str] | None, typer.Option("--splits", "--seeds", help="Only these, such as 0-4,7.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Also what is there already, in place of it.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A smoke run with tiny settings, results apart.")] = False,
    workers: Annotated[int, typer.Option(help="Processes that share the cores.", min=1)] = 1,
    data_dir: Annotated[Path | None, typer.Option(help="Where the data lie.", show_default="$BAYESIFY_DATA or beside")] = None,
    root: Root = ROOT,
) -> None:
    """Run what is missing or out of date, then write the reports. An interrupted run goes on when it is given again."""
    if not tables and not quick:
        raise UsageError("name the tables to run, such as uci/standard, 'uci/*' or '*' for all; see `list`")
    chosen = find_tables(tables or ["*"], root, quick)
    if quick:  # a smoke run that finds its work done would test nothing
        for table in chosen:
            shutil.rmtree(table.folder, ignore_errors=True)
    wanted = Wanted(tuple(dataset or ()), tuple(method or ()), unit_names(units or ()), again)
    tasks = plan(chosen, wanted, data_dir)
    try:
        failures = run_tasks(tasks, workers=workers, data_dir=data_dir)
    except KeyboardInterrupt:
        say("interrupted; the same command goes on with what is missing", style="yellow")
        raise typer.Exit(130) from None
    for table in chosen:
        write_report(table)
        say(f"{table.folder / 'report.md'}")
    if not tasks:
        say("nothing to run: all results are there and up to date")
    for failure in failures:
        say(failure.details)
    for failure in failures:
        say(f"FAILED {failure.task.name}: {failure.error}", style="bold red")
    if failures:
        raise typer.Exit(1)


@app.command()
def report(tables: Tables = None, root: Root = ROOT) -> None:
    """Write reports again, from results alone, and what the documentation quotes; all reports where no table is named."""
    for table in find_tables(tables or ["*"], root):
        if tables or progress_of(table).current:
            write_report(table)
            say(f"{table.folder / 'report.md'}")
    for document in DOCUMENTS if root == ROOT else ():
        text = document.read_text(encoding="utf-8")
        if (quoted := quote(text)) != text:
            document.write_text(quoted, encoding="utf-8")
            say(f"{document}")


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line: exit code 1 where a job failed, 2 where the command or a configuration is wrong, 130 on Ctrl-C."""
    try:
        app(arguments)
    except UsageError as error:
        say(f"experiments: {error}", style="red")
        sys.exit(2)
    sys.exit(0)


if __name__ == "__main__":
    main()
