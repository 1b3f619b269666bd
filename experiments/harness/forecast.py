"""How long a run will take, told before it starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bayesify.formatting import duration, listing, plural
from experiments.harness.config import ROOT
from experiments.harness.experiment import Experiment, find_experiments
from experiments.harness.plan import Task
from experiments.harness.protocol import Job

__all__ = ["LONG", "Forecast", "forecast"]

LONG = 2 * 60 * 60.0
"""Seconds from which on a run is announced as long."""


class Forecast(NamedTuple):
    """What a run will do.

    Attributes:
        jobs, units: their numbers.
        workers: processes that share the work.
        seconds: expected duration.
        measured: whether every table has results, whose times the estimate is made of.
        unseen: methods that have no results in their table, whose time is estimated by those of others.
    """

    jobs: int
    units: int
    workers: int
    seconds: float
    measured: bool
    unseen: tuple[str, ...] = ()

    @property
    def long(self) -> bool:
        """Whether the run takes more than two hours."""
        return self.seconds > LONG

    def __str__(self) -> str:
        basis = "by the times of units that have run" if self.measured else "a rough estimate, as a table has no results yet"
        if self.measured and self.unseen:
            basis += f"; rough for {listing(self.unseen)}, without results in their table"
        text = f"{plural(self.jobs, 'job')}, {plural(self.units, 'unit')}: about {duration(self.seconds)}"
        text += f" with {plural(self.workers, 'worker')} ({basis})"
        if not self.long:
            return text
        return f"{text}. This takes long: it may be interrupted at any time, and the same command continues with what is missing"


def forecast(tasks: Sequence[Task], experiments: Sequence[Experiment], workers: int = 1, root: Path = ROOT) -> Forecast:
    """Estimate the duration of tasks by the units of the same job that have run, or else from their costs.

    Args:
        tasks: from `plan`.
        experiments: their tables. A table without results has the proportion of time to cost of all tables of its protocol.
        workers: processes.
        root: folder of all tables.
    """
    own = {experiment.table.name: _rate([experiment]) for experiment in experiments}
    rates = dict(own)
    for experiment in experiments:
        if own[experiment.table.name] is None:
            rates[experiment.table.name] = _rate(_of_protocol(experiment.table.protocol, root))
    per_unit = {
        (experiment.table.name, key): results.seconds / len(results.units)
        for experiment in experiments
        for key, results in experiment.current.items()
        if results.units
    }
    seen = {
        (experiment.table.name, _method(job))
        for experiment in experiments
        for job in experiment.jobs
        if (experiment.table.name, job.key) in per_unit
    }
    seconds = [
        len(task.units) * per_unit.get((task.table.name, task.job.key), task.job.cost * (rates[task.table.name] or 1.0))
        for task in tasks
    ]
    return Forecast(
        jobs=len(tasks),
        units=sum(len(task.units) for task in tasks),
        workers=workers,
        seconds=max(sum(seconds) / workers, max(seconds, default=0.0)),
        measured=all(own[task.table.name] is not None for task in tasks),
        unseen=tuple(dict.fromkeys(_method(task.job) for task in tasks if (task.table.name, _method(task.job)) not in seen)),
    )


def _method(job: Job) -> str:
    """The name of its method, or of the job if it has none."""
    return str(job.settings.get("method", job.key))


def _of_protocol(protocol: str, root: Path) -> list[Experiment]:
    return [experiment for experiment in find_experiments(["*"], root) if experiment.table.protocol == protocol]


def _rate(experiments: Sequence[Experiment]) -> float | None:
    """Seconds per unit of cost over the current results of tables; None without any."""
    cost = seconds = 0.0
    for experiment in experiments:
        costs = {job.key: job.cost for job in experiment.jobs}
        cost += sum(costs[key] * len(results.units) for key, results in experiment.current.items())
        seconds += experiment.seconds
    return seconds / cost if cost and seconds else None
