r"""How close methods are to the posterior: their predictions beside those of Hamiltonian Monte Carlo, on data of known noise.

The comparison follows Izmailov et al., *What are Bayesian neural network posteriors really like?* (2021), section 7. The predictive
distribution of every test input is reduced to probabilities, of which `comparison.py` takes the distances.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.optim.lr_scheduler import CosineAnnealingLR

from bayesify import Bayesian, Likelihood, LinearWarmup, bayesify, fit, predict
from bayesify.core.checks import check_choice, check_integer, check_positive
from bayesify.errors import ConfigurationError, DivergenceError
from bayesify.predictive import GaussianPredictive
from experiments.harness.numbers import Estimate, markdown
from experiments.harness.protocol import ByJob, Context, Job, Protocol, Table, Unit, UnitError, plain
from experiments.protocols.fidelity.comparison import SCORES, compare, probabilities_of, rounded, targets_scored
from experiments.protocols.fidelity.figure import draw_bands, draw_variation
from experiments.protocols.fidelity.tasks import (
    CLASSES,
    NOISE,
    TASKS,
    UCI_SETS,
    Task,
    make_likelihood,
    make_net,
    make_task,
    regions_of,
)
from experiments.protocols.shared.configuration import check_fields, complete, list_of, make_methods, method_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["REFERENCE", "Fidelity", "Settings", "schedule_of", "trained"]

REFERENCE = "HMC"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What `config.toml` may set.

    Attributes:
        data: "gap" (regression), "moons" (two classes), "digits" (ten), or a UCI set (regression): "boston", "concrete", "yacht".
        rows: training rows, of a UCI set at most.
        hidden: units of the hidden layer, with tanh.
        epochs: full-batch steps.
        learning_rate: of Adam, or of natural-gradient steps; cosine decay to 0.
        samples: draws in prediction.
        coherent: whether predictions have drawn weights, or the noise of training, which may differ between positions.
        seeds: of data, initial weights and noise; of a UCI set, the splits. A method may have fewer.
        noise: standard deviation of the targets in regression, known to all methods; standardized ones of a UCI set.
        beta: weight of the KL, reached after 30 % of the epochs.
        methods: tables with `name`, `method` and settings that override these.
        instead: such tables in place of those of the same name, where `methods` are those of a table that this one extends.
        further: such tables in addition to those.
    """

    data: str
    rows: int
    hidden: int
    epochs: int
    learning_rate: float
    samples: int
    seeds: int
    methods: list[Mapping[str, Any]]
    noise: float = NOISE
    beta: float = 1.0
    coherent: bool = True
    instead: list[Mapping[str, Any]] = dataclasses.field(default_factory=list)
    further: list[Mapping[str, Any]] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        check_choice("data", self.data, TASKS)
        for name in ("rows", "hidden", "epochs", "samples", "seeds"):
            check_integer(name, getattr(self, name))
        for name in ("learning_rate", "noise", "beta"):
            check_positive(name, getattr(self, name))
        check_choice("coherent", self.coherent, (True, False))
        names = [method_name(method) for method in [*list_of("methods", self.methods, Mapping), *self.further]]
        if REFERENCE not in names or len(set(names)) < len(names):
            raise ConfigurationError(f"methods must have different names, one of them {REFERENCE!r}, got {names}")
        for method in self.instead:
            check_choice("the name of a method in instead", method_name(method), tuple(names))

    @property
    def rows_of_table(self) -> list[Mapping[str, Any]]:
        """The methods of the table, each with its own settings."""
        others = {method_name(method): method for method in self.instead}
        return [others.get(method_name(method), method) for method in self.methods] + self.further


