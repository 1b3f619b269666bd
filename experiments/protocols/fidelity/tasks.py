"""Problems small enough for Hamiltonian Monte Carlo: a regression with a gap, two moons, digits of 8 x 8 pixels, and UCI sets."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayesify.datasets import load_uci
from bayesify.likelihoods import Categorical, Gaussian, Likelihood
from experiments.protocols.tabular.splits import RegressionSplit, make_split

__all__ = ["CLASSES", "NOISE", "TASKS", "UCI_SETS", "Task", "make_likelihood", "make_net", "make_task", "regions_of"]

NOISE = 0.1  # standard deviation of the targets of "gap"
UCI_SETS = ("boston", "concrete", "yacht")
CLASSES = {"moons": 2, "digits": 10}  # of the classifications
TASKS = ("gap", *CLASSES, *UCI_SETS)
_INPUTS, _WIDEST = 31, 1.5  # of the regression: test inputs, in [-1.5, 1.5]
_GRID = 15  # points per side of the classification's test inputs
_SHOWN = 25  # test rows of a UCI set whose predictive distributions are compared, and as many away from the data
_DIGITS = 100  # test images, compared as they are and turned


@dataclasses.dataclass(frozen=True)
class Task:
    """Training rows, test inputs, and the regions that these belong to.

    Attributes:
        x, y: training rows; targets (N, 1) of a regression, or labels (N,).
        test: test inputs at which distributions are compared.
        regions: masks of the test inputs.
        scored: further test inputs with their targets, by which predictions are scored; None for generated data.
    """

    x: Tensor
    y: Tensor
    test: Tensor
    regions: Mapping[str, Tensor]
    scored: tuple[Tensor, Tensor] | None = None


def make_task(data: str, rows: int, seed: int, data_dir: Path | None = None) -> Task:
    """Data of a seed: a sine wave with a gap between its inputs, two moons, digits, or a split of a UCI set, standardized."""
    made = {"gap": _gap, "moons": _moons, "digits": _digits}
    return made[data](rows, seed) if data in made else _uci(data, rows, seed, data_dir)


def regions_of(data: str, rows: int, seed: int) -> Mapping[str, Tensor]:
    """Masks of the test inputs, without reading data."""
    return _uci_regions() if data in UCI_SETS else make_task(data, rows, seed).regions


def make_net(settings: Mapping[str, Any], task: Task) -> nn.Module:
    """One hidden layer with tanh, for digits behind the two convolutions of a small LeNet; PyTorch's initial weights."""
    hidden, outputs = settings["hidden"], CLASSES.get(settings["data"], 1)
    if settings["data"] != "digits":
        return nn.Sequential(nn.Linear(task.x.shape[1], hidden), nn.Tanh(), nn.Linear(hidden, outputs))
    blocks = [
        layer
        for inputs, channels in ((1, 4), (4, 8))
        for layer in (nn.Conv2d(inputs, channels, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2))
    ]
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(32, hidden), nn.Tanh(), nn.Linear(hidden, outputs))


def make_likelihood(settings: Mapping[str, Any]) -> Likelihood:
    """Classes, or normal noise of a known standard deviation."""
    return Categorical() if settings["data"] in CLASSES else Gaussian(std=settings.get("noise", NOISE))


def _gap(rows: int, seed: int) -> Task:
    generator = torch.Generator().manual_seed(seed)
    side = torch.arange(rows) % 2 * 2.0 - 1  # inputs are in [-1, -0.3] and [0.3, 1]
    x = side * (0.3 + 0.7 * torch.rand(rows, generator=generator))
    y = torch.sin(4 * x) + NOISE * torch.randn(rows, generator=generator)
    test = torch.linspace(-_WIDEST, _WIDEST, _INPUTS)
    inside = (test.abs() >= 0.3) & (test.abs() <= 1)
    regions = {"near the data": inside, "in the gap": test.abs() < 0.3, "beyond": test.abs() > 1}
    return Task(x.unsqueeze(1), y.unsqueeze(1), test.unsqueeze(1), regions)


def _moons(rows: int, seed: int) -> Task:
    generator = torch.Generator().manual_seed(seed)
    angle = math.pi * torch.rand(rows, generator=generator)
    y = torch.arange(rows) % 2
    moons = torch.stack(
        [torch.cos(angle) - 0.5 + y * (1 - 2 * torch.cos(angle)), torch.sin(angle) * (1 - 2 * y) + 0.5 * y - 0.25], 1
    )
    x = moons + 0.2 * torch.randn(rows, 2, generator=generator)
    line = torch.linspace(-3, 3, _GRID)
    test = torch.cartesian_prod(line, line)
    near = torch.cdist(test, x).amin(1) < 0.5
    return Task(x, y, test, {"near the data": near, "away": ~near})


def _digits(rows: int, seed: int) -> Task:
    """Handwritten digits in [0, 1]; test images as they are and turned by 90 degrees, with the labels of the former."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    images, labels = torch.from_numpy(X).float().view(-1, 1, 8, 8) / 16, torch.from_numpy(y)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    train, test = order[:rows], order[rows:]
    shown = images[test[:_DIGITS]]
    own = torch.arange(2 * _DIGITS) < _DIGITS
    regions = {"test images": own, "turned": ~own}
    return Task(images[train], labels[train], torch.cat([shown, shown.rot90(1, (2, 3))]), regions, (images[test], labels[test]))


def _uci(name: str, rows: int, seed: int, data_dir: Path | None) -> Task:
    """The first rows of a standard split, and test inputs as they are and twice as far from the mean."""
    data = load_uci(name, data_dir)
    split = make_split(data.X, data.y, *data.split(seed), None)
    assert isinstance(split, RegressionSplit)
    shown = split.X_test[:_SHOWN]
    targets = ((split.y_test - split.mean) / split.std).unsqueeze(1)
    return Task(split.X[:rows], split.y[:rows].unsqueeze(1), torch.cat([shown, 2 * shown]), _uci_regions(), (split.X_test, targets))


def _uci_regions() -> Mapping[str, Tensor]:
    own = torch.arange(2 * _SHOWN) < _SHOWN
    return {"test rows": own, "twice as far": ~own}
