"""Twenty years of the lynx trade, forecast by an LSTM: paths of drawn networks, against those of the same network without them.

    python examples/lynx_forecast.py [--out examples/lynx_forecast.png]

The numbers of lynx trapped in the Mackenzie River district of Canada, 1821 to 1934, rise and fall in cycles of about ten years:
C. Elton and M. Nicholson, *The ten-year cycle in numbers of the lynx in Canada* (1942). Networks are trained on the years before
1915 for the largest number of epochs, and for the one with the best likelihood of the last 14 of these years after training on the
others.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from bayesify import Bayesian, Deterministic, Method, VariationalDropout, bayesify, fit, predict
from bayesify.formatting import percent
from bayesify.likelihoods import Gaussian
from bayesify.plots.style import BLUE, INK, THEME, axes, label

FIRST_YEAR, LAST_OF_TRAINING, WINDOW = 1821, 1914, 20
EPOCHS, HELD_OUT = (30, 100, 300), 14
LYNX = torch.tensor([
    269, 321, 585, 871, 1475, 2821, 3928, 5943, 4950, 2577, 523, 98, 184, 279, 409, 2285, 2685, 3409, 1824, 409, 151, 45, 68, 213,
    546, 1033, 2129, 2536, 957, 361, 377, 225, 360, 731, 1638, 2725, 2871, 2119, 684, 299, 236, 245, 552, 1623, 3311, 6721, 4254,
    687, 255, 473, 358, 784, 1594, 1676, 2251, 1426, 756, 299, 201, 229, 469, 736, 2042, 2811, 4431, 2511, 389, 73, 39, 49, 59,
    188, 377, 1292, 4031, 3495, 587, 105, 153, 387, 758, 1307, 3465, 6991, 6313, 3794, 1836, 345, 382, 808, 1388, 2713, 3800,
    3091, 2985, 3790, 674, 81, 80, 108, 229, 399, 1132, 2432, 3574, 2935, 1537, 529, 485, 662, 1000, 1590, 2657, 3396,
])  # fmt: skip


class Forecaster(nn.Module):
    """The next value of a window (B, T, 1): (B, 1)."""

    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(1, hidden, batch_first=True), nn.Linear(hidden, 1)

    def forward(self, x: Tensor) -> Tensor:
        steps, _ = self.rnn(x)
        return self.head(steps[:, -1])


def series() -> tuple[Tensor, Tensor]:
    """Standardized logarithms of the years of training, and of those after."""
    logs, years = LYNX.log10(), LAST_OF_TRAINING - FIRST_YEAR + 1
    standardized = (logs - logs[:years].mean()) / logs[:years].std()
    return standardized[:years], standardized[years:]


def windows(values: Tensor) -> tuple[Tensor, Tensor]:
    """All windows (N, T, 1) of a series, and the value (N, 1) after each."""
    found = values.unfold(0, WINDOW + 1, 1).unsqueeze(-1)
    return found[:, :-1], found[:, -1]


def train(method: Method, past: Tensor, epochs: int) -> tuple[Bayesian, Gaussian]:
    """Train on all windows of the past."""
    torch.manual_seed(0)
    bnn, likelihood = bayesify(Forecaster(), method), Gaussian(learn=True)
    fit(bnn, windows(past), likelihood, epochs=epochs, batch_size=32, learning_rate=1e-2, accelerator="cpu", progress=False)
    return bnn, likelihood


def scores(method: Method, past: Tensor) -> dict[int, float]:
    """Mean log-likelihood (nats) of the last years, each given those before, by the number of epochs on the others."""
    found = {}
    for epochs in EPOCHS:
        bnn, likelihood = train(method, past[:-HELD_OUT], epochs)
        x, y = windows(past[-HELD_OUT - WINDOW :])
        found[epochs] = float(predict(bnn, x, likelihood, samples=100, seed=0, progress=False).log_prob(y).mean())
    return found


@torch.no_grad()
def paths(bnn: Bayesian, likelihood: Gaussian, past: Tensor, years: int, networks: int = 100, each: int = 10) -> Tensor:
    """Draw futures (networks * each, years): one network for a whole path, with noise in every year."""
    torch.manual_seed(0)
    found = []
    for seed in range(networks):
        f, path = bnn.function(seed), past[-WINDOW:].expand(each, -1)
        for _ in range(years):
            following = likelihood.sample(f(path[:, -WINDOW:].unsqueeze(-1)))
            path = torch.cat([path, following], 1)
        found.append(path[:, WINDOW:])
    return torch.cat(found)


def coverage(drawn: Tensor, future: Tensor, level: float = 0.9) -> float:
    """The share of years whose value is in the central interval of the paths."""
    low, high = drawn.quantile(0.5 - level / 2, 0), drawn.quantile(0.5 + level / 2, 0)
    return float(((low <= future) & (future <= high)).float().mean())


def draw(forecasts: dict[str, Tensor], path: Path) -> None:
    """Draw the forecasts as medians with intervals of 50 and 90 %."""
    past, future = series()
    year = torch.arange(FIRST_YEAR, FIRST_YEAR + len(LYNX))
    settings: dict = {**THEME, "font.size": 10}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(13, 3.9), layout="constrained")
        panels = figure.subplots(1, len(forecasts), sharey=True)
        for ax, (title, drawn) in zip(panels, forecasts.items(), strict=True):
            axes(ax)
            ahead = year[len(past) :]
            for level, alpha in ((0.9, 0.2), (0.5, 0.35)):
                low, high = drawn.quantile(0.5 - level / 2, 0), drawn.quantile(0.5 + level / 2, 0)
                ax.fill_between(ahead, low, high, color=BLUE, alpha=alpha, linewidth=0, label=f"{percent(level)} of paths")
            ax.plot(ahead, drawn.median(0).values, color=BLUE, label="median")
            ax.plot(year[-60:], torch.cat([past, future])[-60:], color=INK, marker=".", linewidth=1, label="trapped")
            ax.axvline(LAST_OF_TRAINING + 0.5, color=INK, linewidth=0.8, linestyle=":")
            ax.set_title(f"{title}:\n{percent(coverage(drawn, future))} of years in the 90% band", color=INK, loc="left")
            label(ax, "year", "log of lynx, standardized")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
        figure.savefig(path, dpi=130, facecolor="white")


def main() -> None:
    """Choose epochs, train, print how often intervals hold, draw the forecasts."""
    parser = argparse.ArgumentParser(description="The lynx trade, forecast by a Bayesian LSTM.")
    parser.add_argument("--out", type=Path, default=Path("lynx_forecast.png"), help="where to write the picture")
    args = parser.parse_args()
    past, future = series()
    forecasts = {}
    for name, method in (("plain LSTM", Deterministic()), ("VariationalDropout", VariationalDropout())):
        tried = scores(method, past)
        print(
            f"{name}: log-likelihood of {HELD_OUT} years by epochs " + ", ".join(f"{n}: {score:.2f}" for n, score in tried.items())
        )
        for epochs in sorted({max(tried, key=lambda count: tried[count]), EPOCHS[-1]}, reverse=True):
            bnn, likelihood = train(method, past, epochs)
            title = f"{name}, {epochs} epochs"
            forecasts[title] = paths(bnn, likelihood, past, len(future))
            held = percent(coverage(forecasts[title], future))
            print(f"{title}: noise {float(likelihood.std.detach()):.2f}, {held} of years in the 90% band")
    draw(forecasts, args.out)


if __name__ == "__main__":
    main()