class Fidelity(Protocol):
    """One job per method; a unit is a seed."""

    name: ClassVar[str] = "fidelity"
    settings_type: ClassVar[type[Settings]] = Settings

    def jobs(self, table: Table) -> list[Job]:
        settings = self.settings_of(table)
        others = ("methods", "instead", "further", "seeds")
        common = {name: value for name, value in dataclasses.asdict(settings).items() if name not in others}
        for name, default in (("noise", NOISE), ("beta", 1.0), ("coherent", True)):
            if common[name] == default:
                del common[name]  # results from before it was a setting stay current
        data = (settings.data,) if settings.data in UCI_SETS else ()
        jobs = []
        for method in settings.rows_of_table:
            own = {**common, **{name: value for name, value in method.items() if name not in ("name", "method", "seeds")}}
            check_fields("setting", {**own, "seeds": 1, "methods": []}, self.settings_type)
            cost = 300.0 if method["name"] == REFERENCE else 20.0
            own |= {"method": method["name"], "posterior": complete(method["method"])}
            units = tuple(map(str, range(method.get("seeds", settings.seeds))))
            jobs.append(Job(plain(method["name"]), own, units, data, cost))
        return jobs

    def settings_of(self, table: Table) -> Any:
        check_fields("setting", table.settings, self.settings_type)
        return self.settings_type(**table.settings)

    def run(self, job: Job, units: Sequence[str], context: Context) -> Mapping[str, Unit]:
        failures = []
        for index, unit in enumerate(units):
            try:
                context.save({unit: self.run_seed(job.settings, int(unit), context.data_dir)})
            except DivergenceError as error:
                failures.append(f"seed {unit}: {error}")
            context.progress((index + 1) / len(units))
        if failures:
            raise UnitError("; ".join(failures))
        return {}

    def run_seed(self, settings: Mapping[str, Any], seed: int, data_dir: Path | None = None) -> Unit:
        """Train a method and predict the test inputs."""
        task = make_task(settings["data"], settings["rows"], seed, data_dir)
        bnn, likelihood = trained(settings, task, seed)
        bnn.double()
        coherent = settings.get("coherent", True)
        common: dict[str, Any] = {"samples": settings["samples"], "seed": seed, "coherent": coherent, "progress": False}
        predictive = predict(bnn, task.test.double(), likelihood, **common)
        unit: Unit = {"probabilities": rounded(probabilities_of(predictive))}
        if isinstance(predictive, GaussianPredictive):
            unit |= {"mean": rounded(predictive.mean.flatten()), "epistemic": rounded(predictive.epistemic.flatten())}
        if task.scored is not None:
            inputs, y = task.scored
            scored = predict(bnn, inputs.double(), likelihood, **common)
            unit |= targets_scored(scored, y)
        for _, layer in bnn.random_layers():
            if isinstance(found := getattr(layer.posterior, "diagnostics", None), Tensor) and found.numel():
                unit |= {"R-hat": rounded(found[0]), "ESS": rounded(found[1])}
        return unit

    def report(self, table: Table, jobs: Sequence[Job], results: ByJob) -> str:
        settings = self.settings_of(table)
        regions = list(regions_of(settings.data, settings.rows, 0))
        scores = _compare_all(settings, jobs, results)
        columns = {f"total variation, {region}": f"variation, {region}" for region in regions}
        if settings.data in UCI_SETS:
            columns |= {f"Wasserstein distance, {region}": f"wasserstein, {region}" for region in regions}
        if settings.data in CLASSES:
            columns |= {f"agreement, {region}": f"agreement, {region}" for region in regions}
            columns |= {f"confidence - {REFERENCE}'s, {region}": f"confidence, {region}" for region in regions}
        else:
            columns |= {f"epistemic std / {REFERENCE}'s, {region}": f"ratio, {region}" for region in regions}
        columns |= {title: score for score, title in SCORES.items() if any(score in found for found in scores.values())}
        names = sorted(scores, key=lambda name: scores[name][f"variation, {regions[0]}"].mean)
        rows = [[name, *(str(scores[name][column]) for column in columns.values())] for name in names]
        reference = results.get(REFERENCE, {})
        return "\n\n".join([_checked_chains(reference), markdown(["method", *columns], rows), *_scored(reference)])

    def figure(self, table: Table, jobs: Sequence[Job], results: ByJob) -> Figure | None:
        settings = self.settings_of(table)
        if "0" not in results.get(REFERENCE, {}):
            return None
        if settings.data == "gap":
            shown = {method["name"]: results[job.key]["0"] for method, job in zip(settings.rows_of_table, jobs, strict=True)
                     if "0" in results.get(job.key, {})}  # fmt: skip
            return draw_bands(shown, results[REFERENCE]["0"], make_task("gap", settings.rows, 0))
        scores = _compare_all(settings, jobs, results)
        return draw_variation(scores, list(regions_of(settings.data, settings.rows, 0))) if scores else None


