"""The numbers of an image table: its metrics, the results of a job, the paper's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from experiments.harness.numbers import Estimate, estimate, markdown
from experiments.harness.protocol import Job, Unit

__all__ = ["METRICS", "Metric", "Published", "Results", "Row", "metrics_of", "published_of", "rows_of", "table_of"]

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
    Metric("mce", "Maximum calibration error", "the largest gap of a bin with at least 6 test images"),
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


def metrics_of(rows: Sequence[Row]) -> list[Metric]:
    """The metrics that every net has: results of earlier versions lack some."""
    return [metric for metric in METRICS if all(metric.key in unit for row in rows for unit in row.nets)]


def rows_of(jobs: Sequence[Job], results: Results) -> list[Row]:
    """The jobs that have results, in the order of the configuration."""
    rows = []
    for job in jobs:
        units = results.get(job.key, {})
        rows.append(Row(job, [unit for name, unit in units.items() if name.isdigit()], units))
    return [row for row in rows if row.units]


def table_of(header: Sequence[str], rows: Iterable[tuple[tuple[str, str, str], Sequence[str]]]) -> str:
    """A Markdown table whose first columns are data set, net and method; the first two only where they differ."""
    rows = list(rows)
    shown = [column for column in range(3) if column == 2 or len({place[column] for place, _ in rows}) > 1]
    names = ("data set", "net", "method")
    lines = [[*(place[column] for column in shown), *cells] for place, cells in rows]
    return markdown([*(names[column] for column in shown), *header], lines, left=len(shown))


def _table(name: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be a table, got {value!r}")
    return value
