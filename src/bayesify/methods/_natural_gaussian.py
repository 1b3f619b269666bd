"""Mean-field Gaussian posteriors with natural-gradient updates: what IVON, VOGN and noisy Adam share."""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from typing import Any, Literal

import torch
from torch import Tensor, nn

from bayesify.core.checks import check_choice, check_fraction, check_rate, check_scale
from bayesify.core.layer import BayesianLayer
from bayesify.core.natural import NaturalPosterior, NaturalStep
from bayesify.functional import at_least_float32, gaussian_kl
from bayesify.functional.noise import normal_draws
from bayesify.methods._stored_priors import StoredPrior

__all__ = ["GaussianFields", "Gradients", "NaturalGaussian"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class GaussianFields:
    """Fields of a method with independent normal weights, updated by natural gradients."""

    prior: Literal["normal", "sequential"] = "normal"
    prior_std: float = 1.0
    prior_mean: Literal["zero", "pretrained"] = "zero"
    initial_std: float = 0.1
    momentum: float = 0.9
    hessian_rate: float = 1e-3
    damping: float = 0.0

    def __post_init__(self) -> None:
        check_choice("prior", self.prior, ("normal", "sequential"))
        check_choice("prior_mean", self.prior_mean, ("zero", "pretrained"))
        check_scale("prior_std", self.prior_std)
        check_scale("initial_std", self.initial_std)
        check_fraction("momentum", self.momentum)
        if self.damping != 0:
            check_scale("damping", self.damping)
        check_rate("hessian_rate", self.hessian_rate)


@dataclasses.dataclass(frozen=True)
class Gradients:
    r"""Gradients of the negative log likelihood per example, without the KL, of one tensor of weights.

    Attributes:
        mean: with respect to the means; None if they are frozen.
        spread: with respect to $\log\sigma$; None if it is frozen.
        variance: $\sigma^2$.
        observed: what the posterior's `observe` returned for the tensor, if anything.
    """

    mean: Tensor | None
    spread: Tensor | None
    variance: Tensor
    observed: Tensor | None


class NaturalGaussian(StoredPrior, NaturalPosterior):
    r"""Independent normals; the means are the layer's own weight and bias.

    The state of an update is the Hessian h of the negative log likelihood per example, from which
    $1/\sigma^2 = \lambda\,(h + \delta)$ with the effective sample size $\lambda = n/\beta$ and $\delta = 1/(\lambda s^2)$. It is
    not stored: sigma, lambda of the last step and the prior determine it, so that a further training continues with other
    data, another beta or, with a sequential prior, another prior.
    """

    weight_log_std: Tensor
    bias_log_std: Tensor

    def __init__(self, method: GaussianFields, layer: BayesianLayer) -> None:
        super().__init__()
        self.method, self.rate = method, method.hessian_rate
        log_std = math.log(method.initial_std) - 0.5 * math.log(layer.fan_in)
        for name, mean in (("weight", layer.weight), ("bias", layer.bias)):
            self.register_parameter(f"{name}_log_std", None if mean is None else nn.Parameter(torch.full_like(mean, log_std)))
            self.register_prior(name, mean)

    def sample(self, layer: BayesianLayer, samples: int) -> tuple[Tensor, Tensor | None]:
        (weight, weight_log_std, *_), *biases = self._parts(layer)
        return normal_draws(weight, weight_log_std, samples), normal_draws(*biases[0][:2], samples) if biases else None

    def moments(self, layer: BayesianLayer, x: Tensor) -> tuple[Tensor, Tensor]:
        weight, bias = self.mean(layer)
        x = layer.prepare(x)
        variance = torch.exp(2 * self.weight_log_std), None if bias is None else torch.exp(2 * self.bias_log_std)
        return layer.op(x, weight, bias), layer.op(layer.square(x), *variance)

    def kl(self, layer: BayesianLayer) -> Tensor:
        terms = [
            gaussian_kl(at_least_float32(mean), at_least_float32(log_std), center, spread).sum()
            for mean, log_std, center, spread in self._parts(layer)
        ]
        return torch.stack(terms).sum()

    def update(self, layer: BayesianLayer, step: NaturalStep) -> None:
        before = torch.where(self.ess > 0, self.ess, step.n)
        for name, part in zip(("weight", "bias"), self._parts(layer), strict=False):
            self._update(*part, before, step, step.observed.get(name))
        self.ess.fill_(step.ess)

    def _update(
        self,
        mean: Tensor,
        log_std: Tensor,
        center: Tensor | float,
        prior_std: Tensor | float,
        before: Tensor,
        step: NaturalStep,
        observed: Tensor | None,
    ) -> None:
        """Update one tensor of weights."""
        variance, prior_precision = torch.exp(2 * log_std), prior_std**-2
        delta, pull = prior_precision / step.ess, (mean - center) * prior_precision
        gradient = None if mean.grad is None else mean.grad - step.kl_weight * pull
        spread = None if log_std.grad is None else log_std.grad - step.kl_weight * (variance * prior_precision - 1)
        # h + delta at the present lambda; a smaller beta makes delta smaller, and a negative h must not exceed it
        scale = (1 / variance - prior_precision) / before + delta
        scale = torch.maximum(scale, torch.as_tensor(0.01 * delta, dtype=scale.dtype, device=scale.device))
        hessian = self.hessian(Gradients(gradient, spread, variance, observed)) if log_std.requires_grad else None
        if hessian is not None:
            scale = self.moved(scale, self.method.hessian_rate * (hessian + delta - scale))
            log_std.sub_(0.5 * torch.log(scale * step.ess * variance))
        if gradient is not None:
            state = step.state(mean)
            if not state:
                state["step"], state["momentum"] = 0, torch.zeros_like(mean)
            state["step"] += 1
            state["momentum"].lerp_(gradient, 1 - self.method.momentum)
            average = state["momentum"] / (1 - self.method.momentum ** state["step"])
            mean.sub_(step.learning_rate * (average + pull / step.ess) / (scale + self.method.damping))

    def precisions(self, layer: BayesianLayer) -> Tensor | None:
        return torch.exp(-2 * at_least_float32(self.weight_log_std)) if self.weight_log_std.requires_grad else None

    @abstractmethod
    def hessian(self, gradients: Gradients) -> Tensor | None:
        """The estimate of a step for h, the diagonal of the Hessian per example."""

    def moved(self, scale: Tensor, change: Tensor) -> Tensor:
        """The next h + delta from the present one, `scale`, and its change by the moving average; it must be positive."""
        return scale + change

    def _parts(self, layer: BayesianLayer) -> list[tuple[Any, Any, Any, Any]]:
        """Mean, log standard deviation, prior mean and prior standard deviation of weight and, if there is one, bias."""
        parts = []
        for name, mean in zip(("weight", "bias"), self.mean(layer), strict=True):
            if mean is not None:
                center, spread = getattr(self, f"{name}_prior_mean"), getattr(self, f"{name}_prior_log_std")
                std = self.method.prior_std if spread is None else at_least_float32(spread).exp()
                parts.append((mean, getattr(self, f"{name}_log_std"), 0.0 if center is None else center, std))
        return parts
