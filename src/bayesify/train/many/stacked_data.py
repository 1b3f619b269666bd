"""Batches of K models, each with the rows of its own data set in its own order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves

if TYPE_CHECKING:
    from torch.utils._pytree import TreeSpec

    from bayesify.train.data_loading import Batches, InMemoryBatches, RowGroupBatches

__all__ = ["StackedData", "stack_data"]


class StackedData(ABC):
    """Batches of K models, which all have the same sizes.

    Attributes:
        sizes: rows of each batch of an epoch.
        structure: of inputs, targets and weights.
        is_weighted: whether the rows have weights.
    """

    sizes: list[int]
    structure: TreeSpec
    is_weighted: bool

    @abstractmethod
    def epoch(self, epoch: int) -> Iterator[list[Tensor]]:
        """Yield the tensors (K, B, ...) of each batch, with rows in the order of each model."""


def stack_data(data: Sequence[Batches]) -> StackedData:
    """Return the batches of K models together."""
    return _StackedTensors(data) if data[0].tensors is not None else _StackedRowGroups(data)


class _StackedRowGroups(StackedData):
    """Windows of row groups that all models share; each has another order of the rows of a window."""

    def __init__(self, data: Sequence[Batches]) -> None:
        self.data = [cast("RowGroupBatches", batches) for batches in data]
        first, example = self.data[0], self.data[0].data.example
        self.sizes = [size for window in range(first.windows.count) for size in first.windows.sizes(window, 1)]
        self.structure, self.is_weighted = tree_flatten(example.tensors)[1], example.weights is not None

    def epoch(self, epoch: int) -> Iterator[list[Tensor]]:
        first = self.data[0]
        for window, rows in enumerate(first.read(epoch)):
            leaves = tree_leaves(first.to_device(rows).tensors)
            for indices in zip(*(batches.indices(epoch, window) for batches in self.data), strict=True):
                index = torch.stack(indices).to(leaves[0].device)
                yield [leaf.index_select(0, index.flatten()).unflatten(0, index.shape) for leaf in leaves]


class _StackedTensors(StackedData):
    """Rows of K data sets of one size in memory; tensors that all models share are stored once."""

    def __init__(self, data: Sequence[Batches]) -> None:
        in_memory = [cast("InMemoryBatches", batches) for batches in data]
        self.orders = [batches.order for batches in in_memory]
        flat = [tree_flatten(batches.tensors.tensors) for batches in in_memory if batches.tensors is not None]
        self.rows, self.sizes, self.structure = self.orders[0].n, self.orders[0].sizes(), flat[0][1]
        self.is_weighted = any(batches.tensors.weights is not None for batches in in_memory if batches.tensors is not None)
        self.leaves: list[Tensor] = []
        self.separate: list[bool] = []
        for tensors in zip(*(leaves for leaves, _ in flat), strict=True):
            self.separate.append(any(x.data_ptr() != tensors[0].data_ptr() for x in tensors))
            self.leaves.append(torch.cat(tensors) if self.separate[-1] else tensors[0])

    def epoch(self, epoch: int) -> Iterator[list[Tensor]]:
        rows = []
        for order in self.orders:
            order.epoch = epoch
            rows.append(torch.cat(list(order.indices())))
        shuffled = torch.stack(rows).to(self.leaves[0].device)
        offset = torch.arange(len(self.orders), device=shuffled.device).unsqueeze(1) * self.rows
        for row, offset_row in zip(shuffled.split(self.sizes, 1), (shuffled + offset).split(self.sizes, 1), strict=True):
            index = {True: offset_row.flatten(), False: row.flatten()}
            yield [
                leaf.index_select(0, index[separate]).unflatten(0, row.shape)
                for leaf, separate in zip(self.leaves, self.separate, strict=True)
            ]
