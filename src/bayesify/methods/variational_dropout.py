r"""Variational dropout: Gaussian dropout with learned rates.

Kingma, Salimans & Welling, *Variational dropout and the local reparameterization trick* (2015).

Type A, `noise="input"` (section 3.2): the noise multiplies the inputs, so all weights of an input unit share it:

$$y = (x \circ \xi)\,\theta + b, \qquad \xi_i \sim N(1, \alpha_i), \qquad \mathrm{KL} = \sum_i \mathrm{KL}(\alpha_i),$$

with one term per input unit. Type B, `noise="weight"` (section 3.1): the noise of every weight is independent, drawn with the
local reparameterization:

$$w_{ij} \sim N(\theta_{ij}, \alpha_{ij}\theta_{ij}^2), \qquad y_j \sim N\Bigl(\sum_i x_i\theta_{ij} + b_j,
  \sum_i \alpha_{ij} x_i^2\theta_{ij}^2\Bigr), \qquad \mathrm{KL} = \sum_{ij} \mathrm{KL}(\alpha_{ij}),$$

with one term per weight, also where alpha is shared. The prior is log-uniform, and its KL (`log_uniform_kl`) is computed exactly,
with the constant for which it tends to 0 as $\alpha \to \infty$ ($\gamma$ is Euler's constant):

$$\mathrm{KL}(\alpha) = \mathrm{E}_{\xi\sim N(1, \alpha)}\log|\xi| - \tfrac12\log\alpha + \tfrac12(\gamma + \log 2)$$

$\theta$ and b are point estimates; with `prior_std` they have a normal prior, whose negative log density (without the constant) is
added to the KL.

With `prior="ard"` (automatic relevance determination) the prior of a weight is a normal of mean zero and the best variance for it
(empirical Bayes), $\theta^2 (1 + \alpha)$, and $\mathrm{KL}(\alpha) = \tfrac12\log(1 + 1/\alpha)$: Kharitonov, Molchanov & Vetrov,
*Variational dropout via empirical Bayes* (2018, arXiv 1811.00596); for type A, appendix F of the VSD paper (arXiv 2102.07927).

Type A's posterior over weights is singular and the log-uniform prior improper, so the KL is that of the noise: a penalty, not part
of a bound on the evidence (Hron et al., 2018). The paper leaves this open.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesify.core.checks import check_choice, check_open_fraction, check_scale
from bayesify.core.layer import BayesianLayer, Posterior
from bayesify.core.method import Method
from bayesify.errors import ConfigurationError
from bayesify.functional import (
    at_least_float32,
    at_most,
    dropout_kl,
    gaussian_factors,
    gaussian_factors_and_kl,
    log_uniform_kl,
    standard_normal,
)

__all__ = ["VariationalDropout"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class VariationalDropout(Method):
    """Gaussian dropout with learned rates, for linear layers and convolutions.

    Args:
        noise: "input" multiplies inputs (type A, correlated weights), "weight" every weight (type B). Convolutions draw input
            noise per example and channel, the same at every position.
        alpha_per: one noise variance per "layer", per input "unit" or per "weight" (only with `noise="weight"`).
        p: initial dropout rate in (0, 1): alpha starts at p / (1 - p).
        learn: whether to learn alpha; False is Gaussian dropout with a fixed rate.
        prior: "log-uniform" as in the paper, or "ard", for which alpha needs no bound.
        max_alpha: upper bound of alpha; 1 as in the paper, which finds that larger values lead to poor local optima; None for no
            bound.
        prior_std: standard deviation of a normal prior on theta and b; None for a flat one, as in the paper.

    Example:
        >>> bnn = bayesify(torch.nn.Linear(2, 1), VariationalDropout(p=0.5, alpha_per="layer"))
        >>> bnn(torch.ones(4, 2)).kl  # two input units at alpha = 1
        tensor(0.8534, grad_fn=<SumBackward0>)
    """

    family: ClassVar[str] = "Dropout"
    paper: ClassVar[str] = "Kingma, Salimans & Welling 2015, arXiv 1506.02557"
    advice: ClassVar[str] = "Dropout with learned rates at little more cost; give it a prior_std on small tables."
    cost: ClassVar[str] = "1.4, 1.1; S passes"

    noise: Literal["input", "weight"] = "input"
    alpha_per: Literal["layer", "unit", "weight"] = "unit"
    p: float = 0.2
    learn: bool = True
    prior: Literal["log-uniform", "ard"] = "log-uniform"
    max_alpha: float | None = 1.0
    prior_std: float | None = None

    def __post_init__(self) -> None:
        check_choice("noise", self.noise, ("input", "weight"))
        check_choice("alpha_per", self.alpha_per, ("layer", "unit", "weight"))
        check_choice("prior", self.prior, ("log-uniform", "ard"))
        if self.noise == "input" and self.alpha_per == "weight":
            raise ConfigurationError(
                'alpha_per="weight" requires noise="weight": input noise is shared by all weights of an input unit'
            )
        check_open_fraction("p", self.p, "; for no noise use Deterministic()")
        if self.max_alpha is not None:
            check_scale("max_alpha", self.max_alpha)
            if self.p / (1 - self.p) > self.max_alpha:
                raise ConfigurationError(
                    f"p={self.p!r} is an initial alpha of {self.p / (1 - self.p):.3g}, above max_alpha={self.max_alpha!r}"
                )
        if self.prior_std is not None:
            check_scale("prior_std", self.prior_std)

    def build(self, layer: BayesianLayer) -> Posterior | None:
        if not layer.contracts:
            return None
        return InputNoisePosterior(self, layer) if self.noise == "input" else WeightNoisePosterior(self, layer)


class _GaussianDropoutPosterior(Posterior):
    """Base of both types: alpha, its bound and the KL."""

    def __init__(self, method: VariationalDropout, layer: BayesianLayer) -> None:
        super().__init__()
        shapes = {"layer": (), "unit": (layer.input_channels,), "weight": layer.weight_shape}
        log_alpha = torch.full(shapes[method.alpha_per], math.log(method.p) - math.log1p(-method.p))
        self.alpha_per = method.alpha_per
        self.prior_std, self.prior = method.prior_std, method.prior
        self.log_bound = None if method.max_alpha is None else math.log(method.max_alpha)
        if method.learn:
            self.log_alpha = nn.Parameter(log_alpha)
        else:
            self.register_buffer("log_alpha", log_alpha)

    def bounded_log_alpha(self) -> Tensor:
        """log alpha, bounded from above: (), (K,) or the weight's shape."""
        return self.log_alpha if self.log_bound is None else at_most(self.log_alpha, self.log_bound)

    def terms(self, layer: BayesianLayer) -> int:
        """The number of the layer's noise variables, each with its own KL."""
        raise NotImplementedError

    def kl(self, layer: BayesianLayer) -> Tensor:
        # beyond the bound the gradient of the KL points outwards, so `clamp` equals `at_most` and is cheaper
        log_alpha = self.log_alpha if self.log_bound is None else self.log_alpha.clamp(max=self.log_bound)
        log_alpha = at_least_float32(log_alpha)
        each = log_uniform_kl(log_alpha) if self.prior == "log-uniform" else 0.5 * F.softplus(-log_alpha)
        repeats = self.terms(layer) // each.numel()
        return self.with_prior(layer, each.sum() if repeats == 1 else each.sum() * repeats)

    def with_prior(self, layer: BayesianLayer, kl: Tensor) -> Tensor:
        """The KL of the noise, and that of the prior on theta and b if there is one."""
        return kl if self.prior_std is None else kl + dropout_kl(*self.mean(layer), 0.0, self.prior_std)


