"""Time of a training step: weights for every example against local reparameterization, Kingma et al. (2015), section 5, "Speed".

A step consists of zeroing the gradients, the bound of one minibatch, its backward pass and Adam. Estimators are timed in turn in
one process. Weights for every example need M times the memory of the network, so they are drawn for a few rows at a time: one row
fits in a processor's cache, several rows need fewer and larger operations. Inputs are random: times do not depend on their
values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from benchmarks.measure import interleave
from torch import Tensor

from bayesify import Bayesian, Categorical, elbo
from bayesify.core.checks import check_integer
from bayesify.errors import ConfigurationError
from experiments.harness.numbers import markdown
from experiments.harness.protocol import ByJob, Context, Job, Protocol, Table, Unit
from experiments.protocols.digits_net import CLASSES, bayesian_net, method_settings, per_example

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EstimatorSpeed", "explicit_step", "step"]

_PIXELS = 784
_NAMES = {"local": "local reparameterization", "minibatch": "weight sample per minibatch"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What `config.toml` may set.

    Attributes:
        posterior: the method, as for `Method.from_dict`, without `p`.
        rates: initial dropout rates of the "input" and the "hidden" units.
        hidden: units in each of the three hidden layers.
        batch_sizes: examples per step, one job each.
        rows: numbers of examples whose weights are drawn at a time, each timed separately.
        rounds: number of timings by batch size.
        images: per epoch.
    """

    posterior: dict[str, Any]
    rates: dict[str, float]
    hidden: int
    batch_sizes: list[int]
    rows: list[int]
    rounds: list[int]
    images: int

    def __post_init__(self) -> None:
        check_integer("images", self.images)
        if len(self.rounds) != len(self.batch_sizes):
            raise ConfigurationError(f"rounds must have a number for each of batch_sizes, got {self.rounds} and {self.batch_sizes}")
        for name in ("batch_sizes", "rows", "rounds"):
            for number in getattr(self, name):
                check_integer(name, number)
        bayesian_net(1, self.hidden, self.posterior, self.rates, seed=0)


def step(bnn: Bayesian, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, n: int, *, coherent: bool = False) -> None:
    """One training step with local reparameterization or, if `coherent`, with one weight draw for the minibatch."""
    optimizer.zero_grad()
    draws = bnn(x, coherent=coherent)
    (-elbo(draws, Categorical().log_prob(draws.outputs, y), n)).backward()
    optimizer.step()


def explicit_step(bnn: Bayesian, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, n: int, rows: int) -> None:
    """One training step with a weight draw for every example, drawn for `rows` of them at a time; the KL is added once."""
    optimizer.zero_grad()
    for part, labels in zip(x.split(rows), y.split(rows), strict=True):
        (-Categorical().log_prob(per_example(bnn, part).unsqueeze(0), labels).sum() / len(x)).backward()
    (bnn.kl() / n).backward()
    optimizer.step()


