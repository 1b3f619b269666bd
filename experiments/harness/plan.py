"""What there is to run: the jobs of tables, less what the filters leave out and what is in the results already."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from experiments.harness.config import UsageError, jobs_of, protocol_of
from experiments.harness.protocol import Job, Protocol, Table
from experiments.harness.store import read

__all__ = ["Task", "Wanted", "plan", "unit_names"]


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
        """A rough guess of its seconds."""
        return self.job.cost * len(self.units)


@dataclasses.dataclass(frozen=True)
class Wanted:
    """Filters; an empty one lets everything through.

    Attributes:
        datasets, methods: what a job's settings call "dataset" and "method".
        units: splits or seeds.
        again: also what is there already.
    """

    datasets: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    again: bool = False


def unit_names(texts: Iterable[str]) -> tuple[str, ...]:
    """Numbers, ranges and names of units, as the command line takes them.

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


def plan(tables: Sequence[Table], wanted: Wanted, data_dir: Path | None = None) -> list[Task]:
    """The tasks of these tables; units whose results are there, of the same settings, code version and data, are left out, unless
    they are wanted again.

    Raises:
        UsageError: a filter that lets nothing through, a wrong configuration, data that are not there.
    """
    jobs = [(table, job) for table in tables for job in jobs_of(table)]
    for setting, names in (("dataset", wanted.datasets), ("method", wanted.methods)):
        _check_names(setting, names, {str(job.settings[setting]) for _, job in jobs if setting in job.settings})
    _check_names("split or seed", wanted.units, {unit for _, job in jobs for unit in job.units})
    jobs = [(table, job) for table, job in jobs if _chosen(job, wanted)]
    if not jobs:
        raise UsageError("no job passes all filters together; see `list` for the tables there are")

    sums = _checksums({name for _, job in jobs for name in job.data}, data_dir)
    tasks = []
    for table, job in jobs:
        protocol, results = protocol_of(table), read(table, job.key)
        kept = not wanted.again and results is not None and results.fits(job, protocol, sums)
        there = results.units if results is not None and kept else {}
        units = tuple(unit for unit in job.units if unit not in there and (not wanted.units or unit in wanted.units))
        if units:
            tasks.append(Task(table, protocol, job, units, {name: sums[name] for name in job.data}))
    return tasks


def _chosen(job: Job, wanted: Wanted) -> bool:
    return (
        (not wanted.datasets or str(job.settings.get("dataset")) in wanted.datasets)
        and (not wanted.methods or str(job.settings.get("method")) in wanted.methods)
        and (not wanted.units or not set(wanted.units).isdisjoint(job.units))
    )


def _check_names(what: str, names: Sequence[str], known: set[str]) -> None:
    for name in names:
        if name not in known:
            order = sorted(known, key=lambda word: (not word.isdigit(), int(word) if word.isdigit() else 0, word))
            raise UsageError(f"these tables have no {what} {name!r}; they have {', '.join(order) or 'none'}")


def _checksums(names: Iterable[str], data_dir: Path | None) -> dict[str, str]:
    from bayesify.data import checksum  # loads pandas and scikit-learn, which listing tables does not need

    try:
        return {name: checksum(name, data_dir) for name in sorted(names)}
    except (OSError, ValueError, ImportError) as error:
        raise UsageError(str(error)) from error
