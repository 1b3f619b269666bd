r"""Figures 1 and 2 of the VIFO paper: toy regression with a gap in the data, and prior predictive distributions.

    python examples/vifo_toy.py [--out examples/vifo_toy.png]

100 points of $y = 2 \sin x + 0.1 \epsilon$ on $\pm[\pi/2, 3\pi/4]$, five layers of 50 units, outputs z = (m, l): mean and log
variance of y. Top: means and bands of one standard deviation. Bottom: y under the prior of each method.

Without auxiliary inputs, the uncertainty in the gap is that at the data. With them (weight 1), the outputs in the gap revert to
the optimum of the regularizer, $N(0, \gamma)$ for both m and l, and so y to $0 \pm \sqrt{\gamma + e^{\gamma/2}} = 0 \pm 1.21$.
The prior of weights is independent of the data, whereas the learned prior of outputs follows them. The paper also shows inference
over weights with a learned prior mean, which is omitted here.
"""

from __future__ import annotations

import argparse
import math
from itertools import pairwise
from pathlib import Path

import matplotlib
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from bayesify import VIFO, Bayesian, MeanField, Method, bayesify, fit, predict
from bayesify.likelihoods import HeteroscedasticGaussian
from bayesify.plots import plot_bands
from bayesify.plots.style import BLUE, INK, REFERENCE, THEME, axes, label, legend

GRID = torch.linspace(-math.pi, math.pi, 201)[:, None]
WEIGHT_STD = 0.5  # prior standard deviation of weights
ONE_STD = math.erf(math.sqrt(0.5))  # the probability of one standard deviation around the mean


def data(n: int = 100) -> tuple[Tensor, Tensor]:
    """Points on both sides of a gap: x (n, 1), y (n,)."""
    generator = torch.Generator().manual_seed(0)
    x = math.pi * (0.5 + 0.25 * torch.rand(n, 1, generator=generator))
    x[: n // 2] *= -1
    return x, 2 * torch.sin(x[:, 0]) + 0.1 * torch.randn(n, generator=generator)


def network() -> nn.Sequential:
    layers = [part for a, b in pairwise([1, 50, 50, 50, 50, 50]) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(50, 2))


def trained(method: Method, epochs: int) -> Bayesian:
    """Train with a KL weight of 0.1, as in the paper: `beta` for weights, `eta` (default 0.1) for outputs."""
    torch.manual_seed(0)
    bnn = bayesify(network(), method)
    likelihood = HeteroscedasticGaussian()
    fit(bnn, data(), likelihood, epochs=epochs, batch_size=100, beta=0.1, accelerator="cpu", progress=False)
    return bnn


@torch.no_grad()
def sample_output_prior(bnn: Bayesian, draws: int) -> Tensor:
    """Draws of y (draws, N) with z from the learned prior N(m, gamma), m from its posterior at every x (section 2.2)."""
    outputs = bnn.normal_outputs(GRID)
    assert outputs is not None
    gamma, alpha = 0.3, 5.7  # the defaults of VIFO: prior_std**2 and mean_prior_std**2
    share = alpha / (alpha + gamma)
    z = share * outputs.mean + math.sqrt(gamma * (1 + share)) * torch.randn(draws, *outputs.mean.shape)
    return sample_targets(z)


@torch.no_grad()
def sample_weight_prior(draws: int) -> Tensor:
    """Draws of y (draws, N) with normal weights."""
    net, outputs = network(), []
    for _ in range(draws):
        for parameter in net.parameters():
            nn.init.normal_(parameter, std=WEIGHT_STD)
        outputs.append(net(GRID))
    return sample_targets(torch.stack(outputs))


def sample_targets(z: Tensor) -> Tensor:
    """Draws of y given outputs (..., 2); a standard deviation above 1e3 is off the figure."""
    return z[..., 0] + (0.5 * z[..., 1]).exp().clamp_max(1e3) * torch.randn(z.shape[:-1])


def draw_predictive(ax: Axes, bnn: Bayesian, title: str) -> str:
    """Draw the predictive distribution, and return its mean standard deviations as text."""
    predictive = predict(bnn, GRID, HeteroscedasticGaussian(), samples=4000, seed=0)
    plot_bands(predictive, GRID, ax, level=ONE_STD, data=data())
    ax.plot(GRID, 2 * torch.sin(GRID), **REFERENCE, label="truth")
    ax.set_ylim(-3.2, 4.8)
    ax.set_title(title, color=INK, loc="left")
    ax.legend().remove()  # one legend for all panels
    std, distance = predictive.variance.sqrt(), GRID[:, 0].abs()
    at_data = (distance > math.pi / 2) & (distance < 0.75 * math.pi)
    regions = {"at data": at_data, "gap": distance < 0.4 * math.pi, "beyond": distance > 2.8}
    return "  ".join(f"{name} {std[region].mean():.2f}" for name, region in regions.items())


def draw_prior(ax: Axes, y: Tensor) -> None:
    axes(ax)
    ax.scatter(GRID[:, 0].expand_as(y), y, s=1, color=BLUE, alpha=0.25, linewidths=0, rasterized=True)
    ax.scatter(*(v.flatten() for v in data()), s=9, color=INK, linewidths=0, zorder=3)
    ax.set(xlim=(-1.1 * math.pi, 1.1 * math.pi), ylim=(-8, 8))
    label(ax, "x", "y")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".png"))
    parser.add_argument("--epochs", type=int, default=1500)
    args = parser.parse_args()
    methods = {
        "inference over weights (mean field)": MeanField(prior_std=WEIGHT_STD),
        "VIFO": VIFO(),
        "VIFO with auxiliary inputs": VIFO(eta_aux=1.0),
    }
    settings: dict = {**THEME, "font.size": 10}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(13, 6), layout="constrained")
        above, below = figure.subplots(2, 3, sharey="row")
        for top, bottom, (title, method) in zip(above, below, methods.items(), strict=True):
            bnn = trained(method, args.epochs)
            print(f"{title:36s} standard deviation of y: {draw_predictive(top, bnn, title)}", flush=True)
            output_prior = isinstance(method, VIFO)
            draw_prior(bottom, sample_output_prior(bnn, 40) if output_prior else sample_weight_prior(400))
            bottom.set_title("y under its learned prior" if output_prior else "y under its prior", color=INK, loc="left")
        legend(above[0], loc="upper left", ncols=2)
        args.out.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(args.out, dpi=90, facecolor="white")
    print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
