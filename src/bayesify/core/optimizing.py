"""`Bayesian.optimizer`, for posteriors with natural-gradient updates."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from bayesify.core.checks import check_positive
from bayesify.core.layer import BayesianLayer
from bayesify.core.natural import NaturalGradient, NaturalPosterior, Observation
from bayesify.core.shards import shards_of
from bayesify.errors import ConfigurationError

if TYPE_CHECKING:
    from bayesify.core.forward_pass import ForwardPass
    from bayesify.core.passes import Passes

__all__ = ["Optimizing"]


class Optimizing(nn.Module):
    """The part of `Bayesian` that concerns posteriors with natural-gradient updates."""

    passes: Passes

    @abstractmethod
    def random_layers(self) -> Iterator[tuple[str, BayesianLayer]]:
        """As in `Bayesian`."""

    @property
    def has_optimizer(self) -> bool:
        """Whether posteriors of the network have natural-gradient updates (IVON)."""
        return any(isinstance(layer.posterior, NaturalPosterior) for _, layer in self.random_layers())

    def optimizer(
        self, likelihood: nn.Module | None = None, *, learning_rate: float = 1e-2, adam_learning_rate: float | None = None
    ) -> NaturalGradient:
        """Make the optimizer of posteriors with natural-gradient updates (IVON); it replaces Adam in a training loop.

        All other parameters, those of the likelihood included, are trained by Adam in the same optimizer. A network has one such
        optimizer at a time, the last one. It is used like any other: schedulers, closures, accumulated gradients, gradient scalers
        and its `state_dict` work as usual. The loss must be `-elbo(...)` of draws in training mode, which tells the optimizer the
        number of examples and the weight of the KL. `fit` and the integrations use it without being asked. Where
        processes train one model together (DDP), observations of single examples are averaged over all processes.

        Args:
            likelihood: whose parameters are trained too.
            learning_rate: of natural-gradient steps; 1 is a Newton step.
            adam_learning_rate: of all other parameters; None for the same.

        Raises:
            ConfigurationError: no layer has such a posterior, or the network is an ensemble.

        Example:
            >>> from bayesify import IVON, bayesify, elbo
            >>> from bayesify.likelihoods import Gaussian
            >>> x, likelihood = torch.randn(64, 3), Gaussian(std=0.1)
            >>> bnn = bayesify(nn.Linear(3, 1), IVON())
            >>> optimizer = bnn.optimizer(likelihood)  # instead of torch.optim.Adam(bnn.parameters())
            >>> for _ in range(10):
            ...     draws = bnn(x, samples=2)
            ...     loss = -elbo(draws, likelihood.log_prob(draws.outputs, x.sum(1)), n=64)
            ...     loss.backward()
            ...     optimizer.step()
            ...     optimizer.zero_grad()
        """
        check_positive("learning_rate", learning_rate)
        if adam_learning_rate is not None:
            check_positive("adam_learning_rate", adam_learning_rate)
        if getattr(self, "members", ()):
            raise ConfigurationError("an ensemble is trained member by member: use fit, or the optimizer of each of bnn.members")
        layers = [layer for _, layer in self.random_layers() if isinstance(layer.posterior, NaturalPosterior)]
        if not layers:
            raise ConfigurationError(
                "no layer has a posterior with natural-gradient updates; convert with bayesify(net, IVON()), or use another "
                "optimizer, such as torch.optim.Adam(bnn.parameters())"
            )
        if any(shards_of(layer) for layer in layers):
            raise ConfigurationError("the parameters are sharded (FSDP), which natural-gradient updates do not support; use DDP")
        owned = {p for layer in layers for p in layer.parameters()}
        both = (*self.parameters(), *(() if likelihood is None else likelihood.parameters()))
        others = [p for p in dict.fromkeys(both) if p.requires_grad and p not in owned]
        rate = learning_rate if adam_learning_rate is None else adam_learning_rate
        self.passes.optimizer = NaturalGradient(layers, likelihood, others, learning_rate, rate)
        return self.passes.optimizer

    @property
    def is_observed(self) -> bool:
        """Whether passes now are for the optimizer: in training mode, with gradients, if there is one."""
        return self.passes.optimizer is not None and self.training and not torch.compiler.is_compiling() and torch.is_grad_enabled()

    def observation(self, passes: Sequence[ForwardPass]) -> Observation | None:
        """What connects these passes with the optimizer, if they are for it."""
        return Observation(self.passes.optimizer, passes) if self.passes.optimizer is not None and self.is_observed else None
