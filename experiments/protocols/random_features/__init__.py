"""Gaussian processes by random features and by inducing points: Rossi, Marmin & Filippone (2020), section D.4 and figure 13.

WHVI has O(sqrt n) parameters for the weights of n random features. Mean field gets as many features, and the sparse process of
gpytorch as many inducing points, as give the same number of variational parameters, rounded up.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from bayesify.core.checks import check_choice, check_integer, check_scale
from bayesify.errors import ConfigurationError
from experiments.harness.numbers import markdown
from experiments.harness.protocol import ByJob, Context, Job, Protocol, Table, Unit, UnitError
from experiments.protocols.random_features.functions import FUNCTIONS
from experiments.protocols.random_features.models import (
    Data,
    Fit,
    features_of,
    inducing_of,
    sparse_process,
    variational,
    whvi_parameters,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["RandomFeatures"]

_MODELS = ("WHVI", "mean-field", "sparse GP")
_TEST_ROWS = 20_000  # at most, of the 80 % that are not trained on


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What `config.toml` may set.

    Attributes:
        functions: names of data sets.
        features: n, numbers of random features of WHVI, powers of four.
        covariances: of the approximations, "diagonal" or "full"; mean field is always diagonal.
        rows: of every data set, at most; a fifth is for training.
        splits: repetitions.
        steps: of Adam.
        fixed_steps: of these, with fixed noise.
        learning_rate: by function, and "other".
        noise: initial standard deviation.
    """

    functions: list[str]
    features: list[int]
    covariances: list[str]
    rows: int
    splits: int
    steps: int
    fixed_steps: int
    learning_rate: dict[str, float]
    noise: float

    def __post_init__(self) -> None:
        for name in self.functions:
            check_choice("functions", name, tuple(FUNCTIONS))
        for name in self.covariances:
            check_choice("covariances", name, ("diagonal", "full"))
        for name in ("rows", "splits", "steps"):
            check_integer(name, getattr(self, name))
        check_integer("fixed_steps", self.fixed_steps, least=0)
        check_scale("noise", self.noise)
        for n in self.features:
            check_integer("features", n, least=4)
            if 4 ** round(math.log(n, 4)) != n:
                raise ConfigurationError(f"features must be powers of four, whose square roots are powers of two, got {n}")
        if "other" not in self.learning_rate:
            raise ConfigurationError("learning_rate needs a value for 'other' functions")


