r"""ELRG: a normal posterior with low-rank plus diagonal covariance over all weights of a layer.

$$q(w) = N\bigl(\mu,\; \mathrm{diag}(\sigma^2) + V V^\top\bigr), \qquad V \in \mathbb{R}^{n\times r}, \qquad p(w) = N(0, s^2 I),$$

with the n elements of the layer's weight and bias in one vector w, so that the low-rank part correlates outputs too. For one
example, $w = \mu + \sigma\circ\epsilon + Vz$ gives the outputs (the paper's reparameterization, r + 2 products per layer)

$$y = f_\mu(x) + \sqrt{f_{\sigma^2}(x^2)}\circ\zeta + \sum_{k=1}^r z_k f_{V_k}(x), \qquad \zeta \sim N(0, I),\; z \sim N(0, I),$$

where $f_w(x)$ is the layer with weights w. In linear layers this is the exact joint distribution of the outputs of one example. At
the positions of convolutions and sequences the low-rank part is exact, and the diagonal part has the right variances only.

Source: Tomczak, Swaroop & Turner, *Efficient low rank Gaussian variational inference for neural networks* (NeurIPS 2020).
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from bayesify.core.checks import check_choice, check_integer, check_scale
from bayesify.core.layer import BayesianLayer, Posterior
from bayesify.core.method import Method
from bayesify.functional import at_least_float32, local_reparameterization, low_rank_gaussian_kl, standard_normal

__all__ = ["ELRG"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ELRG(Method):
    r"""Normal weights with low-rank plus diagonal covariance, for every supported layer.

    Args:
        rank: r, the number of directions in which the weights of a layer vary together.
        diagonal: $\sigma$ is one number per "weight", or one per "layer", a constant diagonal, with which the paper finds that the
            low-rank part helps most.
        prior_std: s, standard deviation of the normal prior.
        initial_std: initial $\sigma$ in units of $1/\sqrt{\text{fan-in}}$. The low-rank part starts at random, with as much
            variance as the diagonal part.

    Example:
        >>> bnn = bayesify(torch.nn.Linear(3, 2), ELRG(rank=2, diagonal="layer"))
        >>> [tuple(p.shape) for p in bnn.parameters()]
        [(2, 3), (2,), (1,), (2, 2, 3), (2, 2)]
    """

    family: ClassVar[str] = "Weights"
    paper: ClassVar[str] = "Tomczak, Swaroop & Turner 2020, NeurIPS"
    advice: ClassVar[str] = (
        "Where weights of a layer are correlated and MeanField is too coarse; more parameters for little gain on small tables."
    )
    cost: ClassVar[str] = "3.8, 4.4; S passes"

    rank: int = 2
    diagonal: Literal["weight", "layer"] = "weight"
    prior_std: float = 1.0
    initial_std: float = 0.1

    def __post_init__(self) -> None:
        check_integer("rank", self.rank)
        check_choice("diagonal", self.diagonal, ("weight", "layer"))
        check_scale("prior_std", self.prior_std)
        check_scale("initial_std", self.initial_std)

    def build(self, layer: BayesianLayer) -> Posterior:
        return LowRankPosterior(self, layer)


class LowRankPosterior(Posterior):
    """Log standard deviations, and factors (r, *weight_shape) and (r, *bias_shape); the means are the layer's weight and bias."""

    weight_log_std: Tensor
    bias_log_std: Tensor | None
    bias_factor: Tensor | None

    def __init__(self, method: ELRG, layer: BayesianLayer) -> None:
        super().__init__()
        self.method = method
        shape, std, per_weight = layer.bias_shape, method.initial_std / math.sqrt(layer.fan_in), method.diagonal == "weight"
        log_std = torch.full(layer.weight_shape if per_weight else (1,), math.log(std))  # FSDP shards no scalars
        factor_std = std / math.sqrt(method.rank)
        self.weight_log_std = nn.Parameter(log_std)
        self.weight_factor = nn.Parameter(factor_std * torch.randn(method.rank, *layer.weight_shape))
        bias_log_std = None if shape is None or not per_weight else nn.Parameter(torch.full(shape, math.log(std)))
        self.register_parameter("bias_log_std", bias_log_std)
        bias_factor = None if shape is None else nn.Parameter(factor_std * torch.randn(method.rank, *shape))
        self.register_parameter("bias_factor", bias_factor)

    def sample(self, layer: BayesianLayer, samples: int) -> tuple[Tensor, Tensor | None]:
        weight, bias = self.mean(layer)
        z = standard_normal(samples, self.method.rank, like=weight)
        drawn = _draw(weight, self.weight_log_std, self.weight_factor, z)
        if bias is None or self.bias_factor is None:
            return drawn, None
        return drawn, _draw(bias, self._bias_log_std(), self.bias_factor, z)

    def forward(self, layer: BayesianLayer, x: Tensor) -> Tensor:
        weight, bias = self.mean(layer)
        x = layer.prepare(x)
        weight_variance = torch.exp(2 * self.weight_log_std).expand_as(weight)
        bias_variance = None if bias is None else torch.exp(2 * self._bias_log_std()).expand_as(bias)
        y = local_reparameterization(layer.op(x, weight, bias), layer.op(layer.square(x), weight_variance, bias_variance))
        z = standard_normal(self.method.rank, x.shape[0], *[1] * (y.dim() - 1), like=y)
        for k in range(self.method.rank):
            bias_factor = None if self.bias_factor is None else self.bias_factor[k]
            y = torch.addcmul(y, z[k], layer.op(x, self.weight_factor[k], bias_factor))
        return y

    def kl(self, layer: BayesianLayer) -> Tensor:
        weight, bias = self.mean(layer)
        mean, log_std, factor = weight.flatten(), self.weight_log_std.flatten(), self.weight_factor.flatten(1)
        if bias is not None and self.bias_factor is not None:
            mean, factor = torch.cat([mean, bias.flatten()]), torch.cat([factor, self.bias_factor.flatten(1)], 1)
            log_std = log_std if self.bias_log_std is None else torch.cat([log_std, self.bias_log_std.flatten()])
        mean, log_std, factor = map(at_least_float32, (mean, log_std, factor))
        return low_rank_gaussian_kl(mean, log_std, factor, prior_std=self.method.prior_std)

    def _bias_log_std(self) -> Tensor:
        return self.weight_log_std if self.bias_log_std is None else self.bias_log_std


def _draw(mean: Tensor, log_std: Tensor, factor: Tensor, z: Tensor) -> Tensor:
    """(S, *shape of mean), from z (S, r)."""
    eps = standard_normal(z.shape[0], *mean.shape, like=mean)
    return torch.addcmul(mean, log_std.exp(), eps) + (z @ factor.flatten(1)).unflatten(1, mean.shape)
