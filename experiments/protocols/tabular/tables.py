"""The report of a table of data sets: a row per method, a column per data set, the paper's numbers below ours."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from experiments.harness.numbers import Estimate, difference, estimate, markdown
from experiments.harness.protocol import ByJob, Job, Unit
from experiments.protocols.shared.published import Metric, read_estimates, table

__all__ = ["CLASSIFICATION", "REGRESSION", "Grid", "Kind", "Metric", "Published", "mean_of", "published_of", "write_tables"]

Published = Mapping[str, Mapping[str, Mapping[str, Estimate]]]
"""The paper's numbers by method, data set and metric."""


class Kind(NamedTuple):
    """How models of one kind of targets are evaluated.

    Attributes:
        metrics: in the order of the report. Wins and figures use the first two.
        intervals: whether predictions have intervals, and so a coverage.
    """

    metrics: tuple[Metric, ...]
    intervals: bool

    @property
    def compared(self) -> tuple[Metric, Metric]:
        """The first two."""
        return self.metrics[0], self.metrics[1]


REGRESSION = Kind(
    (
        Metric("rmse", "RMSE", "Of the predictive mean, in the unit of the targets; lower is better."),
        Metric("log_likelihood", "Log-likelihood", "Nats per test row, in the unit of the targets; higher is better.", sign=1),
        Metric("crps", "CRPS", "In the unit of the targets; lower is better."),
    ),
    intervals=True,
)
CLASSIFICATION = Kind(
    (
        Metric("error", "Error", "Percentage of misclassified test rows; lower is better."),
        Metric("log_likelihood", "Log-likelihood", "Nats per test row; higher is better.", sign=1),
        Metric("ece", "Calibration error", "Expected calibration error in 15 equal-width bins; lower is better."),
    ),
    intervals=False,
)


_WINS = (
    "Number of data sets on which the row's method beats the column's by more than two standard errors of their difference over "
    "the common splits, of methods that have results on all these sets. Last column: mean rank by the mean score (1 is best)."
)


def published_of(published: Mapping[str, Any], kind: Kind) -> Published:
    """The paper's numbers from the sections `[published.METHOD]`: a source, and tables of metrics by data set.

    Raises:
        ConfigurationError: entries of another form.
    """
    keys = {metric.key for metric in kind.metrics}
    result: dict[str, dict[str, dict[str, Estimate]]] = {}
    for method, entry in published.items():
        for dataset, values in table(f"published.{method}", entry).items():
            if dataset != "source":
                result.setdefault(method, {})[dataset] = read_estimates(f"published.{method}.{dataset}", values, keys)
    return result


def write_tables(
    jobs: Sequence[Job],
    results: ByJob,
    published: Published,
    sources: Mapping[str, str],
    kind: Kind = REGRESSION,
) -> str:
    """All tables, as Markdown."""
    text = ["Mean ± standard error over splits, with the number of splits in brackets if some are missing. The best mean is bold."]
    text += [f"{method}, paper: {source}." for method, source in sources.items()]
    if published:
        text[-1] += " The difference is ours minus the paper's; in brackets, in units of their combined standard error (s.e.)."
    grid = Grid(jobs, results)
    for metric in kind.metrics:
        text.append(f"## {metric.title}\n\n{metric.note}\n\n{_compare(grid, metric, published)}")
        if reached := _reached(grid, metric, published):
            text.append(reached)
    for metric in kind.compared:
        if wins := _wins(grid, metric):
            text.append(f"## Wins by {_in_words(metric)}\n\n{_WINS}\n\n{wins}")
    if kind.intervals:
        share = "Share of test rows in their 95 % interval (0.95 is ideal); in brackets, its mean width in the unit of the targets."
        text.append(f"## Coverage\n\n{share}\n\n{grid.table(_interval)}")
    time = "Training time per split. All splits are trained together; their time is divided by their number."
    text.append(f"## Seconds\n\n{time}\n\n{grid.table(_seconds)}")
    text.append(f"## Parameters\n\nTrained parameters of one network.\n\n{grid.table(_parameters)}")
    if draws := _by_samples(grid, kind):
        text.append(f"## Number of draws\n\nThe same networks, predicting with S draws.\n\n{draws}")
    if choices := _choices(grid):
        text.append(f"## Chosen on validation rows\n\nValues chosen, with the number of splits.\n\n{choices}")
    return "\n\n".join(text)


