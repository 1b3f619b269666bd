"""Results as files: one JSON per job in `PAPER/TABLE/results`, with what it was made with, written in one piece or not at all."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.harness.config import UsageError
from experiments.harness.protocol import Job, Protocol, Table, Unit

__all__ = ["Recorder", "Results", "cache_path", "read", "results_path"]


@dataclasses.dataclass(frozen=True)
class Results:
    """What is known of a job.

    Attributes:
        fingerprint: of everything that decides the results; all units have this one.
        settings: the job's.
        data: checksums of the data sets, by name.
        runs: what each run that added units was made with, its seconds and which units they are.
        units: results by unit.
    """

    fingerprint: str
    settings: Mapping[str, Any]
    data: Mapping[str, str]
    runs: list[dict[str, Any]]
    units: dict[str, Unit]

    @property
    def seconds(self) -> float:
        """The time spent on these results, of all runs."""
        return sum(run["seconds"] for run in self.runs)

    def fits(self, job: Job, protocol: Protocol, checksums: Mapping[str, str] | None = None) -> bool:
        """Whether these are results of the job as it is now; without checksums the data count as unchanged."""
        sums = self.data if checksums is None else checksums
        return set(job.data) <= set(sums) and job.fingerprint(protocol, sums) == self.fingerprint


def results_path(table: Table, key: str) -> Path:
    """Where the results of a job are kept."""
    return table.folder / "results" / f"{key}.json"


def cache_path(table: Table, key: str, fingerprint: str) -> Path:
    """Where a job may keep what can be made again; git ignores it. Other settings have another folder."""
    return table.folder / ".cache" / f"{key}-{fingerprint}"


def read(table: Table, key: str) -> Results | None:
    """The results of a job, whatever they are of; None where there are none.

    Raises:
        UsageError: a file that is no results file.
    """
    path = results_path(table, key)
    try:
        content = json.loads(path.read_bytes())
        return Results(**{field.name: content[field.name] for field in dataclasses.fields(Results)})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{path} is no results file ({type(error).__name__}: {error}); delete it to run the job again") from error


class Recorder:
    """Keeps the units of one job as they become ready.

    Args:
        table, job, protocol: what runs.
        checksums: of the data sets the job reads.
        origin: what it runs on and with, see `machine` of the benchmarks.
    """

    def __init__(
        self, table: Table, job: Job, protocol: Protocol, checksums: Mapping[str, str], origin: Mapping[str, object]
    ) -> None:
        self.table, self.job = table, job
        self.data = {name: checksums[name] for name in job.data}
        self.fingerprint = job.fingerprint(protocol, checksums)
        self.origin = dict(origin)
        self.date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self.started, self.saved = time.perf_counter(), set[str]()

    def kept(self) -> Results | None:
        """What earlier runs have kept of the same settings; None where there is nothing."""
        results = read(self.table, self.job.key)
        return results if results is not None and results.fingerprint == self.fingerprint else None

    def save(self, units: Mapping[str, Unit]) -> None:
        """Add units to the file: those of other settings make room, those of this run and of earlier ones stay.

        Raises:
            ValueError: results that are not plain finite numbers, text and lists, or of units the job does not have.
        """
        for name, unit in units.items():
            if name not in self.job.units:
                raise ValueError(f"unit {name!r} is none of {self.job.key}, which has {', '.join(self.job.units)}")
            _check(f"{self.job.key}, unit {name}", unit)
        if not units:
            return
        self.saved |= units.keys()
        kept = self.kept()
        run = {**self.origin, "date": self.date, "process": os.getpid(), "seconds": round(time.perf_counter() - self.started, 3)}
        run["units"] = [name for name in self.job.units if name in self.saved]
        # Two processes at the same job do no harm: what the later one writes replaces its own units only.
        earlier = [r for r in (kept.runs if kept else []) if (r["date"], r["process"]) != (run["date"], run["process"])]
        earlier = [{**r, "units": [name for name in r["units"] if name not in self.saved]} for r in earlier]
        merged = {**(kept.units if kept else {}), **units}
        order = {name: place for place, name in enumerate(self.job.units)}
        _write(
            results_path(self.table, self.job.key),
            {
                "table": self.table.name,
                "job": self.job.key,
                "fingerprint": self.fingerprint,
                "settings": self.job.settings,
                "data": self.data,
                "runs": [*earlier, run],
                "units": dict(sorted(merged.items(), key=lambda item: order.get(item[0], len(order)))),
            },
        )


def _check(name: str, unit: object) -> None:
    if not isinstance(unit, dict) or not all(isinstance(key, str) for key in unit):
        raise ValueError(f"the results of {name} must be a dict with names, got {unit!r}")
    for key, value in unit.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"the result {key!r} of {name} must be finite and ready for JSON, got {value!r}: {error}") from None


def _write(path: Path, content: Mapping[str, Any]) -> None:
    """Write beside the final place and move there: a reader sees the old file or the new one, whatever happens in between."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(json.dumps(content, indent=1, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()
