"""The report: mean ranks, then every measure by table and method."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from experiments.harness.numbers import markdown
from experiments.harness.protocol import ByJob, Job
from experiments.protocols.tables.data import TABLES
from experiments.protocols.tables.methods import METHODS
from experiments.protocols.tables.ranks import critical_difference, mean_ranks

__all__ = ["write_tables"]


class _Measure(NamedTuple):
    """A number in the results; `sign` is 1 if lower is better, -1 if higher is, 0 if it has no ranks."""

    key: str
    title: str
    note: str
    sign: int
    digits: int = 3


_STDS = "in standard deviations of the test targets"
_MEASURES = {
    "regression": (
        _Measure("nll", "NLL", f"Negative log-likelihood of targets {_STDS}, nats per row, lower is better:", 1),
        _Measure("crps", "CRPS", f"Continuous ranked probability score {_STDS}, lower is better:", 1),
        _Measure("rmse", "RMSE", f"RMSE {_STDS}, lower is better:", 1),
        _Measure("coverage", "Coverage", "Share of the test targets in central intervals with a probability of 0.9:", 0),
        _Measure("width", "Width", f"Mean width of these intervals {_STDS}:", 0, 2),
    ),
    "classification": (
        _Measure("nll", "NLL", "Negative log-likelihood, nats per row, lower is better:", 1),
        _Measure("brier", "Brier score", "Brier score, summed over the classes, lower is better:", 1),
        _Measure("accuracy", "Accuracy", "Accuracy, higher is better:", -1),
        _Measure("ece", "ECE", "Expected calibration error with 15 bins of equal width, lower is better:", 1),
    ),
}
_SECONDS = (
    _Measure("fit_seconds", "Seconds to fit", "Processor time of a fit with one thread, seconds:", 1, 2),
    _Measure("predict_seconds", "Seconds to predict", "Processor time of the prediction of the test rows, seconds:", 1, 3),
)

Scores = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Means over splits by method, table and measure."""


def write_tables(jobs: Sequence[Job], results: ByJob) -> str:
    """The sections of the report."""
    parts = []
    for task, measures in _MEASURES.items():
        chosen = [job for job in jobs if TABLES[job.settings["dataset"]].task == task and results.get(job.key)]
        if not chosen:
            continue
        tables = list(dict.fromkeys(job.settings["dataset"] for job in chosen))
        scores = _means(chosen, results)
        name = task.capitalize()
        parts.append(f"## {name}: mean ranks\n\n{_ranks(scores, tables, measures)}")
        parts += [f"## {name}: {one.title}\n\n{one.note}\n\n{_by_table(scores, tables, one)}" for one in (*measures, *_SECONDS)]
    return "\n\n".join([*parts, f"## Tables\n\n{_tables(jobs, results)}", f"## Methods\n\n{_methods(jobs, results)}"])


def _means(jobs: Sequence[Job], results: ByJob) -> Scores:
    scores: dict[str, dict[str, dict[str, float]]] = {}
    for job in jobs:
        units = list(results[job.key].values())
        means = {
            key: statistics.fmean(unit[key] for unit in units) for key, value in units[0].items() if not isinstance(value, str)
        }
        scores.setdefault(job.settings["method"], {})[job.settings["dataset"]] = means
    return scores


def _ranks(scores: Scores, tables: Sequence[str], measures: Sequence[_Measure]) -> str:
    complete = [method for method, by_table in scores.items() if all(table in by_table for table in tables)]
    if len(complete) < 2:
        return "Fewer than two methods have results for all tables."
    columns = {
        one.title: mean_ranks({m: {table: one.sign * scores[m][table][one.key] for table in tables} for m in complete})
        for one in (*measures, _SECONDS[0])
        if one.sign
    }
    first = next(iter(columns.values()))
    rows = [[m, *(f"{ranks[m]:.1f}" for ranks in columns.values())] for m in sorted(complete, key=lambda m: first[m])]
    difference = critical_difference(len(complete), len(tables))
    text = (
        f"Means over {len(tables)} tables of the ranks among the {len(complete)} methods that ran on all of them, 1 for the best. "
        f"Mean ranks that differ by less than {difference:.2f} are not significantly different (Nemenyi test at 5 %):"
    )
    return f"{text}\n\n{markdown(['method', *columns], rows)}"


def _by_table(scores: Scores, tables: Sequence[str], one: _Measure) -> str:
    """Tables by methods, the best in bold."""
    rows = []
    for table in tables:
        values = {method: by_table[table][one.key] for method, by_table in scores.items() if table in by_table}
        texts = {method: f"{value:.{one.digits}f}" for method, value in values.items()}
        best = texts[min(values, key=lambda method: one.sign * values[method])] if one.sign else None
        cells = [texts.get(method, "") for method in scores]
        rows.append([table, *(f"**{cell}**" if cell == best else cell for cell in cells)])
    return markdown(["table", *scores], rows)


def _tables(jobs: Sequence[Job], results: ByJob) -> str:
    rows = []
    for name in dict.fromkeys(job.settings["dataset"] for job in jobs):
        units = [unit for job in jobs if job.settings["dataset"] == name for unit in results.get(job.key, {}).values()]
        if units:
            rows.append([name, TABLES[name].description, str(units[0]["n_train"]), str(units[0]["n_test"])])
    return markdown(["table", "source, target", "training rows", "test rows"], rows, left=2)


def _methods(jobs: Sequence[Job], results: ByJob) -> str:
    libraries: dict[str, dict[str, None]] = {}
    for job in jobs:
        for unit in results.get(job.key, {}).values():
            libraries.setdefault(job.settings["method"], {})[unit["library"]] = None
    rows = [[name, ", ".join(used), METHODS[name].description] for name, used in libraries.items()]
    return markdown(["method", "library", "how"], rows, left=3)
