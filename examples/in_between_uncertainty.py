"""Three toy regressions: what mean field, variational dropout and its structured form believe between and beyond the data.

    python examples/in_between_uncertainty.py [--out examples/in_between_uncertainty.png]

Nguyen et al., *Structured dropout variational inference for Bayesian neural networks* (2021), figures 5 and 6: a cubic seen at 20
points, and a curve seen in two clusters, by networks of one hidden layer; as there, dropout noise is on the hidden layer only. The
last column shows what a network of infinite width believes under exact inference (a Gaussian process), for comparison.

On the cubic, structured dropout comes closest to exact inference. Between the clusters its reflections let it doubt more than
independent noise does, but far less than exact inference: a ReLU network draws a straight line across the gap and is no less sure
of it than of the data, with one reflection as with three. Noise that multiplies can make doubtful only what the fitted function
uses, and units that bend within the gap are not used. So the paper's figure 6, with 50 ReLUs, is not reproduced; how its network
was trained the paper does not say.
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
from bayesify.plots.style import INK, MUTED, THEME, legend

SAMPLES = 1000  # draws per belief, as in the paper


@dataclass(frozen=True)
class Problem:
    """Inputs x (N, 1), the curve, a standard deviation of the noise, and the network: hidden units and their activation."""

    name: str
    x: Tensor
    curve: Callable[[Tensor], Tensor]
    noise: float
    hidden: int
    activation: type[nn.Module]
    seen: tuple[tuple[float, float], ...]
    reach: float

    def data(self) -> tuple[Tensor, Tensor]:
        return self.x, self.curve(self.x) + self.noise * torch.randn(len(self.x), 1, generator=torch.Generator().manual_seed(1))

    def grid(self) -> Tensor:
        return torch.linspace(-self.reach, self.reach, 201).unsqueeze(1)


def problems() -> list[Problem]:
    """The cubic in units of 4 (x) and 30 (y), its noise of standard deviation 3 being 0.1; the clusters with both activations."""
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


def network(problem: Problem, method: Method | dict[str, Method], steps: int) -> Predictive:
    """Train the network with this method and ask it about the grid."""
    torch.manual_seed(0)
    bnn = bayesify(nn.Sequential(nn.Linear(1, problem.hidden), problem.activation(), nn.Linear(problem.hidden, 1)), method)
    likelihood = Gaussian(std=problem.noise)
    settings: dict = {"epochs": steps, "batch_size": len(problem.x), "samples": 8, "learning_rate": 1e-2, "accelerator": "cpu"}
    fit(
        bnn, problem.data(), likelihood, scheduler=lambda optimizer: CosineAnnealingLR(optimizer, steps), progress=False, **settings
    )
    return predict(bnn, problem.grid(), likelihood, samples=SAMPLES, seed=0, coherent=True)


def gaussian_process(problem: Problem) -> Predictive:
    """The posterior of an infinitely wide network with normal weights (its kernel from 20,000 hidden units), exactly."""
    generator = torch.Generator().manual_seed(0)
    weight, bias = 3 * torch.randn(2, 20_000, generator=generator, dtype=torch.float64)
    x, y = (part.double() for part in problem.data())

    def features(inputs: Tensor) -> Tensor:
        return problem.activation()(inputs.double() * weight + bias) / 20_000**0.5

    seen, asked = features(x), features(problem.grid())
    gain = torch.linalg.solve(seen @ seen.T + problem.noise**2 * torch.eye(len(x)).double(), seen @ asked.T).T
    covariance = asked @ asked.T - gain @ (seen @ asked.T)
    root = torch.linalg.cholesky(covariance + 1e-6 * torch.eye(len(asked)).double())
    draws = (gain @ y).T + torch.randn(SAMPLES, len(asked), generator=generator, dtype=torch.float64) @ root.T
    return Gaussian(std=problem.noise).predictive(draws.float().unsqueeze(-1))


def main() -> None:
    """Train, print the model's doubt where data are and where they are not, and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".png"))
    parser.add_argument("--steps", type=int, default=2000)
    args = parser.parse_args()
    beliefs: dict[str, Callable[[Problem], Predictive]] = {
        "mean field": lambda problem: network(problem, MeanField(), args.steps),
        "variational dropout": lambda problem: network(problem, {"0": Deterministic(), "2": VariationalDropout()}, args.steps),
        "structured dropout": lambda problem: network(problem, {"0": Deterministic(), "2": VSD()}, args.steps),
        "exact, infinite width": gaussian_process,
    }
    rows = problems()
    settings: dict = {**THEME, "font.size": 10}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(14, 8.5), layout="constrained")
        panels = figure.subplots(len(rows), len(beliefs), sharey="row")
        for line, problem in zip(panels, rows, strict=True):
            for ax, (title, believe) in zip(line, beliefs.items(), strict=True):
                belief, grid = believe(problem), problem.grid()
                plot_bands(belief, grid, ax, data=problem.data())
                ax.plot(grid, problem.curve(grid), color=MUTED, linewidth=1, linestyle=(0, (4, 3)), label="truth")
                ax.set_ylim(-4, 4) if problem is rows[0] else ax.set_ylim(-2.5, 2.5)
                ax.set_title(f"{problem.name}: {title}", color=INK, loc="left", fontsize=9)
                ax.get_legend().remove()
                print(f"{problem.name:24s} {title:22s} {doubt(problem, belief)}", flush=True)
        legend(panels[0][0], loc="upper left")
        args.out.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(args.out, dpi=90, facecolor="white")
    print(f"wrote {args.out}")


def doubt(problem: Problem, belief: Predictive) -> str:
    """Epistemic standard deviations, averaged over where data are, between and beyond them."""
    grid, std = problem.grid()[:, 0], belief.epistemic.sqrt().flatten()
    seen = torch.stack([(low <= grid) & (grid <= high) for low, high in problem.seen]).any(0)
    inside = (problem.seen[0][0] <= grid) & (grid <= problem.seen[-1][1])
    places = {"seen": seen, "between": inside & ~seen, "beyond": ~inside}
    return "  ".join(f"{name} {std[where].mean():.3f}" for name, where in places.items() if where.any())


if __name__ == "__main__":
    main()
