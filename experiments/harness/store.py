"""Results as files: one JSON per job in `PAPER/TABLE/results`, with settings and origin, written atomically."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bayesify.errors import DataError
from bayesify.files import write_atomically
from bayesify.persistence.lock import held
from experiments.harness.config import UsageError
from experiments.harness.protocol import Job, Protocol, Table, Unit, digest
from experiments.harness.settings import agree

__all__ = ["Recorder", "Results", "cache_path", "read", "results_path"]

_SECONDS = 60  # to wait for another process that writes results


@dataclasses.dataclass(frozen=True)
class Results:
    """The results file of a job.

    Attributes:
        fingerprint: of the job; all units have this one.
        settings: the job's, complete.
        data: checksums of the data sets, by name.
        runs: each run that added units: machine, versions, date, seconds, and names of the units.
        units: results by unit.
    """

    fingerprint: str
    settings: Mapping[str, Any]
    data: Mapping[str, str]
    runs: list[dict[str, Any]]
    units: dict[str, Unit]

    @property
    def seconds(self) -> float:
        """Time spent on these results, over all runs."""
        return sum(run["seconds"] for run in self.runs)

    def fits(self, job: Job, protocol: Protocol, checksums: Mapping[str, str] | None = None) -> bool:
        """Whether these are results of the job as configured now; without checksums the data count as unchanged."""
        sums = self.data if checksums is None else checksums
        equal = set(job.data) <= set(sums) and job.fingerprint(protocol, sums) == self.fingerprint
        return equal and agree(self.settings, job.settings)


def results_path(table: Table, key: str) -> Path:
    """File of the results of a job."""
    return table.folder / "results" / f"{key}.json"


def cache_path(table: Table, job: Job, fingerprint: str) -> Path:
    """Folder for what a job can compute again; git ignores it. Other settings, defaults included, have another folder."""
    return table.folder / ".cache" / f"{job.key}-{digest([fingerprint, job.settings])}"


def read(table: Table, key: str) -> Results | None:
    """Read the results of a job, current or stale; None without a file.

    Raises:
        UsageError: a file that is not a results file.
    """
    path = results_path(table, key)
    try:
        content = json.loads(path.read_bytes())
        return Results(**{field.name: content[field.name] for field in dataclasses.fields(Results)})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{path} is not a results file ({type(error).__name__}: {error}); delete it") from error


class Recorder:
    """Saves the units of one job as they finish.

    Args:
        table, job, protocol: the job and where it belongs.
        checksums: of the data sets the job reads.
        origin: machine and versions of this run, from `bayesify.environment.machine`.
    """

    def __init__(
        self, table: Table, job: Job, protocol: Protocol, checksums: Mapping[str, str], origin: Mapping[str, object]
    ) -> None:
        self.table, self.job, self.protocol = table, job, protocol
        self.data = {name: checksums[name] for name in job.data}
        self.fingerprint = job.fingerprint(protocol, checksums)
        self.origin = dict(origin)
        self.date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self.started, self.saved = time.perf_counter(), set[str]()

    def existing(self) -> Results | None:
        """Saved results of the same settings; None without any."""
        results = read(self.table, self.job.key)
        return results if results is not None and results.fits(self.job, self.protocol, self.data) else None

    def ready(self) -> dict[str, Unit]:
        """Saved units of the job as it is now, of the same settings."""
        existing = self.existing()
        return {} if existing is None else {unit: existing.units[unit] for unit in self.job.units if unit in existing.units}

    def save(self, units: Mapping[str, Unit]) -> None:
        """Add units to the file. Units of other settings are dropped.

        Raises:
            UsageError: the file cannot be written, such as on a full disk; it stays as it was.
            DataError: results that are not finite and ready for JSON, or of units that the job does not have.
        """
        for name, unit in units.items():
            if name not in self.job.units:
                raise DataError(f"{self.job.key} has no unit {name!r}; its units are {', '.join(self.job.units)}")
            _check(f"{self.job.key}, unit {name}", unit)
        if not units:
            return
        self.saved |= units.keys()
        path = results_path(self.table, self.job.key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with held(path, wait=_SECONDS):  # another process may add its units at the same time
                write_atomically(path, self._merged(units).encode())
        except OSError as error:
            raise UsageError(
                f"cannot write {path}: {error.strerror or error}; make room, and the same command continues with what is missing"
            ) from error

    def _merged(self, units: Mapping[str, Unit]) -> str:
        """The text of the file with further units."""
        existing = self.existing()
        run = {**self.origin, "date": self.date, "process": os.getpid(), "seconds": round(time.perf_counter() - self.started, 3)}
        run["units"] = [name for name in self.job.units if name in self.saved]
        # Two processes may run the same job: each replaces its own units only.
        earlier = [r for r in (existing.runs if existing else []) if (r["date"], r["process"]) != (run["date"], run["process"])]
        earlier = [{**r, "units": [name for name in r["units"] if name not in self.saved]} for r in earlier]
        merged = {**(existing.units if existing else {}), **units}
        order = {name: index for index, name in enumerate(self.job.units)}
        content = {
            "table": self.table.name,
            "job": self.job.key,
            "fingerprint": self.fingerprint,
            "settings": self.job.settings,
            "data": self.data,
            "runs": [*earlier, run],
            "units": dict(sorted(merged.items(), key=lambda item: order.get(item[0], len(order)))),
        }
        return json.dumps(content, indent=1, allow_nan=False) + "\n"


def _check(name: str, unit: object) -> None:
    if not isinstance(unit, dict) or not all(isinstance(key, str) for key in unit):
        raise DataError(f"results of {name} must be a dict with text keys, got {unit!r}")
    for key, value in unit.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise DataError(f"result {key!r} of {name} must be finite and ready for JSON, got {value!r}: {error}") from None
