"""`--track`: the run of `bayesify fit` in MLflow or TensorBoard."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import typer

from bayesify.persistence import CHECKPOINT
from bayesify.tracking import Run, open_run

__all__ = ["add_results", "tracked"]

_FILES = ("report.html", "config.json")


@contextlib.contextmanager
def tracked(track: str, directory: Path) -> Iterator[Run]:
    """Open the run of a model directory, or continue that of the interrupted training in it; end it with the command."""
    try:
        run = open_run(track, name=directory.name, state=directory / f"{CHECKPOINT}.tracking")
    except BaseException:
        if not any(directory.iterdir()):
            directory.rmdir()
        raise
    try:
        yield run
    except typer.Exit as error:
        run.end("success" if error.exit_code == 0 else "interrupted" if error.exit_code == 130 else "failed")
        raise
    except BaseException as error:
        run.end("failed" if isinstance(error, Exception) else "interrupted")
        raise
    run.end()


def add_results(runs: Sequence[Run], directory: Path, scores: Mapping[str, float] | None = None) -> None:
    """Log the scores of the test rows, and report and configuration of the saved model as artifacts."""
    for run in runs:
        if scores:
            run.log({f"test/{name}": score for name, score in scores.items()}, 0)
        for name in _FILES:
            if (directory / name).is_file():
                run.add_file(directory / name)
