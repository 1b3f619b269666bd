r"""Mean field: an independent normal for every weight and bias.

$$q(w) = \prod_j N(w_j \mid \mu_j, \sigma_j^2)$$

`noise="local"` draws a layer's outputs instead of its weights, one draw per output element (the local reparameterisation of
Kingma, Salimans & Welling, 2015, section 2.3), which makes gradients less noisy:

$$y_j \sim N\Bigl(\sum_i x_i\mu_{ij} + \mu_j, \; \sum_i x_i^2\sigma_{ij}^2 + \sigma_j^2\Bigr)$$

`noise="shared"` draws the weights once per sample for the whole batch (Bayes by Backprop; Blundell et al., 2015),
which costs less per step.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import torch
from torch import Tensor, nn

from bayesify.core.checks import check_choice, check_positive
from bayesify.core.posterior import Method, Posterior
from bayesify.core.sites import Site
from bayesify.functional import at_least_float32, gaussian_kl_sum

__all__ = ["MeanField"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeanField(Method):
    r"""Independent normal weights, for every supported layer.

    Args:
        noise: "local" draws outputs per example (less gradient noise), "shared" draws weights per sample (cheaper).
        prior: "normal" is $N(m, s^2)$; "scale-mixture" is $\pi N(0, s^2) + (1 - \pi) N(0, t^2)$ (Blundell et al., 2015,
            equation 7), whose KL is estimated with one draw.
        prior_std: s, a standard deviation.
        prior_mean: m, "zero" or "pretrained", the weights the net has when it is converted.
        mixture_weight: $\pi$ of the scale mixture.
        mixture_std: t of the scale mixture, the narrow component.
        initial_std: posterior standard deviation to start from, in units of $1/\sqrt{\text{fan-in}}$, so that the noise in a
            layer's output is this share of its signal whatever the layer's width.

    Example:
        >>> bnn = bayesify(torch.nn.Linear(2, 1), MeanField(noise="shared"))
        >>> bnn(torch.zeros(4, 2), samples=3, coherent=True).outputs.shape
        torch.Size([3, 4, 1])
    """

    noise: Literal["local", "shared"] = "local"
    prior: Literal["normal", "scale-mixture"] = "normal"
    prior_std: float = 1.0
    prior_mean: Literal["zero", "pretrained"] = "zero"
    mixture_weight: float = 0.5
    mixture_std: float = math.exp(-6)
    initial_std: float = 0.1

    def __post_init__(self) -> None:
        check_choice("noise", self.noise, ("local", "shared"))
        check_choice("prior", self.prior, ("normal", "scale-mixture"))
        check_choice("prior_mean", self.prior_mean, ("zero", "pretrained"))
        for name in ("prior_std", "mixture_std", "initial_std"):
            check_positive(name, getattr(self, name))
        if not 0 < self.mixture_weight < 1:
            raise ValueError(f"mixture_weight must be in (0, 1), got {self.mixture_weight!r}")
        if self.prior == "scale-mixture" and self.prior_mean == "pretrained":
            raise ValueError('prior_mean="pretrained" needs prior="normal": the scale mixture is centred on zero')

    def build(self, layer: Site) -> Posterior:
        return GaussianPosterior(self, layer)


class GaussianPosterior(Posterior):
    """Means are the layer's own weight and bias; here live the log standard deviations."""

    weight_log_std: Tensor
    bias_log_std: Tensor
    weight_prior_mean: Tensor | None
    bias_prior_mean: Tensor | None

    def __init__(self, method: MeanField, layer: Site) -> None:
        super().__init__()
        self.method = method
        log_std = math.log(method.initial_std) - 0.5 * math.log(layer.fan_in)
        for name, mean in (("weight", layer.weight), ("bias", layer.bias)):
            log_stds = None if mean is None else nn.Parameter(torch.full(mean.shape, log_std))
            self.register_parameter(f"{name}_log_std", log_stds)
            centre = mean.detach().clone() if method.prior_mean == "pretrained" and mean is not None else None
            self.register_buffer(f"{name}_prior_mean", centre)

    def sample(self, layer: Site, samples: int) -> tuple[Tensor, Tensor | None]:
        weight, bias = self.mean(layer)
        return (
            _draw(weight, self.weight_log_std, samples),
            None if bias is None else _draw(bias, self.bias_log_std, samples),
        )

    def kl(self, layer: Site) -> Tensor:
        weight, bias = self.mean(layer)
        total = self._kl(weight, self.weight_log_std, self.weight_prior_mean)
        return total if bias is None else total + self._kl(bias, self.bias_log_std, self.bias_prior_mean)

    def _kl(self, mean: Tensor, log_std: Tensor, prior_mean: Tensor | None) -> Tensor:
        mean, log_std = at_least_float32(mean), at_least_float32(log_std)
        if self.method.prior == "scale-mixture":
            return _scale_mixture_kl(mean, log_std, self.method)
        return gaussian_kl_sum(mean, log_std, 0.0 if prior_mean is None else prior_mean, self.method.prior_std)

    def moments(self, layer: Site, x: Tensor) -> tuple[Tensor, Tensor] | None:
        if self.method.noise == "shared":
            return None
        weight, bias = self.mean(layer)
        x = layer.prepare(x)
        bias_variance = None if bias is None else torch.exp(2 * self.bias_log_std)
        variance = layer.op(layer.square(x), torch.exp(2 * self.weight_log_std), bias_variance)
        return layer.op(x, weight, bias), variance


def _draw(mean: Tensor, log_std: Tensor, samples: int) -> Tensor:
    eps = torch.randn(samples, *mean.shape, dtype=mean.dtype, device=mean.device)
    return mean + log_std.exp() * eps


def _scale_mixture_kl(mean: Tensor, log_std: Tensor, method: MeanField) -> Tensor:
    """Unbiased: the entropy of q exactly, the cross term with one draw."""
    negative_entropy = -(log_std + 0.5 * (1 + math.log(2 * math.pi))).sum()
    w = _draw(mean, log_std, 1)[0]
    components = [
        math.log(share) - math.log(std) - 0.5 * math.log(2 * math.pi) - 0.5 * (w / std) ** 2
        for share, std in ((method.mixture_weight, method.prior_std), (1 - method.mixture_weight, method.mixture_std))
    ]
    return negative_entropy - torch.logaddexp(*components).sum()
