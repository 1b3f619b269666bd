"""What optimizers get of a Bayesian network: parameter groups, and natural-gradient updates of its posteriors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from bayesify.core.checks import check_positive
from bayesify.core.first_steps import FirstSteps
from bayesify.core.layer import BayesianLayer
from bayesify.core.natural import NaturalPosterior
from bayesify.core.natural_gradient import NaturalGradient
from bayesify.core.observation import Observation
from bayesify.core.shards import shards_of
from bayesify.core.weight_decay import variational_parameters
from bayesify.errors import ConfigurationError

if TYPE_CHECKING:
    from bayesify.core.forward_pass import ForwardPass
    from bayesify.core.passes import Passes

__all__ = ["Optimizing"]


class Optimizing(nn.Module):
    """The part of `Bayesian` that concerns optimizers."""

    passes: Passes
    first_steps: FirstSteps | None = None  # while they are observed

    @abstractmethod
    def random_layers(self) -> Iterator[tuple[str, BayesianLayer]]:
        """As in `Bayesian`."""

    @abstractmethod
    def tell(self, finding: str) -> None:
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

    def tell_of_optimizer(self) -> None:
        """Warn, after training, if natural-gradient updates have left most of the posterior's precision as it was initialized."""
        if self.passes.optimizer is not None and (complaint := self.passes.optimizer.complaint()):
            self.tell(complaint)

    def parameter_groups(self, weight_decay: float, **options: Any) -> list[dict[str, Any]]:
        """Parameter groups for an optimizer: weight decay for weights and their means, none for other variational parameters.

        Decay would pull a log standard deviation toward 0, a standard deviation of 1, regardless of the prior. A `BayesifyWarning`
        tells of an optimizer that does, at its first step.

        Args:
            weight_decay: weight decay of the first group.
            options: further options of both groups, such as `lr`.

        Returns:
            Parameter groups as for `torch.optim.AdamW`, without frozen parameters.

        Example:
            >>> from bayesify import MeanField, bayesify
            >>> groups = bayesify(nn.Linear(3, 1), MeanField()).parameter_groups(weight_decay=0.01, lr=1e-3)
            >>> [(sum(p.numel() for p in group["params"]), group["weight_decay"]) for group in groups]
            [(4, 0.01), (4, 0.0)]
        """
        varying = set(variational_parameters(self).values())
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        split = [[p for p in trained if p not in varying], [p for p in trained if p in varying]]
        return [{"params": p, "weight_decay": w, **options} for p, w in zip(split, (weight_decay, 0.0), strict=True) if p]

    def tell_of_rounding(self) -> None:
        """Warn, before training, of parameters of posteriors in half precision, which optimizers hardly change."""
        posteriors = [f"{name}.posterior." for name, layer in self.named_modules() if isinstance(layer, BayesianLayer)]
        for name, parameter in self.named_parameters():
            half = parameter.requires_grad and parameter.dtype in (torch.bfloat16, torch.float16)
            if half and name.startswith(tuple(posteriors)):
                lost = 2 * torch.finfo(parameter.dtype).eps  # half the distance between numbers from 4 to 8
                self.tell(
                    f"parameters of posteriors, such as {name!r}, are trained in {parameter.dtype}, which rounds steps of an "
                    f"optimizer below {lost:.1g} to nothing at a value of -5. They stay as initialized, unless the optimizer holds "
                    "float32 copies. Have random layers in float32, as by bnn.float(), and train and predict under torch.autocast, "
                    "or with fit(..., precision='bf16-mixed')"
                )
                return

    def _observe_training(self) -> FirstSteps | None:
        """Warn, in one of the first passes for training, of what the steps before reveal; return what observes this pass."""
        if torch.compiler.is_compiling() or self.first_steps is None or not self.training or not torch.is_grad_enabled():
            return None
        if not self.first_steps.begun:
            self.first_steps.begun = True
            self.tell_of_rounding()
        finding = self.first_steps.finding(self, has_optimizer=self.passes.optimizer is not None)
        if finding is not None:
            self.first_steps = None
        if finding:
            self.tell(finding)
        return self.first_steps

    @property
    def is_observed(self) -> bool:
        """Whether passes now are for the optimizer: in training mode, with gradients, if there is one."""
        return self.passes.optimizer is not None and self.training and not torch.compiler.is_compiling() and torch.is_grad_enabled()

    def observation(self, passes: Sequence[ForwardPass]) -> Observation | None:
        """What connects these passes with the optimizer, if they are for it."""
        return Observation(self.passes.optimizer, passes) if self.passes.optimizer is not None and self.is_observed else None
