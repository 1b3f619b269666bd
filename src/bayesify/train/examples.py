"""The number of examples of a data set, by which the KL is divided, whatever order and number of them makes up an epoch."""

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

__all__ = ["check_seen", "examples_of", "length_of", "training_examples"]

_FIXED = list, tuple, range, Tensor  # the same indices in every epoch
_KNOWN = (*_FIXED, DistributedSampler, RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler)


def length_of(sized: Any) -> int | None:
    """The length of a data set, sampler or loader; None without one."""
    try:
        return len(sized)
    except (TypeError, NotImplementedError):
        return None


def examples_of(loader: DataLoader[Any]) -> int | None:
    """The number of examples that a loader takes its batches from; None if unknown.

    It is the length of the data set, or of the part of it that the sampler can visit at all. How many a sampler draws per epoch,
    with or without replacement, does not matter, and neither does the share of one process.
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
    """What chooses the examples of a loader; None where the data set yields whole batches, and its length is their number."""
    batches: Any = loader.batch_sampler
    if isinstance(batches, list | tuple):
        return [index for batch in batches for index in batch]
    if batches is not None:
        return getattr(batches, "sampler", batches)
    return loader.sampler.sampler if isinstance(loader.sampler, BatchSampler) else None


def training_examples(given: int | None, data: object, known: int | None) -> int:
    """The number of training examples: the given one, else that of the data.

    Args:
        given: what the caller says.
        data: the training data.
        known: what is known of their number.

    Raises:
        TypeError: neither is there.
    """
    sampler = _unknown_sampler(data)
    visited = length_of(sampler)
    if given is not None:
        if known is not None:
            check_seen(given, min(known, known if visited is None else visited))
        return given
    if known is None:
        raise TypeError(
            "data must have a length, because the KL is divided by the number of training examples; pass n=... or a Dataset with a "
            "length"
        )
    if visited is not None and visited < known:
        warnings.warn(
            f"{type(sampler).__name__} visits {visited} of {known} examples per epoch, n={known} is assumed; pass n={visited} if "
            f"it never visits the others, n={known} if it does",
            stacklevel=2,
        )
    return known


def _unknown_sampler(data: object) -> object:
    """The sampler of a loader, where it is of an unknown kind; otherwise None."""
    if not isinstance(data, DataLoader):
        return None
    sampler = _sampler_of(data)
    return None if isinstance(sampler, _KNOWN) or sampler is data.batch_sampler else sampler


def check_seen(n: int, examples: int) -> None:
    """Warn if the data hold more than `n` examples."""
    if examples > n:
        warnings.warn(
            f"n={n} is below the {examples} examples of data, which makes the KL too large; n is the number of examples in the "
            "whole training set",
            stacklevel=2,
        )
