"""Tables: the UCI sets and their standard splits, after Hernandez-Lobato & Adams (2015) and Gal & Ghahramani (2016).

Inputs and regression targets are standardized by the training rows of a split; scores are in the unit of the targets.
Hyperparameters are chosen on training rows; the test rows of a split are used once, by the final model.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar

from bayesify import metrics
from bayesify.core.checks import check_choice, check_integer
from bayesify.datasets import UCI, load_uci
from bayesify.errors import ConfigurationError
from experiments.harness.config import overlay
from experiments.harness.protocol import ByJob, Context, Job, Protocol, Table, Unit, UnitError, plain
from experiments.protocols.shared.configuration import list_of, method_name
from experiments.protocols.tabular.choice import Choice, choose
from experiments.protocols.tabular.figure import draw_overview
from experiments.protocols.tabular.settings import Choose, Setup
from experiments.protocols.tabular.splits import hold_out, make_split
from experiments.protocols.tabular.tables import CLASSIFICATION, REGRESSION, Kind, published_of, write_tables
from experiments.protocols.tabular.training import Model, train

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Classification", "Regression"]

_GENERAL = ("datasets", "methods", "splits")
_STEP = 5e-5  # seconds per step of one model of twenty; only orders jobs and estimates the remaining time


class Tabular(Protocol):
    """Several methods on several data sets.

    Settings are those of `Setup` and `splits`, the number of splits; `datasets`, a list of names, or tables with settings by name;
    `methods`, a list of tables with a `name` and settings. Those of a method override those of a data set, in `choose` key by key.
    """

    setting_types: ClassVar[Mapping[str, type]] = {"setup": Setup, "choose": Choose}
    kind: ClassVar[Kind]
    rows: ClassVar[Mapping[str, int]]
    """Number of rows by data set."""

    def jobs(self, table: Table) -> list[Job]:
        general = {key: value for key, value in table.settings.items() if key not in _GENERAL}
        datasets = _datasets(table.settings.get("datasets"))
        methods = list_of("methods", table.settings.get("methods"), Mapping)
        published_of(table.published, self.kind)
        jobs = []
        for dataset, own in datasets.items():
            check_choice("a data set", dataset, tuple(self.rows))
            splits = own.get("splits", table.settings.get("splits", 20))
            check_integer(f"splits of {dataset}", splits)
            for method in methods:
                name = method_name(method)
                fields = {**general, **own, **method}
                del fields["name"]
                fields.pop("splits", None)
                try:
                    if choices := [level["choose"] for level in (general, own, method) if "choose" in level]:
                        fields["choose"] = reduce(overlay, choices)
                    setup = Setup.from_dict(fields)
                except (TypeError, ValueError) as error:
                    raise ConfigurationError(f"{name} on {dataset}: {error}") from error
                jobs.append(
                    Job(
                        key=f"{dataset}-{plain(name)}",
                        settings={"dataset": dataset, "method": name, "setup": setup.to_dict()},
                        units=tuple(map(str, range(splits))),
                        data=(dataset,),
                        cost=_cost(setup, self.rows[dataset]),
                    )
                )
        return jobs

    def run(self, job: Job, units: Sequence[str], context: Context) -> Mapping[str, Unit]:
        setup = Setup.from_dict(job.settings["setup"])
        data = load_uci(job.settings["dataset"], context.data_dir)
        seeds = {unit: setup.seed + int(unit) for unit in units}
        setups, facts, share = dict.fromkeys(units, setup), dict.fromkeys(units, Unit()), 0.0
        if setup.choose is not None:
            rows = len(data.split(int(units[0]))[0])
            share = 1 - setup.passes(rows) / _passes(setup, rows)
            choices = _choose(setup, data, seeds, lambda done: context.progress(share * done))
            setups = {unit: choice.setup for unit, (choice, _) in choices.items()}
            facts = {unit: fact for unit, (_, fact) in choices.items()}

        splits = [make_split(data.X, data.y, *data.split(int(unit)), _count(data)) for unit in setups]
        models = train(
            list(setups.values()),
            splits,
            [seeds[unit] for unit in setups],
            lambda done: context.progress(share + (1 - share) * done),
        )
        trained = dict(zip(setups, models, strict=True))
        results = {unit: {**evaluate(model), **facts[unit]} for unit, model in trained.items() if not model.history.failure}
        failed = {unit: model.history.failure for unit, model in trained.items() if model.history.failure}
        failed |= {unit: "all candidates failed" for unit in units if unit not in trained}
        if failed:
            context.save(results)
            raise UnitError("; ".join(f"split {unit}: {reason}" for unit, reason in failed.items()))
        return results

    def report(self, table: Table, jobs: Sequence[Job], results: ByJob) -> str:
        published = published_of(table.published, self.kind)
        return write_tables(jobs, results, published, _sources(table.published), self.kind)

    def figure(self, table: Table, jobs: Sequence[Job], results: ByJob) -> Figure | None:
        return draw_overview(jobs, results, published_of(table.published, self.kind), self.kind)


class Regression(Tabular):
    """Regression: a Gaussian likelihood with learned or fixed noise."""

    name: ClassVar[str] = "regression"
    version: ClassVar[int] = 1
    kind: ClassVar[Kind] = REGRESSION
    rows: ClassVar[Mapping[str, int]] = {
        "boston": 506, "concrete": 1030, "kin8nm": 8192, "naval": 11934, "power-plant": 9568, "protein": 45730, "yacht": 308
    }  # fmt: skip


class Classification(Tabular):
    """Classification: a categorical likelihood."""

    name: ClassVar[str] = "classification"
    version: ClassVar[int] = 1
    kind: ClassVar[Kind] = CLASSIFICATION
    rows: ClassVar[Mapping[str, int]] = {"eeg": 14977, "letter": 20000}


def evaluate(model: Model) -> Unit:
    r"""Evaluate a model on its test rows.

    Returns:
        log_likelihood, the mean over rows of $\log\frac1S\sum_s p(y \mid x, w_s)$ in nats. For regression, in the unit of the
        targets: rmse of the predictive mean; crps; coverage_95 and width_95 of the central 95 % interval; noise_std. For
        classification: error (%), brier, ece and mce. Also kl (nats) and nll (nats per row, standardized) at the end of training;
        seconds, epochs, seed, numbers of rows and parameters; by_samples, the scores with each of `sample_counts` draws, if any.
    """
    started = time.perf_counter()
    scores = _scores(model, model.setup.samples)
    seconds = time.perf_counter() - started
    by_samples = {str(count): _scores(model, count) for count in model.setup.sample_counts}
    return {
        **scores,
        **({"by_samples": by_samples} if by_samples else {}),
        **({} if model.noise_std is None else {"noise_std": model.noise_std}),
        "kl": model.history.kl[-1],
        "nll": model.history.nll[-1],
        "epochs": len(model.history),
        "train_seconds": round(model.seconds, 4),
        "test_seconds": round(seconds, 4),
        "seed": model.seed,
        "n_train": len(model.split.y),
        "n_test": len(model.split.y_test),
        "parameters": sum(p.numel() for p in model.bnn.parameters()),
    }


def _scores(model: Model, samples: int) -> dict[str, float]:
    scores = metrics.evaluate(model.predictive(samples), model.split.y_test)
    scores["log_likelihood"] = -scores.pop("nll")
    if "accuracy" in scores:
        scores["error"] = 100 * (1 - scores.pop("accuracy"))
    return scores


def _datasets(value: object) -> dict[str, dict[str, Any]]:
    """Settings by data set."""
    if isinstance(value, list) and value and all(isinstance(name, str) for name in value):
        return {name: {} for name in value}
    if isinstance(value, Mapping) and value and all(isinstance(own, Mapping) for own in value.values()):
        return {name: dict(own) for name, own in value.items()}
    raise ConfigurationError(f"datasets must be a list of names, or tables such as [datasets.boston], got {value!r}")


def _sources(published: Mapping[str, Any]) -> dict[str, str]:
    return {method: str(entry["source"]) for method, entry in published.items() if "source" in entry}


def _choose(
    setup: Setup, data: UCI, seeds: Mapping[str, int], progress: Callable[[float], object]
) -> dict[str, tuple[Choice, Unit]]:
    """The choice for each split, and facts for its results; splits all of whose candidates failed are missing."""
    assert setup.choose is not None
    rows = [hold_out(data.split(int(unit))[0], setup.choose.fraction, seed) for unit, seed in seeds.items()]
    parts = [make_split(data.X, data.y, fit, held_out, _count(data)) for fit, held_out in rows]
    started = time.perf_counter()
    choices = choose(setup, parts, list(seeds.values()), progress)
    seconds = round((time.perf_counter() - started) / len(seeds), 4)
    return {
        unit: (choice, {"chosen": choice.fields, "validation_log_likelihood": choice.log_likelihood, "choice_seconds": seconds})
        for unit, choice in zip(seeds, choices, strict=True)
        if choice is not None
    }


def _count(data: UCI) -> int | None:
    """Number of classes, None for regression."""
    return None if data.classes is None else len(data.classes)


def _passes(setup: Setup, rows: int) -> int:
    """Epochs of one split with this number of training rows, trials included."""
    trials = sum(trial.passes(rows) for trial in setup.trials())
    return setup.passes(rows) + (0 if setup.choose is None else math.ceil(setup.choose.share * trials))


def _cost(setup: Setup, rows: int) -> float:
    rows = math.ceil(0.9 * rows)
    return _STEP * math.ceil(rows / setup.batch_size) * _passes(setup, rows) * setup.train_samples
