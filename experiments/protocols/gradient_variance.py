r"""Variance of minibatch gradients by estimator: Kingma, Salimans & Welling (2015), section 5 (table 1) and appendix E (table 2).

A network is trained, and the gradient of the bound with respect to the weights $\theta$ of one layer is estimated from many
minibatches of M examples,

$$\hat g = \frac NM \sum_{i=1}^M \nabla_\theta \log p(y_i \mid x_i, w), \qquad
  V = \frac1{|\theta|}\sum_{j\in\theta} \frac1{K-1}\sum_{k=1}^K \bigl(\hat g_{kj} - \bar g_j\bigr)^2,$$

over minibatches (drawn from all N training examples, without replacement within one) and noise jointly. The KL does not depend on
theta. The mean of the K estimates replaces the full-data gradient; with the factor K - 1, V is unbiased. All estimators use the
same minibatches.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bayesify import Bayesian, Categorical
from bayesify.core.checks import check_choice, check_integer, check_positive
from bayesify.errors import ConfigurationError
from bayesify.train import fit
from experiments.harness.numbers import Estimate, estimate, markdown
from experiments.harness.protocol import ByJob, Context, Job, Protocol, Table, Unit
from experiments.protocols.digits_net import bayesian_net, digits, method_settings, per_example, posterior_mean, sites
from experiments.protocols.digits_training import dropout_rates, error

__all__ = ["ESTIMATORS", "GradientVariance", "deviations", "gradients"]

Forward = Callable[[Bayesian, Tensor], Tensor]

ESTIMATORS: dict[str, tuple[str, Forward]] = {
    "local": ("local reparameterization", lambda bnn, x: bnn(x).outputs[0]),
    "example": ("weight sample per data point", per_example),
    "minibatch": ("weight sample per minibatch", lambda bnn, x: bnn(x, coherent=True).outputs[0]),
    "none": ("no dropout noise", posterior_mean),
}
"""Name in the paper, and a function from inputs (B, D) to outputs (B, O). With input noise, "local" draws per example, too."""

_LAYERS = ("top", "bottom")
_ORDER = ("local", "example", "minibatch")  # of increasing variance in the paper
_EXPLICIT_ROWS = 4  # whose weights fit in a processor's cache


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What `config.toml` may set.

    Attributes:
        posterior: the method, as for `Method.from_dict`, without `p`.
        rates: initial dropout rates of the "input" and the "hidden" units.
        hidden: units in each hidden layer.
        epochs: after which the variance is measured; training ends after the last.
        batch_size, learning_rate: of training, by Adam.
        rows: M, examples per minibatch of the gradients that are measured.
        batches: K by estimator; other estimators are omitted.
        seeds: number of networks.
    """

    posterior: dict[str, Any]
    rates: dict[str, float]
    hidden: int
    epochs: list[int]
    batch_size: int
    learning_rate: float
    rows: int
    batches: dict[str, int]
    seeds: int

    def __post_init__(self) -> None:
        for name in ("hidden", "batch_size", "rows", "seeds"):
            check_integer(name, getattr(self, name))
        check_positive("learning_rate", self.learning_rate)
        for name, count in self.batches.items():
            check_choice("an estimator of batches", name, tuple(ESTIMATORS))
            check_integer(f"batches.{name}", count, least=3)
        if "local" not in self.batches:
            raise ConfigurationError("batches must have an entry 'local', with which the other estimators are compared")
        if not self.epochs or sorted(set(self.epochs)) != self.epochs or self.epochs[0] < 1:
            raise ConfigurationError(f"epochs must be whole numbers of at least 1, rising, got {self.epochs}")
        bayesian_net(1, 1, self.posterior, self.rates, seed=0)


