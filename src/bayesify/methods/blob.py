r"""BLoB, Bayesian low-rank adaptation by backpropagation: the matrix A of every low-rank adapter is normal.

An adapter adds BA to a frozen weight $W_0$ (LoRA), A (r, I) and B (O, r). Only A is random; B is a point estimate, because noise
in both factors would multiply:

$$W = W_0 + BA, \qquad q(A) = \prod_{ij} N(A_{ij} \mid M_{ij}, \Omega_{ij}^2), \qquad \Omega = G \circ G$$

The prior of the full weight is low-rank, $N(\mathrm{vec}\,W_0, \sigma_p^2\, I \otimes RR^\top)$ with $RR^\top = BB^\top$. The KL of
the full weight is then that of A,

$$\mathrm{KL}(q(W) \Vert p(W)) = \mathrm{KL}(q(A) \Vert N(0, \sigma_p^2)),$$

because both distributions of W are images of those of A under the same map $A \mapsto W_0 + BA$. The map is injective if B has full
column rank; otherwise (such as B = 0, where training starts) the KL of A is an upper bound.

Wang, Shi, Han, Metaxas & Wang, *BLoB: Bayesian low-rank adaptation by backpropagation for large language models* (2024), section 3.
Unlike in the paper, outputs of A are drawn from their exact mean and variance, which for independent weights are known (local
reparameterization), instead of with flipout. Flipout has the same mean and variance of every output, but correlates the examples
of a batch. `beta` of `elbo` and `fit` weights the KL; the paper reweights it by batch.
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
from bayesify.core.method import Method
from bayesify.functional import at_least_float32, gaussian_kl_sum, standard_normal
from bayesify.methods._adapters import adapters, check_where

__all__ = ["BLoB"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BLoB(Method):
    r"""Normal weights in the first matrix A of low-rank adapters (LoRA); B and all other layers stay point estimates.

    `bayesify(net, BLoB())` converts the layers of `where`; add the adapters first (`peft.get_peft_model`). Any linear layer or
    convolution can be named by a pattern: `bayesify(net, {"blocks.*.down": BLoB()})`. Biases are point estimates without a prior.

    Args:
        where: name pattern of the layers to convert; the default selects `lora_A` of peft and `lora_a` of torchtune.
        prior_std: $\sigma_p$, the standard deviation of the prior on A.
        epsilon: G starts uniform in $[\epsilon / \sqrt 2, \epsilon]$, so that standard deviations start in
            $[\epsilon^2 / 2, \epsilon^2]$.

    Example:
        >>> bnn = bayesify(nn.Sequential(nn.Linear(64, 8, bias=False), nn.Linear(8, 64)), {"0": BLoB()})
        >>> bnn(torch.zeros(4, 64), samples=3).outputs.shape
        torch.Size([3, 4, 64])
    """

    family: ClassVar[str] = "Adapters of language models"
    paper: ClassVar[str] = "Wang et al. 2024, arXiv 2406.11675"
    advice: ClassVar[str] = "Language models tuned with LoRA: uncertain adapters."
    cost: ClassVar[str] = "not measured on these; S passes"

    where: str = "*lora_[Aa]*"
    prior_std: float = 0.2
    epsilon: float = 0.05

    def __post_init__(self) -> None:
        check_where(self.where)
        check_scale("prior_std", self.prior_std)
        check_scale("epsilon", self.epsilon)

    def assign(self, layers: Mapping[str, nn.Module]) -> Mapping[str, Method]:
        return dict.fromkeys(adapters(layers, "BLoB", self.where), self)

    def build(self, layer: BayesianLayer) -> Posterior | None:
        return BLoBPosterior(self, layer) if layer.contracts else None


class BLoBPosterior(Posterior):
    """G, in the shape of the weight; the means are the layer's own weight."""

    has_moments = True

    def __init__(self, method: BLoB, layer: BayesianLayer) -> None:
        super().__init__()
        self.prior_std = method.prior_std
        least = method.epsilon / math.sqrt(2)
        self.g = nn.Parameter(least + (method.epsilon - least) * torch.rand(layer.weight_shape))

    def sample(self, layer: BayesianLayer, samples: int) -> tuple[Tensor, Tensor | None]:
        weight, bias = self.mean(layer)
        eps = standard_normal(samples, *weight.shape, like=weight)
        return torch.addcmul(weight, self.g.square(), eps), None if bias is None else bias.expand(samples, *bias.shape)

    def moments(self, layer: BayesianLayer, x: Tensor) -> tuple[Tensor, Tensor]:
        weight, bias = self.mean(layer)
        return layer.op(x, weight, bias), layer.op(layer.square(x), self.g.square().square(), None)

    def kl(self, layer: BayesianLayer) -> Tensor:
        log_std = 2 * at_least_float32(self.g).abs().log()
        return gaussian_kl_sum(at_least_float32(layer.weight), log_std, 0.0, self.prior_std)
