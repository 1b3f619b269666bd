r"""The VIFO paper's figures 1 and 2: a curve with a gap in its data, and what its priors predict before any data are seen.

    python examples/vifo_toy.py [--out examples/vifo_toy.png]

100 points of $y = 2 \sin x + 0.1 \epsilon$ on $\pm[\pi/2, 3\pi/4]$, five layers of 50 units, outputs z = (m, l): mean and log
variance of y. Above, means and bands of one standard deviation; below, values of y under the prior that each method compares with.

Without auxiliary inputs the network is as sure in the gap as at the data. With them (weight 1) its outputs fall back there to what
the regulariser likes best, $N(0, \gamma)$ for m and l alike, and so y to $0 \pm \sqrt{\gamma + e^{\gamma/2}} = 0 \pm 1.21$: unsure,
and flat. A prior of weights knows nothing of the data (its y fill the plane), the learned prior of outputs follows them. The paper
also shows inference over weights with a learned prior mean, which is left out here.
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
from bayesify.plots.style import BLUE, INK, MUTED, THEME, axes, label, legend

GRID = torch.linspace(-math.pi, math.pi, 201)[:, None]
WEIGHT_STD = 0.5  # of the prior of weights
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
    """With a tenth of the KL, as in the paper: `beta` weighs that of weights, `eta` that of outputs (0.1 unless given)."""
    torch.manual_seed(0)
    bnn = bayesify(network(), method)
    likelihood = HeteroscedasticGaussian()
    fit(bnn, data(), likelihood, epochs=epochs, batch_size=100, beta=0.1, accelerator="cpu", progress=False)
    return bnn


@torch.no_grad()
def under_the_prior_of_outputs(bnn: Bayesian, method: VIFO, draws: int) -> Tensor:
    """y (draws, N) from z of the learned prior: N(m, gamma) with m of its posterior for every x, section 2.2."""
    outputs = bnn.normal_outputs(GRID)
    assert outputs is not None
    share = method.alpha / (method.alpha + method.gamma)
    z = share * outputs.mean + math.sqrt(method.gamma * (1 + share)) * torch.randn(draws, *outputs.mean.shape)
    return observed(z)


@torch.no_grad()
def under_the_prior_of_weights(draws: int) -> Tensor:
    """y (draws, N) from normal weights, the same for all x of a draw."""
    net, outputs = network(), []
    for _ in range(draws):
        for parameter in net.parameters():
            nn.init.normal_(parameter, std=WEIGHT_STD)
        outputs.append(net(GRID))
    return observed(torch.stack(outputs))


def observed(z: Tensor) -> Tensor:
    """y of outputs (..., 2); beyond 1e3 the noise is off every picture."""
    return z[..., 0] + (0.5 * z[..., 1]).exp().clamp_max(1e3) * torch.randn(z.shape[:-1])


def draw_belief(ax: Axes, bnn: Bayesian, title: str) -> str:
    """The picture, and its standard deviations in words."""
    belief = predict(bnn, GRID, HeteroscedasticGaussian(), samples=4000, seed=0)
    plot_bands(belief, GRID, ax, level=ONE_STD, data=data())
    ax.plot(GRID, 2 * torch.sin(GRID), color=MUTED, linewidth=1, linestyle=(0, (4, 3)), label="truth")
    ax.set_ylim(-3.2, 4.8)
    ax.set_title(title, color=INK, loc="left")
    ax.legend().remove()  # one for all panels will do
    std, place = belief.variance.sqrt(), GRID[:, 0].abs()
    places = {"seen": (place > math.pi / 2) & (place < 0.75 * math.pi), "gap": place < 0.4 * math.pi, "beyond": place > 2.8}
    return "  ".join(f"{name} {std[where].mean():.2f}" for name, where in places.items())


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
    plain, auxiliary = VIFO(), VIFO(eta_aux=1.0)
    methods = {
        "inference over weights (mean field)": MeanField(prior_std=WEIGHT_STD),
        "VIFO": plain,
        "VIFO with auxiliary inputs": auxiliary,
    }
    settings: dict = {**THEME, "font.size": 10}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(13, 6), layout="constrained")
        above, below = figure.subplots(2, 3, sharey="row")
        for top, bottom, (title, method) in zip(above, below, methods.items(), strict=True):
            bnn = trained(method, args.epochs)
            print(f"{title:36s} standard deviation of y: {draw_belief(top, bnn, title)}", flush=True)
            of_outputs = isinstance(method, VIFO)
            draw_prior(bottom, under_the_prior_of_outputs(bnn, method, 40) if of_outputs else under_the_prior_of_weights(400))
            bottom.set_title("y under its learned prior" if of_outputs else "y under its prior", color=INK, loc="left")
        legend(above[0], loc="upper left", ncols=2)
        args.out.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(args.out, dpi=90, facecolor="white")
    print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
