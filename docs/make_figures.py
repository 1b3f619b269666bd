"""Draw the figures of the README and the documentation: `python docs/make_figures.py`.

Regression with a gap in the data, by the same network with fixed and with random weights. Only the latter has a large epistemic
uncertainty in the gap. Beyond the data, tanh units saturate, and the uncertainty of mean field with them: a known limit of the
method.
"""

from pathlib import Path

import matplotlib
import torch
from matplotlib.figure import Figure
from torch import nn

from bayesify import Deterministic, MeanField, Method, bayesify
from bayesify.likelihoods import Gaussian
from bayesify.plots import plot_bands
from bayesify.plots.style import INK, THEME
from bayesify.prediction import predict
from bayesify.predictive import Predictive
from bayesify.train import fit

IMAGES = Path(__file__).parent / "images"
NOISE = 0.1


def data(n: int = 80) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy points on a curve with a gap in the middle: x (n, 1) and y (n,)."""
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(n, 1, generator=generator) * 0.6 + 0.35
    x = torch.where(torch.arange(n).unsqueeze(1) % 2 == 0, x, -x)
    return x, truth(x[:, 0]) + NOISE * torch.randn(n, generator=generator)


def truth(x: torch.Tensor) -> torch.Tensor:
    """The curve without noise."""
    return torch.sin(4 * x) + 0.3 * x


def train_and_predict(method: Method, grid: torch.Tensor) -> Predictive:
    """Train the network with a method and predict on the grid."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    bnn = bayesify(net, method)
    likelihood = Gaussian(std=NOISE)
    fit(bnn, data(), likelihood, epochs=2500, batch_size=80, learning_rate=5e-3, samples=4, accelerator="cpu", progress=False)
    return predict(bnn, grid, likelihood, samples=500, seed=0, coherent=True)


def main() -> None:
    """Write all figures."""
    IMAGES.mkdir(exist_ok=True)
    grid = torch.linspace(-1, 1, 300).unsqueeze(1)
    settings: dict = {**THEME, "font.size": 11, "legend.fontsize": 10, "axes.titlesize": 13}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(10, 3.9), layout="constrained")
        panels = figure.subplots(1, 2, sharey=True)
        methods = {"an ordinary network": Deterministic(), "after bayesify(net, MeanField())": MeanField(prior_std=1.0)}
        for ax, (title, method) in zip(panels, methods.items(), strict=True):
            plot_bands(train_and_predict(method, grid), grid, ax, data=data())
            ax.set_title(title, color=INK, loc="left")
            ax.set_ylim(-2, 2)
            ax.set_xlim(-1, 1)
        panels[0].get_legend().remove()
        panels[1].set_ylabel("")
        figure.savefig(IMAGES / "gap.png", dpi=130, facecolor="white")


if __name__ == "__main__":
    main()
