"""Posteriors that an optimizer updates by natural gradients: their base class, and the optimizer.

The posterior is an ordinary one: means and spreads are parameters with the gradient of the loss, so drawing, KL, saving and copies
need nothing else. The step of the optimizer, `bnn.optimizer(likelihood)`, calls `NaturalPosterior.update` for every layer. What an
update needs besides gradients, the number of examples and the weight of the KL, `elbo` tells the optimizer by
`Draws.observation`.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bayesify.core.initial_precision import InitialPrecision
from bayesify.core.layer import BayesianLayer, Posterior
from bayesify.core.modes import without_autocast
from bayesify.core.per_example import Record
from bayesify.core.shards import is_distributed
from bayesify.errors import ConfigurationError

if TYPE_CHECKING:
    from bayesify.core.forward_pass import ForwardPass

__all__ = ["NaturalGradient", "NaturalPosterior", "NaturalStep", "Observation"]

_LEAST_BETA = 1e-3  # weight of the KL that sets the spread where a schedule starts at 0


@dataclasses.dataclass(frozen=True)
class NaturalStep:
    r"""What `NaturalPosterior.update` gets for one step.

    Attributes:
        learning_rate: of the step.
        n, beta: number of examples in the training set and weight of the KL in the loss, $-\mathrm{ELBO} / n$, that was descended.
        state: the optimizer's state of a parameter, a dict of tensors and numbers.
        observed: what `NaturalPosterior.observe` returned for the layer, averaged over the passes since the last step.
    """

    learning_rate: float
    n: float
    beta: float
    state: Callable[[Tensor], dict[str, Any]]
    observed: Mapping[str, Tensor]

    @property
    def kl_weight(self) -> float:
        """Weight of the KL in the loss, beta / n."""
        return self.beta / self.n

    @property
    def ess(self) -> float:
        """Effective sample size n / beta; a beta below 0.001 counts as 0.001."""
        return self.n / max(self.beta, _LEAST_BETA)


class NaturalPosterior(Posterior):
    """A posterior that `bnn.optimizer(...)` updates by natural gradients.

    Its parameters have the gradient of the loss, so that another optimizer, which treats them as the parameters of any posterior,
    also maximizes the ELBO.

    Attributes:
        ess: effective sample size of the last step, n / beta; 0 before the first, where it counts as n.
        rate: weight of a step in the moving average of curvatures, where `precisions` returns them.
        samples_labels: with `observes`, whether the examples are observed with targets drawn from the model (Fisher information)
            instead of those of the data.
        stacks: with `observes`, whether statistics of passes are stacked along their first dimension, and scaled so that sums of
            products of two are averaged, instead of averaged themselves.
    """

    samples_labels: bool = False
    stacks: bool = False
    rate: float = 0.0
    ess: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ess", torch.zeros(()))

    def precisions(self, layer: BayesianLayer) -> Tensor | None:
        """Precisions of the weights, or their geometric mean; None if they are not a moving average of curvatures."""
        return None

    @abstractmethod
    def update(self, layer: BayesianLayer, step: NaturalStep) -> None:
        """Update the layer's parameters and those of the posterior, in place, by their `grad`; without a `grad` they stay."""

    def observe(self, layer: BayesianLayer, record: Record) -> dict[str, Tensor]:
        """Statistics of a call of the layer in training, for posteriors with `observes`: averages over draws and examples.

        Several calls of a layer in a pass are added. With `stacks`, they have one row per draw and example, divided by the root of
        their number.
        """
        raise NotImplementedError(f"{type(self).__name__} declares observes but does not implement `observe`")

    def remark(self) -> str:
        return "" if self.ess.is_meta or self.ess <= 0 else f"effective sample size {float(self.ess):.4g}"


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
            self.optimizer.add(found)
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
        self.observed: dict[BayesianLayer, tuple[dict[str, Tensor], int]] = {}
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
            observed = _average(*self.observed.get(layer, ({}, 0)), _stacks(layer))
            layer.posterior.update(layer, NaturalStep(rate, *self.objective, state, observed))
        self.observed = {}
        if len(self.param_groups) > 1:
            # groups and state are those of this optimizer, which replaces them when it loads a state
            self._adam.param_groups, self._adam.state = self.param_groups[1:], self.state
            self._adam.step()
        return loss

    def add(self, found: Mapping[BayesianLayer, Sequence[Mapping[str, Tensor]]]) -> None:
        """Add what posteriors observed in one call of the network."""
        for layer, passes in found.items():
            sums, count = self.observed.get(layer, ({}, 0))
            for values in passes:
                _add(sums, values, _stacks(layer))
            self.observed[layer] = sums, count + 1

    def complaint(self) -> str:
        """What to say after training; empty if the data determine the posterior's precision."""
        steps = [self.state[p].get("step", 0) for p in self.param_groups[0]["params"] if p in self.state]
        return "" if self.objective is None else self.initial.complaint(max(steps, default=0), self.objective[0])

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget gradients and observations."""
        super().zero_grad(set_to_none)
        self.observed = {}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse further groups: the update of a posterior is that of its layer.

        Raises:
            ConfigurationError: after the construction.
        """
        if len(self.param_groups) == self._groups:
            raise ConfigurationError("this optimizer has all parameters of the network; make another one with bnn.optimizer(...)")
        super().add_param_group(param_group)


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


def _average(sums: Mapping[str, Tensor], passes: int, stacks: bool) -> dict[str, Tensor]:
    """Averages over passes and processes by name; of stacked values those of products of two."""
    averages = _scaled(sums, passes, stacks)
    if not is_distributed():
        return averages
    for name, value in averages.items():
        if stacks:
            averages[name] = _gathered(value)
        else:
            torch.distributed.all_reduce(value)
    return _scaled(averages, torch.distributed.get_world_size(), stacks)


def _gathered(value: Tensor) -> Tensor:
    """Rows of all processes, with rows of zeros after those of a process that has fewer than others."""
    most = torch.tensor(len(value), device=value.device)
    torch.distributed.all_reduce(most, torch.distributed.ReduceOp.MAX)
    padded = torch.cat([value, value.new_zeros(int(most) - len(value), *value.shape[1:])])
    parts = [torch.empty_like(padded) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(parts, padded)
    return torch.cat(parts)