class Grid:
    """Results by data set and method, in the order of the configuration, without data sets that have none."""

    def __init__(self, jobs: Sequence[Job], results: ByJob) -> None:
        self.jobs = {(job.settings["dataset"], job.settings["method"]): job for job in jobs}
        present = {dataset for (dataset, _), job in self.jobs.items() if results.get(job.key)}
        self.datasets = [dataset for dataset in dict.fromkeys(dataset for dataset, _ in self.jobs) if dataset in present]
        self.methods = list(dict.fromkeys(method for _, method in self.jobs))
        self.results = results

    def units(self, dataset: str, method: str) -> list[Unit]:
        """Results of the splits."""
        return list(self.results.get(self.jobs[dataset, method].key, {}).values())

    def better(self, dataset: str, one: str, other: str, metric: Metric) -> bool:
        """Whether one method beats another by more than two standard errors of their difference over the splits of both."""
        first, second = (self.results[self.jobs[dataset, method].key] for method in (one, other))
        gaps = [metric.sign * (first[split][metric.key] - second[split][metric.key]) for split in first if split in second]
        if len(gaps) < 2:
            return False
        gap = estimate(gaps)
        return gap.mean > 2 * (gap.error or 0.0)

    def short(self, dataset: str, method: str) -> str:
        """The number of splits with results if some are missing."""
        count, total = len(self.units(dataset, method)), len(self.jobs[dataset, method].units)
        return f" ({count} of {total})" if 0 < count < total else ""

    def table(self, cell: Callable[[Sequence[Unit]], str]) -> str:
        """A table of methods and data sets."""
        rows = [
            [method, *(cell(units) if (units := self.units(dataset, method)) else "-" for dataset in self.datasets)]
            for method in self.methods
        ]
        return markdown(["method", *self.datasets], rows)


def mean_of(units: Sequence[Unit], key: str) -> Estimate:
    """Mean and standard error over splits."""
    return estimate(unit[key] for unit in units)


def _interval(units: Sequence[Unit]) -> str:
    return f"{mean_of(units, 'coverage_95').mean:.3f} ({mean_of(units, 'width_95').mean:.3g})"


def _seconds(units: Sequence[Unit]) -> str:
    return f"{mean_of(units, 'train_seconds').mean:.2f}"


def _parameters(units: Sequence[Unit]) -> str:
    return f"{mean_of(units, 'parameters').mean:,.0f}"


def _compare(grid: Grid, metric: Metric, published: Published) -> str:
    """Our numbers by method and data set, with the paper's and the difference where there are any."""
    ours = {cell: mean_of(units, metric.key) for cell in grid.jobs if (units := grid.units(*cell))}
    best = {dataset: _best(grid, ours, dataset, metric) for dataset in grid.datasets}
    rows = []
    for method in grid.methods:
        papers = {dataset: values[metric.key] for dataset, values in published.get(method, {}).items() if metric.key in values}
        mine, theirs, gaps = [method], ["· paper"], ["· difference"]
        for dataset in grid.datasets:
            value, paper = ours.get((dataset, method)), papers.get(dataset)
            text = "-" if value is None else f"{value}{grid.short(dataset, method)}"
            mine.append(f"**{text}**" if method in best[dataset] else text)
            theirs.append("-" if paper is None else str(paper))
            gaps.append("-" if value is None or paper is None else difference(value, paper))
        rows += [mine, theirs, gaps] if papers else [mine]
    return markdown(["method", *grid.datasets], rows)


def _reached(grid: Grid, metric: Metric, published: Published) -> str:
    """Number of data sets on which each method reaches the paper's number within one standard error."""
    counts = []
    for method in grid.methods:
        papers = {dataset: values[metric.key] for dataset, values in published.get(method, {}).items() if metric.key in values}
        pairs = [(mean_of(units, metric.key), papers[d]) for d in grid.datasets if d in papers and (units := grid.units(d, method))]
        if pairs:
            good = sum(metric.sign * (ours.mean - paper.mean) >= -_tolerance(ours, paper) for ours, paper in pairs)
            counts.append(f"{method} on {good} of {len(pairs)} sets")
    words = "At least as good as the paper within one standard error of the difference"
    return f"{words}: {', '.join(counts)}." if counts else ""


