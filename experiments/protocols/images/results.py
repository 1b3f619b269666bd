"""Results of an image table by job, its metrics, and the paper's numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from experiments.harness.numbers import Estimate, estimate, markdown
from experiments.harness.protocol import ByJob, Job, Unit
from experiments.protocols.shared.published import Metric, read_estimates, table

__all__ = ["METRICS", "Metric", "Published", "Row", "metrics_of", "published_of", "rows_of", "table_of"]

Published = Mapping[tuple[str, str, str], Mapping[str, Estimate]]
"""The paper's numbers by (data set, net, method) and metric."""


METRICS = (
    Metric("nll", "Negative log-likelihood", "Nats per test image; lower is better."),
    Metric("error", "Error", "Percentage of misclassified test images."),
    Metric("ece", "Calibration error", "Expected calibration error on the test images, equal-width bins."),
    Metric("mce", "Maximum calibration error", "The largest gap of a bin with at least 6 test images."),
)


class Row(NamedTuple):
    """Results of a job: `nets` are those of single networks, `units` all of them."""

    job: Job
    nets: list[Unit]
    units: Mapping[str, Unit]

    @property
    def labels(self) -> tuple[str, str, str]:
        """Data set, net and method."""
        settings = self.job.settings
        return settings["dataset"], settings["net"], settings["method"]

    def of(self, key: str) -> Estimate:
        """Mean and standard error over nets."""
        return estimate(unit[key] for unit in self.nets)


def published_of(published: Mapping[str, Any]) -> Published:
    """The paper's numbers from the sections `[published.DATASET.NET]`: tables of metrics by method.

    Raises:
        ConfigurationError: entries of another form.
    """
    keys = {metric.key for metric in METRICS}
    result: dict[tuple[str, str, str], dict[str, Estimate]] = {}
    for dataset, nets in published.items():
        for net, methods in table(f"published.{dataset}", nets).items():
            for method, values in table(f"published.{dataset}.{net}", methods).items():
                result[dataset, net, method] = read_estimates(f"published.{dataset}.{net}.{method}", values, keys)
    return result


def metrics_of(rows: Sequence[Row]) -> list[Metric]:
    """The metrics that all networks have; results of earlier versions lack some."""
    return [metric for metric in METRICS if all(metric.key in unit for row in rows for unit in row.nets)]


def rows_of(jobs: Sequence[Job], results: ByJob) -> list[Row]:
    """The jobs that have results, in the order of the configuration."""
    rows = []
    for job in jobs:
        units = results.get(job.key, {})
        rows.append(Row(job, [unit for name, unit in units.items() if name.isdigit()], units))
    return [row for row in rows if row.units]


def table_of(header: Sequence[str], rows: Iterable[tuple[tuple[str, str, str], Sequence[str]]]) -> str:
    """A Markdown table whose first columns are data set, net and method; the first two only if they vary."""
    rows = list(rows)
    shown = [column for column in range(3) if column == 2 or len({labels[column] for labels, _ in rows}) > 1]
    names = ("data set", "net", "method")
    lines = [[*(labels[column] for column in shown), *cells] for labels, cells in rows]
    return markdown([*(names[column] for column in shown), *header], lines, left=len(shown))
