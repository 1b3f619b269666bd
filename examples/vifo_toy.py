r"""The VIFO paper's figures 1 and 2: a curve with a gap in its data, and what the learned prior of the outputs predicts.

    python examples/vifo_toy.py [FOLDER]

100 points of $y = 2 \sin x + 0.1 \epsilon$ on $\pm[\pi/2, 3\pi/4]$, five layers of 50 units, outputs z = (m, l): mean and log
variance of y, both with a mean and a standard deviation of their own. The regulariser at auxiliary inputs keeps the network unsure
where it has seen nothing. Writes `vifo-uncertainty.png` and `vifo-prior.png`.
"""

import math
import sys
from itertools import pairwise
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from bayesify import VIFO, Bayesian, bayesify, fit, predict
from bayesify.likelihoods import HeteroscedasticGaussian

GRID = torch.linspace(-math.pi, math.pi, 200)[:, None]
INK, BAND = "#1f4e79", "#9dc3e6"


def data(n: int = 100) -> tuple[Tensor, Tensor]:
    """Points on both sides of a gap: x (n, 1), y (n,)."""
    generator = torch.Generator().manual_seed(0)
    x = math.pi * (0.5 + 0.25 * torch.rand(n, 1, generator=generator))
    x[: n // 2] *= -1
    return x, 2 * torch.sin(x[:, 0]) + 0.1 * torch.randn(n, generator=generator)


def network() -> nn.Sequential:
    layers = [part for a, b in pairwise([1, 50, 50, 50, 50, 50]) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(50, 2))


def trained(eta_aux: float, epochs: int = 1500) -> Bayesian:
    """VIFO with a learned prior mean, eta = 0.1 as in the paper."""
    torch.manual_seed(0)
    bnn = bayesify(network(), VIFO(regularizer="mean", eta=0.1, eta_aux=eta_aux))
    fit(bnn, data(), HeteroscedasticGaussian(), epochs=epochs, batch_size=100, accelerator="cpu", progress=False)
    return bnn


def draw_band(axes: Axes, bnn: Bayesian, title: str) -> None:
    """Predictive mean and one standard deviation, and the data."""
    p = predict(bnn, GRID, HeteroscedasticGaussian(), samples=500, seed=0)
    grid, mean, std = GRID[:, 0], p.mean, p.variance.sqrt()
    axes.fill_between(grid, mean - std, mean + std, color=BAND, alpha=0.6, linewidth=0)
    axes.plot(grid, mean, color=INK)
    axes.scatter(*(v.flatten() for v in data()), s=6, color="black", zorder=3)
    axes.set(title=title, xlabel="x", ylim=(-6, 6))


@torch.no_grad()
def prior_predictions(bnn: Bayesian, method: VIFO, draws: int = 30) -> Tensor:
    """y (draws, N) from z of the learned prior: N(m, gamma) with m of its posterior for every x, section 2.2."""
    outputs = bnn.normal_outputs(GRID)
    assert outputs is not None
    share = method.alpha / (method.alpha + method.gamma)
    z = share * outputs.mean + math.sqrt(method.gamma * (1 + share)) * torch.randn(draws, *outputs.mean.shape)
    return z[..., 0] + (0.5 * z[..., 1]).exp() * torch.randn(z.shape[:-1])


@torch.no_grad()
def weight_prior_predictions(draws: int = 30) -> Tensor:
    """y (draws, N) from weights of the prior N(0, 0.5^2), the same for all x of a draw."""
    net, lines = network(), []
    for _ in range(draws):
        for parameter in net.parameters():
            nn.init.normal_(parameter, std=0.5)
        z = net(GRID)
        lines.append(z[:, 0] + (0.5 * z[:, 1]).exp().clamp_max(1e3) * torch.randn(len(z)))
    return torch.stack(lines)


def main(folder: Path) -> None:
    plain, auxiliary = trained(0.0), trained(1.0)
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    draw_band(left, plain, "VIFO, no auxiliary inputs")
    draw_band(right, auxiliary, "VIFO, auxiliary inputs")
    figure.savefig(folder / "vifo-uncertainty.png", dpi=150)
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    for axes, title, y in zip(
        figure.subplots(1, 2, sharey=True),
        ("prior of the weights", "learned prior of the outputs (VIFO)"),
        (weight_prior_predictions(), prior_predictions(auxiliary, VIFO())),
        strict=True,
    ):
        axes.scatter(GRID[:, 0].expand_as(y), y, s=1, color=INK, alpha=0.3, linewidths=0)
        axes.scatter(*(v.flatten() for v in data()), s=6, color="black", zorder=3)
        axes.set(title=title, xlabel="x", ylim=(-8, 8))
    figure.savefig(folder / "vifo-prior.png", dpi=150)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
