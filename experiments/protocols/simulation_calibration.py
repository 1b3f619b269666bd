r"""Simulation-based calibration: whether intervals contain the truth as often as they say, if the truth is drawn from the prior.

A network with weights from N(0, 1) makes the targets, a method is trained on them, and the network's function at a test input has
a rank among the method's draws. Under exact posteriors, ranks are uniform, whatever the data (Talts et al., *Validating Bayesian
inference algorithms with simulation-based calibration*, 2018). With u the rank divided by its largest value, $3 (2u - 1)^2$ has
mean 1 then; it is larger if draws are too close together, 3 if they never contain the truth, and smaller if they are too far apart.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from bayesify import Gaussian, LinearWarmup, bayesify, predict
from bayesify.core.checks import check_integer
from bayesify.errors import ConfigurationError, DivergenceError
from bayesify.predictive import GaussianPredictive
from bayesify.train import Training, fit_many
from experiments.harness.numbers import estimate, markdown
from experiments.harness.protocol import ByJob, Job, Table, Unit
from experiments.protocols.fidelity import Fidelity, Settings, schedule_of
from experiments.protocols.fidelity.tasks import NOISE, make_net, make_task
from experiments.protocols.shared.configuration import make_methods

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["SimulationCalibration"]

_BINS = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimulationSettings(Settings):
    """Those of a comparison on the regression with a gap, and the number of data sets per seed, which are trained together."""

    simulations: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("simulations", self.simulations)
        if self.data != "gap":
            raise ConfigurationError(f"data must be 'gap', whose inputs are used, got {self.data!r}")


class SimulationCalibration(Fidelity):
    """One job per method; a unit is a seed of several data sets."""

    name: ClassVar[str] = "simulation-calibration"
    settings_type: ClassVar[type[Settings]] = SimulationSettings

    def run_seed(self, settings: Mapping[str, Any], seed: int, data_dir: Path | None = None) -> Unit:
        """Train a method on all data sets of a seed, and rank the functions that made them."""
        trainings, truths, tests = [], [], []
        for number in range(seed * settings["simulations"], (seed + 1) * settings["simulations"]):
            task = make_task("gap", settings["rows"], number)
            y, truth = simulate(settings, number)
            torch.manual_seed(number)
            trainings.append(
                Training(
                    bnn=bayesify(make_net(settings, task), make_methods(settings["posterior"])),
                    data=(task.x, y),
                    likelihood=Gaussian(std=NOISE),
                    seed=number,
                    beta=LinearWarmup(beta=settings.get("beta", 1.0), fraction=0.3),
                    learning_rate=settings["learning_rate"],
                )
            )
            truths.append(truth)
            tests.append(task.test)
        histories = fit_many(
            trainings,
            epochs=settings["epochs"],
            batch_size=settings["rows"],
            scheduler=schedule_of(trainings[0].bnn, settings["epochs"]),
            accelerator="cpu",
            progress=False,
        )
        if failures := [history.failure for history in histories if history.failure]:
            raise DivergenceError("; ".join(failures))
        ranks = []
        for training, truth, test in zip(trainings, truths, tests, strict=True):
            p = predict(
                training.bnn, test, training.likelihood, settings["samples"], seed=training.seed, coherent=True, progress=False
            )
            assert isinstance(p, GaussianPredictive)
            ranks.append(relative_ranks(p.draw_means.reshape(-1, len(test)), truth, training.seed).tolist())
        return {"ranks": ranks}

    def report(self, table: Table, jobs: Sequence[Job], results: ByJob) -> str:
        settings = self.settings_of(table)
        regions = make_task("gap", settings.rows, 0).regions
        head = ["method", "data sets", *(f"3 (2u - 1)², {region}" for region in regions)]
        head += [f"90 % interval, {region}" for region in regions]
        rows = []
        for method, ranks in _ranks_by_method(settings, jobs, results).items():
            spread, inside = 3 * (2 * ranks - 1).square(), ((ranks - 0.5).abs() <= 0.45).double()
            cells = [str(estimate(values[:, mask].mean(1).tolist())) for values in (spread, inside) for mask in regions.values()]
            rows.append((abs(math.log(spread.mean())), [method, str(len(ranks)), *cells]))
        note = (
            "Means and standard errors over data sets. u is the rank of the true function among the draws: under exact posteriors "
            "$3 (2u - 1)^2$ has mean 1 (larger: draws too close together, smaller: too far apart) and the 90 % interval contains "
            "the truth in 90 %. The best over all inputs first."
        )
        return "\n\n".join([note, markdown(head, [row for _, row in sorted(rows)])])

    def figure(self, table: Table, jobs: Sequence[Job], results: ByJob) -> Figure | None:
        settings = self.settings_of(table)
        found = _ranks_by_method(settings, jobs, results)
        return _histograms(found, make_task("gap", settings.rows, 0).regions) if found else None


def simulate(settings: Mapping[str, Any], number: int) -> tuple[Tensor, Tensor]:
    """Targets (N, 1) at the training inputs of data set `number`, and the function (T,) at the test inputs, of a prior network."""
    task, generator = make_task("gap", settings["rows"], number), torch.Generator().manual_seed(number)
    truth = make_net(settings, task)
    with torch.no_grad():
        for parameter in truth.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
        y = truth(task.x)
        return y + NOISE * torch.randn(y.shape, generator=generator), truth(task.test).flatten()


def relative_ranks(draws: Tensor, truth: Tensor, seed: int) -> Tensor:
    """Ranks of truth (T,) among draws (S, T), in [0, 1]: uniform on {0, 1/S, ..., 1} if it is one more draw; ties at random."""
    below, equal = (draws < truth).sum(0), (draws == truth).sum(0)
    shares = torch.rand(truth.shape, generator=torch.Generator().manual_seed(seed))
    return ((below + (shares * (equal + 1)).floor()) / len(draws)).double()


def _ranks_by_method(settings: Settings, jobs: Sequence[Job], results: ByJob) -> dict[str, Tensor]:
    """Relative ranks, (data sets, test inputs)."""
    found = {}
    for method, job in zip(settings.methods, jobs, strict=True):
        if units := results.get(job.key):
            found[method["name"]] = torch.tensor([row for unit in units.values() for row in unit["ranks"]], dtype=torch.float64)
    return found


def _histograms(ranks: Mapping[str, Tensor], regions: Mapping[str, Tensor]) -> Figure:
    from matplotlib.figure import Figure

    from bayesify.plots.style import BLUE, INK, MUTED, axes

    near, *_, beyond = regions
    columns = min(6, len(ranks))
    rows = math.ceil(len(ranks) / columns)
    figure = Figure(figsize=(1.9 * columns, 1.5 * rows + 0.4), layout="constrained")
    grid = list(figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flat)
    edges = torch.linspace(0, 1, _BINS + 1, dtype=torch.float64)
    for ax, (name, values) in zip(grid, ranks.items(), strict=False):
        axes(ax)
        for region, color, alpha in ((beyond, MUTED, 0.5), (near, BLUE, 0.6)):
            counts = torch.histogram(values[:, regions[region]].flatten(), edges).hist
            ax.stairs(counts / counts.sum() * _BINS, edges, fill=True, color=color, alpha=alpha, label=region)
        ax.axhline(1, color=INK, linewidth=0.8)
        ax.set_ylim(0, 4)
        ax.set_title(name, fontsize=7)
    for ax in grid[len(ranks) :]:
        ax.set_visible(False)
    figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=7, frameon=False)
    return figure
