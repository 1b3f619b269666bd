"""Auxiliary inputs, away from the training data, at which a network's outputs are regularised too (VIFO, section 2.1)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader, Dataset, IterableDataset

from bayesify.train.batch import Batch, Inputs
from bayesify.train.batches import Batches, Order, seed_for

if TYPE_CHECKING:
    from bayesify.core.model import Bayesian
    from bayesify.train.batch import Place

__all__ = ["AuxiliaryInputs", "Paired", "UniformInputs", "auxiliary_inputs"]

AuxiliaryInputs = Tensor | tuple[Any, ...] | dict[str, Any] | Dataset[Any] | DataLoader[Any]
_WAY_OUT = "give fit(auxiliary=...) inputs of your own, or VIFO(eta_aux=0)"


def auxiliary_inputs(
    given: AuxiliaryInputs | None, train: Batches, bnn: Bayesian, *, seed: int, place: Place, batch_size: int
) -> tuple[Batches, nn.Module | None]:
    """The training batches, paired with auxiliary inputs where some are given; and what makes them where none are but needed.

    Raises:
        TypeError: auxiliary inputs of another kind.
        ValueError: the net has no use for them, none at all, or training data without ranges.
    """
    if bnn.auxiliary_beta == 0:
        if given is not None:
            raise ValueError("auxiliary inputs need a network that is regularised there: VIFO(eta_aux=0.1), say")
        return train, None
    if given is None:
        return train, UniformInputs(train, bnn)
    return Paired(train, given, bnn, seed, place, batch_size), None


class UniformInputs(nn.Module):
    r"""Uniform draws, one for every example, from the box of the training data made twice as wide.

    $$x_\mathrm{aux}^{(i)} \sim \mathrm{Unif}[\min x^{(i)} - d_i / 2,\; \max x^{(i)} + d_i / 2], \qquad
    d_i = \max x^{(i)} - \min x^{(i)}$$

    for every feature i (pixel, position of a sequence). Source: *Variational inference on the final-layer output of neural
    networks*, section 2.1.
    """

    def __init__(self, train: Batches, bnn: Bayesian) -> None:
        super().__init__()
        self.shared = bnn.shared
        lows, highs = list[Tensor](), list[Tensor]()
        for batch in train.epoch(0) if train.tensors is None else [train.tensors]:
            leaves = tree_leaves(_rows(batch.inputs, self.shared))
            for x in leaves:
                if not isinstance(x, Tensor) or not x.is_floating_point():
                    kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
                    raise ValueError(f"auxiliary inputs come from the ranges of floating point inputs, got {kind}; {_WAY_OUT}")
            low, high = [x.amin(bnn.batch_dim, True) for x in leaves], [x.amax(bnn.batch_dim, True) for x in leaves]
            if lows and [x.shape for x in low] != [x.shape for x in lows]:
                raise ValueError(f"inputs whose shapes differ between batches have no ranges; {_WAY_OUT}")
            lows = [torch.minimum(a, b) for a, b in zip(lows or low, low, strict=True)]
            highs = [torch.maximum(a, b) for a, b in zip(highs or high, high, strict=True)]
        for i, (low, high) in enumerate(zip(lows, highs, strict=True)):
            self.register_buffer(f"start_{i}", low - (high - low) / 2)
            self.register_buffer(f"width_{i}", 2 * (high - low))

    def forward(self, inputs: Inputs) -> Inputs:
        """Auxiliary inputs with the structure and shapes of `inputs`; what all examples share is passed on."""
        boxes = self.buffers()

        def draw(x: Tensor) -> Tensor:
            return next(boxes) + next(boxes) * torch.rand(x.shape, dtype=x.dtype, device=x.device)

        drawn = tree_map(draw, _rows(inputs, self.shared))
        return {**inputs, **drawn} if isinstance(inputs, dict) else drawn


class Paired(Batches):
    """Training batches, each with the next batch of auxiliary inputs, which begin anew when they are through."""

    def __init__(self, train: Batches, given: AuxiliaryInputs, bnn: Bayesian, seed: int, place: Place, batch_size: int) -> None:
        self.train, self.tensors = train, train.tensors
        self.examples, self.steps, self.exact = train.examples, train.steps, train.exact
        self.batch_dim, self.shared, self.seed, self.place = bnn.batch_dim, bnn.shared, seed, place
        if isinstance(given, Dataset):
            shuffle = not isinstance(given, IterableDataset)
            given = DataLoader(given, batch_size=batch_size, shuffle=shuffle, generator=torch.Generator())
        if not isinstance(given, Tensor | tuple | dict | DataLoader):
            raise TypeError(f"auxiliary must be tensors, a Dataset or a DataLoader, got {type(given).__name__}")
        self.source = given
        if not isinstance(given, DataLoader):
            leaves = tree_leaves(_rows(given, self.shared))
            rows = {x.shape[self.batch_dim] if isinstance(x, Tensor) and x.dim() > self.batch_dim else 0 for x in leaves}
            if len(rows) != 1 or 0 in rows:
                raise ValueError(f"auxiliary tensors must have one number of rows, above 0, got {sorted(rows) or 'none'}")
            self.order = Order(rows.pop(), batch_size, seed)

    def epoch(self, epoch: int) -> Iterator[Batch]:
        extra = (inputs for turn in itertools.count() for inputs in self._turn(epoch, turn))
        for batch in self.train.epoch(epoch):
            yield Batch(batch.inputs, batch.y, self.place(Batch(next(extra), batch.y[:1])).inputs)

    def _turn(self, epoch: int, turn: int) -> Iterator[Inputs]:
        """All auxiliary inputs once, in an order of this turn's own."""
        seed = seed_for(self.seed, "auxiliary", epoch, turn)
        if not isinstance(self.source, DataLoader):
            self.order.seed = seed
            for index in self.order.indices():
                cut = tree_map(lambda x, i=index: x.index_select(self.batch_dim, i.to(x.device)), _rows(self.source, self.shared))
                yield {**self.source, **cut} if isinstance(self.source, dict) else cut
            return
        for owner in (self.source, self.source.sampler):
            generator = getattr(owner, "generator", None)
            if generator is not None:
                generator.manual_seed(seed)
        item = None
        for item in self.source:  # x, (x,) or (x, y), as `predict` takes them
            yield item[0] if isinstance(item, list | tuple) else item
        if item is None:
            raise ValueError("auxiliary is empty: its loader has no batches")


def _rows(inputs: Any, shared: tuple[str, ...]) -> Any:
    """The inputs that have one row per example."""
    return {name: x for name, x in inputs.items() if name not in shared} if isinstance(inputs, dict) else inputs
