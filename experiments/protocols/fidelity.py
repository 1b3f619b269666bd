r"""How close methods are to the posterior: their predictions beside those of Hamiltonian Monte Carlo, on data of known noise.

The predictive distribution of every test input is reduced to probabilities of bins of the target (regression) or of classes. Of a
method with probabilities q and the reference with p, averaged over the inputs of a region:

- total variation $\tfrac12 \sum_k |q_k - p_k|$,
- agreement: the share of inputs with the same most probable class,
- the ratio of epistemic standard deviations (geometric mean; regression).

The comparison follows Izmailov et al., *What are Bayesian neural network posteriors really like?* (2021), section 7.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from bayesify import Bayesian, Categorical, Gaussian, LinearWarmup, bayesify, fit, predict
from bayesify.core.checks import check_choice, check_integer, check_positive
from bayesify.errors import ConfigurationError, DivergenceError
from bayesify.predictive import CategoricalPredictive, GaussianPredictive, Predictive
from experiments.harness.numbers import Estimate, estimate, markdown
from experiments.harness.protocol import ByJob, Context, Job, Protocol, Table, Unit, UnitError, plain
from experiments.protocols.shared.configuration import check_fields, list_of, make_methods, method_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["NOISE", "REFERENCE", "Fidelity", "Settings", "make_net", "make_task", "schedule_of"]

REFERENCE = "HMC"
NOISE = 0.1  # standard deviation of the targets in regression
_INPUTS, _WIDEST = 31, 1.5  # of the regression: test inputs, in [-1.5, 1.5]
_EDGES = torch.linspace(-3, 3, 31, dtype=torch.float64)  # of the bins of the target
_GRID = 15  # points per side of the classification's test inputs


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What `config.toml` may set.

    Attributes:
        data: "gap" (regression) or "moons" (two classes).
        rows: training rows.
        hidden: units of the hidden layer, with tanh.
        epochs: full-batch steps.
        learning_rate: of Adam, or of natural-gradient steps; cosine decay to 0.
        samples: draws in prediction.
        seeds: of data, initial weights and noise.
        methods: tables with `name`, `method` and settings that override these.
    """

    data: str
    rows: int
    hidden: int
    epochs: int
    learning_rate: float
    samples: int
    seeds: int
    methods: list[Mapping[str, Any]]

    def __post_init__(self) -> None:
        check_choice("data", self.data, ("gap", "moons"))
        for name in ("rows", "hidden", "epochs", "samples", "seeds"):
            check_integer(name, getattr(self, name))
        check_positive("learning_rate", self.learning_rate)
        names = [method_name(method) for method in list_of("methods", self.methods, Mapping)]
        if REFERENCE not in names or len(set(names)) < len(names):
            raise ConfigurationError(f"methods must have different names, one of them {REFERENCE!r}, got {names}")


@dataclasses.dataclass(frozen=True)
class Task:
    """Training rows, test inputs, and the regions that these belong to."""

    x: Tensor
    y: Tensor
    test: Tensor
    regions: Mapping[str, Tensor]
    """Masks of the test inputs."""