def gradients(forward: Forward, bnn: Bayesian, x: Tensor, y: Tensor, n: int, rows: int | None = None) -> dict[str, Tensor]:
    r"""One minibatch's estimate of $\nabla_\theta \sum_{i=1}^n \log p(y_i \mid x_i)$, for the top and bottom layer's weights.

    Args:
        forward: one of `ESTIMATORS`.
        bnn: the net.
        x, y: the minibatch, (M, D) and (M,).
        n: N, the size of the training set.
        rows: rows per pass, only for estimators whose noise differs between rows; None for all.
    """
    layers = sites(bnn)
    weights = {"top": layers[-1].weight, "bottom": layers[0].weight}
    total = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    likelihood = Categorical()
    for part, labels in zip(x.split(rows or len(x)), y.split(rows or len(x)), strict=True):
        log_prob = likelihood.log_prob(forward(bnn, part).unsqueeze(0), labels).sum() * (n / len(x))
        for name, gradient in zip(weights, torch.autograd.grad(log_prob, list(weights.values())), strict=True):
            total[name] += gradient
    return total


def deviations(estimates: Sequence[Tensor]) -> list[float]:
    """Mean squared distance of each estimate from the mean of all K, times K / (K - 1); V is the mean of these."""
    count = len(estimates)
    mean = torch.zeros_like(estimates[0], dtype=torch.float64)
    for gradient in estimates:
        mean += gradient / count
    return [float((g.double() - mean).square().mean()) * count / (count - 1) for g in estimates]


def measure(
    bnn: Bayesian, data: tuple[Tensor, Tensor], rows: int, batches: Mapping[str, int], seed: int, tick: Callable[[str], object]
) -> dict[str, list[float]]:
    """The deviations by "LAYER ESTIMATOR"; the global random state is unchanged."""
    x, y = data
    results: dict[str, list[float]] = {}
    with torch.random.fork_rng(devices=()):
        for name, count in batches.items():
            torch.manual_seed(seed)
            order = torch.Generator().manual_seed(seed)  # the same minibatches for all estimators
            found: dict[str, list[Tensor]] = {layer: [] for layer in _LAYERS}
            for _ in range(count):
                index = torch.randperm(len(x), generator=order)[:rows]
                chunk = _EXPLICIT_ROWS if name == "example" else None
                for layer, gradient in gradients(ESTIMATORS[name][1], bnn, x[index], y[index], len(x), chunk).items():
                    found[layer].append(gradient)
                tick(name)
            results |= {f"{layer} {name}": [float(f"{d:.6g}") for d in deviations(found[layer])] for layer in _LAYERS}
    return results


