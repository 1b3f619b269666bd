"""How long a run will take, told before it starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bayesify.formatting import duration, plural
from experiments.harness.experiment import Experiment
from experiments.harness.plan import Task

__all__ = ["LONG", "Forecast", "forecast"]

LONG = 2 * 60 * 60.0
"""Seconds from which on a run is announced as long."""


class Forecast(NamedTuple):
    """What a run will do.

    Attributes:
        jobs, units: their numbers.
        workers: processes that share the work.
        seconds: expected duration.
        measured: whether every table has results, whose times correct the estimate.
    """

    jobs: int
    units: int
    workers: int
    seconds: float
    measured: bool

    @property
    def long(self) -> bool:
        """Whether the run takes more than two hours."""
        return self.seconds > LONG

    def __str__(self) -> str:
        basis = "by the times of units that have run" if self.measured else "a rough estimate, as some tables have no results yet"
        text = f"{plural(self.jobs, 'job')}, {plural(self.units, 'unit')}: about {duration(self.seconds)}"
        text += f" with {plural(self.workers, 'worker')} ({basis})"
        if not self.long:
            return text
        return f"{text}. This takes long: it may be interrupted at any time, and the same command continues with what is missing"


def forecast(tasks: Sequence[Task], experiments: Sequence[Experiment], workers: int = 1) -> Forecast:
    """Estimate the duration of tasks from their costs, in the proportion of time to cost of the units that their table has.

    Args:
        tasks: from `plan`.
        experiments: their tables.
        workers: processes.
    """
    rates = {experiment.table.name: _rate(experiment) for experiment in experiments}
    seconds = [task.cost * (rates[task.table.name] or 1.0) for task in tasks]
    return Forecast(
        jobs=len(tasks),
        units=sum(len(task.units) for task in tasks),
        workers=workers,
        seconds=max(sum(seconds) / workers, max(seconds, default=0.0)),
        measured=all(rates[task.table.name] is not None for task in tasks),
    )


def _rate(experiment: Experiment) -> float | None:
    """Seconds per unit of cost over the current results of a table; None without any."""
    costs: Mapping[str, float] = {job.key: job.cost for job in experiment.jobs}
    cost = sum(costs[key] * len(results.units) for key, results in experiment.current.items())
    return experiment.seconds / cost if cost and experiment.seconds else None
