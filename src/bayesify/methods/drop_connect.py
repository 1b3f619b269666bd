r"""DropConnect: Bernoulli noise on every weight, in training and in prediction.

$$w_{ij} = d_{ij} W_{ij}, \qquad d_{ij} \sim \mathrm{Bernoulli}(1 - p) / (1 - p)$$

The second moment of a weight is $W_{ij}^2 / (1 - p)$. So for the prior $N(0, s^2)$, up to a constant in W,

$$\mathrm{KL} = \frac{1}{2 s^2}\Bigl(\frac{\lVert W \rVert^2}{1 - p} + \lVert b \rVert^2\Bigr)$$

Sources: Wan et al., *Regularization of neural networks using DropConnect* (2013), section 3, for the noise. They predict with a
normal approximation of the output; here the weights are drawn. Chang et al., *Ensemble model patching* (2019), table 2 and equation
(2), for the KL. Their p is the probability of keeping a weight, and their weights include the factor $1 / (1 - p)$.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

from torch import Tensor

from bayesify.core.layer import BayesianLayer, Posterior
from bayesify.core.method import Method
from bayesify.functional import bernoulli_mask
from bayesify.methods._bernoulli import BernoulliFields, BernoulliPosterior

__all__ = ["DropConnect"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DropConnect(BernoulliFields, Method):
    """Bernoulli noise on the weights of linear layers and convolutions, drawn once per sample for the whole batch.

    Args:
        p: probability of dropping a weight.
        prior_std: standard deviation of the normal prior, whose KL is weight decay; None for KL 0.

    Example:
        >>> bnn = bayesify(torch.nn.Linear(2, 1), DropConnect(p=0.5))
        >>> bnn(torch.ones(4, 2), samples=3).outputs.shape
        torch.Size([3, 4, 1])
    """

    family: ClassVar[str] = "Dropout"
    paper: ClassVar[str] = "Wan et al. 2013, ICML"
    advice: ClassVar[str] = "Dropout of weights instead of inputs, with a fixed rate."
    cost: ClassVar[str] = "1.2, 1.1; S passes"

    def build(self, layer: BayesianLayer) -> Posterior | None:
        return DropConnectPosterior(self) if layer.contracts else None


class DropConnectPosterior(BernoulliPosterior):
    """The layer's weight, its elements dropped at random."""

    def sample(self, layer: BayesianLayer, samples: int) -> tuple[Tensor, Tensor | None]:
        weight, bias = self.mean(layer)
        mask = bernoulli_mask((samples, *layer.weight_shape), self.p, like=weight)
        return weight * mask, None if bias is None else bias.expand(samples, *bias.shape)

    def log_ensemble_size(self, layer: BayesianLayer) -> float:
        return math.prod(layer.weight_shape) * math.log(2) if self.p else 0.0
