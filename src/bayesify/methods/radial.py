r"""Radial: a random direction times a random distance, which keeps draws near the mean in any number of dimensions.

$$w = \mu + \sigma \circ \frac{\epsilon}{\lVert\epsilon\rVert}\, |\rho|, \qquad \epsilon \sim N(0, I_n),\; \rho \sim N(0, 1),$$

with the n elements of the layer's weight and bias in one vector w. A normal w is about $\sigma\sqrt n$ from its mean, a radial one
about $\sigma$: an element has the variance $\sigma_i^2 / n$. In one dimension, both are equal.

With a normal prior, the KL has a closed form. The noise has the density $2\varphi(\lVert u\rVert) / (A_n \lVert u\rVert^{n-1})$,
$A_n = 2\pi^{n/2} / \Gamma(n/2)$ the area of the sphere, and $\mathrm{E}\log|\rho| = -(\gamma + \log 2) / 2$, so that

$$\mathrm{KL} = \frac{\lVert\mu\rVert^2 + \sum_i \sigma_i^2 / n}{2s^2} + n\log s + \tfrac n2\log 2\pi
  - \sum_i\log\sigma_i - H_n, \qquad H_n = \tfrac12\log(2\pi e) + \log\frac{A_n}{2} - (n - 1)\,\frac{\gamma + \log 2}{2}.$$

Its minimum over $\mu$ and $\sigma$ (at $\sigma = s\sqrt n$) is not zero, but $0.64\,n$ nats for large n, because no radial
distribution is normal.

Source: Farquhar, Osborne & Gal, *Radial Bayesian neural networks: beyond discrete support in large-scale Bayesian deep learning*
([arXiv:1907.00865](https://arxiv.org/abs/1907.00865), 2020). The paper states the entropy up to a constant, and estimates the cross
entropy from draws.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from bayesify.core.checks import check_scale
from bayesify.core.layer import BayesianLayer, Posterior
from bayesify.core.method import Method
from bayesify.functional import at_least_float32, radial_kl, standard_normal

__all__ = ["Radial"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Radial(Method):
    r"""Radial noise on weights and biases, for every supported layer, drawn once per sample for the whole batch.

    Args:
        prior_std: s, standard deviation of the normal prior.
        initial_std: initial $\sigma$, in units of $1/\sqrt{\text{fan-in}}$. The standard deviation of an element is
            $\sigma/\sqrt n$.

    Example:
        >>> bnn = bayesify(torch.nn.Linear(2, 1), Radial())
        >>> bnn(torch.zeros(4, 2), samples=3).outputs.shape
        torch.Size([3, 4, 1])
    """

    family: ClassVar[str] = "Weights"
    paper: ClassVar[str] = "Farquhar, Osborne & Gal 2020, arXiv 1907.00865"
    advice: ClassVar[str] = "Where MeanField's noise is too large in wide layers; draws are shared by the batch."
    cost: ClassVar[str] = "1.5, 1.3; S passes"

    prior_std: float = 1.0
    initial_std: float = 0.1

    def __post_init__(self) -> None:
        check_scale("prior_std", self.prior_std)
        check_scale("initial_std", self.initial_std)

    def build(self, layer: BayesianLayer) -> Posterior:
        return RadialPosterior(self, layer)


class RadialPosterior(Posterior):
    """Logarithms of sigma; the means are the layer's own weight and bias."""

    bias_log_std: Tensor | None

    def __init__(self, method: Radial, layer: BayesianLayer) -> None:
        super().__init__()
        self.prior_std = method.prior_std
        log_std = math.log(method.initial_std) - 0.5 * math.log(layer.fan_in)
        self.weight_log_std = nn.Parameter(torch.full(layer.weight_shape, log_std))
        bias_log_std = None if layer.bias_shape is None else nn.Parameter(torch.full(layer.bias_shape, log_std))
        self.register_parameter("bias_log_std", bias_log_std)

    def sample(self, layer: BayesianLayer, samples: int) -> tuple[Tensor, Tensor | None]:
        weight, bias = self.mean(layer)
        numel = weight.numel() + (0 if bias is None else bias.numel())
        eps = standard_normal(samples, numel, like=weight)
        distance = standard_normal(samples, 1, like=weight)  # its sign does not matter
        noise = eps * (distance / torch.linalg.vector_norm(eps, dim=1, keepdim=True))
        drawn = torch.addcmul(weight, self.weight_log_std.exp(), noise[:, : weight.numel()].reshape(samples, *weight.shape))
        if bias is None or self.bias_log_std is None:
            return drawn, None
        return drawn, torch.addcmul(bias, self.bias_log_std.exp(), noise[:, weight.numel() :].reshape(samples, *bias.shape))

    def kl(self, layer: BayesianLayer) -> Tensor:
        weight, bias = self.mean(layer)
        mean, log_std = weight.flatten(), self.weight_log_std.flatten()
        if bias is not None and self.bias_log_std is not None:
            mean, log_std = torch.cat([mean, bias.flatten()]), torch.cat([log_std, self.bias_log_std.flatten()])
        return radial_kl(at_least_float32(mean), at_least_float32(log_std), self.prior_std)