class EstimatorSpeed(Protocol):
    """One job per batch size, timed once; a unit holds milliseconds and ratios to local reparameterization by estimator."""

    name = "estimator-speed"

    def jobs(self, table: Table) -> list[Job]:
        settings = Settings(**table.settings)
        common = dataclasses.asdict(settings) | {"posterior": method_settings(settings.posterior, settings.rates)}
        del common["batch_sizes"], common["rounds"]
        seconds = 1e-8 * settings.hidden**2 * len(settings.rows)
        return [
            Job(f"batch-{size}", {"batch_size": size, "rounds": rounds, **common}, ("0",), cost=seconds * size * rounds)
            for size, rounds in zip(settings.batch_sizes, settings.rounds, strict=True)
        ]

    def run(self, job: Job, units: Sequence[str], context: Context) -> Mapping[str, Unit]:
        settings, size = job.settings, job.settings["batch_size"]
        results: dict[str, Unit] = {}
        for unit in units:
            with torch.random.fork_rng(devices=()):
                torch.manual_seed(int(unit))
                x, y = torch.rand(size, _PIXELS), torch.randint(CLASSES, (size,))
                bnn = bayesian_net(_PIXELS, settings["hidden"], settings["posterior"], settings["rates"], int(unit))
                optimizer = torch.optim.Adam(bnn.parameters(), fused=True)
                given = (bnn, optimizer, x, y, settings["images"])
                candidates: dict[str, Callable[[], object]] = {
                    "local": lambda given=given: step(*given),
                    "minibatch": lambda given=given: step(*given, coherent=True),
                }
                for warm in list(candidates.values()):
                    warm()
                for rows in dict.fromkeys(min(rows, size) for rows in settings["rows"]):
                    candidates[f"example {rows}"] = lambda given=given, rows=rows: explicit_step(*given, rows)
                    explicit_step(bnn, optimizer, x[:rows], y[:rows], settings["images"], rows)
                results[unit] = dict(interleave(candidates, settings["rounds"], warmup=0))
        return results

    def report(self, table: Table, jobs: Sequence[Job], results: ByJob) -> str:
        settings = Settings(**table.settings)
        units = _units(settings, results)
        rows = [
            [str(size), _text(name), f"{one['milliseconds']:.4g}", _ratio(one)]
            for size, unit in units
            for name, one in unit.items()
        ]
        size, unit = units[-1]
        epoch = {name: settings.images / size * one["milliseconds"] / 1e3 for name, one in unit.items()}
        explicit = [name for name in unit if name not in _NAMES]
        theirs = {which: float(table.published[which]) for which in ("example", "local")}
        claims = [
            *([f"{_text(name)}, seconds", f"{theirs['example']:g}", f"{epoch[name]:.4g}"] for name in explicit),
            [f"{_text('local')}, seconds", f"{theirs['local']:g}", f"{epoch['local']:.4g}"],
            *(
                [f"{_text(name)}: ratio", f"{theirs['example'] / theirs['local']:.0f}", f"{unit[name]['ratio']:.0f}"]
                for name in explicit
            ),
        ]
        return "\n\n".join(
            [
                f"A training step of the net with three hidden layers of {settings.hidden} units, weights for every example being "
                "drawn for a few rows at a time:",
                markdown(["batch", "estimator", "ms", "ratio to local (quartiles)"], rows, left=2),
                f"One epoch of {settings.images} images at batch size {size}; the paper's on a GPU of 2015, ours on a processor:",
                markdown(["", "paper", "ours"], claims),
            ]
        )

    def figure(self, table: Table, jobs: Sequence[Job], results: ByJob) -> Figure | None:
        from matplotlib.figure import Figure

        from bayesify.plots.style import BLUE, MUTED, ORANGE, axes, label, legend

        units = _units(Settings(**table.settings), results)
        sizes = [size for size, _ in units]
        figure = Figure(figsize=(5.2, 3.4), layout="constrained")
        ax = axes(figure.subplots())
        for name, color in (("example", ORANGE), ("local", BLUE), ("minibatch", MUTED)):
            times = [(_fastest(unit) if name == "example" else unit[name])["milliseconds"] for _, unit in units]
            text = _NAMES.get(name, "weight sample per data point, fastest way")
            ax.plot(sizes, times, color=color, marker="o", markersize=4, label=text)
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.minorticks_off()
        label(ax, "examples in the minibatch", "training step (ms)")
        legend(ax)
        return figure


def _units(settings: Settings, results: ByJob) -> list[tuple[int, Unit]]:
    """Results by batch size."""
    keys = {size: f"batch-{size}" for size in sorted(settings.batch_sizes)}
    return [(size, results[key]["0"]) for size, key in keys.items() if "0" in results.get(key, {})]


def _fastest(unit: Unit) -> dict[str, Any]:
    """The fastest timing of explicit weights over the numbers of rows."""
    return min((one for name, one in unit.items() if name not in _NAMES), key=lambda one: one["milliseconds"])


def _text(name: str) -> str:
    """Name of an estimator in the report."""
    if name in _NAMES:
        return _NAMES[name]
    rows = int(name.removeprefix("example "))
    return f"weight sample per data point, {rows} row{'s' * (rows > 1)} at a time"


def _ratio(one: Mapping[str, Any]) -> str:
    low, high = one["ratio_quartiles"]
    return f"{one['ratio']:.3g} ({low:.3g} to {high:.3g})"
