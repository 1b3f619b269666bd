"""The number of examples of a data set, by which the KL is divided; it does not depend on the number of examples per epoch."""

from __future__ import annotations

import warnings
from typing import Any

from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

__all__ = ["length_of", "loader_examples", "training_examples", "warn_if_more_examples"]

_FIXED = list, tuple, range, Tensor  # the same indices in every epoch
_KNOWN = (*_FIXED, DistributedSampler, RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler)


def length_of(sized: Any) -> int | None:
    """Return the length of a data set, sampler or loader; None without one."""
    try:
        return len(sized)
    except (TypeError, NotImplementedError):
        return None


def loader_examples(loader: DataLoader[Any]) -> int | None:
    """Return the number of examples that the sampler of a loader can visit; None if unknown.

    The number of draws per epoch, replacement, and the share of one process do not matter.
    """
    sampler = _sampler_of(loader)
    if isinstance(sampler, (SubsetRandomSampler, *_FIXED)):
        indices: Any = getattr(sampler, "indices", sampler)
        return len(set(indices.tolist() if isinstance(indices, Tensor) else indices))
    if isinstance(sampler, WeightedRandomSampler):
        return int((sampler.weights > 0).sum())
    if isinstance(sampler, RandomSampler | SequentialSampler):
        return length_of(sampler.data_source)
    return None if sampler is None else length_of(loader.dataset)


def _sampler_of(loader: DataLoader[Any]) -> Any:
    """Return the sampler of a loader's examples; None where the data set yields batches, and its length is their number."""
    batches: Any = loader.batch_sampler
    if isinstance(batches, list | tuple):
        return [index for batch in batches for index in batch]
    if batches is not None:
        return getattr(batches, "sampler", batches)
    return loader.sampler.sampler if isinstance(loader.sampler, BatchSampler) else None


def training_examples(n: int | None, data: object, examples: int | None) -> int:
    """Return `n` if given, otherwise the number of examples of the data.

    Args:
        n: the argument of `fit`.
        data: the training data.
        examples: their number; None if unknown.

    Raises:
        TypeError: both are None.
    """
    sampler = _unknown_sampler(data)
    visited = length_of(sampler)
    if n is not None:
        if examples is not None:
            warn_if_more_examples(n, examples if visited is None else min(examples, visited))
        return n
    if examples is None:
        raise TypeError(
            "data must have a length, because the KL is divided by the number of training examples; pass n=... or a Dataset with a "
            "length"
        )
    if visited is not None and visited < examples:
        warnings.warn(
            f"{type(sampler).__name__} visits {visited} of {examples} examples per epoch, n={examples} is assumed; pass "
            f"n={visited} if it never visits the others, n={examples} if it does",
            stacklevel=2,
        )
    return examples


def _unknown_sampler(data: object) -> object:
    """Return the sampler of a loader if its type is unknown, otherwise None."""
    if not isinstance(data, DataLoader):
        return None
    sampler = _sampler_of(data)
    return None if isinstance(sampler, _KNOWN) or sampler is data.batch_sampler else sampler


def warn_if_more_examples(n: int, examples: int) -> None:
    """Warn if the data have more than `n` examples."""
    if examples > n:
        warnings.warn(
            f"n={n} is below the {examples} examples of data, which makes the KL too large; n is the number of examples in the "
            "whole training set",
            stacklevel=2,
        )
