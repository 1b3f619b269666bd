"""Batches of each epoch, from tensors in memory, a data set or a loader; their order depends on seed and epoch alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, Sampler, TensorDataset

from bayesify.core.turns import turn
from bayesify.errors import DataError
from bayesify.train.batch import Batch, Inputs, ToDevice, Weighted, as_batch, check_batch, check_output_shape, select_rows
from bayesify.train.dataset_size import length_of, loader_examples
from bayesify.train.process_state import seed_for
from bayesify.train.row_groups import RowGroups, Windows

if TYPE_CHECKING:
    from bayesify.core.model import Bayesian
    from bayesify.likelihoods import Likelihood

__all__ = ["Batches", "Data", "InMemoryBatches", "LoaderBatches", "Order", "RowGroupBatches", "make_batches", "seed_loader"]

Data = tuple[Inputs, Tensor] | Weighted | Dataset[Any] | DataLoader[Any] | RowGroups


class Order(Sampler[list[int]]):
    """Row numbers of each batch of this process, reshuffled every epoch if there is a seed.

    With several processes each takes every `world_size`-th example; all have the same number of batches, for which some examples
    may repeat. A single example left over joins the batch before it, because batch normalization cannot train on one.
    """

    def __init__(self, n: int, batch_size: int, seed: int | None, rank: int = 0, world_size: int = 1) -> None:
        self.n, self.batch_size, self.seed, self.rank, self.world_size = n, batch_size, seed, rank, world_size
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.sizes())

    def sizes(self) -> list[int]:
        """Return the number of rows of each batch."""
        share = -(-self.n // self.world_size)
        sizes = [self.batch_size] * (share // self.batch_size)
        rest = share % self.batch_size
        if rest == 1 and sizes:
            sizes[-1] += 1
        elif rest:
            sizes.append(rest)
        return sizes

    def indices(self) -> Iterator[Tensor]:
        """Yield the row numbers of each batch of this epoch."""
        order = torch.arange(self.n, device="cpu")
        if self.seed is not None:
            generator = torch.Generator().manual_seed(seed_for(self.seed, "order", self.epoch))
            order = torch.randperm(self.n, generator=generator, device="cpu")
        if self.world_size > 1:
            padded = -(-self.n // self.world_size) * self.world_size
            order = order[torch.arange(self.rank, padded, self.world_size, device="cpu") % self.n]
        return iter(order.split(self.sizes()))

    def __iter__(self) -> Iterator[list[int]]:
        return (index.tolist() for index in self.indices())


class Batches(ABC):
    """One pass over the data per epoch.

    Attributes:
        examples: the number of examples of the whole data set, not of an epoch or a process; None if unknown.
        steps: the number of batches per epoch of this process; None if unknown.
        exact: whether `steps` is reliable.
        sizes_vary: whether batches may have more shapes than those of the last batch and all others.
        tensors: all data, where they are in memory.
    """

    examples: int | None
    steps: int | None
    exact: bool = True
    sizes_vary: bool = False
    tensors: Batch | None = None

    @abstractmethod
    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Yield the batches of an epoch, on the device; equal epochs have equal batches."""

    def full_pass(self, number: int) -> Iterator[Batch]:
        """Yield the batches of a pass over all data; equal numbers have equal batches."""
        return self.epoch(number)

    def grouped(self, epoch: int, size: int) -> Iterator[tuple[Batch, int, bool]]:
        """Yield the batches of an epoch, each with the size of its group and whether it is the last of the group.

        Groups have `size` batches; the last group of an epoch may be smaller.
        """
        if self.exact and self.steps is not None:
            for number, batch in enumerate(self.epoch(epoch)):
                group = min(size, self.steps - number // size * size)
                yield batch, group, number % size == group - 1
            return
        source = self.epoch(epoch)
        while group := list(islice(source, size)):
            yield from ((batch, len(group), number == len(group)) for number, batch in enumerate(group, start=1))


class InMemoryBatches(Batches):
    """Batches of tensors, which are moved to the device at once if they take at most a quarter of its free memory."""

    def __init__(self, data: Batch, order: Order, batch_dim: int, unbatched: tuple[str, ...], to_device: ToDevice) -> None:
        self.examples, self.steps = data.size, len(order)
        self.order, self.batch_dim, self.unbatched, self.to_device = order, batch_dim, unbatched, to_device
        size = sum(x.nbytes for x in tree_leaves(data.tensors))
        device = to_device.device
        fits = device.type != "cuda" or 4 * size < torch.cuda.mem_get_info(device)[0]
        self.tensors = to_device(data) if fits else data

    def epoch(self, epoch: int) -> Iterator[Batch]:
        self.order.epoch = epoch
        data = self.tensors
        assert data is not None
        for index in self.order.indices():
            batch = select_rows(data, index.to(data.y.device, non_blocking=True), self.batch_dim, self.unbatched)
            yield batch if data.y.device == self.to_device.device else self.to_device(batch)


class LoaderBatches(Batches):
    """Batches of a loader, whose generators are seeded every epoch; the batches of the first epoch are checked."""

    def __init__(
        self, name: str, loader: DataLoader[Any], examples: int | None, seed: int, to_device: ToDevice, likelihood: Likelihood
    ) -> None:
        self.name, self.loader, self.seed, self.to_device, self.likelihood = name, loader, seed, to_device, likelihood
        self.examples, self.steps = examples, length_of(loader)
        self.exact = not isinstance(loader.dataset, IterableDataset)  # each worker may end with a smaller batch
        self.sizes_vary = not isinstance(loader.batch_sampler, Order)
        self.checked = False

    def epoch(self, epoch: int) -> Iterator[Batch]:
        batch_sampler, sampler = self.loader.batch_sampler, self.loader.sampler
        if isinstance(batch_sampler, Order):
            batch_sampler.epoch = epoch
        elif isinstance(sampler, DistributedSampler):
            sampler.set_epoch(epoch)
        seed_loader(self.loader, seed_for(self.seed, "loader", epoch))
        number = 0
        with turn():  # a loader without a generator draws the seed of its workers from that of the process
            items = iter(self.loader)
        for number, item in enumerate(items, start=1):
            batch = as_batch(f"batch {number} of {self.name}", item)
            if not self.checked:
                check_batch(f"batch {number} of {self.name}", batch, self.likelihood)
            yield self.to_device(batch)
        if number == 0:
            when = f" in epoch {epoch}" if epoch else ""
            raise DataError(f"{self.name} gave no batches{when}; it must start again at every iteration")
        self.checked = True


class RowGroupBatches(Batches):
    """Batches of groups of rows: a window of rows is in memory at a time, and is shuffled."""

    def __init__(
        self, name: str, data: RowGroups, batch_size: int, seed: int, rank: int, world_size: int, to_device: ToDevice,
        likelihood: Likelihood,
    ) -> None:  # fmt: skip
        self.name, self.data, self.to_device, self.likelihood = name, data, to_device, likelihood
        self.seed, self.rank = seed, rank
        self.windows = Windows(name, data, batch_size, rank, world_size)
        self.examples, self.steps = self.windows.rows, self.windows.count * self.windows.batches

    def epoch(self, epoch: int) -> Iterator[Batch]:
        for window, rows in enumerate(self.read(epoch)):
            for index in self.indices(epoch, window):
                yield self.to_device(select_rows(rows, index, 0, ()))

    def full_pass(self, number: int) -> Iterator[Batch]:
        parts = self.data.parts
        return (batch for part in range(parts) for batch in self.epoch(number * parts + part + 1))

    def read(self, epoch: int) -> Iterator[Batch]:
        """Yield the windows of an epoch, checked."""
        for window in self.windows.read(epoch):
            check_batch(self.name, window, self.likelihood, 0)
            yield window

    def indices(self, epoch: int, window: int) -> tuple[Tensor, ...]:
        """Return the row numbers of each batch of a window."""
        sizes = self.windows.sizes(window, epoch)
        generator = torch.Generator().manual_seed(seed_for(self.seed, "order", epoch, window, self.rank))
        return torch.randperm(sum(sizes), generator=generator, device="cpu").split(sizes)


def seed_loader(loader: DataLoader[Any], seed: int) -> None:
    """Seed the generators of a loader and its sampler, where they have one."""
    for owner in (loader, loader.sampler):
        generator = getattr(owner, "generator", None)
        if generator is not None:
            generator.manual_seed(seed)


def make_batches(
    name: str,
    data: Data,
    bnn: Bayesian,
    likelihood: Likelihood,
    *,
    batch_size: int,
    seed: int,
    to_device: ToDevice,
    shuffle: bool = True,
    rank: int = 0,
    world_size: int = 1,
) -> Batches:
    """Check data and return their batches.

    Raises:
        TypeError: data of another type, or targets that the likelihood cannot take.
        DataError: no data, unequal numbers of rows, NaN or infinity.
    """
    if isinstance(data, TensorDataset):
        data = data.tensors  # pyright: ignore[reportAssignmentType] # (inputs..., y), as for a batch
    if isinstance(data, tuple | Weighted):
        tensors = as_batch(name, data)
        check_batch(name, tensors, likelihood, bnn.batch_dim, bnn.unbatched)
        check_output_shape(tensors, bnn, likelihood, batch_size)
        if shuffle and min(batch_size, tensors.size) == 1:
            _check_normalization(name, tensors, bnn)
        order = Order(tensors.size, batch_size, seed if shuffle else None, rank, world_size)
        return InMemoryBatches(tensors, order, bnn.batch_dim, bnn.unbatched, to_device)
    if isinstance(data, RowGroups):
        if bnn.batch_dim != 0 or bnn.unbatched:
            raise DataError(f"{name}: row groups need a network whose inputs all have rows in dimension 0; pass a DataLoader")
        if sum(data.sizes) == 0:
            raise DataError(f"{name} is empty")
        check_output_shape(data.example, bnn, likelihood)
        return RowGroupBatches(name, data, batch_size, seed, rank, world_size, to_device, likelihood)
    if isinstance(data, DataLoader):
        if world_size > 1 and shuffle and not isinstance(data.sampler, DistributedSampler):
            raise DataError(f"{name}: on several devices pass the Dataset, or a DataLoader with a DistributedSampler")
        loader, examples = data, loader_examples(data)
    elif isinstance(data, Dataset):
        loader = _make_loader(name, data, batch_size, seed if shuffle else None, rank, world_size)
        examples = length_of(data)
    else:
        raise TypeError(
            f"{name} must be a tuple (inputs, y) of tensors, Weighted, a Dataset, a DataLoader or RowGroups, got "
            f"{type(data).__name__}"
        )
    if 0 in (examples, length_of(loader)):
        raise DataError(f"{name} is empty")
    return LoaderBatches(name, loader, examples, seed, to_device, likelihood)


def _check_normalization(name: str, batch: Batch, bnn: nn.Module) -> None:
    """Raise a `DataError` for batches of one row whose features batch normalization would normalize."""
    flat = isinstance(batch.inputs, Tensor) and batch.inputs.dim() == 2
    if flat and (found := [n for n, module in bnn.named_modules() if isinstance(module, nn.BatchNorm1d) and module.training]):
        raise DataError(
            f"{name} gives batches of one row, of which batch normalization ({found[0]}) cannot take a variance in training; use "
            "a batch_size of at least 2, or call eval() on that layer"
        )


def _make_loader(name: str, data: Dataset[Any], batch_size: int, seed: int | None, rank: int, world_size: int) -> DataLoader[Any]:
    """Return a loader of a data set, shuffled if there is a seed."""
    generator = torch.Generator()  # without one, the loader would draw from the generator of the noise
    if isinstance(data, IterableDataset):
        if world_size > 1:
            raise DataError(f"{name}: an IterableDataset cannot be split among several devices; pass a Dataset with a length")
        return DataLoader(data, batch_size=batch_size, generator=generator)
    examples = length_of(data)
    if examples is None:
        raise TypeError(f"{name} must be a Dataset with a length, or a DataLoader whose sampler needs none")
    return DataLoader(data, batch_sampler=Order(examples, batch_size, seed, rank, world_size), generator=generator)
