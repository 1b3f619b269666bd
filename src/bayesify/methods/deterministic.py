r"""Deterministic: point estimates, the maximum a posteriori (MAP) baseline.

The posterior is a point mass, whose KL is infinite. In its place stands the negative log density of a prior $N(0, s^2)$ without the
constant, so that `elbo` is the penalized log likelihood:

$$\mathrm{KL} = \frac{1}{2 s^2}\sum_j w_j^2$$

Without `prior_std` it is 0, and training is maximum likelihood.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from torch import Tensor

from bayesify.core.checks import check_scale
from bayesify.core.layer import BayesianLayer, Posterior
from bayesify.core.method import Method
from bayesify.functional import dropout_kl

__all__ = ["Deterministic"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deterministic(Method):
    """Point estimates for every layer.

    Args:
        prior_std: standard deviation of a normal prior on weights and biases (MAP); None for maximum likelihood.

    Example:
        >>> bnn = bayesify(torch.nn.Linear(2, 1), Deterministic(prior_std=None))
        >>> bnn(torch.zeros(4, 2)).kl
        tensor(0.)
    """

    family: ClassVar[str] = "Baseline"
    advice: ClassVar[str] = "The baseline: one network without weight uncertainty."
    cost: ClassVar[str] = "1.1, 1.0; one pass"

    prior_std: float | None = None

    def __post_init__(self) -> None:
        if self.prior_std is not None:
            check_scale("prior_std", self.prior_std)

    @property
    def is_random(self) -> bool:
        return False

    def build(self, layer: BayesianLayer) -> Posterior:
        return PointPosterior(self)


class PointPosterior(Posterior):
    """Point mass at the layer's own weight and bias."""

    is_random = False

    def __init__(self, method: Deterministic) -> None:
        super().__init__()
        self.prior_std = method.prior_std

    def sample(self, layer: BayesianLayer, samples: int) -> tuple[Tensor, Tensor | None]:
        weight, bias = self.mean(layer)
        return weight.expand(samples, *weight.shape), None if bias is None else bias.expand(samples, *bias.shape)

    def kl(self, layer: BayesianLayer) -> Tensor:
        return dropout_kl(*self.mean(layer), 0.0, self.prior_std)

    def forward(self, layer: BayesianLayer, x: Tensor) -> Tensor:
        return layer.prepared_op(x, *self.mean(layer))