class Fidelity(Protocol):
    """One job per method; a unit is a seed."""

    name: ClassVar[str] = "fidelity"
    settings_type: ClassVar[type[Settings]] = Settings

    def jobs(self, table: Table) -> list[Job]:
        settings = self.settings_of(table)
        common = {name: value for name, value in dataclasses.asdict(settings).items() if name not in ("methods", "seeds")}
        units = tuple(map(str, range(settings.seeds)))
        jobs = []
        for method in settings.methods:
            own = {**common, **{name: value for name, value in method.items() if name not in ("name", "method")}}
            check_fields("setting", {**own, "seeds": 1, "methods": []}, self.settings_type)
            make_methods(method["method"])
            cost = 300.0 if method["name"] == REFERENCE else 20.0
            jobs.append(
                Job(plain(method["name"]), {**own, "method": method["name"], "posterior": method["method"]}, units, cost=cost)
            )
        return jobs

    def settings_of(self, table: Table) -> Any:
        check_fields("setting", table.settings, self.settings_type)
        return self.settings_type(**table.settings)

    def run(self, job: Job, units: Sequence[str], context: Context) -> Mapping[str, Unit]:
        failures = []
        for index, unit in enumerate(units):
            try:
                context.save({unit: self.run_seed(job.settings, int(unit))})
            except DivergenceError as error:
                failures.append(f"seed {unit}: {error}")
            context.progress((index + 1) / len(units))
        if failures:
            raise UnitError("; ".join(failures))
        return {}

    def run_seed(self, settings: Mapping[str, Any], seed: int) -> Unit:
        """Train a method and predict the test inputs."""
        task = make_task(settings["data"], settings["rows"], seed)
        torch.manual_seed(seed)
        bnn = bayesify(make_net(settings, task), make_methods(settings["posterior"]))
        likelihood = Gaussian(std=NOISE) if settings["data"] == "gap" else Categorical()
        fit(
            bnn,
            (task.x, task.y),
            likelihood,
            epochs=settings["epochs"],
            batch_size=settings["rows"],
            learning_rate=settings["learning_rate"],
            scheduler=schedule_of(bnn, settings["epochs"]),
            beta=LinearWarmup(beta=1.0, fraction=0.3),
            seed=seed,
            accelerator="cpu",
            progress=False,
        )
        bnn.double()
        inputs, samples = task.test.double(), settings["samples"]
        predictive = predict(bnn, inputs, likelihood, samples=samples, seed=seed, coherent=True, progress=False)
        unit: Unit = {"probabilities": _rounded(_probabilities(predictive))}
        if isinstance(predictive, GaussianPredictive):
            unit |= {"mean": _rounded(predictive.mean.flatten()), "epistemic": _rounded(predictive.epistemic.flatten())}
        for _, layer in bnn.random_layers():
            if isinstance(found := getattr(layer.posterior, "diagnostics", None), Tensor) and found.numel():
                unit |= {"R-hat": _rounded(found[0]), "ESS": _rounded(found[1])}
        return unit

    def report(self, table: Table, jobs: Sequence[Job], results: ByJob) -> str:
        settings = self.settings_of(table)
        regions = list(make_task(settings.data, settings.rows, 0).regions)
        scores = _compare(settings, jobs, results, regions)
        ratio, agreement = settings.data == "gap", settings.data == "moons"
        head = ["method", *(f"total variation, {region}" for region in regions)]
        head += [f"epistemic std / {REFERENCE}'s, {region}" for region in regions] if ratio else []
        head += [f"agreement, {region}" for region in regions] if agreement else []
        names = sorted(scores, key=lambda name: scores[name][f"variation, {regions[0]}"].mean)
        columns = [f"variation, {region}" for region in regions]
        columns += [f"{'ratio' if ratio else 'agreement'}, {region}" for region in regions]
        rows = [[name, *(str(scores[name][column]) for column in columns)] for name in names]
        return "\n\n".join([_checked_chains(results.get(REFERENCE, {})), markdown(head, rows)])

    def figure(self, table: Table, jobs: Sequence[Job], results: ByJob) -> Figure | None:
        settings = self.settings_of(table)
        if settings.data != "gap" or "0" not in results.get(REFERENCE, {}):
            return None
        return _bands(settings, jobs, results)


def make_task(data: str, rows: int, seed: int) -> Task:
    """Data of a seed: a sine wave with a gap between its inputs, or two moons."""
    generator = torch.Generator().manual_seed(seed)
    if data == "gap":
        side = torch.arange(rows) % 2 * 2.0 - 1  # inputs are in [-1, -0.3] and [0.3, 1]
        x = side * (0.3 + 0.7 * torch.rand(rows, generator=generator))
        y = torch.sin(4 * x) + NOISE * torch.randn(rows, generator=generator)
        test = torch.linspace(-_WIDEST, _WIDEST, _INPUTS)
        inside = (test.abs() >= 0.3) & (test.abs() <= 1)
        regions = {"near the data": inside, "in the gap": test.abs() < 0.3, "beyond": test.abs() > 1}
        return Task(x.unsqueeze(1), y.unsqueeze(1), test.unsqueeze(1), regions)
    angle = math.pi * torch.rand(rows, generator=generator)
    y = torch.arange(rows) % 2
    moons = torch.stack(
        [torch.cos(angle) - 0.5 + y * (1 - 2 * torch.cos(angle)), torch.sin(angle) * (1 - 2 * y) + 0.5 * y - 0.25], 1
    )
    x = moons + 0.2 * torch.randn(rows, 2, generator=generator)
    line = torch.linspace(-3, 3, _GRID)
    test = torch.cartesian_prod(line, line)
    near = torch.cdist(test, x).amin(1) < 0.5
    return Task(x, y, test, {"near the data": near, "away": ~near})


def make_net(settings: Mapping[str, Any], task: Task) -> nn.Module:
    """The network of both tasks, with PyTorch's initial weights."""
    outputs = 1 if settings["data"] == "gap" else 2
    return nn.Sequential(nn.Linear(task.x.shape[1], settings["hidden"]), nn.Tanh(), nn.Linear(settings["hidden"], outputs))


def schedule_of(bnn: Bayesian, epochs: int) -> partial[CosineAnnealingLR] | None:
    """Cosine decay to 0; none where draws are collected along the way."""
    return None if bnn.collects else partial(CosineAnnealingLR, T_max=epochs)


