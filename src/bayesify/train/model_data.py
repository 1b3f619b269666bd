"""Data of one model: training and validation batches, auxiliary inputs, the number of training examples."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn

from bayesify.core.values import network_dtype
from bayesify.errors import DataError
from bayesify.objectives import Constant, KLSchedule
from bayesify.train.arguments import Training
from bayesify.train.auxiliary_inputs import add_auxiliary_inputs
from bayesify.train.batch import ToDevice
from bayesify.train.data_loading import Batches, make_batches
from bayesify.train.dataset_size import training_examples
from bayesify.train.process_state import seed_for, seed_noise

__all__ = ["ModelData", "load_model_data"]


class ModelData(NamedTuple):
    """Data of one model.

    Attributes:
        n: the number of training examples, by which the KL is divided.
        train: the training data.
        validation: the validation data.
        auxiliary: module that draws auxiliary inputs, for a network that needs some where none are given.
    """

    n: int
    train: Batches
    validation: Batches | None
    auxiliary: nn.Module | None


def load_model_data(training: Training, batch_size: int, device: torch.device, rank: int = 0, world_size: int = 1) -> ModelData:
    """Check the data of one model and return their batches in process `rank` of `world_size`.

    Raises:
        TypeError, DataError: data that network or likelihood cannot take; neither n nor a length.
    """
    bnn, likelihood, seed = training.bnn, training.likelihood, training.seed
    seed_noise(device, seed, "checks")
    common: Any = {"batch_size": batch_size, "to_device": ToDevice(device, network_dtype(bnn))}
    train = make_batches("data", training.data, bnn, likelihood, seed=seed, rank=rank, world_size=world_size, **common)
    n = training_examples(training.n, training.data, train.examples)
    if train.steps is None and isinstance(training.beta, KLSchedule) and not isinstance(training.beta, Constant):
        raise DataError(
            f"beta={training.beta!r} needs the number of batches per epoch, which is unknown; give the data set a __len__, or make "
            "beta constant"
        )
    train, auxiliary = add_auxiliary_inputs(training.auxiliary, train, bnn, seed=seed_for(seed, "auxiliary", rank), **common)
    if training.validation is None:
        return ModelData(n, train, None, auxiliary)
    assert not isinstance(training.validation, str)  # the parts of members are data
    validation = make_batches("validation", training.validation, bnn, likelihood, seed=seed, shuffle=False, **common)
    return ModelData(n, train, validation, auxiliary)
