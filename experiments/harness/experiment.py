"""A table together with its protocol, jobs and results, each expanded or read once per command."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from experiments.harness.config import ROOT, find_tables, jobs_of
from experiments.harness.protocol import Job, Protocol, Table
from experiments.harness.store import Results, read

__all__ = ["Experiment", "find_experiments"]


class Experiment:
    """Configuration and state of one table. Properties are computed at first use; `reload` reads the results again.

    Args:
        table: as configured.
    """

    def __init__(self, table: Table) -> None:
        self.table = table

    @cached_property
    def protocol(self) -> Protocol:
        """A new instance of the table's protocol."""
        return Protocol.registry[self.table.protocol]()

    @cached_property
    def jobs(self) -> list[Job]:
        """All jobs of the table.

        Raises:
            UsageError: settings that the protocol rejects.
        """
        return jobs_of(self.table, self.protocol)

    @cached_property
    def results(self) -> dict[str, Results]:
        """Everything in the results folder that belongs to a job, stale or not, by job key."""
        found = {job.key: read(self.table, job.key) for job in self.jobs}
        return {key: results for key, results in found.items() if results is not None}

    @cached_property
    def current(self) -> dict[str, Results]:
        """Results of the jobs as configured now, by job key. The data count as unchanged; `plan` compares their checksums."""
        results = self.results
        return {job.key: results[job.key] for job in self.jobs if job.key in results and results[job.key].fits(job, self.protocol)}

    def reload(self) -> None:
        """Forget the results, so that the next access reads them from disk."""
        for name in ("results", "current"):
            self.__dict__.pop(name, None)

    @property
    def stale(self) -> list[str]:
        """Keys of jobs whose results are of other settings or of another version of the code."""
        return [key for key in self.results if key not in self.current]

    @property
    def done(self) -> int:
        """Number of jobs all of whose units have results."""
        return sum(not self.missing(job) for job in self.jobs)

    @property
    def seconds(self) -> float:
        """Time spent on the current results."""
        return sum(results.seconds for results in self.current.values())

    def missing(self, job: Job) -> list[str]:
        """Units of a job without current results."""
        units = self.current[job.key].units if job.key in self.current else {}
        return [unit for unit in job.units if unit not in units]


def find_experiments(patterns: Sequence[str], root: Path = ROOT, quick: bool = False) -> list[Experiment]:
    """The tables whose names match any pattern, see `find_tables`."""
    return [Experiment(table) for table in find_tables(patterns, root, quick)]
