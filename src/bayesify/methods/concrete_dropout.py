r"""Concrete dropout: Bernoulli noise on the inputs or weights of a layer, with a learned probability.

$$y = (x \circ d)\,W + b, \qquad
  d_i = \frac{1}{1 - p}\,\mathrm{sigmoid}\Bigl(-\frac1t\Bigl(\log\frac{p}{1 - p} + \log\frac{u_i}{1 - u_i}\Bigr)\Bigr), \qquad
  u_i \sim U(0, 1),$$

a continuous relaxation of dropout with probability p. It converges to dropout as the temperature t goes to 0. With K input channels
and a prior $N(0, s^2)$ on the weights, up to a constant,

$$\mathrm{KL} = \frac{1}{2 s^2}\Bigl(\frac{\lVert W \rVert^2}{1 - p} + \lVert b \rVert^2\Bigr) + K\bigl(\log 2 - H(p)\bigr), \qquad
  H(p) = -p\log p - (1 - p)\log(1 - p).$$

This is the KL of dropout as a mixture of two narrow normals per input channel, whose entropy is H(p) per channel. The constant
diverges as their width goes to 0; it is chosen such that the KL is 0 for W = 0, b = 0 and p = 1/2. The KL does not depend on t.

`noise="weight"` is DropConnect with a learned probability: d has one element per weight, drawn once per sample for the whole batch,
and K is the number of weights. Chang et al., *Ensemble model patching* (2019, arXiv 1905.09453), table 2, writes both as mixtures.

Source: Gal, Hron & Kendall, *Concrete dropout* ([arXiv:1705.07832](https://arxiv.org/abs/1705.07832), 2017), section 3. Its M is
W / (1 - p), because its noise is not divided by 1 - p; so $(1 - p)\lVert M \rVert^2$ there is $\lVert W \rVert^2 / (1 - p)$ here.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesify.core.checks import check_choice, check_open_fraction, check_positive, check_scale
from bayesify.core.layer import BayesianLayer, Posterior
from bayesify.core.method import Method
from bayesify.functional import at_least_float32, concrete_mask, dropout_kl

__all__ = ["ConcreteDropout"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConcreteDropout(Method):
    """Dropout with a learned probability per layer, of linear layers and convolutions, also in prediction.

    Args:
        noise: "input" drops inputs per example, in convolutions whole channels; "weight" drops weights, once per sample.
        p: initial probability of dropping an input, in (0, 1).
        temperature: t of the relaxation; smaller values are closer to dropout, with noisier gradients of p.
        prior_std: standard deviation of the normal prior on weights and biases, which are point estimates. Larger weights and a
            smaller `prior_std` lead to smaller p.

    Example:
        >>> bnn = bayesify(torch.nn.Linear(2, 1), ConcreteDropout(p=0.2))
        >>> bnn.net.posterior.probability()
        tensor(0.2000, grad_fn=<SigmoidBackward0>)
    """

    family: ClassVar[str] = "Dropout"
    paper: ClassVar[str] = "Gal, Hron & Kendall 2017, arXiv 1705.07832"
    advice: ClassVar[str] = "MCDropout without a search for p; with few rows and many epochs the rate can go to 0."
    cost: ClassVar[str] = "1.6, 1.2; S passes"

    noise: Literal["input", "weight"] = "input"
    p: float = 0.1
    temperature: float = 0.1
    prior_std: float = 1.0

    def __post_init__(self) -> None:
        check_choice("noise", self.noise, ("input", "weight"))
        check_open_fraction("p", self.p, f"; for a fixed p use {'MCDropout' if self.noise == 'input' else 'DropConnect'}(p=...)")
        check_positive("temperature", self.temperature)
        check_scale("prior_std", self.prior_std)

    def build(self, layer: BayesianLayer) -> Posterior | None:
        return ConcreteDropoutPosterior(self) if layer.contracts else None


class ConcreteDropoutPosterior(Posterior):
    """The layer's weight, its input channels or elements dropped at random; the parameter is the logit of p."""

    def __init__(self, method: ConcreteDropout) -> None:
        super().__init__()
        self.method = method
        self.logit = nn.Parameter(torch.full((1,), math.log(method.p) - math.log1p(-method.p)))  # FSDP shards no scalars

    def probability(self) -> Tensor:
        """p, a scalar of at least float32."""
        return at_least_float32(self.logit).squeeze().sigmoid()

    def sample(self, layer: BayesianLayer, samples: int) -> tuple[Tensor, Tensor | None]:
        weight, bias = self.mean(layer)
        of_inputs = self.method.noise == "input"
        shape = (samples, layer.input_channels) if of_inputs else (samples, *layer.weight_shape)
        mask = concrete_mask(shape, self.logit, self.method.temperature).to(weight.dtype)
        noisy = weight * (layer.over_weight(mask) if of_inputs else mask)
        return noisy, None if bias is None else bias.expand(samples, *bias.shape)

    def forward(self, layer: BayesianLayer, x: Tensor) -> Tensor:
        if self.method.noise == "weight":
            return super().forward(layer, x)
        mask = concrete_mask((x.shape[0], layer.input_channels), self.logit, self.method.temperature).to(x.dtype)
        return layer.op_of_scaled(x, mask, *self.mean(layer))

    def kl(self, layer: BayesianLayer) -> Tensor:
        (weight, bias), logit = self.mean(layer), at_least_float32(self.logit).squeeze()
        total = dropout_kl(weight, None, 0.0, self.method.prior_std) * (1 + logit.exp())  # 1 / (1 - p), also where p rounds to 1
        if bias is not None:
            total = total + dropout_kl(bias, None, 0.0, self.method.prior_std)
        size = logit.abs()
        entropy = F.softplus(-size) + size * torch.sigmoid(-size)  # a sum of positive terms
        choices = layer.input_channels if self.method.noise == "input" else math.prod(layer.weight_shape)
        return total + choices * (math.log(2) - entropy)
