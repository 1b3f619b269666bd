"""Reports from results alone: `report.md`, and `figure.png` where the table has one."""

from __future__ import annotations

import dataclasses
import shlex
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from experiments.harness.config import jobs_of, protocol_of
from experiments.harness.numbers import duration
from experiments.harness.protocol import Job, Table, Unit
from experiments.harness.store import Results, read

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Progress", "progress_of", "render", "write_report"]

_FIGURE = "figure.png"


@dataclasses.dataclass(frozen=True)
class Progress:
    """How much of a table there is.

    Attributes:
        jobs: all of them.
        current: results of the jobs as they are now, by key.
        stale: keys of jobs whose results are of other settings or of another version of the code.
    """

    jobs: list[Job]
    current: dict[str, Results]
    stale: list[str]

    def missing(self, job: Job) -> list[str]:
        """The units of a job that have no results."""
        there = self.current[job.key].units if job.key in self.current else {}
        return [unit for unit in job.units if unit not in there]

    @property
    def done(self) -> int:
        """The number of jobs that have all their units."""
        return sum(not self.missing(job) for job in self.jobs)

    @property
    def seconds(self) -> float:
        """The time spent on what there is."""
        return sum(results.seconds for results in self.current.values())


def progress_of(table: Table) -> Progress:
    """Compare a table's results with its configuration; the data count as unchanged (only a run looks at them)."""
    protocol, jobs = protocol_of(table), jobs_of(table)
    current: dict[str, Results] = {}
    stale: list[str] = []
    for job in jobs:
        results = read(table, job.key)
        if results is not None and results.fits(job, protocol):
            current[job.key] = results
        elif results is not None:
            stale.append(job.key)
    return Progress(jobs, current, stale)


def render(table: Table) -> tuple[str, Figure | None]:
    """The report as Markdown, and the figure.

    It says what the table is, how to make it again, what made it, what is missing; then come the protocol's tables.
    """
    progress = progress_of(table)
    results = _results(progress)
    parts = [f"# {table.title}", table.source]
    if table.quick:
        parts.append("**A smoke run: these numbers mean nothing.**")
    command = f"python -m experiments run {table.name}{' --quick' if table.quick else ''}"
    parts.append(f"Made by this command, with the settings in `experiments/{table.name}/config.toml`:\n\n```bash\n{command}\n```")
    if row := _one_row(progress.jobs[0]):
        parts.append(f"A single row is made again by that command with options such as `{row} --again`.")
    parts.append(_origin(progress))
    parts.extend(_gaps(progress))
    if table.remarks:
        parts.append(f"## What it shows\n\n{table.remarks}")
    figure = None
    if any(results.values()):
        protocol = protocol_of(table)
        parts.append(protocol.report(table, results).strip())
        figure = protocol.figure(table, results)
    if figure is not None:
        parts.append(f"![{table.title}]({_FIGURE})")
    return "\n\n".join(parts) + "\n", figure


def write_report(table: Table) -> None:
    """Write `report.md` and `figure.png` beside the results."""
    text, figure = render(table)
    table.folder.mkdir(parents=True, exist_ok=True)
    (table.folder / "report.md").write_text(text, encoding="utf-8")
    if figure is None:
        (table.folder / _FIGURE).unlink(missing_ok=True)
    else:  # without the version of matplotlib in it, equal results give equal files
        figure.savefig(table.folder / _FIGURE, dpi=150, metadata={"Software": None}, facecolor="white")


def _results(progress: Progress) -> dict[str, Mapping[str, Unit]]:
    """Current results by job and unit; units that the configuration no longer asks for are left out."""
    return {
        job.key: {unit: progress.current[job.key].units[unit] for unit in job.units if unit in progress.current[job.key].units}
        for job in progress.jobs
        if job.key in progress.current
    }


def _one_row(job: Job) -> str:
    """The options of `run` for this job alone, as far as it has what they look at."""
    return shlex.join(part for name in ("dataset", "method") if name in job.settings for part in (f"--{name}", job.settings[name]))


def _origin(progress: Progress) -> str:
    runs = [run for results in progress.current.values() for run in results.runs if run["units"]]
    if not runs:
        return "There are no results yet."
    commits = Counter(f"{run['commit'] or 'unknown'}{' with changes' * run['dirty']}" for run in runs)
    machines = Counter(f"{run.get('gpu', run['cpu'])}, {run['threads']} thread{'s' * (run['threads'] > 1)} per job" for run in runs)
    versions = Counter(f"bayesify {run['bayesify']}, PyTorch {run['torch']}, Python {run['python']}" for run in runs)
    dates = sorted(run["date"][:10] for run in runs)
    span = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    units = sum(len(run["units"]) for run in runs)
    words = {
        "computed": f"{units} unit{'s' * (units != 1)} in {duration(progress.seconds)} of work, {span}",
        "on": "; ".join(machines),
        "with": "; ".join(versions),
        "commit": ", ".join(commits),
    }
    return "\n".join(f"- {name}: {text}" for name, text in words.items())


def _gaps(progress: Progress) -> list[str]:
    missing = {job.key: progress.missing(job) for job in progress.jobs if job.key not in progress.stale}
    sizes = {job.key: len(job.units) for job in progress.jobs}
    lines = [f"{key} ({'all' if len(units) == sizes[key] else ', '.join(units)})" for key, units in missing.items() if units]
    parts = [f"**Missing:** {'; '.join(lines)}."] if lines else []
    return parts + ([f"**Out of date, left out:** {', '.join(progress.stale)}."] if progress.stale else [])
