"""Training one network on images, and its predictions.

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

from bayesify import Bayesian, Categorical, EvidentialCategorical, bayesify, predict
from bayesify.calibration import fit_temperature
from bayesify.errors import ConfigurationError
from bayesify.likelihoods import Likelihood
from bayesify.predictive import CategoricalPredictive
from bayesify.train import History, ensemble_of_draws, fit
from experiments.protocols.images.augmentation import random_crop, random_flip
from experiments.protocols.images.data import Part
from experiments.protocols.images.networks import make_net
from experiments.protocols.images.settings import Setup

__all__ = ["Augmented", "Trained", "calibrate", "predict_log_probs", "train"]


class Trained(NamedTuple):
    """A trained network.

    Attributes:
        bnn, history: of its training.
        likelihood: in prediction.
        predictor: what predicts: the network, or an ensemble of its draws.
    """

    bnn: Bayesian
    history: History
    likelihood: Likelihood
    predictor: Bayesian

    @property
    def parameters(self) -> int:
        """Number of trained parameters."""
        return sum(p.numel() for p in self.bnn.parameters() if p.requires_grad)

    @property
    def seconds_per_epoch(self) -> float:
        return sum(self.history.seconds) / len(self.history)


def train(setup: Setup, data: Part, classes: int, seed: int, progress: Callable[[float], object]) -> Trained:
    """Train one network.

    Args:
        setup: without `choices`.
        data: training rows.
        classes: K.
        seed: of initial weights, order of rows and noise.
        progress: called with the share that is done.

    Raises:
        ConfigurationError: weight decay for a method that has no place for it.
        DivergenceError: training diverged.
    """
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(seed)
        images = data[0]
        bnn = bayesify(make_net(setup.net, (images.shape[1], images.shape[2], images.shape[3]), classes), setup.methods())
    if torch.cuda.is_available():
        bnn.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue] # in which tensor cores convolve
    if bnn.has_optimizer and setup.weight_decay:
        raise ConfigurationError(f"weight_decay must be 0 for methods with natural-gradient steps, got {setup.weight_decay}")
    optimizer = None if bnn.has_optimizer else lambda parameters: _adam(parameters, bnn, setup)
    likelihood = EvidentialCategorical() if setup.likelihood == "evidential" else Categorical()
    history = fit(
        bnn,
        Augmented(*data) if setup.augment else data,
        likelihood,
        epochs=setup.epochs,
        batch_size=setup.batch_size,
        samples=setup.train_samples,
        beta=setup.beta,
        local_beta=setup.local_beta,
        learning_rate=setup.learning_rate,
        precision=setup.precision,
        optimizer=optimizer,
        scheduler=partial(_decay, setup=setup),
        seed=seed,
        loggers=[lambda record: progress(record["epoch"] / setup.epochs)],
        progress=False,
    )
    predictor = bnn
    if bnn.collects and any(isinstance(module, nn.BatchNorm2d) for module in bnn.modules()):
        # Running averages belong to the weights at the end of training, not to the mean of the collected ones or to draws.
        predictor = ensemble_of_draws(bnn.to(_device()), data[0], setup.samples, seed=seed, progress=False)
    return Trained(bnn, history, likelihood.to(_device()), predictor.to(_device()))


def calibrate(trained: Trained, validation: Part, samples: int, seed: int) -> Trained:
    """The network with the temperature that fits its validation rows best."""
    x, y = validation
    temperature = fit_temperature(
        lambda t: predict(trained.predictor, x, Categorical(temperature=t), samples, seed=seed, progress=False), y.to(_device())
    )
    return trained._replace(likelihood=Categorical(temperature=temperature))


def predict_log_probs(trained: Trained, x: Tensor, samples: int, seed: int) -> Tensor:
    """Log of the probabilities (N, K) averaged over S draws."""
    p = predict(trained.predictor, x, trained.likelihood, samples, seed=seed, progress=False)
    assert isinstance(p, CategoricalPredictive)
    return p.log_probs.cpu()


def _device() -> torch.device:
    """The GPU if there is one, which `fit` takes, too."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Augmented(Dataset[tuple[Tensor, Tensor]]):
    """Images shifted by up to four pixels and mirrored at random at every access, a batch at a time, on the GPU if there is one."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x.to(_device()), y.to(_device())

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: list[int]) -> list[tuple[Tensor, Tensor]]:
        """The hook by which PyTorch's loaders fetch a whole batch."""
        index = torch.tensor(rows, device=self.y.device)
        return list(zip(random_flip(random_crop(self.x[index])), self.y[index], strict=True))


def _adam(parameters: list[nn.Parameter], bnn: Bayesian, setup: Setup) -> torch.optim.Optimizer:
    """Adam with weight decay for the network's parameters only, not for rates and log variances of posteriors."""
    added = {id(p) for name, p in bnn.named_parameters() if ".posterior." in name}
    groups = [
        {"params": [p for p in parameters if id(p) not in added], "weight_decay": setup.weight_decay},
        {"params": [p for p in parameters if id(p) in added]},
    ]
    return torch.optim.Adam([group for group in groups if group["params"]], lr=setup.learning_rate, fused=True)


def _decay(optimizer: torch.optim.Optimizer, setup: Setup) -> LRScheduler:
    return MultiStepLR(optimizer, setup.milestones(), gamma=setup.decay)
