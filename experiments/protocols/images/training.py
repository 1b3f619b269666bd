"""Training one net on images, and what it believes: the one place where an experiment meets `bayesify.train.fit`.

Shapes: N rows, K classes, S draws.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, MultiStepLR
from torch.utils.data import Dataset

from bayesify import Bayesian, Categorical, bayesify, predict
from bayesify.data import random_crop, random_flip
from bayesify.predictive import CategoricalPredictive
from bayesify.train import History, fit
from experiments.protocols.images.nets import make_net
from experiments.protocols.images.sets import Part
from experiments.protocols.images.setup import Setup

__all__ = ["Augmented", "Trained", "beliefs", "train"]


class Trained(NamedTuple):
    """A trained net, and what happened on the way."""

    bnn: Bayesian
    history: History

    @property
    def parameters(self) -> int:
        """How many numbers were learned."""
        return sum(p.numel() for p in self.bnn.parameters() if p.requires_grad)

    @property
    def seconds_per_epoch(self) -> float:
        return sum(self.history.seconds) / len(self.history)


def train(setup: Setup, data: Part, classes: int, seed: int, progress: Callable[[float], object]) -> Trained:
    """Train one net by what `setup` says.

    Args:
        setup: with nothing left to choose.
        data: rows to train on.
        classes: K.
        seed: of the initial weights, the order of the rows and the noise.
        progress: is given the share that is done.

    Raises:
        FloatingPointError: training has come to nothing.
    """
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(seed)
        images = data[0]
        bnn = bayesify(make_net(setup.net, (images.shape[1], images.shape[2], images.shape[3]), classes), setup.methods())
    history = fit(
        bnn,
        Augmented(*data) if setup.augment else data,
        Categorical(),
        epochs=setup.epochs,
        batch_size=setup.batch_size,
        samples=setup.train_samples,
        beta=setup.beta,
        local_beta=setup.local_beta,
        optimizer=lambda parameters: _adam(parameters, bnn, setup),
        scheduler=partial(_decay, setup=setup),
        seed=seed,
        accelerator="cpu",
        loggers=[lambda record: progress(record["epoch"] / setup.epochs)],
        progress=False,
    )
    return Trained(bnn, history)


def beliefs(bnn: Bayesian, x: Tensor, samples: int, seed: int) -> Tensor:
    """The log of the probabilities (N, K), averaged over S draws."""
    p = predict(bnn, x, Categorical(), samples, seed=seed, progress=False)
    assert isinstance(p, CategoricalPredictive)
    return p.log_probs


class Augmented(Dataset[tuple[Tensor, Tensor]]):
    """Images that are shifted by up to four pixels and mirrored at random, anew whenever they are asked for; a batch at a time."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: list[int]) -> list[tuple[Tensor, Tensor]]:
        """The hook by which PyTorch's loaders fetch a whole batch."""
        index = torch.tensor(rows)
        return list(zip(random_flip(random_crop(self.x[index])), self.y[index], strict=True))


def _adam(parameters: list[nn.Parameter], bnn: Bayesian, setup: Setup) -> torch.optim.Optimizer:
    """Weight decay is for the net's own parameters: towards 0, rates and log variances would go nowhere sensible."""
    added = {id(p) for name, p in bnn.named_parameters() if ".posterior." in name}
    groups = [
        {"params": [p for p in parameters if id(p) not in added], "weight_decay": setup.weight_decay},
        {"params": [p for p in parameters if id(p) in added]},
    ]
    return torch.optim.Adam([group for group in groups if group["params"]], lr=setup.learning_rate, fused=True)


def _decay(optimizer: torch.optim.Optimizer, setup: Setup) -> LRScheduler:
    return MultiStepLR(optimizer, setup.milestones(), gamma=setup.decay)