def _tolerance(ours: Estimate, paper: Estimate) -> float:
    """The standard error of their difference; a number without an error counts as rounded to its last digit."""
    half_unit = 0.5 * 10.0 ** int(Decimal(repr(paper.mean)).as_tuple().exponent)
    errors = [ours.error, paper.error if math.isfinite(paper.error) else half_unit]
    return math.hypot(*(error for error in errors if math.isfinite(error)))


def _best(grid: Grid, ours: Mapping[tuple[str, str], Estimate], dataset: str, metric: Metric) -> list[str]:
    """The methods with the best mean on a data set, of those with all splits if there are any; empty for a single method."""
    methods = [method for method in grid.methods if (dataset, method) in ours]
    methods = [method for method in methods if not grid.short(dataset, method)] or methods
    scores = {method: metric.sign * ours[dataset, method].mean for method in methods}
    return [method for method, score in scores.items() if score == max(scores.values())] if len(scores) > 1 else []


def _wins(grid: Grid, metric: Metric) -> str:
    """Pairwise comparisons of all methods, or over all data sets: whichever has more results."""
    started = [d for d in grid.datasets if any(grid.units(d, method) for method in grid.methods)]
    common = [d for d in started if all(grid.units(d, method) for method in grid.methods)]
    methods, datasets = grid.methods, common
    complete = [method for method in grid.methods if all(grid.units(d, method) for d in started)]
    if len(complete) * len(started) > len(methods) * len(datasets):
        methods, datasets = complete, started
    if len(methods) < 3 or not datasets:
        return ""
    ranks = dict.fromkeys(methods, 0.0)
    for dataset in datasets:
        scores = {method: metric.sign * mean_of(grid.units(dataset, method), metric.key).mean for method in methods}
        for method, score in scores.items():  # equal scores share their ranks
            better, equal = (sum(compare(other, score) for other in scores.values()) for compare in (float.__gt__, float.__eq__))
            ranks[method] += (better + (equal + 1) / 2) / len(datasets)
    rows = []
    for one in methods:
        beaten = [sum(grid.better(d, one, other, metric) for d in datasets) if one != other else None for other in methods]
        rows.append([one, *("" if count is None else str(count) for count in beaten), f"{ranks[one]:.1f}"])
    return markdown([f"{len(datasets)} data sets", *methods, "rank"], rows)


def _in_words(metric: Metric) -> str:
    """The title within a sentence."""
    return metric.title if metric.title.isupper() else metric.title.lower()


def _by_samples(grid: Grid, kind: Kind) -> str:
    rows, shown = [], [*kind.compared, *([Metric("coverage_95", "Coverage", "")] if kind.intervals else [])]
    for dataset in grid.datasets:
        for method in grid.methods:
            evaluated = [unit["by_samples"] for unit in grid.units(dataset, method) if "by_samples" in unit]
            for count in evaluated[0] if evaluated else ():
                scores = [by_samples[count] for by_samples in evaluated if count in by_samples]
                rows.append([dataset, method, count, *(str(mean_of(scores, metric.key)) for metric in shown)])
    return markdown(["data set", "method", "S", *map(_in_words, shown)], rows, left=2) if rows else ""


def _choices(grid: Grid) -> str:
    rows = []
    for dataset in grid.datasets:
        for method in grid.methods:
            chosen = [unit["chosen"] for unit in grid.units(dataset, method) if "chosen" in unit]
            for field in chosen[0] if chosen else ():
                counts = Counter(fields[field] for fields in chosen)
                if len(counts) > 6:  # a search finds another number for every split
                    values = sorted(counts)
                    text = f"{_short(values[0])} to {_short(values[-1])}, median {_short(values[len(values) // 2])}"
                else:
                    text = ", ".join(f"{_short(value)} ({count})" for value, count in sorted(counts.items()))
                rows.append([dataset, method, field, text])
    return markdown(["data set", "method", "field", "value (splits)"], rows, left=4) if rows else ""


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
