"""The batches of one model: training data, validation data and auxiliary inputs."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn

from bayesify.objectives import Constant, KLSchedule
from bayesify.train.auxiliary import auxiliary_inputs
from bayesify.train.batch import Place
from bayesify.train.batches import Batches, batches_of, seed_for
from bayesify.train.device import seed_noise
from bayesify.train.examples import training_examples
from bayesify.train.training import Training

__all__ = ["Sources", "sources_of"]


class Sources(NamedTuple):
    """Where the batches of one model come from.

    Attributes:
        n: the number of training examples, by which the KL is divided.
        train: the training data.
        held_out: the validation data.
        sampler: makes auxiliary inputs for a network that needs them, where none are given.
    """

    n: int
    train: Batches
    held_out: Batches | None
    sampler: nn.Module | None


def sources_of(training: Training, batch_size: int, device: torch.device, rank: int = 0, world: int = 1) -> Sources:
    """The checked data of one model, for process `rank` of `world`.

    Raises:
        TypeError, ValueError: data that the model or its likelihood cannot take; neither n nor a length.
    """
    bnn, likelihood, seed = training.bnn, training.likelihood, training.seed
    seed_noise(device, seed, "checks")
    common: Any = {"batch_size": batch_size, "place": Place(device, next(bnn.parameters()).dtype)}
    train = batches_of("data", training.data, bnn, likelihood, seed=seed, rank=rank, world=world, **common)
    n = training_examples(training.n, training.data, train.examples)
    if train.steps is None and isinstance(training.beta, KLSchedule) and not isinstance(training.beta, Constant):
        raise ValueError(
            f"beta={training.beta!r} needs the number of batches per epoch, which is unknown; give the data set a __len__, or make "
            "beta constant"
        )
    train, sampler = auxiliary_inputs(training.auxiliary, train, bnn, seed=seed_for(seed, "auxiliary", rank), **common)
    if training.validation is None:
        return Sources(n, train, None, sampler)
    held_out = batches_of("validation", training.validation, bnn, likelihood, seed=seed, shuffle=False, **common)
    return Sources(n, train, held_out, sampler)