class RandomFeatures(Protocol):
    """One job per function, covariance, number of features and model, with a unit per split."""

    name = "random-features"

    def jobs(self, table: Table) -> list[Job]:
        settings = Settings(**table.settings)
        jobs = []
        for function in settings.functions:
            for covariance in settings.covariances:
                for n in settings.features:
                    for model in _MODELS:
                        if model == "mean-field" and covariance == "full":
                            continue
                        values = {
                            "dataset": function, "method": model, "features": n, "covariance": covariance,
                            "rows": min(settings.rows, FUNCTIONS[function].rows), "steps": settings.steps,
                            "fixed_steps": settings.fixed_steps, "noise": settings.noise,
                            "learning_rate": settings.learning_rate.get(function, settings.learning_rate["other"]),
                        }  # fmt: skip
                        key = f"{function}-{covariance}-{n}-{model.replace(' ', '-')}"
                        jobs.append(Job(key, values, tuple(map(str, range(settings.splits))), cost=settings.steps / 100))
        return jobs

    def run(self, job: Job, units: Sequence[str], context: Context) -> Mapping[str, Unit]:
        settings = job.settings
        if settings["method"] == "sparse GP" and find_spec("gpytorch") is None:
            raise UnitError("not run, because gpytorch is not installed: pip install gpytorch")
        full = settings["covariance"] == "full"
        fit = Fit(settings["steps"], settings["fixed_steps"], settings["learning_rate"], settings["noise"], full)
        parameters = whvi_parameters(settings["features"], full)
        results: dict[str, Unit] = {}
        for index, unit in enumerate(units):
            train, test, std = _split(settings["dataset"], settings["rows"], int(unit))

            def progress(share: float, index: int = index) -> None:
                context.progress((index + share) / len(units))

            if settings["method"] == "sparse GP":
                count = inducing_of(parameters, train.x.shape[1], full)
                found = sparse_process(count, train, test.x, fit, int(unit), progress)
            else:
                count = settings["features"] if settings["method"] == "WHVI" else features_of(parameters)
                found = variational(settings["method"], count, train, test.x, fit, int(unit), progress)
            squares = (found.mean - test.y).double().square()
            variance = found.variance.double()
            results[unit] = {
                "rmse": std * float(squares.mean().sqrt()),
                "log_likelihood": float(-0.5 * (torch.log(2 * math.pi * variance) + squares / variance).mean()) - math.log(std),
                "parameters": found.parameters,
                "count": count,
            }
            context.save({unit: results[unit]})
        return results

    def report(self, table: Table, jobs: Sequence[Job], results: ByJob) -> str:
        rows = []
        for job in jobs:
            units = list(results.get(job.key, {}).values())
            if units:
                kind = "inducing points" if job.settings["method"] == "sparse GP" else "features"
                means = [_mean([unit[name] for unit in units]) for name in ("rmse", "log_likelihood")]
                about = [job.settings["dataset"], job.settings["covariance"], job.settings["method"], f"{units[0]['count']} {kind}"]
                rows.append([*about, str(units[0]["parameters"]), *means])
        header = ["function", "covariance", "model", "size", "parameters", "RMSE", "log-likelihood"]
        parts = [
            "Mean and standard deviation over splits: RMSE in the unit of the function, log-likelihood of test rows in nats. "
            "Parameters are those of the distribution of weights or inducing values, with the inducing inputs.",
            markdown(header, rows),
        ]
        return "\n\n".join(parts)

    def figure(self, table: Table, jobs: Sequence[Job], results: ByJob) -> Figure | None:
        from matplotlib.figure import Figure
        from matplotlib.ticker import NullLocator

        from bayesify.plots.style import BLUE, INK, ORANGE, axes, label

        functions = list(dict.fromkeys(job.settings["dataset"] for job in jobs))
        figure, handles = Figure(figsize=(3 * len(functions), 5.2), layout="constrained"), {}
        for i, function in enumerate(functions):
            for row, (score, name) in enumerate((("rmse", "RMSE"), ("log_likelihood", "log-likelihood (nats)"))):
                ax = axes(figure.add_subplot(2, len(functions), row * len(functions) + i + 1))
                for model, color in zip(_MODELS, (ORANGE, BLUE, INK), strict=True):
                    for covariance, style in (("diagonal", "o-"), ("full", "s--")):
                        chosen = {"dataset": function, "method": model, "covariance": covariance}
                        found = [
                            results[job.key] for job in jobs
                            if results.get(job.key) and all(job.settings[name] == value for name, value in chosen.items())
                        ]  # fmt: skip
                        if points := sorted((u["parameters"], u[score]) for units in found for u in list(units.values())[:1]):
                            key = f"{model}, {covariance}"
                            handles[key] = ax.plot(*zip(*points, strict=True), style, color=color, markersize=4, label=key)[0]
                ax.set_xscale("log", base=2)
                ax.xaxis.set_minor_locator(NullLocator())
                if row == 0:
                    ax.set_title(function)
                label(ax, "parameters" if row else "", name if i == 0 else "")
        figure.legend(handles=list(handles.values()), loc="outside upper center", ncols=5, frameon=False)
        return figure


def _split(name: str, rows: int, split: int) -> tuple[Data, Data, float]:
    """Training rows (a fifth) and test rows with standardized targets, and the standard deviation of the training targets."""
    function = FUNCTIONS[name]
    x = torch.quasirandom.SobolEngine(function.inputs, scramble=True, seed=0).draw(rows, dtype=torch.float64)
    y = function.value(x)
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(split))
    train, test = order[: rows // 5], order[rows // 5 :][:_TEST_ROWS]
    mean, std = y[train].mean(), y[train].std()
    parts = [Data(x[part].float(), ((y[part] - mean) / std).float()) for part in (train, test)]
    return parts[0], parts[1], float(std)


def _mean(values: Sequence[float]) -> str:
    found = torch.tensor(values, dtype=torch.float64)
    return f"{float(found.mean()):.4g}" + (f" ± {float(found.std()):.2g}" if len(values) > 1 else "")
