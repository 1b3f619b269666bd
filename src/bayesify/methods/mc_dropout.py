r"""MC dropout: Bernoulli noise on the inputs of a layer, in training and in prediction.

$$y = (x \circ d)\,W + b, \qquad d_i \sim \mathrm{Bernoulli}(1 - p) / (1 - p)$$

A layer's weight is $w_{ij} = d_i W_{ij}$, with second moment $W_{ij}^2 / (1 - p)$. So for the prior $N(0, s^2)$, up to a constant
in W,

$$\mathrm{KL} = \frac{1}{2 s^2}\Bigl(\frac{\lVert W \rVert^2}{1 - p} + \lVert b \rVert^2\Bigr)$$

which is weight decay.

Source: Gal & Ghahramani, *Dropout as a Bayesian approximation* (2016), section 3 and its appendix, proposition 1.
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

__all__ = ["MCDropout"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MCDropout(BernoulliFields, Method):
    """Bernoulli dropout before linear layers and convolutions, also in prediction.

    Convolutions drop whole input channels per example, the same at every position.

    Args:
        p: probability of dropping an input.
        prior_std: standard deviation of the normal prior, whose KL is weight decay; None for plain dropout, KL 0.

    Example:
        >>> bnn = bayesify(torch.nn.Linear(2, 1), MCDropout(p=0.5))
        >>> bnn(torch.ones(4, 2), samples=3).outputs.shape
        torch.Size([3, 4, 1])
    """

    family: ClassVar[str] = "Dropout"
    paper: ClassVar[str] = "Gal & Ghahramani 2016, arXiv 1506.02142"
    advice: ClassVar[str] = "The cheapest start, above all for networks that have dropout; choose p on held-out rows."
    cost: ClassVar[str] = "1.3, 1.0; S passes"

    def build(self, layer: BayesianLayer) -> Posterior | None:
        return DropoutPosterior(self) if layer.contracts else None


class DropoutPosterior(BernoulliPosterior):
    """The layer's weight, its input channels dropped at random."""

    def sample(self, layer: BayesianLayer, samples: int) -> tuple[Tensor, Tensor | None]:
        weight, bias = self.mean(layer)
        mask = bernoulli_mask((samples, layer.input_channels), self.p, like=weight)
        return weight * layer.over_weight(mask), None if bias is None else bias.expand(samples, *bias.shape)

    def forward(self, layer: BayesianLayer, x: Tensor) -> Tensor:
        mask = bernoulli_mask((x.shape[0], layer.input_channels), self.p, like=x)
        return layer.op_of_scaled(x, mask, *self.mean(layer))

    def log_ensemble_size(self, layer: BayesianLayer) -> float:
        return layer.input_channels * math.log(2) if self.p else 0.0
