"""Tasks in MLflow or TensorBoard: a run per job, with its settings, environment, the numbers of its units, and its results file.

A run continues where units are added to the results; other settings, code or data start another one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bayesify.errors import TrackingError, warn
from bayesify.formatting import plural
from bayesify.tracking import Run, open_run
from experiments.harness.experiment import Experiment
from experiments.harness.plan import Task
from experiments.harness.protocol import Table
from experiments.harness.store import read, results_path

__all__ = ["Tracker"]


class Tracker:
    """Runs of tables and of their jobs.

    Args:
        track: where, as for `open_run`.
        tasks: that will be run. A run for the report of every table is opened, so that a server that does not answer is an error
            before any work.

    Raises:
        TrackingError, MissingDependencyError, ConfigurationError: tracking is not possible.
    """

    def __init__(self, track: str, tasks: Sequence[Task]) -> None:
        self.track = track
        tables = {task.table.name: task.table for task in tasks}
        self._reports = {name: self._open(table, "report", "report") for name, table in tables.items()}
        for name, run in self._reports.items():
            run.configure({"title": tables[name].title, "source": tables[name].source})
        self._missing: list[tuple[Task, bool]] = []

    def add(self, task: Task, *, failed: bool) -> None:
        """Log the results of a task that has ended: a number per unit, whose place in the job is the step.

        If the server does not answer, `add_report` tries again.
        """
        try:
            self._add(task, failed)
        except (TrackingError, OSError) as error:
            if not self._missing:
                warn(f"{error}. The tasks go on; their results are logged at the end if that is possible then")
            self._missing.append((task, failed))

    def _add(self, task: Task, failed: bool) -> None:
        results = read(task.table, task.job.key)
        if results is None or not results.fits(task.job, task.protocol, task.checksums):
            return
        run = self._open(task.table, task.job.key, f"{task.job.key}-{results.fingerprint}")
        machine = {name: value for name, value in results.runs[-1].items() if name not in ("units", "seconds", "process", "date")}
        run.configure(
            {**task.job.settings, "protocol": f"{task.table.protocol} {task.protocol.version}", "data": results.data}, machine
        )
        for step, unit in enumerate(task.job.units):
            if unit in results.units:
                run.log(dict(_numbers(results.units[unit])), step)
        run.add_file(results_path(task.table, task.job.key))
        run.end("failed" if failed else "success")

    def add_report(self, experiment: Experiment) -> None:
        """Log the report of a table, and the results of its tasks that could not be logged."""
        if (run := self._reports.get(experiment.table.name)) is None:
            return
        missing = [(task, failed) for task, failed in self._missing if task.table.name == experiment.table.name]
        try:
            for task, failed in missing:
                self._add(task, failed)
        except (TrackingError, OSError):
            warn(f"{experiment.table.name}: results of {plural(len(missing), 'job')} are saved, but not tracked")
        for name in ("report.md", "figure.png", "config.toml"):
            if (path := experiment.table.folder / name).is_file():
                run.add_file(path)
        run.end()

    def _open(self, table: Table, name: str, state: str) -> Run:
        return open_run(self.track, name=name, group=table.name, state=table.folder / ".cache" / "tracking" / f"{state}.json")


def _numbers(unit: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The finite numbers of a unit; those of nested tables as "a/b"."""
    for name, value in unit.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            yield f"{prefix}{name}", float(value)