class InputNoisePosterior(_GaussianDropoutPosterior):
    """Type A."""

    def terms(self, layer: BayesianLayer) -> int:
        return layer.input_channels

    def noise(self, rows: int, layer: BayesianLayer) -> Tensor:
        """xi (rows, K). Reports the KL to passes that want it, which shares its operators."""
        if self.prior != "log-uniform" or self.alpha_per != "unit" or not layer.forward_pass.wants_kl():
            return gaussian_factors(self.log_alpha, rows, layer.input_channels, self.log_bound)
        noise, kl = gaussian_factors_and_kl(self.log_alpha, rows, self.log_bound)
        layer.forward_pass.kl(self, self.with_prior(layer, kl))
        return noise

    def sample(self, layer: BayesianLayer, samples: int) -> tuple[Tensor, Tensor | None]:
        weight, bias = self.mean(layer)
        noisy = weight * layer.over_weight(self.noise(samples, layer))
        return noisy, None if bias is None else bias.expand(samples, *bias.shape)

    def forward(self, layer: BayesianLayer, x: Tensor) -> Tensor:
        weight, bias = self.mean(layer)
        return layer.op_of_scaled(x, self.noise(x.shape[0], layer), weight, bias)


class WeightNoisePosterior(_GaussianDropoutPosterior):
    """Type B."""

    has_moments = True

    def terms(self, layer: BayesianLayer) -> int:
        return math.prod(layer.weight_shape)

    def over_weight(self, alpha: Tensor, layer: BayesianLayer) -> Tensor:
        """alpha, broadcastable to the weight."""
        return layer.over_weight(alpha) if self.alpha_per == "unit" else alpha

    def sample(self, layer: BayesianLayer, samples: int) -> tuple[Tensor, Tensor | None]:
        weight, bias = self.mean(layer)
        std = self.over_weight(torch.exp(0.5 * self.bounded_log_alpha()), layer) * weight
        eps = standard_normal(samples, *weight.shape, like=weight)
        return weight + std * eps, None if bias is None else bias.expand(samples, *bias.shape)

    def moments(self, layer: BayesianLayer, x: Tensor) -> tuple[Tensor, Tensor]:
        weight, bias = self.mean(layer)
        variance = self.over_weight(torch.exp(self.bounded_log_alpha()), layer) * weight.square()
        return layer.op(x, weight, bias), layer.op(layer.square(x), variance, None)
