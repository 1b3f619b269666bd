"""Posteriors that are made after training: what `fit` and `fit_many` do for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bayesify.errors import ConfigurationError
from bayesify.train.arguments import Training
from bayesify.train.batch import Batch, Weighted
from bayesify.train.data_loading import Batches
from bayesify.train.model_data import ModelData
from bayesify.train.process_state import seed_for

__all__ = ["check_completable", "complete_posterior", "rehearse_completion"]


class _Passes:
    """Batches of all data that can be iterated again, every time in another order."""

    def __init__(self, batches: Batches) -> None:
        self.batches, self.number = batches, 0

    def __iter__(self) -> Iterator[Any]:
        self.number += 1
        return (batch.tensors for batch in self.batches.full_pass(self.number))


def check_completable(training: Training, processes: int = 1) -> None:
    """Check, before training, that a posterior can be made after it.

    Raises:
        ConfigurationError: processes share the data, the KL has no weight at the end of training, or the method cannot serve the
            likelihood or weights of examples.
        MissingDependencyError: the method needs a package that is not installed.
    """
    bnn = training.bnn
    if not bnn.completes:
        return
    if processes > 1:
        raise ConfigurationError(
            f"each of {processes} processes would have a part of the data, from which no posterior can be made after training; "
            "use one process"
        )
    if training.beta_at(1.0) == 0:
        raise ConfigurationError("beta is 0 at the end of training, which leaves no prior for a posterior; make it positive")
    bnn.check_completion(training.likelihood, weighted=isinstance(training.data, Weighted))


def rehearse_completion(training: Training, batch: Batch) -> None:
    """Raise an error, before the first step, if no posterior can be made after training of a network with such batches."""
    if training.bnn.completes:
        training.bnn.rehearse_completion(batch.tensors, training.likelihood)


def complete_posterior(training: Training, data: ModelData, progress: bool | None = False) -> None:
    """Make the posterior of a trained network, if it is made after training."""
    if not training.bnn.completes:
        return
    rows = data.train.examples or data.n
    scale = data.n / rows / training.beta_at(1.0)
    seed = seed_for(training.seed, "after training")
    training.bnn.complete(_Passes(data.train), training.likelihood, scale=scale, seed=seed, progress=progress)
