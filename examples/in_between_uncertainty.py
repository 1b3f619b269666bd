"""Toy regression: uncertainty of mean field, variational dropout and structured dropout between and beyond the data.

    python examples/in_between_uncertainty.py [--out examples/in_between_uncertainty.png]

Nguyen et al., *Structured dropout variational inference for Bayesian neural networks* (2021), figures 5 and 6: a cubic with 20
points, and a curve with two clusters of points, for networks with one hidden layer. As in the paper, dropout noise is on the hidden
layer only. The last column is exact inference for a network of infinite width (a Gaussian process).

On the cubic, structured dropout is closest to exact inference. Between the clusters, its epistemic uncertainty exceeds that of
independent noise, but is far below exact inference: a ReLU network interpolates the gap linearly, with the same uncertainty as at
the data, for one reflection or three. Multiplicative noise affects only units that the fitted function uses, and units with a
kink in the gap are not used. The paper's figure 6, with 50 ReLUs, is therefore not reproduced; the paper does not say how its
network was trained.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from bayesify import VSD, Deterministic, Gaussian, MeanField, Method, Predictive, VariationalDropout, bayesify, fit, predict
from bayesify.plots import plot_bands
from bayesify.plots.style import INK, REFERENCE, THEME, legend

SAMPLES = 1000  # draws per prediction, as in the paper


@dataclass(frozen=True)
class Problem:
    """Inputs x (N, 1), true curve, standard deviation of noise, hidden units, activation, intervals with data, grid range."""

    name: str
    x: Tensor
    curve: Callable[[Tensor], Tensor]
    noise: float
    hidden: int
    activation: type[nn.Module]
    observed: tuple[tuple[float, float], ...]
    reach: float

    def data(self) -> tuple[Tensor, Tensor]:
        return self.x, self.curve(self.x) + self.noise * torch.randn(len(self.x), 1, generator=torch.Generator().manual_seed(1))

    def grid(self) -> Tensor:
        return torch.linspace(-self.reach, self.reach, 201).unsqueeze(1)


def problems() -> list[Problem]:
    """The cubic in units of 4 (x) and 30 (y), in which its noise has standard deviation 0.1; the clusters with both activations."""
    generator = torch.Generator().manual_seed(0)
    u = torch.rand(20, 1, generator=generator)
    clusters = torch.cat([0.4 * u - 1.1, 0.4 * u.flip(0) + 0.6]).repeat(2, 1) + 0.02 * torch.randn(80, 1, generator=generator)
    sides = ((-1.1, -0.7), (0.6, 1.0))
    return [
        Problem("a cubic, 100 ReLUs", 2 * u - 1, _cubic, 0.1, 100, nn.ReLU, ((-1.0, 1.0),), 1.5),
        Problem("two clusters, 50 ReLUs", clusters, _wave, 0.1, 50, nn.ReLU, sides, 1.6),
        Problem("two clusters, 50 tanh", clusters, _wave, 0.1, 50, nn.Tanh, sides, 1.6),
    ]


def _cubic(x: Tensor) -> Tensor:
    return 64 / 30 * x**3


def _wave(x: Tensor) -> Tensor:
    return torch.sin(4 * x)


def variational(problem: Problem, method: Method | dict[str, Method], steps: int) -> Predictive:
    """Train the network with a method and predict on the grid."""
    torch.manual_seed(0)
    bnn = bayesify(nn.Sequential(nn.Linear(1, problem.hidden), problem.activation(), nn.Linear(problem.hidden, 1)), method)
    likelihood = Gaussian(std=problem.noise)
    settings: dict = {"epochs": steps, "batch_size": len(problem.x), "samples": 8, "learning_rate": 1e-2, "accelerator": "cpu"}
    fit(
        bnn, problem.data(), likelihood, scheduler=lambda optimizer: CosineAnnealingLR(optimizer, steps), progress=False, **settings
    )
    return predict(bnn, problem.grid(), likelihood, samples=SAMPLES, seed=0, coherent=True)


def gaussian_process(problem: Problem) -> Predictive:
    """Exact posterior of an infinitely wide network with normal weights, with a kernel from 20,000 hidden units."""
    generator = torch.Generator().manual_seed(0)
    weight, bias = 3 * torch.randn(2, 20_000, generator=generator, dtype=torch.float64)
    x, y = (part.double() for part in problem.data())

    def features(inputs: Tensor) -> Tensor:
        return problem.activation()(inputs.double() * weight + bias) / 20_000**0.5

    train, test = features(x), features(problem.grid())
    gain = torch.linalg.solve(train @ train.T + problem.noise**2 * torch.eye(len(x)).double(), train @ test.T).T
    covariance = test @ test.T - gain @ (train @ test.T)
    root = torch.linalg.cholesky(covariance + 1e-6 * torch.eye(len(test)).double())
    draws = (gain @ y).T + torch.randn(SAMPLES, len(test), generator=generator, dtype=torch.float64) @ root.T
    return Gaussian(std=problem.noise).predictive(draws.float().unsqueeze(-1))


def main() -> None:
    """Train, print epistemic uncertainties, and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".png"))
    parser.add_argument("--steps", type=int, default=2000)
    args = parser.parse_args()
    methods: dict[str, Callable[[Problem], Predictive]] = {
        "mean field": lambda problem: variational(problem, MeanField(), args.steps),
        "variational dropout": lambda problem: variational(problem, {"0": Deterministic(), "2": VariationalDropout()}, args.steps),
        "structured dropout": lambda problem: variational(problem, {"0": Deterministic(), "2": VSD()}, args.steps),
        "exact, infinite width": gaussian_process,
    }
    rows = problems()
    settings: dict = {**THEME, "font.size": 10}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(14, 8.5), layout="constrained")
        panels = figure.subplots(len(rows), len(methods), sharey="row")
        for line, problem in zip(panels, rows, strict=True):
            for ax, (title, infer) in zip(line, methods.items(), strict=True):
                predictive, grid = infer(problem), problem.grid()
                plot_bands(predictive, grid, ax, data=problem.data())
                ax.plot(grid, problem.curve(grid), **REFERENCE, label="truth")
                ax.set_ylim(-4, 4) if problem is rows[0] else ax.set_ylim(-2.5, 2.5)
                ax.set_title(f"{problem.name}: {title}", color=INK, loc="left", fontsize=9)
                ax.get_legend().remove()
                print(f"{problem.name:24s} {title:22s} {epistemic_stds(problem, predictive)}", flush=True)
        legend(panels[0][0], loc="upper left")
        args.out.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(args.out, dpi=90, facecolor="white")
    print(f"wrote {args.out}")


def epistemic_stds(problem: Problem, predictive: Predictive) -> str:
    """Epistemic standard deviations, averaged at, between and beyond the data."""
    grid, std = problem.grid()[:, 0], predictive.epistemic.sqrt().flatten()
    at_data = torch.stack([(low <= grid) & (grid <= high) for low, high in problem.observed]).any(0)
    inside = (problem.observed[0][0] <= grid) & (grid <= problem.observed[-1][1])
    regions = {"at data": at_data, "between": inside & ~at_data, "beyond": ~inside}
    return "  ".join(f"{name} {std[region].mean():.3f}" for name, region in regions.items() if region.any())


if __name__ == "__main__":
    main()
