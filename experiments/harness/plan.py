"""What to run: the jobs of tables, without those that the filters exclude or that have results."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from experiments.harness.config import UsageError
from experiments.harness.experiment import Experiment
from experiments.harness.protocol import Job, Protocol, Table

__all__ = ["Filters", "Task", "plan", "unit_names"]


@dataclasses.dataclass(frozen=True)
class Task:
    """The units of a job that have to be run, and the checksums of its data."""

    table: Table
    protocol: Protocol
    job: Job
    units: tuple[str, ...]
    checksums: Mapping[str, str]

    @property
    def name(self) -> str:
        """Table and job, for messages."""
        return f"{self.table.name} {self.job.key}"

    @property
    def cost(self) -> float:
        """Rough estimate of its duration, in seconds."""
        return self.job.cost * len(self.units)


@dataclasses.dataclass(frozen=True)
class Filters:
    """Which jobs and units to run; an empty filter selects all.

    Attributes:
        datasets, methods: values of the settings "dataset" and "method" of a job.
        units: splits or seeds.
        again: also units that have results.
    """

    datasets: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    again: bool = False

    def select(self, job: Job) -> bool:
        """Whether the job, or a unit of it, passes the filters."""
        return (
            (not self.datasets or str(job.settings.get("dataset")) in self.datasets)
            and (not self.methods or str(job.settings.get("method")) in self.methods)
            and (not self.units or not set(self.units).isdisjoint(job.units))
        )


def unit_names(texts: Iterable[str]) -> tuple[str, ...]:
    """Parse numbers, ranges and names of units from the command line.

    Example:
        >>> unit_names(["0-2,7", "full"])
        ('0', '1', '2', '7', 'full')
    """
    names: list[str] = []
    for part in ",".join(texts).split(","):
        ends = re.fullmatch(r"\s*(\d+)\s*-\s*(\d+)\s*", part)
        if ends and int(ends[1]) > int(ends[2]):
            raise UsageError(f"the range {part.strip()!r} is empty; write the smaller number first")
        names += map(str, range(int(ends[1]), int(ends[2]) + 1)) if ends else [part.strip()]
    return tuple(dict.fromkeys(name for name in names if name))


def plan(experiments: Sequence[Experiment], filters: Filters, data_dir: Path | None = None) -> list[Task]:
    """The tasks of these tables: units without results of the same settings, code version and data, or all with `again`.

    Raises:
        UsageError: filters that select nothing, a wrong configuration, missing data.
    """
    pairs = [(experiment, job) for experiment in experiments for job in experiment.jobs]
    run = "smoke runs of these tables" if any(experiment.table.quick for experiment in experiments) else "these tables"
    for setting, names in (("dataset", filters.datasets), ("method", filters.methods)):
        _check_names(run, setting, names, {str(job.settings[setting]) for _, job in pairs if setting in job.settings})
    _check_names(run, "split or seed", filters.units, {unit for _, job in pairs for unit in job.units})
    pairs = [(experiment, job) for experiment, job in pairs if filters.select(job)]
    if not pairs:
        raise UsageError("no job passes all filters; `list` shows the tables")

    checksums = _checksums({name for _, job in pairs for name in job.data}, data_dir)
    tasks = []
    for experiment, job in pairs:
        results, protocol = experiment.results.get(job.key), experiment.protocol
        reused = not filters.again and results is not None and results.fits(job, protocol, checksums)
        finished = results.units if results is not None and reused else {}
        units = tuple(unit for unit in job.units if unit not in finished and (not filters.units or unit in filters.units))
        if units:
            tasks.append(Task(experiment.table, protocol, job, units, {name: checksums[name] for name in job.data}))
    return tasks


def _check_names(run: str, what: str, names: Sequence[str], known: set[str]) -> None:
    for name in names:
        if name not in known:
            order = sorted(known, key=lambda word: (not word.isdigit(), int(word) if word.isdigit() else 0, word))
            raise UsageError(f"{run} have no {what} {name!r}; they have {', '.join(order) or 'none'}")


def _checksums(names: Iterable[str], data_dir: Path | None) -> dict[str, str]:
    from bayesify.datasets import checksum  # loads pandas and scikit-learn, which listing tables does not need

    try:
        return {name: checksum(name, data_dir) for name in sorted(names)}
    except (OSError, ValueError, ImportError) as error:
        raise UsageError(str(error)) from error
