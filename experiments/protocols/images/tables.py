"""The report of an image table: ours beside the paper's, then choices, unfamiliar images, ensembles and cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from experiments.harness.numbers import Estimate, difference, estimate, markdown
from experiments.harness.protocol import Job, Unit
from experiments.protocols.images.setup import Setup
from experiments.protocols.images.work import chosen

__all__ = ["METRICS", "Metric", "Published", "Row", "published_of", "rows_of", "write_tables"]

Results = Mapping[str, Mapping[str, Unit]]
Published = Mapping[tuple[str, str, str], Mapping[str, Estimate]]
"""The paper's numbers by (data set, net, method) and metric."""


class Metric(NamedTuple):
    """A number that methods are compared by; less is better."""

    key: str
    title: str
    unit: str


METRICS = (
    Metric("nll", "Negative log-likelihood", "nats per test image"),
    Metric("error", "Error", "% of the test images"),
    Metric("ece", "Calibration error", "expected calibration error on the test images, equal-width bins"),
)


class Row(NamedTuple):
    """The results of a job: those of single nets, apart from trials and ensemble."""

    job: Job
    nets: list[Unit]
    units: Mapping[str, Unit]

    @property
    def place(self) -> tuple[str, str, str]:
        """Data set, net and method."""
        settings = self.job.settings
        return settings["dataset"], settings["net"], settings["method"]

    def of(self, key: str) -> Estimate:
        """Mean and standard error over nets."""
        return estimate(unit[key] for unit in self.nets)


def published_of(published: Mapping[str, Any]) -> Published:
    """The sections `[published.DATASET.NET]`: by method, metrics as a mean or as [mean, standard error].

    Raises:
        ValueError: an entry that is neither.
    """
    known = {metric.key for metric in METRICS}
    result: dict[tuple[str, str, str], dict[str, Estimate]] = {}
    for dataset, nets in published.items():
        for net, methods in _table(f"published.{dataset}", nets).items():
            for method, values in _table(f"published.{dataset}.{net}", methods).items():
                name = f"published.{dataset}.{net}.{method}"
                if not set(_table(name, values)) <= known:
                    raise ValueError(f"{name} must be a table of {', '.join(sorted(known))}, got {values!r}")
                for key, value in values.items():
                    numbers = value if isinstance(value, list) else [value]
                    if len(numbers) not in (1, 2) or not all(type(number) in (int, float) for number in numbers):
                        raise ValueError(f"{name}.{key} must be a mean or [mean, standard error], got {value!r}")
                    result.setdefault((dataset, net, method), {})[key] = Estimate(*numbers)
    return result


def rows_of(jobs: Sequence[Job], results: Results) -> list[Row]:
    """The jobs that have results, in the order of the configuration."""
    rows = []
    for job in jobs:
        units = results.get(job.key, {})
        rows.append(Row(job, [unit for name, unit in units.items() if name.isdigit()], units))
    return [row for row in rows if row.units]


def write_tables(jobs: Sequence[Job], results: Results, published: Published) -> str:
    """All tables, as Markdown."""
    rows = rows_of(jobs, results)
    nets = [row for row in rows if row.nets]
    intro = (
        "Means ± standard errors over nets (seeds); in brackets how many of them, where some are missing. The best mean is bold."
    )
    if published:
        intro += " The difference is ours minus the paper's, in brackets in units of their combined standard error (s.e.)."
    text = [intro, *(f"Note: {note}." for note in dict.fromkeys(u["note"] for r in nets for u in r.nets if "note" in u))]
    if nets:
        text += [f"## {metric.title}\n\n{metric.unit}\n\n{_compare(nets, metric, published)}" for metric in METRICS]
    if any("ensemble" in name for row in rows for name in row.units):
        text.append(f"## Ensembles\n\nthe probabilities of so many nets, averaged\n\n{_ensembles(rows)}")
    if any(unit["ood"] for row in nets for unit in row.nets):
        how = "mean entropy of the predicted probabilities (nats), and how well it tells these images from test images (AUROC)"
        text.append(f"## Unfamiliar images\n\n{how}\n\n{_unfamiliar(nets)}")
    if choices := _choices(rows):
        how = (
            "every candidate was trained once, with the epochs given, and the lowest validation NLL (nats per image) chosen (bold)"
        )
        text.append(f"## Chosen on validation images\n\n{how}\n\n{choices}")
    if nets:
        how = "with ratios to the first method of the same data set and net, which may have shared the machine with others"
        text.append(f"## Cost and training\n\nseconds per epoch, {how}\n\n{_cost(nets)}")
    return "\n\n".join(text)


