r"""Deterministic variational inference: moments of activations instead of draws.

Weights and biases have independent normal posteriors. The mean and covariance of the activations pass through the network in
closed form. For a linear layer with weights of means M and variances V, biases of means b and variances $v_b$, and inputs of mean m
and covariance C,

$$\mathrm{E} = M m + b, \qquad \mathrm{Cov} = M C M^\top + \mathrm{diag}\bigl(V (m^2 + \mathrm{diag}\,C) + v_b\bigr),$$

which is exact. For a ReLU they are the moments of a rectified normal (`relu_covariance`): exact for the first ReLU, whose inputs
are normal, and an approximation for the others. So the outputs are $N(\mu(x), \Sigma(x))$, and with a likelihood whose expectation
has a closed form (`Gaussian`, `HeteroscedasticGaussian`, `Poisson`) training is free of noise. For `HeteroscedasticGaussian`,
whose outputs are a mean m and a log variance l with covariance c,

$$\mathrm{E} \log p = -\tfrac12\bigl[\log 2\pi + \mu_l + e^{-\mu_l + \sigma_l^2 / 2}\,((y - \mu_m + c)^2 + \sigma_m^2)\bigr].$$

With other likelihoods the outputs are drawn, as in prediction. `coherent=True`, `bnn.function` and `sample_network` draw weights.
The KL is that of mean field.

Source: Wu, Nowozin, Meeds, Turner, Hernandez-Lobato & Gaunt, *Deterministic variational inference for robust Bayesian neural
networks* (2019, arXiv 1810.03958), sections 3 to 5. The covariances of rectified normals are exact here; the paper uses an
expansion. The prior "empirical-bayes" has the constants of the published code, in which the mode of the prior on the variance is
2 / fan-in.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from bayesify.core.checks import check_choice, check_scale
from bayesify.core.layer import BayesianLayer, Posterior
from bayesify.core.method import Method
from bayesify.functional import at_least_float32, gaussian_kl_sum, vifo_empirical_bayes
from bayesify.functional.noise import normal_draws
from bayesify.methods._moment_root import MomentRoot

__all__ = ["DVI"]

_SHAPE = 4.4798  # of the inverse gamma prior of variances


@dataclasses.dataclass(frozen=True, kw_only=True)
class DVI(Method):
    """Deterministic variational inference, for chains of linear layers and ReLUs on inputs (B, I).

    Modules before the first linear layer act on the inputs as they are. For H hidden units, `covariance="full"` takes O(B H^2)
    memory and O(B H^3) time.

    Args:
        covariance: "full" propagates the covariances of hidden units, "diagonal" only their variances (dDVI). The outputs always
            have a full covariance.
        prior: "normal", or "empirical-bayes" with a learned variance per weight matrix and bias.
        prior_std: standard deviation of the normal prior.
        initial_std: initial posterior standard deviation, in units of 1/sqrt(fan-in).

    Example:
        >>> bnn = bayesify(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)), DVI())
        >>> bnn.normal_outputs(torch.zeros(5, 3)).covariance.shape
        torch.Size([5, 2, 2])
    """

    family: ClassVar[str] = "Weights"
    paper: ClassVar[str] = "Wu et al. 2019, arXiv 1810.03958"
    advice: ClassVar[str] = "Networks of linear layers and ReLUs on tables, trained and predicted without sampling noise."
    cost: ClassVar[str] = "8.5 and 4.6 for the MLPs 13-50-1 and 784-400-400-10; one pass"

    has_root: ClassVar[bool] = True

    covariance: Literal["full", "diagonal"] = "full"
    prior: Literal["normal", "empirical-bayes"] = "normal"
    prior_std: float = 1.0
    initial_std: float = 0.1

    def __post_init__(self) -> None:
        check_choice("covariance", self.covariance, ("full", "diagonal"))
        check_choice("prior", self.prior, ("normal", "empirical-bayes"))
        check_scale("prior_std", self.prior_std)
        check_scale("initial_std", self.initial_std)

    def assign(self, layers: Mapping[str, nn.Module]) -> Mapping[str, Method]:
        return {name: self for name, layer in layers.items() if isinstance(layer, nn.Linear)}

    def build(self, layer: BayesianLayer) -> Posterior | None:
        return DVIPosterior(self, layer) if isinstance(layer, nn.Linear) else None

    def root(self, net: nn.Module) -> MomentRoot:
        return MomentRoot(net, self.covariance == "full")


class DVIPosterior(Posterior):
    """Log standard deviations; the means are the layer's own weight and bias."""

    has_moments = True
    needs_linearity = True
    weight_log_std: Tensor
    bias_log_std: Tensor | None

    def __init__(self, method: DVI, layer: BayesianLayer) -> None:
        super().__init__()
        self.method = method
        log_std = math.log(method.initial_std) - 0.5 * math.log(layer.fan_in)
        for name, mean in (("weight", layer.weight), ("bias", layer.bias)):
            log_stds = None if mean is None else nn.Parameter(torch.full(mean.shape, log_std))
            self.register_parameter(f"{name}_log_std", log_stds)

    def sample(self, layer: BayesianLayer, samples: int) -> tuple[Tensor, Tensor | None]:
        weight, bias = self.mean(layer)
        drawn = normal_draws(weight, self.weight_log_std, samples)
        return drawn, None if bias is None or self.bias_log_std is None else normal_draws(bias, self.bias_log_std, samples)

    def moments(self, layer: BayesianLayer, x: Tensor) -> tuple[Tensor, Tensor]:
        return layer.op(x, *self.mean(layer)), layer.op(layer.square(x), *self.variances())

    def variances(self) -> tuple[Tensor, Tensor | None]:
        """Variances of weight and bias."""
        return torch.exp(2 * self.weight_log_std), None if self.bias_log_std is None else torch.exp(2 * self.bias_log_std)

    def kl(self, layer: BayesianLayer) -> Tensor:
        weight, bias = self.mean(layer)
        kl = self._kl_of(weight, self.weight_log_std, layer)
        return kl if bias is None or self.bias_log_std is None else kl + self._kl_of(bias, self.bias_log_std, layer)

    def _kl_of(self, mean: Tensor, log_std: Tensor, layer: BayesianLayer) -> Tensor:
        mean, log_std = at_least_float32(mean), at_least_float32(log_std)
        if self.method.prior == "normal":
            return gaussian_kl_sum(mean, log_std, 0.0, self.method.prior_std)
        b = (1 + _SHAPE) * 2 / layer.fan_in
        return vifo_empirical_bayes(mean.reshape(1, -1), log_std.exp().reshape(1, -1), _SHAPE, b).squeeze(0)
