"""What posteriors observe of single examples between the steps of the optimizer of a network.

`elbo` calls the `Observation` of its draws, which tells the optimizer the number of examples and the weight of the KL, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bayesify.core.layer import BayesianLayer, Posterior
from bayesify.core.modes import without_autocast
from bayesify.core.natural import NaturalPosterior
from bayesify.core.per_example import Record
from bayesify.core.shards import is_distributed
from bayesify.errors import ConfigurationError

if TYPE_CHECKING:
    from bayesify.core.forward_pass import ForwardPass
    from bayesify.core.natural_gradient import NaturalGradient

__all__ = ["Observation", "Observed"]


class Observed(dict[BayesianLayer, tuple[dict[str, Tensor], int]]):
    """Sums, or stacks, of what the posterior of each layer observed in passes since the last step, and the number of passes."""

    def add(self, found: Mapping[BayesianLayer, Sequence[Mapping[str, Tensor]]]) -> None:
        """Add what posteriors observed in one call of the network."""
        for layer, passes in found.items():
            sums, count = self.get(layer, ({}, 0))
            for values in passes:
                _add(sums, values, _stacks(layer))
            self[layer] = sums, count + 1

    def average(self, layer: BayesianLayer) -> dict[str, Tensor]:
        """Averages over passes and processes by name; of stacked values those of products of two."""
        (sums, passes), stacks = self.get(layer, ({}, 0)), _stacks(layer)
        averages = _scaled(sums, passes, stacks)
        if not is_distributed():
            return averages
        for name, value in averages.items():
            if stacks:
                averages[name] = _gathered(value)
            else:
                torch.distributed.all_reduce(value)
        return _scaled(averages, torch.distributed.get_world_size(), stacks)


class Observation:
    """Connects the draws of passes in training with the optimizer of the network; `elbo` calls it.

    Attributes:
        weights: (B,) weights of the examples, by which their log likelihoods were multiplied; None if they have none.
    """

    def __init__(self, optimizer: NaturalGradient, passes: Sequence[ForwardPass]) -> None:
        self.optimizer, self.passes = optimizer, passes
        self.weights: Tensor | None = None

    @property
    def sees_examples(self) -> bool:
        """Whether posteriors observe single examples, which have to be all of the batch."""
        return any(layer.posterior.observes for layer in self.optimizer.layers)

    def __call__(self, outputs: Any, log_prob: Tensor, n: float, beta: float | Tensor) -> None:
        """Tell the optimizer n and beta, and let posteriors observe the examples, which count once `log_prob` gets a gradient.

        Args:
            outputs: (S, B, ...), of the network.
            log_prob: (S, B), their log likelihoods.
            n, beta: number of examples in the training set and weight of the KL.
        """
        self.optimizer.objective = float(n), float(beta)
        if not self.sees_examples:
            return
        if not log_prob.requires_grad:
            raise ConfigurationError(
                "log_prob has no gradient, but the optimizer of this network needs those of single examples; compute it from "
                "draws.outputs, or call the network under torch.no_grad() for the value of the ELBO alone"
            )
        found: dict[BayesianLayer, list[dict[str, Tensor]]] = {}
        for sampled in (False, True):
            chosen = [layer for layer in self.optimizer.layers if _observes(layer.posterior, sampled)]
            if chosen:
                found |= self._observed(chosen, self._sampled(outputs) if sampled else log_prob)

        def count(gradient: Tensor) -> None:
            self.optimizer.observed.add(found)
            found.clear()  # a second backward pass adds nothing

        log_prob.register_hook(count)

    def _sampled(self, outputs: Any) -> Tensor:
        """Log likelihoods (S, B) of targets that are drawn from the model, one per draw and example."""
        likelihood: Any = self.optimizer.likelihood
        if likelihood is None:
            raise ConfigurationError("this posterior samples targets from the likelihood: give bnn.optimizer(likelihood)")
        with torch.no_grad():
            targets = likelihood.sample(outputs)
        rows = outputs.flatten(0, 1).unsqueeze(0)
        log_prob = likelihood.log_prob_of_samples(rows, targets.flatten(0, 1)).unflatten(1, outputs.shape[:2]).squeeze(0)
        return log_prob if self.weights is None else log_prob * self.weights

    def _observed(self, layers: Sequence[BayesianLayer], log_prob: Tensor) -> dict[BayesianLayer, list[dict[str, Tensor]]]:
        """What the posteriors of layers observe in each pass that calls them."""
        chosen = set(layers)
        calls = [(k, *call) for k, each in enumerate(self.passes) for call in each.calls if call[0] in chosen]
        if missing := [layer for layer in layers if layer.is_used is not False and layer not in {call[1] for call in calls}]:
            raise ConfigurationError(
                f"the network does not call {len(missing)} random layers in this pass (the first is a "
                f"{missing[0].original.__name__}), so they have no gradients of single examples; use IVON for them"
            )
        gradients = torch.autograd.grad(
            log_prob.sum(), [y for *_, y in calls], retain_graph=True, allow_unused=True, materialize_grads=True
        )
        rows = log_prob.numel() // len(self.passes)
        found: dict[BayesianLayer, dict[int, dict[str, Tensor]]] = {}
        for (k, layer, x, y), gradient in zip(calls, gradients, strict=True):
            assert isinstance(layer.posterior, NaturalPosterior)
            record = Record.of_call(x, y, rows, gradient)
            record.check(layer)
            with without_autocast(y.device):
                values = layer.posterior.observe(layer, record if self.weights is None else record.weighted(self.weights))
            _add(found.setdefault(layer, {}).setdefault(k, {}), values)
        count = len(self.passes)
        return {layer: [_scaled(values, count, _stacks(layer)) for values in by_pass.values()] for layer, by_pass in found.items()}


def _observes(posterior: Posterior, samples_labels: bool) -> bool:
    return posterior.observes and isinstance(posterior, NaturalPosterior) and posterior.samples_labels is samples_labels


def _stacks(layer: BayesianLayer) -> bool:
    return isinstance(layer.posterior, NaturalPosterior) and layer.posterior.stacks


def _scaled(values: Mapping[str, Tensor], count: int, stacks: bool) -> dict[str, Tensor]:
    """Values divided by the number of passes or processes, or, if they are stacked, by its root."""
    return {name: value / (count**0.5 if stacks else count) for name, value in values.items()}


def _add(sums: dict[str, Tensor], values: Mapping[str, Tensor], stacks: bool = False) -> None:
    """Add values to sums by name, or stack them."""
    for name, value in values.items():
        if name in sums:
            sums[name] = torch.cat([sums[name], value]) if stacks else sums[name] + value
        else:
            sums[name] = value


def _gathered(value: Tensor) -> Tensor:
    """Rows of all processes, with rows of zeros after those of a process that has fewer than others."""
    most = torch.tensor(len(value), device=value.device)
    torch.distributed.all_reduce(most, torch.distributed.ReduceOp.MAX)
    padded = torch.cat([value, value.new_zeros(int(most) - len(value), *value.shape[1:])])
    parts = [torch.empty_like(padded) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(parts, padded)
    return torch.cat(parts)
