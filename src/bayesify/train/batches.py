"""Where batches come from: tensors in memory, a data set or a loader, in an order fixed by seed and epoch."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, Sampler, TensorDataset

from bayesify.train.batch import Batch, Inputs, Place, as_batch, check_batch, check_targets, take
from bayesify.train.examples import examples_of, length_of

if TYPE_CHECKING:
    from bayesify.core.model import Bayesian
    from bayesify.likelihoods import Likelihood

__all__ = ["Batches", "Data", "InMemory", "Loaded", "Order", "batches_of", "seed_for"]

Data = tuple[Inputs, Tensor] | Dataset[Any] | DataLoader[Any]


def seed_for(*parts: object) -> int:
    """A seed of its own for every purpose and epoch, so that resuming needs no random state and validation disturbs nothing."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=4).digest()  # PyTorch's CPU generator takes 32 bits
    return int.from_bytes(digest, "big")


class Order(Sampler[list[int]]):
    """Which examples make up each batch of this process: shuffled anew every epoch, or as they come.

    With several processes each takes every `world`-th example; all make equally many batches, for which examples may come twice. A
    single example left over joins the batch before it, because batch normalisation cannot train on one.
    """

    def __init__(self, n: int, batch_size: int, seed: int | None, rank: int = 0, world: int = 1) -> None:
        self.n, self.batch_size, self.seed, self.rank, self.world = n, batch_size, seed, rank, world
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.sizes())

    def sizes(self) -> list[int]:
        mine = -(-self.n // self.world)
        sizes = [self.batch_size] * (mine // self.batch_size)
        rest = mine % self.batch_size
        if rest == 1 and sizes:
            sizes[-1] += 1
        elif rest:
            sizes.append(rest)
        return sizes

    def indices(self) -> Iterator[Tensor]:
        """The batches of this epoch, as tensors of row numbers."""
        order = torch.arange(self.n)
        if self.seed is not None:
            order = torch.randperm(self.n, generator=torch.Generator().manual_seed(seed_for(self.seed, "order", self.epoch)))
        if self.world > 1:
            order = order[torch.arange(self.rank, -(-self.n // self.world) * self.world, self.world) % self.n]
        return iter(order.split(self.sizes()))

    def __iter__(self) -> Iterator[list[int]]:
        return (index.tolist() for index in self.indices())


class Batches(ABC):
    """One pass over the data per epoch.

    Attributes:
        examples: the number of examples of the whole data set, whatever share of it an epoch or this process sees; None if unknown.
        steps: the number of batches this process makes of one epoch; None if unknown.
        exact: whether `steps` can be relied on.
        tensors: all data, where it is in memory.
    """

    examples: int | None
    steps: int | None
    exact: bool = True
    tensors: Batch | None = None

    @abstractmethod
    def epoch(self, epoch: int) -> Iterator[Batch]:
        """The batches of one epoch, on the device; the same whenever it is asked for the same epoch."""


class InMemory(Batches):
    """Tensors, cut by rows; moved to the device as a whole where they take at most a quarter of its free memory."""

    def __init__(self, whole: Batch, order: Order, batch_dim: int, shared: tuple[str, ...], place: Place) -> None:
        self.examples, self.steps = whole.size, len(order)
        self.order, self.batch_dim, self.shared, self.place = order, batch_dim, shared, place
        size = sum(x.nbytes for x in tree_leaves((whole.inputs, whole.y)))
        roomy = place.device.type != "cuda" or 4 * size < torch.cuda.mem_get_info(place.device)[0]
        self.tensors = place(whole) if roomy else whole

    def epoch(self, epoch: int) -> Iterator[Batch]:
        self.order.epoch = epoch
        whole = self.tensors
        assert whole is not None
        for index in self.order.indices():
            batch = take(whole, index.to(whole.y.device, non_blocking=True), self.batch_dim, self.shared)
            yield batch if whole.y.device == self.place.device else self.place(batch)


class Loaded(Batches):
    """A loader; its own generators are seeded, and every batch is checked the first time round."""

    def __init__(
        self, name: str, loader: DataLoader[Any], examples: int | None, seed: int, place: Place, likelihood: Likelihood
    ) -> None:
        self.name, self.loader, self.seed, self.place, self.likelihood = name, loader, seed, place, likelihood
        self.examples, self.steps = examples, length_of(loader)
        self.exact = not isinstance(loader.dataset, IterableDataset)  # workers may each end with a smaller batch
        self.checked = False

    def epoch(self, epoch: int) -> Iterator[Batch]:
        batch_sampler, sampler = self.loader.batch_sampler, self.loader.sampler
        if isinstance(batch_sampler, Order):
            batch_sampler.epoch = epoch
        elif isinstance(sampler, DistributedSampler):
            sampler.set_epoch(epoch)
        for owner in (self.loader, sampler):
            generator = getattr(owner, "generator", None)
            if generator is not None:
                generator.manual_seed(seed_for(self.seed, "loader", epoch))
        number = 0
        for number, item in enumerate(self.loader, start=1):
            batch = as_batch(f"batch {number} of {self.name}", item)
            if not self.checked:
                check_batch(f"batch {number} of {self.name}", batch, self.likelihood)
            yield self.place(batch)
        if number == 0:
            when = f" in epoch {epoch}" if epoch else ""
            raise ValueError(f"{self.name} gave no batches{when}; it must start again whenever it is iterated over")
        self.checked = True


def batches_of(
    name: str,
    data: Data,
    bnn: Bayesian,
    likelihood: Likelihood,
    *,
    batch_size: int,
    seed: int,
    place: Place,
    shuffle: bool = True,
    rank: int = 0,
    world: int = 1,
) -> Batches:
    """Turn any kind of data into batches.

    Raises:
        TypeError: data of another kind, or targets the likelihood cannot take.
        ValueError: no data, unequal numbers of examples, NaN or infinity.
    """
    if isinstance(data, TensorDataset):
        data = data.tensors  # pyright: ignore[reportAssignmentType] # (inputs..., y), as for a batch
    if isinstance(data, tuple):
        whole = as_batch(name, data)
        check_batch(name, whole, likelihood, bnn.batch_dim, bnn.shared)
        check_targets(whole, bnn, likelihood)
        order = Order(whole.size, batch_size, seed if shuffle else None, rank, world)
        return InMemory(whole, order, bnn.batch_dim, bnn.shared, place)
    if isinstance(data, DataLoader):
        if world > 1 and shuffle and not isinstance(data.sampler, DistributedSampler):
            raise ValueError(f"{name}: on several devices give the Dataset itself, or a DataLoader with a DistributedSampler")
        loader, examples = data, examples_of(data)
    elif isinstance(data, Dataset):
        loader = _loader(name, data, batch_size, seed if shuffle else None, rank, world)
        examples = length_of(data)
    else:
        raise TypeError(f"{name} must be a tuple (inputs, y) of tensors, a Dataset or a DataLoader, got {type(data).__name__}")
    if 0 in (examples, length_of(loader)):
        raise ValueError(f"{name} is empty")
    return Loaded(name, loader, examples, seed, place, likelihood)


def _loader(name: str, data: Dataset[Any], batch_size: int, seed: int | None, rank: int, world: int) -> DataLoader[Any]:
    """A loader over a data set, shuffled where there is a seed."""
    own: Any = {"generator": torch.Generator()}  # or it would draw from the noise's generator
    if isinstance(data, IterableDataset):
        if world > 1:
            raise ValueError(f"{name}: on several devices an IterableDataset cannot be shared out; give a Dataset with a length")
        return DataLoader(data, batch_size=batch_size, **own)
    examples = length_of(data)
    if examples is None:
        raise TypeError(f"{name} must be a Dataset with a length, or a DataLoader with a sampler that needs none")
    return DataLoader(data, batch_sampler=Order(examples, batch_size, seed, rank, world), **own)
