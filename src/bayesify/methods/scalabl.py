r"""ScalaBL, inference in the r-dimensional subspace of a low-rank adapter: r random numbers per adapter.

An adapter adds BA to a frozen weight $W_0$ (LoRA), A (r, I) and B (O, r). A random diagonal matrix between its factors,

$$W = W_0 + B\,\mathrm{diag}(s)\,A, \qquad q(s) = N(\mu, \mathrm{diag}(\sigma^2)), \qquad p(s) = N(m, \sigma_p^2 I),$$

maps the subspace to the full weight. A and B are point estimates, so the posterior adds 2r parameters per adapter. One s for every
example scales the outputs of A, which is the exact distribution of $Wx$ for one x.

A and B have no prior, so factors can move between them and s. With m = 0 the KL, at its minimum over this scale, is
$\frac12\sum_i\log(1 + \mu_i^2 / \sigma_i^2)$: it depends on the relative noise alone and vanishes for directions without signal.
With m = 1, relative noise of $\sigma_p$ costs nothing.

After Samplawski et al., *Scalable Bayesian low-rank adaptation of large language models via stochastic variational subspace
inference* (2025). The factorization, q(s) and training by the ELBO are the paper's. The choices here: the adapter is kept at
conversion ($\mu = 1$; no singular value decomposition), the defaults of the prior, and one s per example.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from bayesify.core.checks import check_scale
from bayesify.core.layer import BayesianLayer, Posterior
from bayesify.core.layers.linear import OutputMajorLinear
from bayesify.core.method import Method
from bayesify.errors import ConfigurationError
from bayesify.functional import at_least_float32, gaussian_kl_sum
from bayesify.functional.noise import normal_draws
from bayesify.methods._adapters import adapters, check_where
from bayesify.plain_numbers import is_number

__all__ = ["ScalaBL"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScalaBL(Method):
    r"""Random scales of the outputs of A in low-rank adapters (LoRA), r per adapter; all weights stay point estimates.

    `bayesify(net, ScalaBL())` converts the layers of `where`; add the adapters first (`peft.get_peft_model`). Linear layers and
    convolutions can be named by a pattern: `bayesify(net, {"blocks.*.down": ScalaBL()})`. A bias is not scaled.

    Args:
        where: name pattern of the layers to convert; the default selects `lora_A` of peft and `lora_a` of torchtune.
        prior_mean: m, mean of the prior on s.
        prior_std: $\sigma_p$, standard deviation of the prior on s.
        initial_std: initial $\sigma$; $\mu$ starts at 1, so that the adapter is kept.

    Example:
        >>> bnn = bayesify(nn.Sequential(nn.Linear(64, 8, bias=False), nn.Linear(8, 64)), {"0": ScalaBL()})
        >>> sum(p.numel() for p in bnn.net[0].posterior.parameters()), bnn(torch.zeros(4, 64), samples=3).outputs.shape
        (16, torch.Size([3, 4, 64]))
    """

    family: ClassVar[str] = "Adapters of language models"
    paper: ClassVar[str] = "Samplawski et al. 2025, arXiv 2506.21408"
    advice: ClassVar[str] = "Language models tuned with LoRA, with a handful of random numbers per adapter."
    cost: ClassVar[str] = "not measured on these; S passes"

    where: str = "*lora_[Aa]*"
    prior_mean: float = 0.0
    prior_std: float = 1.0
    initial_std: float = 0.1

    def __post_init__(self) -> None:
        check_where(self.where)
        if not is_number(self.prior_mean) or not math.isfinite(self.prior_mean):
            raise ConfigurationError(f"prior_mean must be a finite number, got {self.prior_mean!r}")
        check_scale("prior_std", self.prior_std)
        check_scale("initial_std", self.initial_std)

    def assign(self, layers: Mapping[str, nn.Module]) -> Mapping[str, Method]:
        return dict.fromkeys(adapters(layers, "ScalaBL", self.where), self)

    def build(self, layer: BayesianLayer) -> Posterior | None:
        # the layers that adapters consist of; their weight is (r, ...)
        return ScalePosterior(self, layer) if isinstance(layer, OutputMajorLinear | nn.Conv1d | nn.Conv2d | nn.Conv3d) else None


class ScalePosterior(Posterior):
    """Means and log standard deviations (r,) of s, next to the layer's own weight A."""

    def __init__(self, method: ScalaBL, layer: BayesianLayer) -> None:
        super().__init__()
        self.method = method
        self.scale_mean = nn.Parameter(torch.ones(layer.output_channels))
        self.scale_log_std = nn.Parameter(torch.full((layer.output_channels,), math.log(method.initial_std)))

    def scales(self, rows: int) -> Tensor:
        """s (rows, r)."""
        return normal_draws(self.scale_mean, self.scale_log_std, rows)

    def sample(self, layer: BayesianLayer, samples: int) -> tuple[Tensor, Tensor | None]:
        weight = layer.weight * _over_rows(self.scales(samples), layer).to(layer.weight.dtype)
        return weight, None if layer.bias is None else layer.bias.expand(samples, *layer.bias.shape)

    def forward(self, layer: BayesianLayer, x: Tensor) -> Tensor:
        y = layer.op(x, layer.weight, None)
        return layer.scaled(y, self.scales(len(y)), layer.bias)

    def kl(self, layer: BayesianLayer) -> Tensor:
        mean, log_std = at_least_float32(self.scale_mean), at_least_float32(self.scale_log_std)
        return gaussian_kl_sum(mean, log_std, float(self.method.prior_mean), self.method.prior_std)

    def mean(self, layer: BayesianLayer) -> tuple[Tensor, Tensor | None]:
        return layer.weight * _over_rows(self.scale_mean, layer), layer.bias

    def adopt(self, layer: BayesianLayer, weight: Tensor, bias: Tensor | None) -> None:
        self.scale_mean.fill_(1.0)


def _over_rows(s: Tensor, layer: BayesianLayer) -> Tensor:
    """Reshape s (..., r) to multiply the rows of the weight (r, ...)."""
    return s.reshape(*s.shape, *[1] * (len(layer.weight_shape) - 1))
