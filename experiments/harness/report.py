"""Reports from results alone: `report.md`, and `figure.png` where the table has one."""

from __future__ import annotations

import io
import shlex
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from bayesify.files import write_atomically
from bayesify.formatting import duration, plural
from experiments.harness.experiment import Experiment
from experiments.harness.protocol import Job, Unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["render", "write_report"]

_FIGURE = "figure.png"

_SHOWN = 12  # missing jobs that a report names


def render(experiment: Experiment) -> tuple[str, Figure | None]:
    """The report as Markdown, and the figure.

    Title and source come first, then the remarks, the protocol's tables, and how the results were made.
    """
    table, results = experiment.table, _results(experiment)
    parts = [f"# {table.title}", table.source]
    if table.quick:
        parts.append("**A smoke run: these numbers mean nothing.**")
    if table.remarks:
        parts.append(f"## Summary\n\n{table.remarks}")
    parts.extend(_gaps(experiment))
    figure = None
    if any(results.values()):
        parts.append(experiment.protocol.report(table, experiment.jobs, results).strip())
        figure = experiment.protocol.figure(table, experiment.jobs, results)
    if figure is not None:
        parts.append(f"![{table.title}]({_FIGURE})")
    parts.append(f"## How it was made\n\n{_command(experiment)}\n\n{_origin(experiment)}")
    return "\n\n".join(parts) + "\n", figure


def write_report(experiment: Experiment) -> None:
    """Write `report.md` and `figure.png` into the table's folder."""
    text, figure = render(experiment)
    folder = experiment.table.folder
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "report.md", text.encode())
    if figure is None:
        (folder / _FIGURE).unlink(missing_ok=True)
    else:  # without matplotlib's version in it, equal results give equal files
        picture = io.BytesIO()
        figure.savefig(picture, dpi=150, metadata={"Software": None}, facecolor="white")
        write_atomically(folder / _FIGURE, picture.getvalue())


def _results(experiment: Experiment) -> dict[str, Mapping[str, Unit]]:
    """Current results by job and unit, without units that are no longer configured."""
    current = experiment.current
    return {
        job.key: {unit: current[job.key].units[unit] for unit in job.units if unit in current[job.key].units}
        for job in experiment.jobs
        if job.key in current
    }


def _command(experiment: Experiment) -> str:
    table = experiment.table
    command = f"python -m experiments run {table.name}{' --quick' if table.quick else ''}"
    text = f"With the settings in `experiments/{table.name}/config.toml`:\n\n```bash\n{command}\n```"
    row = _options(experiment.jobs[0])
    return f"{text}\n\nTo run a single row again, add options such as `{row} --again`." if row else text


def _options(job: Job) -> str:
    """The options of `run` that select this job, as far as it has the settings they filter by."""
    return shlex.join(part for name in ("dataset", "method") if name in job.settings for part in (f"--{name}", job.settings[name]))


def _origin(experiment: Experiment) -> str:
    runs = [run for results in experiment.current.values() for run in results.runs if run["units"]]
    if not runs:
        return "There are no results yet."
    commits = Counter(f"{run['commit'] or 'unknown'}{' with changes' * run['dirty']}" for run in runs)
    machines = Counter(f"{run.get('gpu', run['cpu'])}, {plural(run['threads'], 'thread')} per job" for run in runs)
    versions = Counter(f"bayesify {run['bayesify']}, PyTorch {run['torch']}, Python {run['python']}" for run in runs)
    dates = sorted(run["date"][:10] for run in runs)
    span = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    units = sum(len(run["units"]) for run in runs)
    facts = {
        "computed": f"{plural(units, 'unit')} in {duration(experiment.seconds)} of work, {span}",
        "on": "; ".join(machines),
        "with": "; ".join(versions),
        "commit": ", ".join(commits),
    }
    return "\n".join(f"- {name}: {text}" for name, text in facts.items())


def _gaps(experiment: Experiment) -> list[str]:
    """Jobs without results, and jobs with stale ones."""
    stale = experiment.stale
    missing = {job.key: (experiment.missing(job), len(job.units)) for job in experiment.jobs if job.key not in stale}
    lines = [f"{key} ({'all' if len(units) == count else ', '.join(units)})" for key, (units, count) in missing.items() if units]
    more = f"; and {len(lines) - _SHOWN} more jobs" if len(lines) > _SHOWN else ""
    parts = [f"**Missing:** {'; '.join(lines[:_SHOWN])}{more}."] if lines else []
    return parts + ([f"**Stale, not shown:** {', '.join(stale)}."] if stale else [])
