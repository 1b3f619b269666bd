"""Posteriors that are made after training (Laplace, HMC, SGLD), in the trainers of other libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from bayesify.core.model import Bayesian
from bayesify.errors import ConfigurationError, warn
from bayesify.likelihoods import Likelihood
from bayesify.train.batch import Batch
from bayesify.train.dataset_size import length_of

__all__ = ["check_completable", "complete_posterior", "rehearse_completion"]


class _Batches:
    """Batches of a loader that can be iterated several times, as `Bayesian.complete` takes them."""

    def __init__(self, loader: Any, convert: Callable[[Any], Batch]) -> None:
        self.loader, self.convert = loader, convert

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return (self.convert(item).tensors for item in self.loader)


def check_completable(bnn: Bayesian, likelihood: Likelihood, loader: Any, beta: float, processes: int) -> None:
    """Check, before training, that the posterior can be made after it; warn if the trainer will not make it.

    Args:
        bnn: the network.
        likelihood: of the targets.
        loader: of the training data.
        beta: weight of the KL at the end of training.
        processes: that share the data.

    Raises:
        ConfigurationError: `beta` is 0, or the method cannot serve the likelihood.
        MissingDependencyError: the method needs a package that is not installed.
    """
    if not bnn.completes:
        return
    bnn.check_completion(likelihood)
    if beta == 0:
        raise ConfigurationError("beta is 0 at the end of training, which leaves no prior for a posterior; make it positive")
    if (reason := _reason_against(loader, processes)) is not None:
        warn(
            f"{reason}, so no posterior will be made after training; then call `bnn.complete(batches, likelihood, scale=n / rows)` "
            "in one process, with batches that can be iterated several times"
        )


def rehearse_completion(bnn: Bayesian, likelihood: Likelihood, loader: Any, batch: Batch, processes: int) -> None:
    """Raise an error, before the first step, if no posterior can be made after training of a network with such batches.

    Args:
        bnn, likelihood, loader, processes: as for `check_completable`.
        batch: the first one, on the device of the network.
    """
    if bnn.completes and _reason_against(loader, processes) is None:
        bnn.rehearse_completion(batch.tensors, likelihood)


def complete_posterior(
    bnn: Bayesian,
    likelihood: Likelihood,
    loader: Any,
    convert: Callable[[Any], Batch],
    *,
    n: int,
    beta: float,
    processes: int,
    seed: int,
    progress: bool | None,
) -> None:
    """Make the posterior of a trained network, if it is made after training and `check_completable` did not warn.

    Args:
        bnn, likelihood, loader, beta, processes: as for `check_completable`.
        convert: the batch of an item of the loader, on the device of the network.
        n: the number of examples in the whole training set.
        seed, progress: as for `Bayesian.complete`.
    """
    if not bnn.completes or _reason_against(loader, processes) is not None:
        return
    batches = _Batches(loader, convert)
    rows = sum(len(y) for _, y, *_ in batches)  # fewer than n if the loader drops the last batch
    bnn.complete(batches, likelihood, scale=n / rows / beta, seed=seed, progress=progress)


def _reason_against(loader: Any, processes: int) -> str | None:
    if processes > 1:
        return f"each of {processes} processes has a part of the training data"
    return None if length_of(loader) is not None else "the training data are a stream without length"
