"""Training the models of a job together, and their predictions.

Shapes: S draws, N rows.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import nn

from bayesify import Bayesian, Gaussian, HeteroscedasticGaussian, bayesify
from bayesify.estimators.network import mlp
from bayesify.likelihoods import Likelihood
from bayesify.prediction import predict
from bayesify.predictive import Predictive
from bayesify.train import History, Training, ensemble_of_draws, fit_many
from experiments.protocols.tabular.settings import Setup
from experiments.protocols.tabular.splits import RegressionSplit, Split

__all__ = ["Model", "train"]

_MANY_STEPS = 10_000  # from here on compilation saves time


class Model(NamedTuple):
    """A trained model.

    Attributes:
        bnn, likelihood: for standardized inputs and regression targets.
        split: training and test rows.
        history: of its training; `history.failure` says why training failed, if it did.
        seconds: training time of all models that were trained together, divided by their number.
        setup, seed: its settings.
    """

    bnn: Bayesian
    likelihood: Likelihood
    split: Split
    history: History
    seconds: float
    setup: Setup
    seed: int

    @property
    def noise_std(self) -> float | None:
        """Standard deviation of the observation noise in the unit of the targets; None for classification."""
        if not isinstance(self.likelihood, Gaussian) or not isinstance(self.split, RegressionSplit):
            return None
        return float(self.likelihood.std.detach()) * self.split.std

    def predictive(self, samples: int | None = None) -> Predictive:
        """The predictive distribution of the test targets, for regression in their unit and in double precision.

        Args:
            samples: S; by default that of the setup.
        """
        draws = self.setup.samples if samples is None else samples
        bnn = self.bnn
        if self.setup.statistics == "own":
            bnn = ensemble_of_draws(bnn, self.split.X, draws, batch_size=len(self.split.X), seed=self.seed, progress=False)
        p = predict(bnn, self.split.X_test, self.likelihood, draws, seed=self.seed, progress=False)
        return self.split.in_target_unit(p)


def train(
    setups: Sequence[Setup],
    splits: Sequence[Split],
    seeds: Sequence[int],
    progress: Callable[[float], object],
    share: float = 1.0,
) -> list[Model]:
    """Train one model per setup, split and seed, those with the same number of epochs together.

    Args:
        setups: with the same network and training; method, noise, epochs, learning rate and KL weight may differ.
        splits, seeds: one for each setup.
        progress: called with the share that is done.
        share: of the epochs of each setup.
    """
    groups: dict[int, list[int]] = {}
    for index, (setup, split) in enumerate(zip(setups, splits, strict=True)):
        groups.setdefault(max(1, round(share * setup.passes(len(split.y)))), []).append(index)
    work, done, models = sum(epochs * len(group) for epochs, group in groups.items()), 0, {}
    for epochs, group in groups.items():
        before, part = done / work, epochs * len(group) / work
        trained = _train_together(
            [setups[index] for index in group],
            [splits[index] for index in group],
            [seeds[index] for index in group],
            epochs,
            lambda inner, before=before, part=part: progress(before + part * inner),
        )
        models |= zip(group, trained, strict=True)
        done += epochs * len(group)
    return [models[index] for index in range(len(setups))]


def _train_together(
    setups: Sequence[Setup], splits: Sequence[Split], seeds: Sequence[int], epochs: int, progress: Callable[[float], object]
) -> list[Model]:
    trainings = []
    for setup, split, seed in zip(setups, splits, seeds, strict=True):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            bnn = bayesify(_network(split, setup), setup.methods())
        trainings.append(
            Training(
                bnn=bnn,
                data=(split.X, split.y),
                likelihood=split.likelihood(setup),
                seed=seed,
                beta=setup.kl_weight(),
                local_beta=setup.local_beta,
                learning_rate=setup.learning_rate,
            )
        )
    common, rows = setups[0], len(splits[0].y)
    steps = math.ceil(rows / common.batch_size)
    schedules = {
        "cosine": partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=epochs),
        "power": partial(torch.optim.lr_scheduler.LambdaLR, lr_lambda=lambda epoch: (1 + 5e-4 * epoch * steps) ** -0.3),
    }
    adam = partial(torch.optim.Adam, lr=common.learning_rate, weight_decay=common.weight_decay, fused=True)
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "training .* failed", RuntimeWarning)  # `History.failure` has the reason
        warnings.filterwarnings("ignore", "the inputs of batch normalization")  # `statistics` is a setting
        histories = fit_many(
            trainings,
            epochs=epochs,
            batch_size=common.batch_size,
            samples=common.train_samples,
            optimizer=adam if common.weight_decay else None,
            scheduler=schedules.get(common.schedule),
            clip_norm=common.clip_norm,
            compile=epochs * steps >= _MANY_STEPS,
            accelerator="cpu",
            progress=progress,
        )
    seconds = (time.perf_counter() - started) / len(trainings)
    return [
        Model(t.bnn, split.test_likelihood(t.likelihood, setup), split, history, seconds, setup, t.seed)
        for t, split, history, setup in zip(trainings, splits, histories, setups, strict=True)
    ]


def _network(split: Split, setup: Setup) -> nn.Sequential:
    net = mlp(split.X.shape[1], split.outputs(setup), setup.hidden, setup.activation)
    if isinstance(split.likelihood(setup), HeteroscedasticGaussian):
        nn.init.constant_(cast(nn.Linear, net[-1]).bias[1:], 2 * math.log(setup.noise["heteroscedastic"]))
    if setup.batch_norm is None:
        return net
    layers: list[nn.Module] = []
    for layer in net:
        if isinstance(layer, nn.Linear):
            norm = nn.BatchNorm1d(layer.in_features)
            nn.init.constant_(norm.weight, setup.batch_norm)
            layers.append(norm)
        layers.append(layer)
    return nn.Sequential(*layers)
