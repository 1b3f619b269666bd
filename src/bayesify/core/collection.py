"""Posteriors that are collected along training: the schedule of their snapshots, and what a root does for them."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from bayesify.core.layer import BayesianLayer
from bayesify.core.shards import with_whole_parameters
from bayesify.core.stored import StoredPosterior
from bayesify.errors import ConfigurationError
from bayesify.formatting import listing

__all__ = ["CollectedPosterior", "Collecting"]


class CollectedPosterior(StoredPosterior):
    """A posterior that is collected from the weights along training (SWAG).

    Passes of a root in training mode use the layer's own weight (`layer.forward_pass.trains()`), all others what was collected,
    and the layer's own weight as long as that is nothing. `fit`, `fit_many` and the integrations call `collect` when a snapshot is
    due; a training loop of one's own calls `bnn.collect()`. What is collected belongs in buffers, so that it is saved, copied
    and resumed.

    Args:
        start: fraction of training, in [0, 1), after which snapshots are taken.
        snapshots: their number, spread evenly over the rest of training; at most one per optimizer step.

    Attributes:
        count: number of snapshots so far, an integer tensor, which `collect` increases.
    """

    count: Tensor

    def __init__(self, start: float, snapshots: int) -> None:
        super().__init__()
        self.start, self.snapshots = start, snapshots
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    @abstractmethod
    def collect(self, layer: BayesianLayer) -> None:
        """Add the layer's own weight and bias as a snapshot, in place."""

    def is_due(self, before: float, after: float) -> bool:
        """Whether a snapshot is due between two fractions of training."""
        return self._due(after) > self._due(before)

    def _due(self, done: float) -> int:
        """The number of snapshots due after a fraction of training."""
        return max(0, math.floor(self.snapshots * (done - self.start) / (1 - self.start) + 1e-9))

    def remark(self) -> str:
        return "" if self.count.is_meta else f"{int(self.count)} snapshots collected"


class Collecting(nn.Module):
    """The part of `Bayesian` that concerns posteriors collected along training."""

    findings: list[str]
    _trains: bool  # as in `Completing`

    @abstractmethod
    def random_layers(self) -> Iterator[tuple[str, BayesianLayer]]:
        """As in `Bayesian`."""

    @abstractmethod
    def tell(self, finding: str) -> None:
        """As in `Bayesian`."""

    @property
    def collects(self) -> bool:
        """Whether a posterior is collected along training (SWA, SWAG)."""
        return any(True for _ in self._collecting())

    def collect(self) -> None:
        """Add the current weights as a snapshot to all posteriors that are collected along training (SWA, SWAG).

        Call it in a training loop of your own, after an optimizer step or an epoch, once the learning rate is constant. `fit`
        does so by the fields `start` and `snapshots` of the method.

        Raises:
            ConfigurationError: no posterior of the network is collected.

        Example:
            >>> from bayesify import SWAG, bayesify
            >>> bnn = bayesify(nn.Linear(3, 1), SWAG())
            >>> bnn.collect()
            >>> int(bnn.net.posterior.count)
            1
        """
        if not self.collects:
            raise ConfigurationError("no posterior of this network is collected along training; use SWAG() or SWA()")
        for layer, posterior in self._collecting():
            _collect(layer, posterior)

    def collect_due(self, before: float, after: float) -> None:
        """Take the snapshots that are due between two fractions of training; one at most, and none without such posteriors."""
        for layer, posterior in self._collecting():
            if posterior.is_due(before, after):
                _collect(layer, posterior)

    def is_due(self, before: float, after: float) -> bool:
        """Whether `collect_due` would take a snapshot."""
        return any(posterior.is_due(before, after) for _, posterior in self._collecting())

    def check_collected(self) -> None:
        """Warn, once each, of what makes predictions with posteriors collected along training other than expected."""
        collecting = list(self._collecting())
        if not collecting or collecting[0][1].count.is_meta:
            return
        if not all(bool(posterior.count > 0) for _, posterior in collecting):
            if not self._trains:
                self.tell(_NOTHING)
            return
        if _NOTHING in self.findings:
            self.findings.remove(_NOTHING)
        owned = {parameter for layer, _ in collecting for parameter in layer.parameters()}
        if others := [n for n, p in self.named_parameters() if p.requires_grad and p not in owned]:
            self.tell(
                f"{len(others)} trained parameters are in layers without snapshots, so predictions combine collected weights with "
                f"the last ones of these: {listing(others, most=3)}; freeze them, or make their layers part of the method"
            )
        if any(isinstance(module, _NormBase) and module.running_mean is not None for module in self.modules()):
            self.tell(_STATISTICS)

    def _collecting(self) -> Iterator[tuple[BayesianLayer, CollectedPosterior]]:
        for _, layer in self.random_layers():
            if isinstance(layer.posterior, CollectedPosterior):
                yield layer, layer.posterior


def _collect(layer: BayesianLayer, posterior: CollectedPosterior) -> None:
    with_whole_parameters(layer, lambda: posterior.collect(layer))


_NOTHING = (
    "no snapshot has been collected, so predictions are those of the current weights alone; train with `fit`, or call "
    "`bnn.collect()` in your training loop"
)
_STATISTICS = (
    "the running statistics of batch normalization belong to the last weights of training, not to collected ones; predict with "
    "`bayesify.train.ensemble_of_draws(bnn, inputs)`, which recomputes them for every draw"
)
