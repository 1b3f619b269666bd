r"""Tensor factorization: a weight as a product of small matrices, for comparison with `WHVI`.

$$W = W_1 \cdots W_K, \qquad W_1 \in \mathbb{R}^{O\times R},\; W_k \in \mathbb{R}^{R\times R},\; W_K \in \mathbb{R}^{R\times I}$$

The posterior of the inner cores $W_2 \ldots W_{K-1}$ is an independent normal per element; $W_1$ and $W_K$ are point estimates.
With $R = \lceil\log_2 D\rceil$ and $D / R^2$ inner cores, where D is the larger side of the weight, there are about as many random
parameters as in WHVI.

Since $W_1$ and $W_K$ have no prior, the prior on the cores does not fix the scale of W. For one weight $w = a\,c\,b$, the KL at the
best a and b is $\tfrac12 \log(1 + \mathrm{E}[w]^2 / \mathrm{Var}[w])$, that of ARD variational dropout: it pulls small weights to
zero, with a vanishing variance, and leaves large ones nearly free. So the method is not calibrated under a normal prior on W.

Source: Rossi, Marmin & Filippone, *Walsh-Hadamard variational inference for Bayesian deep learning* (2020), section 2.4, after
Novikov et al., *Tensorizing neural networks* (2015).
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from bayesify.core.checks import check_integer, check_scale
from bayesify.core.layer import BayesianLayer, Posterior
from bayesify.core.layers.linear import OutputMajorLinear
from bayesify.core.method import Method
from bayesify.errors import ConfigurationError
from bayesify.functional import at_least_float32, gaussian_kl_sum, local_reparameterization
from bayesify.functional.noise import normal_draws

__all__ = ["TensorFactorized"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TensorFactorized(Method):
    r"""Weights of linear layers and convolutions as products of small random matrices, which replace the layer's weight.

    Linear layers draw the output of every core per example, which is the exact distribution of W x for one x; convolutions draw
    the cores once per sample for the whole batch.

    Args:
        rank: R; None for $\lceil\log_2 D\rceil$.
        cores: number of inner cores; None for $D / R^2$, rounded, at least 1.
        prior_std: standard deviation of the normal prior on the inner cores, in units of $1/\sqrt R$, at which a core preserves
            the scale of its input.
        initial_std: initial posterior standard deviation, in the same units.

    Example:
        >>> bnn = bayesify(torch.nn.Linear(64, 64, bias=False), TensorFactorized())
        >>> [tuple(p.shape) for p in bnn.parameters()]
        [(64, 6), (2, 6, 6), (6, 64), (2, 6, 6)]
    """

    family: ClassVar[str] = "Weights"
    paper: ClassVar[str] = "Rossi, Marmin & Filippone 2020, arXiv 1905.11248"
    advice: ClassVar[str] = "Compressed linear layers and convolutions with uncertain factors."
    cost: ClassVar[str] = "1.5, 1.3; S passes"

    rank: int | None = None
    cores: int | None = None
    prior_std: float = 1.0
    initial_std: float = 0.1

    def __post_init__(self) -> None:
        for name in ("rank", "cores"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name))
        check_scale("prior_std", self.prior_std)
        check_scale("initial_std", self.initial_std)

    def build(self, layer: BayesianLayer) -> Posterior | None:
        return FactorizedPosterior(self, layer) if layer.contracts else None


class FactorizedPosterior(Posterior):
    """first (O, R), core means and log standard deviations (K, R, R) in units of 1 / sqrt(R), last (R, I)."""

    drops_weights = True
    means = ("first", "core_mean", "last")

    def __init__(self, method: TensorFactorized, layer: BayesianLayer) -> None:
        super().__init__()
        self.method = method
        rows, columns = layer.weight_shape[0], math.prod(layer.weight_shape[1:])
        largest = max(rows, columns)
        self.rank = method.rank or max(1, (largest - 1).bit_length())
        cores = method.cores or max(1, round(largest / self.rank**2))
        # orthogonal cores preserve norms, so the ends give entries of W the variance 2 / fan-in
        scale = (2 / (layer.fan_in * self.rank)) ** 0.25
        self.first = nn.Parameter(scale * torch.randn(rows, self.rank))
        orthogonal = torch.linalg.qr(torch.randn(cores, self.rank, self.rank, device="cpu")).Q
        self.core_mean = nn.Parameter(orthogonal.to(self.first).contiguous() * math.sqrt(self.rank))
        self.last = nn.Parameter(scale * torch.randn(self.rank, columns))
        self.core_log_std = nn.Parameter(torch.full_like(self.core_mean, math.log(method.initial_std)))
        layer.weight = None  # replaced by this posterior

    def _weight(self, cores: Tensor, layer: BayesianLayer) -> Tensor:
        """The product of all cores: (S, *weight_shape) of inner cores (S, K, R, R)."""
        product = self.last
        for core in cores.flip(1).unbind(1):
            product = core @ product * self.rank**-0.5
        return (self.first @ product).reshape(-1, *layer.weight_shape)

    def sample(self, layer: BayesianLayer, samples: int) -> tuple[Tensor, Tensor | None]:
        weight = self._weight(normal_draws(self.core_mean, self.core_log_std, samples), layer)
        return weight, None if layer.bias is None else layer.bias.expand(samples, *layer.bias.shape)

    def kl(self, layer: BayesianLayer) -> Tensor:
        return gaussian_kl_sum(at_least_float32(self.core_mean), at_least_float32(self.core_log_std), 0.0, self.method.prior_std)

    def adopt(self, layer: BayesianLayer, weight: Tensor, bias: Tensor | None) -> None:
        # best approximation of rank R, given the cores' means
        product = torch.eye(self.rank, dtype=weight.dtype, device=weight.device)
        for core in self.core_mean * self.rank**-0.5:
            product = product @ core
        u, s, v = torch.linalg.svd(weight.reshape(weight.shape[0], -1), full_matrices=False)
        rank = min(self.rank, len(s))
        self.first.zero_()[:, :rank] = u[:, :rank] * s[:rank].sqrt()
        first, info = torch.linalg.solve_ex(product, self.first, left=False)
        if bool(info != 0):
            raise ConfigurationError(
                "the cores of a tensor-factorized layer have no inverse, so it cannot represent the weights of a checkpoint; load "
                "them into a network fresh from bayesify(...)"
            )
        self.first.copy_(first)
        self.last.zero_()[:rank] = s[:rank].sqrt().unsqueeze(1) * v[:rank]

    def remark(self) -> str:
        return "initialized at random, without regard to its previous weight"

    def mean(self, layer: BayesianLayer) -> tuple[Tensor, Tensor | None]:
        return self._weight(self.core_mean.unsqueeze(0), layer)[0], layer.bias  # the mean of a product of independent cores

    def forward(self, layer: BayesianLayer, x: Tensor) -> Tensor:
        if not isinstance(layer, OutputMajorLinear):
            return super().forward(layer, x)
        h = nn.functional.linear(x, self.last)
        variances = torch.exp(2 * self.core_log_std) / self.rank
        for mean, variance in zip(self.core_mean.flip(0) * self.rank**-0.5, variances.flip(0), strict=True):
            h = local_reparameterization(nn.functional.linear(h, mean), nn.functional.linear(h * h, variance))
        return nn.functional.linear(h, self.first, layer.bias)
