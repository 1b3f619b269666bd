"""The optimizer of networks with posteriors that are updated by natural gradients, `bnn.optimizer(likelihood)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from bayesify.core.initial_precision import InitialPrecision
from bayesify.core.layer import BayesianLayer
from bayesify.core.natural import NaturalPosterior, NaturalStep
from bayesify.core.observation import Observed
from bayesify.errors import ConfigurationError

__all__ = ["NaturalGradient"]


class NaturalGradient(Optimizer):
    """Natural-gradient steps for posteriors that have them, Adam for all other parameters; from `Bayesian.optimizer`.

    Attributes:
        objective: number of examples and weight of the KL, as the last `elbo` told them; None before, if you do not set it.
        initial: how much of the precision is left from the start.
        observed: sums, or stacks, of what posteriors observed in passes since the last step, and the number of passes. A
            pass counts from its backward pass on, as its gradients do.
    """

    def __init__(
        self,
        layers: list[BayesianLayer],
        likelihood: nn.Module | None,
        others: list[nn.Parameter],
        learning_rate: float,
        adam_learning_rate: float,
    ) -> None:
        self.layers, self.likelihood = layers, likelihood
        self.observed = Observed()
        self.objective: tuple[float, float] | None = None
        self.initial = InitialPrecision({layer: each for layer in layers if isinstance(each := layer.posterior, NaturalPosterior)})
        natural = [p for layer in layers for p in layer.parameters()]
        groups: list[dict[str, Any]] = [{"params": natural, "lr": learning_rate}]
        if others:
            self._adam = torch.optim.Adam(others, lr=adam_learning_rate)
            groups += self._adam.param_groups
        self._groups = len(groups)
        self.param_groups = []
        super().__init__(groups, {"method": "+".join(sorted({type(layer.posterior).__name__ for layer in layers}))})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters by their gradients.

        Args:
            closure: computes the loss and its gradients.

        Raises:
            ConfigurationError: the loss is not from `elbo`, or not of draws in training mode.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self.objective is None:
            raise ConfigurationError(
                "the optimizer of this network needs the number of examples and the weight of the KL, which elbo(...) tells it. "
                "Compute the loss with elbo from draws in training mode (bnn.train()). If calls of the network are compiled, set "
                "optimizer.objective = (n, beta), which suffices for IVON and NoisyAdam"
            )
        rate, state = float(self.param_groups[0]["lr"]), self.state.__getitem__
        for layer in self.layers:
            assert isinstance(layer.posterior, NaturalPosterior)
            has_gradient = any(p.grad is not None for p in layer.posterior.parameters())
            if layer.posterior.observes and has_gradient and layer not in self.observed:
                raise ConfigurationError(
                    "the optimizer of this network needs the gradients of single examples, and got none since the last step. "
                    "Compute the loss with elbo(draws, log_prob, n) from draws in training mode, without torch.compile, or use IVON"
                )
            layer.posterior.update(layer, NaturalStep(rate, *self.objective, state, self.observed.average(layer)))
        self.observed.clear()
        if len(self.param_groups) > 1:
            # groups and state are those of this optimizer, which replaces them when it loads a state
            self._adam.param_groups, self._adam.state = self.param_groups[1:], self.state
            self._adam.step()
        return loss

    def complaint(self) -> str:
        """What to say after training; empty if the data determine the posterior's precision."""
        steps = [self.state[p].get("step", 0) for p in self.param_groups[0]["params"] if p in self.state]
        return "" if self.objective is None else self.initial.complaint(max(steps, default=0), self.objective[0])

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget gradients and observations."""
        super().zero_grad(set_to_none)
        self.observed.clear()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse further groups: the update of a posterior is that of its layer.

        Raises:
            ConfigurationError: after the construction.
        """
        if len(self.param_groups) == self._groups:
            raise ConfigurationError("this optimizer has all parameters of the network; make another one with bnn.optimizer(...)")
        super().add_param_group(param_group)