class GradientVariance(Protocol):
    """One job, a network per seed; a unit has by "EPOCH LAYER ESTIMATOR" one number per minibatch, whose mean is the variance."""

    name = "gradient-variance"

    def jobs(self, table: Table) -> list[Job]:
        settings = Settings(**table.settings)
        described = dataclasses.asdict(settings) | {"posterior": method_settings(settings.posterior, settings.rates)}
        del described["seeds"]
        units = tuple(str(seed) for seed in range(settings.seeds))
        return [Job("variance", described, units, data=("mnist",), cost=10.0 * settings.epochs[-1])]

    def run(self, job: Job, units: Sequence[str], context: Context) -> Mapping[str, Unit]:
        settings = Settings(**job.settings, seeds=len(units))
        train, test = digits("train", context.data_dir), digits("test", context.data_dir)
        results: dict[str, Unit] = {}
        for index, unit in enumerate(units):
            results[unit] = self._unit(
                settings, int(unit), train, test, lambda share, i=index: context.progress((i + share) / len(units))
            )
            context.save({unit: results[unit]})
        return results

    def _unit(
        self,
        settings: Settings,
        seed: int,
        train: tuple[Tensor, Tensor],
        test: tuple[Tensor, Tensor],
        progress: Callable[[float], object],
    ) -> Unit:
        bnn = bayesian_net(train[0].shape[1], settings.hidden, settings.posterior, settings.rates, seed)
        # work in passes of one minibatch through the local estimator; explicit weights cost a hundred of them
        weight = {name: 100 if name == "example" else 1 for name in ESTIMATORS}
        epoch_work = math.ceil(len(train[0]) / settings.rows)
        each = sum(weight[name] * count for name, count in settings.batches.items())
        total, done = settings.epochs[-1] * epoch_work + len(settings.epochs) * each, 0
        result: Unit = {}

        def advance(work: int) -> None:
            nonlocal done
            done += work
            progress(done / total)

        def after(record: dict[str, float]) -> None:
            advance(epoch_work)
            epoch = int(record["epoch"])
            if epoch not in settings.epochs:
                return
            result[f"{epoch} test error"] = error(bnn, test)
            result[f"{epoch} training nll"] = record["nll"]
            result[f"{epoch} dropout rates"] = dropout_rates(bnn)
            found = measure(bnn, train, settings.rows, settings.batches, seed, lambda name: advance(weight[name]))
            result.update({f"{epoch} {name}": values for name, values in found.items()})

        fit(
            bnn, train, Categorical(), epochs=settings.epochs[-1], batch_size=settings.batch_size,
            learning_rate=settings.learning_rate, seed=seed, accelerator="cpu", loggers=[after], progress=False,
        )  # fmt: skip
        return result

    def report(self, table: Table, jobs: Sequence[Job], results: ByJob) -> str:
        settings = Settings(**table.settings)
        units = list(results["variance"].values())
        rows, ordered = [], []
        for layer in _LAYERS:
            for index, epoch in enumerate(settings.epochs):
                found = {name: [estimate(unit[f"{epoch} {layer} {name}"]) for unit in units] for name in settings.batches}
                theirs = {name: numbers[layer][index] for name, numbers in table.published.items() if index < len(numbers[layer])}
                rows += [[layer, str(epoch), *cells] for cells in _rows(found, theirs)]
                means = [_over_nets(found[name]).mean for name in _ORDER if name in found]
                ordered.append(means == sorted(means))
        order = " < ".join(ESTIMATORS[name][0] for name in _ORDER if name in settings.batches)
        header = ["layer", "epochs", "estimator", "paper", "ours", "ratio: paper", "ratio: ours", "ours / paper"]
        parts = [
            "Variance of the gradient of the bound of the whole training set (N/M times the sum over a minibatch), averaged "
            "over the weights of a layer, and its ratio to that of local reparameterization. Only the ratios are comparable: "
            "the level depends on width, initial weights and batch size of training, which the paper does not give.",
            markdown(header, rows, left=3),
            f"± is the standard error over {'nets' if len(units) > 1 else 'minibatches, for one trained network'}.",
            f"{order}: in {sum(ordered)} of {len(ordered)} cases.",
        ]
        for epoch in settings.epochs:
            errors = estimate([unit[f"{epoch} test error"] for unit in units])
            rates = [", ".join(f"{rate:.2f}" for rate in unit.get(f"{epoch} dropout rates", [])) for unit in units]
            learned = f"; mean dropout rates of the layers, from the bottom: {'; '.join(rates)}" if all(rates) else ""
            parts.append(f"After {epoch} epochs: test error of the mean weights {errors} %{learned}.")
        return "\n\n".join(parts)


def _rows(found: Mapping[str, Sequence[Estimate]], theirs: Mapping[str, float]) -> list[list[str]]:
    """For every estimator of one layer and epoch: its name, the variance and its ratio to "local", the paper's and ours.

    Args:
        found: by estimator, the variance for every net.
        theirs: the paper's.
    """
    rows = []
    for name, each in found.items():
        variance, ratio = _over_nets(each), _over_nets([_ratio(*pair) for pair in zip(each, found["local"], strict=True)])
        row = [ESTIMATORS[name][0], f"{theirs[name]:.1e}" if name in theirs else "-"]
        row.append(f"{variance.mean:.1e} ± {100 * variance.error / variance.mean:.0f} %")
        if name == "local":
            row += ["1", "1", "-"]
        elif {name, "local"} <= set(theirs):
            published = theirs[name] / theirs["local"]
            row += [f"{published:.2g}", str(ratio), f"{ratio.mean / published:.2g}"]
        else:
            row += ["-", str(ratio), "-"]
        rows.append(row)
    return rows


def _ratio(value: Estimate, base: Estimate) -> Estimate:
    """The quotient; its error to first order, as for independent values."""
    ratio = value.mean / base.mean
    return Estimate(ratio, ratio * math.hypot(value.error / value.mean, base.error / base.mean))


def _over_nets(each: Sequence[Estimate]) -> Estimate:
    """Mean over networks with its standard error; for a single network its own estimate."""
    return each[0] if len(each) == 1 else estimate([one.mean for one in each])