def trained(settings: Mapping[str, Any], task: Task, seed: int) -> tuple[Bayesian, Likelihood]:
    """A network trained by a method with the settings of a job, and its likelihood."""
    torch.manual_seed(seed)
    bnn = bayesify(make_net(settings, task), make_methods(settings["posterior"]))
    likelihood = make_likelihood(settings)
    fit(
        bnn,
        (task.x, task.y),
        likelihood,
        epochs=settings["epochs"],
        batch_size=len(task.x),
        learning_rate=settings["learning_rate"],
        scheduler=schedule_of(bnn, settings["epochs"]),
        beta=LinearWarmup(beta=settings.get("beta", 1.0), fraction=0.3),
        seed=seed,
        accelerator="cpu",
        progress=False,
    )
    return bnn, likelihood


def schedule_of(bnn: Bayesian, epochs: int) -> partial[CosineAnnealingLR] | None:
    """Cosine decay to 0; none where draws are collected along the way."""
    return None if bnn.collects else partial(CosineAnnealingLR, T_max=epochs)


def _compare_all(settings: Settings, jobs: Sequence[Job], results: ByJob) -> dict[str, dict[str, Estimate]]:
    """Return the scores of every method against the reference of the same seed, over seeds."""
    reference = results.get(REFERENCE, {})
    regions = {seed: regions_of(settings.data, settings.rows, int(seed)) for seed in reference}
    scores: dict[str, dict[str, Estimate]] = {}
    for method, job in zip(settings.rows_of_table, jobs, strict=True):
        units = {seed: unit for seed, unit in results.get(job.key, {}).items() if seed in reference}
        if method["name"] != REFERENCE and units:
            scores[method["name"]] = compare(units, reference, regions)
    return scores


def _checked_chains(reference: Mapping[str, Unit]) -> str:
    """A sentence on the convergence of the reference."""
    if not reference:
        return f"{REFERENCE} has not run; there is nothing to compare with."
    r_hat, size = (pick(unit[name] for unit in reference.values()) for pick, name in ((max, "R-hat"), (min, "ESS")))
    count = len(reference)
    sets = f"Means and standard errors over {count} data sets" if count > 1 else "One data set, without standard errors"
    return (
        f"Reference: {REFERENCE}, whose chains have an R-hat of at most {r_hat:.2f} and an effective sample size of at least "
        f"{size:.0f} for the network's outputs. {sets}; the best first."
    )


def _scored(reference: Mapping[str, Unit]) -> list[str]:
    """A sentence on the scores of the reference, where targets are scored."""
    scores = compare(reference, reference, {seed: {} for seed in reference})
    if "log_likelihood" not in scores:
        return []
    if "accuracy" in scores:
        return [
            f"{REFERENCE} itself has a log-likelihood of {scores['log_likelihood']} nats per image, and an "
            f"accuracy of {scores['accuracy']}."
        ]
    return [
        f"{REFERENCE} itself has a log-likelihood of {scores['log_likelihood']} nats per test row, in standard deviations of the "
        f"targets, and a coverage of {scores['coverage_95']}."
    ]