def _probabilities(predictive: Predictive) -> Tensor:
    """Probabilities of the bins of the target, or of the classes, (N, K)."""
    if isinstance(predictive, CategoricalPredictive):
        return predictive.probs
    assert isinstance(predictive, GaussianPredictive)
    edges = _EDGES[1:-1]
    below = torch.stack([predictive.cdf(edge.expand(predictive.mean.shape)).flatten() for edge in edges], 1)
    return torch.diff(below, dim=1, prepend=torch.zeros_like(below[:, :1]), append=torch.ones_like(below[:, :1]))


def _rounded(values: Tensor) -> Any:
    return values.double().round(decimals=4).tolist()


def _compare(settings: Settings, jobs: Sequence[Job], results: ByJob, regions: Sequence[str]) -> dict[str, dict[str, Estimate]]:
    """Return the scores of every method against the reference of the same seed, over seeds."""
    scores: dict[str, dict[str, Estimate]] = {}
    reference = results.get(REFERENCE, {})
    for method, job in zip(settings.methods, jobs, strict=True):
        units = {seed: unit for seed, unit in results.get(job.key, {}).items() if seed in reference}
        if method["name"] == REFERENCE or not units:
            continue
        columns: dict[str, list[float]] = {}
        for seed, unit in units.items():
            task = make_task(settings.data, settings.rows, int(seed))
            for region in regions:
                for name, values in _scores(unit, reference[seed], task.regions[region]).items():
                    columns.setdefault(f"{name}, {region}", []).append(values)
        scores[method["name"]] = {name: estimate(values) for name, values in columns.items()}
    return scores


def _scores(unit: Unit, reference: Unit, mask: Tensor) -> dict[str, float]:
    q, p = (torch.tensor(u["probabilities"], dtype=torch.float64)[mask] for u in (unit, reference))
    scores = {
        "variation": float(0.5 * (q - p).abs().sum(1).mean()),
        "agreement": float((q.argmax(1) == p.argmax(1)).double().mean()),
    }
    if "epistemic" in unit:
        ours, theirs = (torch.tensor(u["epistemic"], dtype=torch.float64)[mask] for u in (unit, reference))
        scores["ratio"] = float((0.5 * (ours.clamp_min(1e-8) / theirs).log()).mean().exp())
    return scores


def _checked_chains(reference: Mapping[str, Unit]) -> str:
    """A sentence on the convergence of the reference."""
    if not reference:
        return f"{REFERENCE} has not run; there is nothing to compare with."
    r_hat, size = (pick(unit[name] for unit in reference.values()) for pick, name in ((max, "R-hat"), (min, "ESS")))
    return (
        f"Reference: {REFERENCE}, whose chains have an R-hat of at most {r_hat:.2f} and an effective sample size of at least "
        f"{size:.0f} for the network's outputs. Means and standard errors over {len(reference)} data sets; the best first."
    )


def _bands(settings: Settings, jobs: Sequence[Job], results: ByJob) -> Figure:
    """Mean and two epistemic standard deviations of every method, on those of the reference."""
    from matplotlib.figure import Figure

    from bayesify.plots.style import BLUE, INK, MUTED, axes

    shown = [(method["name"], results[job.key]["0"]) for method, job in zip(settings.methods, jobs, strict=True)
             if "0" in results.get(job.key, {})]  # fmt: skip
    reference, task = results[REFERENCE]["0"], make_task(settings.data, settings.rows, 0)
    columns = min(6, len(shown))
    rows = math.ceil(len(shown) / columns)
    figure = Figure(figsize=(1.9 * columns, 1.6 * rows), layout="constrained")
    grid = list(figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flat)
    x = task.test.flatten()
    for ax, (name, unit) in zip(grid, shown, strict=False):
        axes(ax)
        mean, spread = torch.tensor(reference["mean"]), 2 * torch.tensor(reference["epistemic"]).clamp_min(0).sqrt()
        ax.fill_between(x, mean - spread, mean + spread, color=MUTED, alpha=0.25, linewidth=0)
        mean, spread = torch.tensor(unit["mean"]), 2 * torch.tensor(unit["epistemic"]).clamp_min(0).sqrt()
        ax.plot(x, mean, color=BLUE, linewidth=1.2)
        for bound in (mean - spread, mean + spread):
            ax.plot(x, bound, color=BLUE, linewidth=0.8)
        ax.plot(task.x.flatten(), task.y.flatten(), ".", color=INK, markersize=2)
        ax.set_title(name, fontsize=7)
        ax.set_ylim(-3, 3)
    for ax in grid[len(shown) :]:
        ax.set_visible(False)
    return figure
