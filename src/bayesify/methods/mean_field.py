r"""Mean field: an independent normal for every weight and bias.

$$q(w) = \prod_j N(w_j \mid \mu_j, \sigma_j^2), \qquad p(w) = \prod_j N(w_j \mid m_j, s^2), \qquad
  \mathrm{KL} = \sum_j\Bigl[\log\frac{s}{\sigma_j} + \frac{\sigma_j^2 + (\mu_j - m_j)^2}{2 s^2} - \frac12\Bigr]$$

`noise="local"` draws a layer's outputs instead of its weights, independently per output element (the local reparameterization of
Kingma, Salimans & Welling, 2015, section 2.3), which reduces the variance of gradients:

$$y_j \sim N\Bigl(\sum_i x_i\mu_{ij} + \mu_j, \; \sum_i x_i^2\sigma_{ij}^2 + \sigma_j^2\Bigr)$$

`noise="shared"` draws the weights once per sample for the whole batch (Bayes by Backprop; Blundell et al., 2015), which costs less
per step and, in convolutions and sequences, per prediction.

In convolutions and sequences, local noise is also independent at every position, where drawn weights correlate positions. Such a
network is trained for independent noise, and `predict` draws the same. With drawn weights (`coherent=True`, `bnn.function`,
`bnn.drawn`) its outputs vary more than in training: on digits, at the full weight of the KL, the negative log-likelihood is .132
instead of .081 nats for a small convolutional network, and .272 instead of .173 for a transformer. With `noise="shared"`, which
trains with draws of the weights, it is .178 and .180 (`tools/noise_of_positions.py`).

`noise="flipout"` (Wen, Vicol, Ba, Tran & Grosse, *Flipout*, 2018, arXiv 1803.04386, section 3.1) draws one perturbation
$\Delta$ of the weights per sample, and gives every example b random signs s of its inputs and r of its outputs:

$$y_b = \mu^\top x_b + r_b \circ \bigl(\Delta^\top (x_b \circ s_b)\bigr), \qquad \Delta_{ij} = \sigma_{ij}\epsilon_{ij}$$

The weights of one example are a draw of q, the same at every position of a convolution or sequence; those of two examples are
uncorrelated. The signs cancel in $\epsilon^2$, so gradients with respect to $\sigma$ gain less than those for $\mu$.

Priors with learned parameters: Tomczak, Swaroop, Foong & Turner, *Collapsed variational bounds for Bayesian neural networks*
(2021); for one variance per tensor, Wu et al., *Deterministic variational inference* (2019, arXiv 1810.03958), section 4. Wei &
Khardon, *Variational inference on the final-layer output of neural networks* (2024, arXiv 2302.02420), call them vi-mean, vi-mv
and vi-eb, and the normal prior vi-naive. As there, the bound of "empirical-bayes" omits the log prior of the variance.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from bayesify.core.checks import check_choice, check_open_fraction, check_scale
from bayesify.core.layer import BayesianLayer, Posterior
from bayesify.core.method import Method
from bayesify.errors import ConfigurationError
from bayesify.functional import bernoulli_mask, standard_normal
from bayesify.methods._stored_priors import StoredPrior
from bayesify.methods._weight_priors import COLLAPSED, kl_and_spread
from bayesify.native.gaussians import draws_and_kl, runs_in_one_pass, variances_and_kl, with_square
from bayesify.native.local_linear import local_linear, runs_as_one_node
from bayesify.native.operators import has_kernels

__all__ = ["MeanField"]

_SMALL = 2**16  # weights of a layer, for which calls take longer than draws


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeanField(Method):
    r"""Independent normal weights and biases, for every supported layer.

    Args:
        noise: "local" draws outputs per example (less gradient noise), "shared" draws weights per sample (cheaper), "flipout" flips
            signs of a shared draw per example, and is "shared" for normalization layers and embeddings.
        prior: "normal" is $N(m, s^2)$; "scale-mixture" is $\pi N(0, s^2) + (1 - \pi) N(0, t^2)$ (Blundell et al., 2015,
            equation 7), whose KL is estimated with one draw; "sequential" is normal, with a mean and standard deviation of every
            weight, at first m and s, which `update_prior` replaces by those of the posterior. The others learn the prior's
            parameters in closed form (collapsed variational inference): "mean" a mean per weight, "mean-variance" a mean and a
            variance per weight, "empirical-bayes" one variance per weight matrix and per bias. The regularizers of `VIFO` have the
            same names and formulas, for outputs instead of weights.
        prior_std: s, the standard deviation of the normal prior, of the wide component, or of weights around the prior's mean
            ("mean"; the papers use sqrt(0.3)).
        prior_mean: m, "zero" or "pretrained" (the network's weights at conversion).
        mixture_weight: $\pi$ of the scale mixture.
        mixture_std: t of the scale mixture, the narrow component.
        mean_prior_std: standard deviation of the prior's mean itself, of "mean".
        a, b: shape and scale of the inverse gamma prior of "mean-variance" and "empirical-bayes"; None for (0.5, 0.01) and
            (4.4798, 10). b / a and b / (a + 1) are the variances that weights of mean zero tend to.
        delta: of "mean-variance", how strongly means are drawn to zero, in (0, 1).
        initial_std: initial posterior standard deviation, in units of $1/\sqrt{\text{fan-in}}$, so that the noise in a layer's
            output is about this share of its signal for any width.

    Example:
        >>> bnn = bayesify(torch.nn.Linear(2, 1), MeanField(noise="shared"))
        >>> bnn(torch.zeros(4, 2), samples=3, coherent=True).outputs.shape
        torch.Size([3, 4, 1])
    """

    family: ClassVar[str] = "Weights"
    paper: ClassVar[str] = "Blundell et al. 2015, arXiv 1505.05424; Kingma, Salimans & Welling 2015, arXiv 1506.02557"
    advice: ClassVar[str] = "The first to try for uncertain weights of any network; lower beta below 1 if it underfits."
    cost: ClassVar[str] = "2.0, 2.0; S passes"

    noise: Literal["local", "shared", "flipout"] = "local"
    prior: Literal["normal", "scale-mixture", "sequential", "mean", "mean-variance", "empirical-bayes"] = "normal"
    prior_std: float = 1.0
    prior_mean: Literal["zero", "pretrained"] = "zero"
    mixture_weight: float = 0.5
    mixture_std: float = math.exp(-6)
    mean_prior_std: float = math.sqrt(5.7)
    a: float | None = None
    b: float | None = None
    delta: float = 0.1
    initial_std: float = 0.1

    def __post_init__(self) -> None:
        check_choice("noise", self.noise, ("local", "shared", "flipout"))
        check_choice("prior", self.prior, ("normal", "scale-mixture", "sequential", *COLLAPSED))
        check_choice("prior_mean", self.prior_mean, ("zero", "pretrained"))
        for name in ("prior_std", "mixture_std", "mean_prior_std", "initial_std"):
            check_scale(name, getattr(self, name))
        for name in ("a", "b"):
            if getattr(self, name) is not None:
                check_scale(name, getattr(self, name))
        check_open_fraction("delta", self.delta)
        check_open_fraction("mixture_weight", self.mixture_weight)
        if self.prior not in ("normal", "sequential") and self.prior_mean == "pretrained":
            raise ConfigurationError(f'prior_mean="pretrained" requires prior="normal": {self.prior!r} is centered on zero')

    def build(self, layer: BayesianLayer) -> Posterior:
        return GaussianPosterior(self, layer)


class GaussianPosterior(StoredPrior):
    """Log standard deviations; the means are the layer's own weight and bias."""

    weight_log_std: Tensor
    bias_log_std: Tensor

    def __init__(self, method: MeanField, layer: BayesianLayer) -> None:
        super().__init__()
        self.method = method
        self.has_moments = method.noise == "local"
        log_std = math.log(method.initial_std) - 0.5 * math.log(layer.fan_in)
        for name, mean in (("weight", layer.weight), ("bias", layer.bias)):
            log_stds = None if mean is None else nn.Parameter(torch.full(mean.shape, log_std))
            self.register_parameter(f"{name}_log_std", log_stds)
            self.register_prior(name, mean)

    def sample(self, layer: BayesianLayer, samples: int) -> tuple[Tensor, Tensor | None]:
        together = self.sample_together([layer]) if samples == 1 and self._joins_kl(layer) else None
        if together is not None:
            (drawn,), kl = together
            layer.forward_pass.kl(self, kl)
            return drawn
        weight, bias = self.mean(layer)
        weight_std, bias_std = self._spread(layer, power=1)
        drawn = _draw(weight, weight_std, samples)
        return drawn, None if bias is None or bias_std is None else _draw(bias, bias_std, samples)

    def draws_ahead(self, layer: BayesianLayer) -> Hashable:
        noise, like = self.method.noise, self.weight_log_std
        draws_weights = noise == "shared" or (noise == "flipout" and not layer.contracts) or layer.draws_weights
        if not draws_weights or self.method.prior != "normal" or like.numel() > _SMALL or not has_kernels(like):
            return None
        return GaussianPosterior, self.method.prior_std, like.device, like.dtype

    def sample_together(self, layers: Sequence[BayesianLayer]) -> tuple[list[tuple[Tensor, Tensor | None]], Tensor] | None:
        rows = [layer.posterior._tensors(layer) for layer in layers if isinstance(layer.posterior, GaussianPosterior)]
        means, log_stds = [mean for row in rows for mean in row[0]], [log_std for row in rows for log_std in row[1]]
        if not all(mean.is_contiguous() for mean in means) or not runs_in_one_pass(*means, *log_stds):
            return None
        noise = [standard_normal(*mean.shape, like=mean) for mean in means]
        centers = [center for row in rows for center in row[2]]
        drawn, kl = draws_and_kl(means, log_stds, centers, self.method.prior_std, noise)
        found = iter(drawn)
        return [_pair([next(found) for _ in own]) for own, _, _ in rows], kl

    def forward(self, layer: BayesianLayer, x: Tensor) -> Tensor:
        if self.method.noise == "local" and layer.original is nn.Linear and self._joins_kl(layer):
            means, log_stds, centers = self._tensors(layer)
            if runs_as_one_node(x, means, log_stds):
                noise = standard_normal(*x.shape[:-1], layer.output_channels, like=x)
                y, kl = local_linear(x, noise, means, log_stds, centers, self.method.prior_std)
                layer.forward_pass.kl(self, kl)
                return y
        if self.method.noise != "flipout" or not layer.contracts:
            return super().forward(layer, x)
        deltas = layer.forward_pass.once(self, lambda samples: self._perturbations(layer, samples))
        signs = [bernoulli_mask((x.shape[0], n), 0.5, like=x) - 1 for n in (layer.input_channels, layer.output_channels)]
        noise = layer.op(layer.scaled(x, signs[0]), *deltas, *[None] * (2 - len(deltas)))
        return layer.op(x, *self.mean(layer)) + layer.scaled(noise, signs[1])

    def _perturbations(self, layer: BayesianLayer, samples: int) -> tuple[Tensor, ...]:
        """Differences of drawn weights, and biases if there are any, from their means, (S, *)."""
        return tuple(_draw(torch.zeros_like(std), std, samples) for std in self._spread(layer, power=1) if std is not None)

    def kl(self, layer: BayesianLayer) -> Tensor:
        return self._kl_and_spread(layer, power=1)[0]

    def moments(self, layer: BayesianLayer, x: Tensor) -> tuple[Tensor, Tensor]:
        x = layer.prepare(x)
        means, log_stds, centers = self._tensors(layer)
        if self._joins_kl(layer) and runs_in_one_pass(*means, *log_stds):
            means, variances, kl = variances_and_kl(means, log_stds, centers, self.method.prior_std)
            layer.forward_pass.kl(self, kl)
            spread = _pair(variances)
        else:
            spread = self._spread(layer, power=2)
        x, squares = with_square(x) if x.requires_grad else (x, layer.square(x))
        return layer.op(x, *_pair(means)), layer.op(squares, *spread)

    def _tensors(self, layer: BayesianLayer) -> tuple[list[Tensor], list[Tensor], list[Tensor | None]]:
        """Means, log standard deviations and the prior's means of weight and bias, if there is one."""
        weight, bias = self.mean(layer)
        if bias is None:
            return [weight], [self.weight_log_std], [self.weight_prior_mean]
        return [weight, bias], [self.weight_log_std, self.bias_log_std], [self.weight_prior_mean, self.bias_prior_mean]

    def _joins_kl(self, layer: BayesianLayer) -> bool:
        """Whether native operators may compute the KL together with what a pass needs."""
        return self.method.prior == "normal" and layer.forward_pass.wants_kl()

    def _spread(self, layer: BayesianLayer, power: Literal[1, 2]) -> tuple[Tensor, Tensor | None]:
        """Standard deviations (power 1) or variances (power 2) of weight and bias; reports the KL to passes that want it.

        A KL that draws is left to the root: inside a checkpoint, whose first run has no gradients, it would be drawn again.
        """
        forward_pass = layer.forward_pass
        if self.method.prior == "scale-mixture" or not forward_pass.wants_kl():
            bias_spread = None if layer.bias is None else torch.exp(power * self.bias_log_std)
            return torch.exp(power * self.weight_log_std), bias_spread
        kl, weight_spread, bias_spread = self._kl_and_spread(layer, power)
        forward_pass.kl(self, kl)
        return weight_spread, bias_spread

    def _kl_and_spread(self, layer: BayesianLayer, power: Literal[1, 2]) -> tuple[Tensor, Tensor, Tensor | None]:
        weight, bias = self.mean(layer)
        prior = self.weight_prior_mean, self.weight_prior_log_std
        kl, weight_spread = kl_and_spread(self.method, weight, self.weight_log_std, *prior, power)
        if bias is None:
            return kl, weight_spread, None
        prior = self.bias_prior_mean, self.bias_prior_log_std
        bias_kl, bias_spread = kl_and_spread(self.method, bias, self.bias_log_std, *prior, power)
        return kl + bias_kl, weight_spread, bias_spread


def _pair(tensors: list[Tensor]) -> tuple[Tensor, Tensor | None]:
    """Weight, and bias or None."""
    return tensors[0], tensors[1] if len(tensors) > 1 else None


def _draw(mean: Tensor, std: Tensor, samples: int) -> Tensor:
    """(S, *shape of mean). A single draw is not broadcast: the gradient of a broadcast is a sum."""
    shape = mean.shape if samples == 1 else (samples, *mean.shape)
    drawn = torch.addcmul(mean, std, standard_normal(*shape, like=mean))
    return drawn.unsqueeze(0) if samples == 1 else drawn
