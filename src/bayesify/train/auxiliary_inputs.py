"""Auxiliary inputs: inputs away from the training data, at which a network's outputs are also regularized (VIFO, section 2.1)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader, Dataset, IterableDataset

from bayesify.errors import DataError
from bayesify.functional import standard_uniform
from bayesify.train.batch import Batch, Inputs, batched, select_inputs
from bayesify.train.data_loading import Batches, Order, seed_loader
from bayesify.train.process_state import seed_for

if TYPE_CHECKING:
    from bayesify.core.model import Bayesian
    from bayesify.train.batch import ToDevice

__all__ = ["AuxiliaryInputs", "PairedBatches", "UniformInputs", "add_auxiliary_inputs"]

AuxiliaryInputs = Tensor | tuple[Any, ...] | dict[str, Any] | Dataset[Any] | DataLoader[Any]
_ADVICE = "pass auxiliary inputs, fit(auxiliary=...), or use VIFO(eta_aux=0)"


def add_auxiliary_inputs(
    auxiliary: AuxiliaryInputs | None, train: Batches, bnn: Bayesian, *, seed: int, to_device: ToDevice, batch_size: int
) -> tuple[Batches, nn.Module | None]:
    """Return the training batches with auxiliary inputs, and a module that draws them where the network needs some but has none.

    Raises:
        TypeError: auxiliary inputs of another type.
        DataError: the network does not use them, there are none, or the training data have no ranges.
    """
    if bnn.auxiliary_beta == 0:
        if auxiliary is not None:
            raise DataError("auxiliary inputs need a network that is regularized there, such as VIFO(eta_aux=0.1)")
        return train, None
    if auxiliary is None:
        return train, UniformInputs(train, bnn)
    return PairedBatches(train, auxiliary, bnn, seed, to_device, batch_size), None


class UniformInputs(nn.Module):
    r"""Uniform draws, one per example, from the bounding box of the training data, widened to twice its size.

    $$x_\mathrm{aux}^{(i)} \sim \mathrm{Unif}[\min x^{(i)} - d_i / 2,\; \max x^{(i)} + d_i / 2], \qquad
    d_i = \max x^{(i)} - \min x^{(i)}$$

    for every feature i (pixel, position of a sequence). Source: *Variational inference on the final-layer output of neural
    networks*, section 2.1.
    """

    def __init__(self, train: Batches, bnn: Bayesian) -> None:
        super().__init__()
        self.unbatched = bnn.unbatched
        lows, highs = list[Tensor](), list[Tensor]()
        for batch in train.full_pass(0) if train.tensors is None else [train.tensors]:
            leaves = tree_leaves(batched(batch.inputs, self.unbatched))
            for x in leaves:
                if not isinstance(x, Tensor) or not x.is_floating_point():
                    kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
                    raise DataError(f"auxiliary inputs are drawn from the ranges of floating point inputs, got {kind}; {_ADVICE}")
            low, high = [x.amin(bnn.batch_dim, True) for x in leaves], [x.amax(bnn.batch_dim, True) for x in leaves]
            if lows and [x.shape for x in low] != [x.shape for x in lows]:
                raise DataError(f"inputs whose shapes differ between batches have no ranges; {_ADVICE}")
            lows = [torch.minimum(a, b) for a, b in zip(lows or low, low, strict=True)]
            highs = [torch.maximum(a, b) for a, b in zip(highs or high, high, strict=True)]
        for i, (low, high) in enumerate(zip(lows, highs, strict=True)):
            self.register_buffer(f"start_{i}", low - (high - low) / 2)
            self.register_buffer(f"width_{i}", 2 * (high - low))

    def forward(self, inputs: Inputs) -> Inputs:
        """Return auxiliary inputs with the structure and shapes of `inputs`; unbatched inputs are passed on."""
        boxes = self.buffers()

        def draw(x: Tensor) -> Tensor:
            return next(boxes) + next(boxes) * standard_uniform(*x.shape, like=x)

        drawn = tree_map(draw, batched(inputs, self.unbatched))
        return {**inputs, **drawn} if isinstance(inputs, dict) else drawn


class PairedBatches(Batches):
    """Training batches, each with the next batch of auxiliary inputs, which restart when exhausted."""

    def __init__(
        self, train: Batches, auxiliary: AuxiliaryInputs, bnn: Bayesian, seed: int, to_device: ToDevice, batch_size: int
    ) -> None:
        self.train, self.tensors = train, train.tensors
        self.examples, self.steps, self.exact = train.examples, train.steps, train.exact
        self.sizes_vary = train.sizes_vary or not isinstance(auxiliary, Tensor | tuple | dict)
        self.batch_dim, self.unbatched, self.seed, self.to_device = bnn.batch_dim, bnn.unbatched, seed, to_device
        if isinstance(auxiliary, Dataset):
            shuffle = not isinstance(auxiliary, IterableDataset)
            auxiliary = DataLoader(auxiliary, batch_size=batch_size, shuffle=shuffle, generator=torch.Generator())
        if not isinstance(auxiliary, Tensor | tuple | dict | DataLoader):
            raise TypeError(f"auxiliary must be tensors, a Dataset or a DataLoader, got {type(auxiliary).__name__}")
        self.auxiliary = auxiliary
        if not isinstance(auxiliary, DataLoader):
            leaves = tree_leaves(batched(auxiliary, self.unbatched))
            rows = {x.shape[self.batch_dim] if isinstance(x, Tensor) and x.dim() > self.batch_dim else 0 for x in leaves}
            if len(rows) != 1 or 0 in rows:
                raise DataError(f"auxiliary tensors must have one number of rows, above 0, got {sorted(rows) or 'none'}")
            self.order = Order(rows.pop(), batch_size, seed)

    def epoch(self, epoch: int) -> Iterator[Batch]:
        auxiliary = (inputs for repeat in itertools.count() for inputs in self._pass(epoch, repeat))
        for batch in self.train.epoch(epoch):
            yield Batch(batch.inputs, batch.y, batch.weights, self.to_device.inputs(next(auxiliary)))

    def _pass(self, epoch: int, repeat: int) -> Iterator[Inputs]:
        """Yield all auxiliary inputs once, in an order that depends on epoch and repeat."""
        seed = seed_for(self.seed, "auxiliary", epoch, repeat)
        if not isinstance(self.auxiliary, DataLoader):
            self.order.seed = seed
            for index in self.order.indices():
                yield select_inputs(self.auxiliary, index, self.batch_dim, self.unbatched)
            return
        seed_loader(self.auxiliary, seed)
        item = None
        for item in self.auxiliary:  # x, (x,) or (x, y), as `predict` takes them
            yield item[0] if isinstance(item, list | tuple) else item
        if item is None:
            raise DataError("auxiliary is empty: its loader has no batches")
