r"""Laplace approximations: a normal distribution around trained weights, whose precision is the curvature there.

Daxberger, Kristiadi, Immer, Eschenhagen, Bauer & Hennig, *Laplace redux: effortless Bayesian deep learning* (2021, arXiv
2106.14806).

$$q(\theta) = N\bigl(\hat\theta,\ (G + s^{-2} I)^{-1}\bigr), \qquad
  G = \sum_i J_i^\top \Lambda_i J_i, \quad J_i = \nabla_\theta f(x_i; \hat\theta), \quad
  \Lambda_i = -\nabla_f^2 \log p(y_i \mid f)$$

with the generalized Gauss-Newton matrix G of the log likelihood (section 2.2), or its diagonal, or Kronecker factors per weight
(K-FAC, in which a bias is independent of its weight). The prior's s maximizes the marginal likelihood (equation 4 at the mode)

$$\log p(y \mid \hat\theta) - \tfrac12\Bigl(\frac{\lVert\hat\theta\rVert^2}{s^2} + \log\det(G + s^{-2} I) + P \log s^2\Bigr),$$

without further training, by golden section within a factor of 1e4 of `prior_std`; P is the number of weights. Linearized
predictions are those of $f(x; \hat\theta) + J(x)(\theta - \hat\theta)$, for which q is the exact posterior if $\hat\theta$ is the
mode and the noise is normal. Immer, Korzepa & Bauer, *Improving predictions of Bayesian neural nets via local linearization* (2021,
arXiv 2008.08400), find them better than those of the network with the same weights.

Curvature and marginal likelihood are those of the authors' `laplace-torch`. The result is stored in buffers, so that saving,
loading and predicting need only PyTorch.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from bayesify.core.checks import check_scale
from bayesify.core.completion import CompletedPosterior
from bayesify.core.layer import BayesianLayer, Posterior
from bayesify.core.layers.linear import OutputMajorLinear
from bayesify.core.method import Method
from bayesify.core.output_layer import last_layer
from bayesify.core.stored import layer_parts, layer_vector
from bayesify.errors import ConfigurationError
from bayesify.functional import standard_normal
from bayesify.methods._laplace_torch import STRUCTURES, check_laplace, check_network, fit_laplace
from bayesify.methods._linearized import Linearized
from bayesify.methods._weight_density import WeightDensity

if TYPE_CHECKING:
    from bayesify.core.model import Bayesian
    from bayesify.likelihoods import Likelihood

__all__ = ["Laplace"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Laplace(Method):
    """A normal distribution around the trained weights, with the curvature of the log likelihood and the prior as precision.

    Training needs `bayesify[laplace]`, and the likelihood `Gaussian` or `Categorical`. Layers of a sub-network are named by
    patterns: `bayesify(net, {"features.0": Laplace()})`; together they have one posterior.

    Args:
        layers: "last", the last linear layer or convolution, or "all".
        structure: of the curvature: "diagonal", "kronecker" factors per weight (linear layers and `Conv2d`), or "full", whose
            memory is quadratic in the number of weights of these layers.
        prior_std: standard deviation of the normal prior on weights and biases in training.
        tune_prior: whether the posterior uses the prior standard deviation that maximizes the marginal likelihood, instead of
            `prior_std`. It is at most a factor of 1e4 away, where it ends if the weights are 0 or the data do not depend on them.
        linearized: whether predictions are those of the network linearized in these weights (recommended), or of the network.

    Example:
        >>> x = torch.linspace(-1, 1, 64).unsqueeze(1)
        >>> bnn = bayesify(nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)), Laplace(structure="full"))
        >>> bnn.net[2].posterior.is_complete  # until `fit` or `bnn.complete` is called
        False
    """

    family: ClassVar[str] = "After training"
    paper: ClassVar[str] = "Daxberger et al. 2021, arXiv 2106.14806"
    advice: ClassVar[str] = "A posterior for a network that is trained already, by default of its last layer."
    cost: ClassVar[str] = "1.2, 1.1, and a pass over the data at the end; S passes or fewer"

    has_root: ClassVar[bool] = True

    layers: Literal["last", "all"] = "last"
    structure: Literal["diagonal", "kronecker", "full"] = "kronecker"
    prior_std: float = 1.0
    tune_prior: bool = True
    linearized: bool = True

    def __post_init__(self) -> None:
        for name, choices in (("layers", ("last", "all")), ("structure", tuple(STRUCTURES))):
            if getattr(self, name) not in choices:
                raise ConfigurationError(f"{name} must be one of {', '.join(map(repr, choices))}, got {getattr(self, name)!r}")
        check_scale("prior_std", self.prior_std)

    def assign(self, layers: Mapping[str, nn.Module]) -> Mapping[str, Method]:
        if self.layers == "all":
            return dict.fromkeys(layers, self)
        last = self.output_layer(layers)
        return {} if last is None else {last: self}

    def output_layer(self, layers: Mapping[str, nn.Module]) -> str | None:
        return None if self.layers == "all" else last_layer(layers)

    def build(self, layer: BayesianLayer) -> Posterior | None:
        if self.structure == "full":
            return FullPosterior(self, ("scale", "evidence"))
        if self.structure == "diagonal":
            return DiagonalPosterior(self, ("std", "evidence"))
        if not isinstance(layer, OutputMajorLinear) and not (isinstance(layer, nn.Conv2d) and layer.groups == 1):
            return None
        return KroneckerPosterior(self, ("std", "output_vectors", "input_vectors", "bias_std", "bias_vectors", "evidence"))

    def root(self, net: nn.Module) -> nn.Module:
        return Linearized(net, self.linearized)

    def check_completion(self, likelihood: Likelihood, weighted: bool) -> None:
        check_laplace(likelihood, weighted)

    def rehearse(self, bnn: Bayesian, names: Sequence[str], batch: Any, likelihood: Likelihood) -> None:
        check_network(WeightDensity(bnn, names, likelihood, 1.0, self.prior_std, torch.float64), batch)

    def complete(
        self,
        bnn: Bayesian,
        names: Sequence[str],
        batches: Iterable[Any],
        likelihood: Likelihood,
        scale: float,
        advance: Callable[[float], object],
    ) -> None:
        density = WeightDensity(bnn, names, likelihood, scale, self.prior_std, torch.float64)
        found = fit_laplace(density, names, batches, self.structure, self.tune_prior)
        layers = dict(bnn.random_layers())
        for name, values in found.layers.items():
            posterior = layers[name].posterior
            assert isinstance(posterior, LaplacePosterior)
            posterior.store(**values, evidence=torch.tensor([found.prior_std, found.log_evidence], dtype=torch.float64))


class LaplacePosterior(CompletedPosterior):
    """Normal distribution around the layer's own weight and bias.

    Attributes:
        evidence: (2,), the prior standard deviation of the posterior, and the log marginal likelihood in nats.
    """

    evidence: Tensor

    def __init__(self, method: Laplace, stored: Iterable[str]) -> None:
        super().__init__(method, method.prior_std, stored)

    def drawn(self, layer: BayesianLayer, samples: int) -> tuple[Tensor, Tensor | None]:
        return layer_parts(layer, layer_vector(layer) + self.deviation(layer, samples))

    @abstractmethod
    def deviation(self, layer: BayesianLayer, samples: int) -> Tensor:
        """Draws (S, P) around the mean."""

    def remark(self) -> str:
        if not self.is_complete or self.evidence.is_meta:
            return ""
        prior_std, log_evidence = self.evidence.tolist()
        return f"prior std {prior_std:.3g}, log marginal likelihood {log_evidence:.1f} nats"


class DiagonalPosterior(LaplacePosterior):
    """Independent weights, of standard deviations `std` (P,)."""

    std: Tensor

    def deviation(self, layer: BayesianLayer, samples: int) -> Tensor:
        return self.std * standard_normal(samples, len(self.std), like=self.std)


class FullPosterior(LaplacePosterior):
    """The layer's rows `scale` (P, Q) of a square root of the covariance of all Q weights; layers share a draw's noise (Q,)."""

    scale: Tensor

    def deviation(self, layer: BayesianLayer, samples: int) -> Tensor:
        scale, size = self.scale, self.scale.shape[1]
        z = layer.forward_pass.once(f"{self.method} {size}", lambda _: standard_normal(samples, size, like=scale), like=scale)
        return z @ scale.T


class KroneckerPosterior(LaplacePosterior):
    """Weights (O, K) independent in the eigenvectors of both factors, with standard deviations there; likewise the bias.

    Attributes:
        std, output_vectors, input_vectors: (O, K), (O, O), (K, K).
        bias_std, bias_vectors: (O,), (O, O); without elements for a layer without bias.
    """

    needs_calls = True
    std: Tensor
    output_vectors: Tensor
    input_vectors: Tensor
    bias_std: Tensor
    bias_vectors: Tensor

    def deviation(self, layer: BayesianLayer, samples: int) -> Tensor:
        z = self.std * standard_normal(samples, *self.std.shape, like=self.std)
        weight = (self.output_vectors @ z @ self.input_vectors.T).flatten(1)
        if layer.bias_shape is None:
            return weight
        bias = (self.bias_std * standard_normal(samples, len(self.bias_std), like=self.std)) @ self.bias_vectors.T
        return torch.cat([weight, bias], 1)