def _table(name: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be a table, got {value!r}")
    return value


def _lines(header: Sequence[str], rows: Iterable[tuple[tuple[str, str, str], Sequence[str]]]) -> str:
    """A table whose first columns are data set, net and method; the first two only where they differ."""
    rows = list(rows)
    shown = [column for column in range(3) if column == 2 or len({place[column] for place, _ in rows}) > 1]
    names = ("data set", "net", "method")
    lines = [[*(place[column] for column in shown), *cells] for place, cells in rows]
    return markdown([*(names[column] for column in shown), *header], lines, left=len(shown))


def _count(row: Row) -> str:
    there, all_ = len(row.nets), sum(name.isdigit() for name in row.job.units)
    return f" ({there} of {all_})" if there < all_ else ""


def _compare(rows: Sequence[Row], metric: Metric, published: Published) -> str:
    best = _best(rows, lambda row: row.of(metric.key).mean)
    lines = []
    for row in rows:
        ours, paper = row.of(metric.key), published.get(row.place, {}).get(metric.key)
        text = f"{ours}{_count(row)}"
        held_out = [str(row.of(f"validation_{metric.key}"))] if metric.key != "ece" else []
        cells = [f"**{text}**" if row.place in best else text, *held_out]
        if published:
            cells = ["-" if paper is None else str(paper), cells[0], "-" if paper is None else difference(ours, paper), *held_out]
        lines.append((row.place, cells))
    header = ["paper", "ours", "difference"] if published else ["ours"]
    return _lines([*header, *(["validation"] if metric.key != "ece" else [])], lines)


def _best(rows: Sequence[Row], value: Callable[[Row], float]) -> set[tuple[str, str, str]]:
    """The places of the lowest value of every data set and net, where there is something to compare with."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault(row.place[:2], []).append(row)
    return {min(group, key=value).place for group in groups.values() if len(group) > 1}


def _ensembles(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        for unit in (unit for name, unit in row.units.items() if "members" in unit):
            ood = "; ".join(f"{name} {found['entropy']:.4g}, {found['auroc']:.4f}" for name, found in unit["ood"].items())
            numbers = [f"{unit[metric.key]:.4g}" for metric in METRICS]
            lines.append((row.place, [str(unit["members"]), *numbers, f"{unit['entropy']:.4g}", ood or "-"]))
    return _lines(["nets", "NLL", "error (%)", "ECE", "entropy", "unfamiliar images: entropy, AUROC"], lines)


def _unfamiliar(rows: Sequence[Row]) -> str:
    names = list(dict.fromkeys(name for row in rows for unit in row.nets for name in unit["ood"]))
    lines = []
    for row in rows:
        cells = [str(row.of("entropy"))]
        for name in names:
            found = [unit["ood"][name] for unit in row.nets if name in unit["ood"]]
            cells += [str(estimate(f[key] for f in found)) if found else "-" for key in ("entropy", "auroc")]
        lines.append((row.place, cells))
    return _lines(["test images", *(cell for name in names for cell in (f"{name}: entropy", "AUROC"))], lines)


def _choices(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        trials = [unit for unit in row.units.values() if "fields" in unit]
        setup = Setup.from_dict(row.job.settings["setup"])
        complete = len(trials) == len(setup.candidates()) > 1
        best = chosen(setup, row.units) if complete else None
        for trial in trials:
            fields = ", ".join(
                f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in trial["fields"].items()
            )
            cells = (
                ["failed", "-"] if "failure" in trial else [f"{trial['validation_nll']:.4f}", f"{trial['validation_error']:.2f}"]
            )
            mark = "**" if trial is best else ""
            lines.append((row.place, [f"{mark}{fields}{mark}", str(trial["epochs"]), *cells]))
    return _lines(["candidate", "epochs", "NLL", "error (%)"], lines) if lines else ""


def _cost(rows: Sequence[Row]) -> str:
    first: dict[tuple[str, str], float] = {}
    lines = []
    for row in rows:
        seconds = row.of("seconds_per_epoch").mean
        start = first.setdefault(row.place[:2], seconds)
        ratio = f"{seconds / start:.2f}" if start > 0 else "-"
        loss, kl = row.of("train_loss"), row.of("kl")
        parameters = f"{row.nets[0]['parameters']:,}"
        lines.append((row.place, [f"{seconds:.2f}", ratio, parameters, str(loss), str(kl) if not math.isnan(kl.mean) else "-"]))
    return _lines(["seconds", "ratio", "parameters", "training loss at the end", "KL at the end"], lines)
